package hcl

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl/lang"
)

// places checks what the nodes of one host say about where they live.
type places struct {
	*rules
	host     *model.Host
	together map[string][]*model.Node // by their word
	said     map[diag.Range]bool      // of blocks with several instances, each is reported once
}

// checkPlaces checks on which PVE nodes nodes may live, with which others, and how much room hosts have.
func (rs *rules) checkPlaces() {
	for _, name := range slices.Sorted(maps.Keys(rs.site.Hosts)) {
		rs.checkCapacity(rs.site.Hosts[name])
		checkHostNodes(rs, rs.site.Hosts[name])
	}
	on := map[string]*places{}
	for _, m := range rs.deployed() {
		for _, n := range m.Nodes {
			if len(n.Nodes) == 0 && n.Spread == "" && n.Together == "" && !n.Resource.Declares("nodes") {
				continue
			}
			identity := m.On(n)
			if on[identity] == nil {
				h := rs.site.HostFor(identity)
				if h == nil {
					continue // the reference to it is reported
				}
				on[identity] = &places{rs, h, map[string][]*model.Node{}, map[diag.Range]bool{}}
			}
			on[identity].add(n)
		}
	}
	for _, identity := range slices.Sorted(maps.Keys(on)) {
		p := on[identity]
		for _, word := range slices.Sorted(maps.Keys(p.together)) {
			p.checkTogether(word, p.together[word])
		}
	}
}

// mostOvercommit bounds the factors, so that they can be counted with.
const mostOvercommit = 1000

func (rs *rules) checkCapacity(h *model.Host) {
	r := &model.Resource{At: h.At, Ranges: h.Ranges}
	if h.Capacity == nil {
		return
	}
	for path, v := range map[string]float64{"capacity.memory_overcommit": h.Capacity.MemoryOvercommit, "capacity.cores_overcommit": h.Capacity.CoresOvercommit} {
		if r.Declares(path) && (v <= 0 || v > mostOvercommit) {
			rs.ErrorAt(r.RangeOf(path), fmt.Sprintf("%s = %v is not valid", strings.TrimPrefix(path, "capacity."), v), "It is a multiple of what the PVE node has: above 0, and at most %d.", mostOvercommit)
		}
	}
}

// checkHostNodes warns of lists of PVE nodes that say something else than is meant.
func checkHostNodes(rs *rules, h *model.Host) {
	r := &model.Resource{At: h.At, Ranges: h.Ranges}
	for i, name := range h.Nodes {
		if slices.Contains(h.Nodes[:i], name) {
			rs.Add(diag.Warnf(r.RangeOf("nodes"), lang.Quote(name)+" is twice in nodes", "Remove one of them, or name the node that is meant."))
		}
	}
	if h.Node != "" && len(h.Nodes) > 0 && !slices.Contains(h.Nodes, h.Node) {
		rs.Add(diag.Warnf(r.RangeOf("node"), "node "+lang.Quote(h.Node)+" is not in nodes", "Guests are created there as well: add it to nodes, or name one of these: %s.", strings.Join(h.Nodes, ", ")))
	}
}

// once reports whether nothing was said yet about an attribute in the files.
func (p *places) once(at diag.Range) bool {
	said := p.said[at]
	p.said[at] = true
	return !said
}

// add checks one node, and notes with whom it is to be.
func (p *places) add(n *model.Node) {
	r, all := n.Resource, p.host.AllNodes()
	at := r.RangeOf("nodes")
	for _, name := range n.Nodes {
		if !slices.Contains(all, name) && p.once(at) {
			p.ErrorAt(at, "unknown PVE node "+lang.Quote(name), "%s", p.Nearest(name, all)+" The nodes of host "+lang.Quote(p.host.Name)+" are listed in its block.")
		}
	}
	if len(n.Nodes) == 0 && r.Declares("nodes") && p.once(at) {
		p.ErrorAt(at, "nodes is empty", "Name at least one PVE node, or remove it: then the guest may live on all nodes of the host.")
	}
	for _, word := range []struct{ attr, value string }{{"spread", n.Spread}, {"together", n.Together}} {
		if at := r.RangeOf(word.attr); word.value != "" && len(all) == 1 && p.once(at) {
			p.Add(diag.Warnf(at, word.attr+" has no effect", "Host %s is one PVE node. In a cluster, list the others in nodes of the host block.", lang.Quote(p.host.Name)))
		}
	}
	if n.Together != "" && len(all) > 1 {
		p.together[n.Together] = append(p.together[n.Together], n)
	}
}

// checkTogether finds nodes that are to be on one PVE node, and cannot.
func (p *places) checkTogether(word string, nodes []*model.Node) {
	may := p.host.AllNodes()
	apart := map[string]*model.Node{}
	for _, n := range nodes {
		if len(n.Nodes) > 0 {
			may = slices.DeleteFunc(may, func(name string) bool { return !slices.Contains(n.Nodes, name) })
		}
		if at := n.Resource.RangeOf("nodes"); len(may) == 0 && p.once(at) {
			p.ErrorAt(at, fmt.Sprintf("together = %s is not possible", lang.Quote(word)), "No PVE node is in nodes of all that have this word: give them one in common.")
			return
		}
		if n.Spread == "" {
			continue
		}
		first := apart[n.Spread]
		if first == nil {
			apart[n.Spread] = n
			continue
		}
		if at := n.Resource.RangeOf("spread"); p.once(at) {
			p.ErrorAt(at, fmt.Sprintf("%s is to be with %s, and apart from it", lang.Quote(n.Name), lang.Quote(first.Name)),
				"Both have together = %s and spread = %s: remove one of these.", lang.Quote(word), lang.Quote(n.Spread))
		}
	}
}
