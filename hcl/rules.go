package hcl

import (
	"bytes"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl/lang"
)

// rules checks what depends on several blocks: names, VMIDs, claims, parents and cycles.
type rules struct {
	*lang.Tree
	site      *model.Site
	manifests []*manifest
	moves     []move
	invalid   map[string]bool // addresses of resources with findings of their own
}

// check checks the site against all rules.
func (rs *rules) check() {
	for _, m := range rs.manifests {
		rs.Current = m.At.File
		rs.link(m)
		rs.checkTopology(m)
	}
	rs.checkIdentities()
	checkHostChecks(rs)
	rs.checkParents()
	rs.checkRemoved()
	rs.checkMoved()
	rs.checkAgents()
	checkUpgrade(rs)
	checkJobs(rs)
	checkNotify(rs)
	checkBackups(rs)
	rs.checkVMIDs()
	rs.checkRoom()
	rs.checkPlaces()
	rs.resolveAll()
	checkOutputs(rs)
}

// deployed are the manifests that have a host, suspended or not: their nodes exist.
func (rs *rules) deployed() []*manifest {
	return slices.DeleteFunc(slices.Clone(rs.manifests), func(m *manifest) bool { return m.Host == "" })
}

// checkTopology checks a manifest against its pattern, and its nodes against the rules of manifest
// and site.
func (rs *rules) checkTopology(m *manifest) {
	naming, said := rs.naming(), map[diag.Range]bool{}
	for _, n := range m.Nodes {
		r := n.Resource
		if m.Pattern == "flat" && n.Parent != "" {
			rs.ErrorAt(r.RangeOf("parent"), fmt.Sprintf("node %s has a parent in a flat manifest", lang.Quote(n.Name)), "All nodes of a flat manifest live on the host itself: write pattern = \"tiered\", or remove parent.")
		}
		if naming != nil && !naming.MatchString(n.Name) {
			rs.ErrorAt(r.At, fmt.Sprintf("name %s breaks the naming rule", lang.Quote(n.Name)), "Node names must match %s.", lang.Quote(rs.site.Naming.Pattern))
		}
		n.SetModes(m.Execution)
		if n.Type == typePVE {
			if x := n.Execution; x != nil && (x.Mode == model.ModePull || x.Config == model.ModePull || x.Run != "") {
				rs.ErrorAt(modeAt(m, n, "run", "config"), "mode pull on a pve node", "A pve node is always created by push; afterwards it pulls. Remove execution.")
			}
			n.Mode, n.Commands = model.ModePush, model.ModePush // as a machine; its agent has a queue
		}
		checkModes(rs, m, n, said)
		n.Inherit(m.Manifest, rs.site)
		rs.checkVMID(n)
		rs.checkChecks(n)
	}
}

// modeAt is where a mode of a node is declared: in the node, else in its manifest.
func modeAt(m *manifest, n *model.Node, phases ...string) diag.Range {
	above := &model.Resource{At: n.Resource.At, Ranges: m.ranges}
	for _, r := range []*model.Resource{n.Resource, above} {
		for _, phase := range append(phases, "mode", "default_mode") {
			if path := "execution." + phase; r.Declares(path) {
				return r.RangeOf(path)
			}
		}
	}
	return n.Resource.RangeOf("execution")
}

// checkModes warns of modes that cannot work, as far as the files show it, once for each line that declares one.
func checkModes(rs *rules, m *manifest, n *model.Node, said map[diag.Range]bool) {
	phase := "run"
	if n.Mode == model.ModePull {
		phase = "config"
	}
	at := modeAt(m, n, phase)
	warn := func(summary, detail string) {
		if !said[at] {
			rs.Add(diag.Warnf(at, summary, "%s", detail))
		}
		said[at] = true
	}
	switch h := rs.site.HostFor(m.On(n)); {
	case n.Mode != model.ModePull && !n.TakesCommands():
	case n.Spec == "" && n.Execution != nil && (n.Execution.Config == model.ModePull || n.Execution.Run == model.ModePull):
		warn(fmt.Sprintf("node %s pulls, and has no spec", lang.Quote(n.Name)), "Without a spec it gets no program, and takes no commands: name a spec, or remove execution.")
	case n.Type == "ct" && n.Spec != "" && h != nil && len(n.Nodes) != 1 && len(h.AllNodes()) > 1:
		warn(fmt.Sprintf("container %s may be created where no agent runs", lang.Quote(n.Name)),
			fmt.Sprintf("To pull, a container gets its program from the agent on its own PVE node, and the host has %d: name that of the agent, such as nodes = [%s], or write %s = \"push\".", len(h.AllNodes()), lang.Quote(h.PVENode()), phase))
	}
}

// checkAgents rejects a site that needs several agents for one host: they would undo each other's
// changes.
func (rs *rules) checkAgents() {
	for _, m := range rs.manifests {
		at := (&model.Resource{At: m.At, Ranges: m.ranges}).RangeOf("pattern")
		if m.Pattern == "federated" {
			rs.ErrorAt(at, "pattern federated is not supported yet", "One site can have several hosts: write a manifest for each, with pattern = \"tiered\".")
		}
		i := slices.IndexFunc(m.Nodes, func(n *model.Node) bool { return n.Type == typePVE && len(n.Children) > 0 })
		if m.Pattern == "mesh" && i >= 0 {
			rs.ErrorAt(m.Nodes[i].At, fmt.Sprintf("node %s has children in a mesh", lang.Quote(m.Nodes[i].Name)),
				"The nodes of a mesh are one cluster, and a cluster has one agent. List its nodes in nodes of the host block, and put the children on the host. With pattern = \"tiered\" each pve node is a separate host with its own agent.")
		}
	}
	seen := map[string]*model.Host{}
	for _, name := range slices.Sorted(maps.Keys(rs.site.Hosts)) {
		h := rs.site.Hosts[name]
		if h.Local {
			continue // each means its own machine
		}
		key := strings.ToLower(strings.TrimRight(h.API, "/"))
		if first := seen[key]; first != nil && key != "" {
			rs.ErrorAt((&model.Resource{At: h.At, Ranges: h.Ranges}).RangeOf("api"), fmt.Sprintf("host %s has the api of host %s", lang.Quote(name), lang.Quote(first.Name)),
				"A host or cluster has one agent: keep one host block, and list all nodes of the cluster in its attribute nodes.")
			continue
		}
		seen[key] = h
	}
}

func (rs *rules) naming() *regexp.Regexp {
	if rs.site.Naming == nil || rs.site.Naming.Pattern == "" {
		return nil
	}
	re, err := regexp.Compile("^(?:" + rs.site.Naming.Pattern + ")$")
	if err != nil {
		return nil // reported where it stands
	}
	return re
}

// checkVMID checks a node's VMID against PVE's limits and the site's ranges.
func (rs *rules) checkVMID(n *model.Node) {
	r, ranges := n.Resource, rs.site.VMIDRanges
	if n.VMIDRange != "" {
		i := slices.IndexFunc(ranges, func(v model.VMIDRange) bool { return v.Name == n.VMIDRange })
		if i < 0 {
			if rs.Complete {
				rs.ErrorAt(r.RangeOf("vmid_range"), "unknown vmid_range "+lang.Quote(n.VMIDRange), "%s", rs.NearestOr(n.VMIDRange, rangeNames(rs.site), "The site declares no vmid_range."))
			}
			return
		}
		ranges = ranges[i : i+1]
	}
	declared := n.VMID != 0 || !rs.invalid[r.Addr.String()] && r.Declares("vmid")
	inside := len(ranges) == 0 || slices.ContainsFunc(ranges, func(v model.VMIDRange) bool { return v.From <= n.VMID && n.VMID <= v.To })
	switch {
	case !declared:
	case n.VMID < lang.MinVMID || n.VMID > lang.MaxVMID:
		rs.ErrorAt(r.RangeOf("vmid"), fmt.Sprintf("vmid %d is not valid", n.VMID), "PVE has VMIDs from %d to %d.", lang.MinVMID, lang.MaxVMID)
	case !inside && n.Adopt == "":
		var text []string
		for _, v := range ranges {
			text = append(text, fmt.Sprintf("%s from %d to %d", v.Name, v.From, v.To))
		}
		rs.ErrorAt(r.RangeOf("vmid"), fmt.Sprintf("vmid %d is outside of the site's ranges", n.VMID), "Allowed: %s.", strings.Join(text, ", "))
	}
}

// checkHostChecks warns of checks that are not made on a host itself: it has no guest agent.
func checkHostChecks(rs *rules) {
	for _, name := range slices.Sorted(maps.Keys(rs.site.Hosts)) {
		for _, c := range rs.site.Checks(rs.site.Hosts[name].Machine()) {
			if c.Agent {
				rs.Add(diag.Warnf(c.At, fmt.Sprintf("check %s does not run on host %s itself", c.Name, name), "The host itself has no guest agent: check it by command, http, tcp or ssh."))
			}
		}
	}
}

// checkIdentities ensures that a node name is unique in the whole site.
func (rs *rules) checkIdentities() {
	seen := map[string]*model.Node{}
	for _, m := range rs.deployed() {
		for _, n := range m.Nodes {
			key := strings.ToLower(n.Name)
			if h := rs.site.Hosts[n.Name]; h != nil && n.Type != typePVE && h.Spec != "" {
				rs.ErrorAt(n.At, fmt.Sprintf("node %s has the name of a host", lang.Quote(n.Name)), "The host is at %s, and has a spec. What the spec says inside of it is guest.%s, as for a node: rename the node.", h.At, n.Name)
			} else if h != nil && n.Type == typePVE {
				rs.ErrorAt(n.At, fmt.Sprintf("node %s has the name of a host", lang.Quote(n.Name)), "The host is at %s. Both have an agent, and its name is its identity: rename the node.", h.At)
			}
			first := seen[key]
			if first == nil {
				seen[key] = n
				continue
			}
			rs.ErrorAt(n.At, fmt.Sprintf("node %s is deployed twice", lang.Quote(n.Name)),
				"Manifest %s declares it at %s. A node's name is its identity: rename one of them, or remove host from one manifest.", lang.Quote(first.Manifest.Name), first.At)
		}
	}
}

// checkParents checks the parents of hosts: each has an agent, and above each is one without a parent.
func (rs *rules) checkParents() {
	reported := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(rs.site.Hosts)) {
		h := rs.site.Hosts[name]
		if h.Parent == "" {
			continue
		}
		at := (&model.Resource{At: h.At, Ranges: h.Ranges}).RangeOf("parent")
		rs.Current = at.File
		if rs.site.HostFor(h.Parent) == nil {
			rs.noParent(h.Parent, at)
			continue
		}
		way := []string{name}
		for c := rs.site.Child(name); c != nil; c = rs.site.Child(c.Parent) {
			if way = append(way, c.Parent); c.Parent == name && !reported[name] {
				for _, other := range way {
					reported[other] = true
				}
				rs.ErrorAt(at, fmt.Sprintf("host %s is below itself", lang.Quote(name)), "%s: none of them has an agent that follows the repository. Remove one parent.", strings.Join(way, " → "))
			}
			if slices.Contains(way[:len(way)-1], c.Parent) {
				break // a circle above it is reported where it is
			}
		}
	}
}

// noParent says why a name is not that of an agent.
func (rs *rules) noParent(name string, at diag.Range) {
	for _, m := range rs.manifests {
		for _, n := range m.Nodes {
			switch {
			case n.Name != name && n.Block != name:
				continue
			case n.Type != typePVE:
				rs.ErrorAt(at, fmt.Sprintf("parent %s is not a pve node", lang.Quote(name)), "Its type is %s: only a host or a node of type pve has an agent that serves others.", n.Type)
			case m.Host == "":
				rs.ErrorAt(at, fmt.Sprintf("parent %s is in a recipe", lang.Quote(name)), "Manifest %s has no host, so the node does not exist: deploy the manifest, or name another parent.", lang.Quote(m.Name))
			default: // made by count or for_each
				rs.ErrorAt(at, fmt.Sprintf("parent %s names several nodes", lang.Quote(name)), "Name one of them, such as %s.", lang.Quote(n.Name))
			}
			return
		}
	}
	if rs.Complete {
		rs.ErrorAt(at, "unknown parent "+lang.Quote(name), "%s", rs.NearestOr(name, rs.site.Identities(), "The site has no other host."))
	}
}

// checkVMIDs finds VMIDs that two guests of one PVE host would have: those on the
// host itself, and those on one parent. A recipe is a host of its own.
func (rs *rules) checkVMIDs() {
	seen := map[string]*model.Node{}
	for _, m := range rs.manifests {
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
			rs.taken(n.Resource.RangeOf("vmid"), fmt.Sprintf("vmid %d", n.VMID), claimed{first.Name, first.Resource.RangeOf("vmid")}, ", on the same PVE host")
		}
	}
}

// taken reports what a second node claims. Both may come from one block, and then have the same place in the files.
func (rs *rules) taken(at diag.Range, what string, first claimed, where string) {
	by := lang.Quote(first.by)
	if at == first.at {
		rs.ErrorAt(at, "several nodes have "+what, "This block declares node %s and others. Use count.index, each.key or each.value, so that each node has its own%s.", by, where)
		return
	}
	rs.ErrorAt(at, what+" is taken by node "+by, "The other is at %s%s.", first.at, where)
}

// checkOwnVMIDs finds objects outside the manifests that become a guest, such as a template from an
// image, with a VMID that something else on the host declares.
func (rs *rules) checkOwnVMIDs(want *model.Want) {
	for _, addr := range want.State.Addresses() {
		r := want.State[addr]
		if want.Nodes[addr] != nil || r.Guest == nil || r.Guest.VMID == 0 {
			continue
		}
		for _, other := range want.State.Addresses() {
			o := want.State[other]
			twice := want.Nodes[other] == nil && other.Compare(addr) >= 0 // reported once of two templates
			if twice || o.Guest == nil || o.Guest.VMID != r.Guest.VMID {
				continue
			}
			rs.ErrorAt(r.RangeOf("vmid"), fmt.Sprintf("vmid %d is taken by %s", r.Guest.VMID, other), "The other is at %s, on the same PVE host.", o.RangeOf("vmid"))
		}
	}
}

// resolveAll resolves every resource on its host, for the problems that its kind reports. It skips
// resources with findings.
func (rs *rules) resolveAll() {
	if rs.site.Name == "" {
		return
	}
	done := map[model.Address]bool{}
	claims := claims{rules: rs, seen: map[model.Claim]claimed{}}
	found := rs.site.ResolveAll()
	for _, identity := range rs.site.Identities() {
		rs.addUnlessInvalid(found[identity])
		want := rs.site.Resolved[identity]
		rs.checkOwnVMIDs(want)
		for _, addr := range want.State.Addresses() {
			done[addr] = true
			if n := want.Nodes[addr]; n != nil {
				claims.add("", want.State[addr])
				rs.checkNeeds(n, identity)
			}
		}
	}
	for _, m := range rs.manifests {
		scope := ""
		if m.Host == "" {
			scope = "manifest " + m.Name
		}
		for _, n := range m.Nodes {
			on := m.On(n)
			if rs.site.Resolved[on] != nil && !m.Suspend && !n.Planned {
				continue // done above
			}
			r, found := rs.site.Resolve(n.Resource, rs.site.HostFor(on), n)
			rs.addUnlessInvalid(found)
			claims.add(scope, r)
		}
	}
	for _, addr := range rs.site.Objects.Addresses() {
		if !done[addr] {
			_, found := rs.site.Resolve(rs.site.Objects[addr], nil, nil)
			rs.addUnlessInvalid(found)
		}
	}
}

// addUnlessInvalid adds findings of kinds; of a resource that has findings, only those about an attribute that has none.
func (rs *rules) addUnlessInvalid(found diag.List) {
	own := rs.List
	for _, f := range found {
		if !rs.invalid[f.Address] || len(own) < lang.MaxFindings && isAttribute(rs.Sources[f.At.File], f.At) && !slices.ContainsFunc(own, func(o diag.Finding) bool {
			return o.At.File == f.At.File && f.At.Start.Byte <= o.At.Start.Byte && o.At.Start.Byte < f.At.End.Byte
		}) {
			rs.Add(f)
		}
	}
}

// isAttribute reports whether a range of a file is that of an attribute. Without =, it is that of a block: what a block lacks may be
// what is misspelt in it.
func isAttribute(text []byte, at diag.Range) bool {
	return at.End.Byte <= len(text) && bytes.ContainsRune(text[at.Start.Byte:at.End.Byte], '=')
}

// checkNeeds finds objects that a node names but that live on another host.
func (rs *rules) checkNeeds(n *model.Node, host string) {
	for _, addr := range n.Resource.Needs {
		object := rs.site.Objects[addr]
		if object == nil || rs.invalid[addr.String()] {
			continue
		}
		if on := model.HostOf(object.Spec); on != "" && on != host {
			rs.ErrorAt(n.At, fmt.Sprintf("%s is not on host %s", addr, host), "Node %s needs it there, but %s lives on host %s.", lang.Quote(n.Name), addr, on)
		}
	}
}

// claims finds conflicts: what two resources claim.
type claims struct {
	*rules
	seen map[model.Claim]claimed
}

type claimed struct {
	by string
	at diag.Range
}

// add records the claims of a resolved resource. All deployed nodes share the scope "".
func (c *claims) add(scope string, r *model.Resource) {
	kind := c.site.Kinds.Get(r.Addr.Kind)
	if kind == nil || kind.Claims == nil || c.invalid[r.Addr.String()] {
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
		value := lang.Quote(claim.Value)
		if r.IsSensitive(claim.Path) {
			value = model.Sensitive
		}
		c.taken(at, claim.What+" "+value, first, "")
	}
}
