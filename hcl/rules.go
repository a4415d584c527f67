package hcl

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// check holds the site against the rules that no single block can break.
func (l *load) check() {
	for _, m := range l.manifests {
		l.current = m.At.File
		l.link(m)
		l.checkTopology(m)
	}
	l.checkIdentities()
	l.checkVMIDs()
	l.checkRoom()
	l.resolveAll()
}

// deployed are the manifests that have a host, suspended or not: their nodes exist.
func (l *load) deployed() []*manifest {
	return slices.DeleteFunc(slices.Clone(l.manifests), func(m *manifest) bool { return m.Host == "" })
}

// checkTopology holds a manifest against its pattern, and its nodes against what
// the manifest and the site say of all of them.
func (l *load) checkTopology(m *manifest) {
	naming := l.naming()
	for _, n := range m.Nodes {
		r := n.Resource
		if m.Pattern == "flat" && n.Parent != "" {
			l.errorAt(r.RangeOf("parent"), fmt.Sprintf("node %s has a parent in a flat manifest", quote(n.Name)), "Flat means that all nodes live on the host itself: write pattern = \"tiered\", or remove parent.")
		}
		if naming != nil && !naming.MatchString(n.Name) {
			l.errorAt(r.At, fmt.Sprintf("name %s breaks the naming rule", quote(n.Name)), "The site wants names of nodes to match %s.", quote(l.site.Naming.Pattern))
		}
		n.Mode = "push"
		if m.Execution != nil {
			n.Mode = m.Execution.DefaultMode
		}
		explicit := n.Execution != nil && n.Execution.Mode != ""
		if explicit {
			n.Mode = n.Execution.Mode
		}
		if n.Type == typePVE {
			if explicit && n.Mode == "pull" {
				l.errorAt(r.RangeOf("execution.mode"), "mode pull on a pve node", "A pve node is always pushed at its birth: it pulls by itself from then on. Remove execution.")
			}
			n.Mode = "push"
		}
		l.checkVMID(n)
		l.checkChecks(n)
	}
}

func (l *load) naming() *regexp.Regexp {
	if l.site.Naming == nil || l.site.Naming.Pattern == "" {
		return nil
	}
	re, err := regexp.Compile("^(?:" + l.site.Naming.Pattern + ")$")
	if err != nil {
		return nil // told where it stands
	}
	return re
}

// checkVMID holds a node's VMID against PVE's limits and the site's ranges.
func (l *load) checkVMID(n *model.Node) {
	r, ranges := n.Resource, l.site.VMIDRanges
	if n.VMIDRange != "" {
		i := slices.IndexFunc(ranges, func(v model.VMIDRange) bool { return v.Name == n.VMIDRange })
		if i < 0 {
			if l.whole {
				l.errorAt(r.RangeOf("vmid_range"), "unknown vmid_range "+quote(n.VMIDRange), "%s", l.nearestOr(n.VMIDRange, rangeNames(l.site), "The site declares no vmid_range."))
			}
			return
		}
		ranges = ranges[i : i+1]
	}
	declared := n.VMID != 0 || !l.bad[r.Addr.String()] && slices.ContainsFunc(r.Ranges, func(p model.AttrRange) bool { return p.Path == "vmid" })
	inside := len(ranges) == 0 || slices.ContainsFunc(ranges, func(v model.VMIDRange) bool { return v.From <= n.VMID && n.VMID <= v.To })
	switch {
	case !declared:
	case n.VMID < minVMID || n.VMID > maxVMID:
		l.errorAt(r.RangeOf("vmid"), fmt.Sprintf("vmid %d is not possible", n.VMID), "PVE has VMIDs from %d to %d.", minVMID, maxVMID)
	case !inside:
		var text []string
		for _, v := range ranges {
			text = append(text, fmt.Sprintf("%s from %d to %d", v.Name, v.From, v.To))
		}
		l.errorAt(r.RangeOf("vmid"), fmt.Sprintf("vmid %d is outside of the site's ranges", n.VMID), "Possible: %s.", strings.Join(text, ", "))
	}
}

// checkIdentities sees to it that a node name means one machine in the whole site.
func (l *load) checkIdentities() {
	seen := map[string]*model.Node{}
	for _, m := range l.deployed() {
		for _, n := range m.Nodes {
			key := strings.ToLower(n.Name)
			first := seen[key]
			if first == nil {
				seen[key] = n
				continue
			}
			l.errorAt(n.At, fmt.Sprintf("node %s is deployed twice", quote(n.Name)),
				"Manifest %s has it at %s. A node's name is its identity: rename one of them, or take the host from one manifest.", quote(first.Manifest.Name), first.At)
		}
	}
}

// checkVMIDs finds VMIDs that two guests of one PVE host would have: those on the
// host itself, and those on one parent. A recipe is a host of its own.
func (l *load) checkVMIDs() {
	seen := map[string]*model.Node{}
	for _, m := range l.manifests {
		for _, n := range m.Nodes {
			if n.VMID == 0 {
				continue
			}
			key := fmt.Sprintf("%d on %s", n.VMID, onHost(m, n))
			first := seen[key]
			if first == nil {
				seen[key] = n
				continue
			}
			l.errorAt(n.Resource.RangeOf("vmid"), fmt.Sprintf("vmid %d is taken by node %s", n.VMID, quote(first.Name)), "It has it at %s, on the same PVE host.", first.Resource.RangeOf("vmid"))
		}
	}
}

// checkOwnVMIDs finds objects beside the manifests that become a guest, as a template
// does that is made here, under a VMID that something else on the host declares.
func (l *load) checkOwnVMIDs(want *model.Want) {
	for _, addr := range want.State.Addresses() {
		r := want.State[addr]
		if want.Nodes[addr] != nil || r.Guest == nil || r.Guest.VMID == 0 {
			continue
		}
		for _, other := range want.State.Addresses() {
			o := want.State[other]
			twice := want.Nodes[other] == nil && other.Compare(addr) >= 0 // told once of two templates
			if twice || o.Guest == nil || o.Guest.VMID != r.Guest.VMID {
				continue
			}
			l.errorAt(r.RangeOf("vmid"), fmt.Sprintf("vmid %d is taken by %s", r.Guest.VMID, other), "It has it at %s, on the same PVE host.", o.RangeOf("vmid"))
		}
	}
}

// resolveAll makes the complete form of every resource, each on its host, to hear
// from its kind what is wrong with it. What has findings already is not heard.
func (l *load) resolveAll() {
	if l.site.Name == "" {
		return
	}
	done := map[model.Address]bool{}
	wants := map[string]*model.Want{}
	defer func() { l.site.Resolved = wants }()
	claims := claims{load: l, seen: map[model.Claim]claimed{}}
	for _, host := range sortedKeys(l.site.Hosts) {
		want, found := l.site.Want(host)
		l.hear(found)
		wants[host] = want
		l.checkOwnVMIDs(want)
		for _, addr := range want.State.Addresses() {
			done[addr] = true
			if n := want.Nodes[addr]; n != nil {
				claims.add("", want.State[addr])
				l.checkNeeds(n, host)
			}
		}
	}
	for _, m := range l.manifests {
		scope := ""
		if m.Host == "" {
			scope = "manifest " + m.Name
		}
		for _, n := range m.Nodes {
			host := l.site.Hosts[m.Host]
			if host != nil && !m.Suspend && n.Root() {
				continue // done above
			}
			if !n.Root() {
				host = nil // its PVE host is a guest that does not exist yet
			}
			r, found := l.site.Resolve(n.Resource, host, n)
			l.hear(found)
			claims.add(scope, r)
		}
	}
	for _, addr := range l.site.Objects.Addresses() {
		if !done[addr] {
			_, found := l.site.Resolve(l.site.Objects[addr], nil, nil)
			l.hear(found)
		}
	}
}

// hear adds findings of kinds.
func (l *load) hear(found diag.List) {
	for _, f := range found {
		if !l.bad[f.Address] {
			l.add(f)
		}
	}
}

// checkNeeds finds objects that a node names but that live on another host.
func (l *load) checkNeeds(n *model.Node, host string) {
	for _, addr := range n.Resource.Needs {
		object := l.site.Objects[addr]
		if object == nil || l.bad[addr.String()] {
			continue
		}
		if on := model.HostOf(object.Spec); on != "" && on != host {
			l.errorAt(n.At, fmt.Sprintf("%s is not on host %s", addr, host), "Node %s needs it there, but %s lives on host %s.", quote(n.Name), addr, on)
		}
	}
}

// claims finds what two resources would both have.
type claims struct {
	*load
	seen map[model.Claim]claimed
}

type claimed struct {
	by string
	at diag.Range
}

// add notes the claims of a resolved resource. All deployed nodes share the scope "".
func (c *claims) add(scope string, r *model.Resource) {
	kind := c.site.Kinds.Get(r.Addr.Kind)
	if kind == nil || kind.Claims == nil || c.bad[r.Addr.String()] {
		return
	}
	for _, claim := range kind.Claims(r.Spec) {
		key := model.Claim{What: claim.What, Value: strings.ToLower(claim.Value), Path: scope}
		at := r.RangeOf(claim.Path)
		first, taken := c.seen[key]
		if !taken {
			c.seen[key] = claimed{r.Addr.Name, at}
			continue
		}
		value := quote(claim.Value)
		if r.IsSensitive(claim.Path) {
			value = sensitive
		}
		c.errorAt(at, fmt.Sprintf("%s %s is taken by node %s", claim.What, value, quote(first.by)), "It has it at %s.", first.at)
	}
}

// longSecrets lists the values that no text may repeat, longest first. Short ones
// are left out: they would tear holes into ordinary words.
func longSecrets(s *model.Secrets) []string {
	if s == nil {
		return nil
	}
	values := map[string]bool{}
	for _, section := range s.Values {
		for _, v := range section {
			if len(v) >= 6 {
				values[v] = true
			}
		}
	}
	return slices.SortedFunc(maps.Keys(values), func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
}
