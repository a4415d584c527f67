package hcl

import (
	"fmt"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl/lang"
)

// link resolves the names of nodes in a manifest: parents, dependencies and children, and the
// consequences for resources.
func (rs *rules) link(m *manifest) {
	for _, n := range m.Nodes {
		rs.linkParent(m, m.byName[strings.ToLower(n.Name)])
	}
	for _, n := range m.Nodes {
		info := m.byName[strings.ToLower(n.Name)]
		depends := n.DependsOn
		n.DependsOn = nil
		for _, name := range depends {
			for _, other := range rs.meant(m, name, n.Resource.RangeOf("depends_on")) {
				n.DependsOn = append(n.DependsOn, other.Name)
				if other.Planned && !n.Planned {
					rs.ErrorAt(n.Resource.RangeOf("depends_on"), fmt.Sprintf("node %s depends on %s, which is planned", lang.Quote(n.Name), lang.Quote(other.Name)), "A planned node is not created: write planned = true for both, or for neither.")
				}
				if waits, first := m.order(info, other); waits != nil {
					waits.before = append(waits.before, first.Name)
				}
			}
		}
		for _, ref := range info.refs {
			for _, other := range rs.meant(m, ref.Name, ref.At) {
				m.order(info, other)
			}
		}
	}
	for _, n := range m.Nodes {
		slices.SortFunc(n.Resource.Needs, model.Address.Compare)
		n.Resource.Needs = slices.Compact(n.Resource.Needs)
	}
	rs.checkCircles(m)
}

// order makes a node wait for another one. An agent orders the nodes of one PVE host. For nodes of
// two hosts, their ancestors on the lowest common host wait for each other; first is the one to
// wait for, nil if it exists anyway because the other node lives on it.
func (m *manifest) order(n, other *nodeInfo) (waits, first *nodeInfo) {
	firsts := m.upward(other)
	for _, waits := range m.upward(n) {
		i := slices.IndexFunc(firsts, func(o *nodeInfo) bool { return o.Parent == waits.Parent })
		if i < 0 {
			continue
		}
		if first = firsts[i]; first == waits && n != other {
			break
		}
		waits.Resource.Needs = append(waits.Resource.Needs, first.Resource.Addr)
		return waits, first
	}
	return nil, nil
}

// upward lists a node and its ancestors, the root last.
func (m *manifest) upward(n *nodeInfo) []*nodeInfo {
	var way []*nodeInfo
	for n != nil && !slices.Contains(way, n) {
		way = append(way, n)
		n = m.byName[strings.ToLower(n.Parent)]
	}
	return way
}

func (rs *rules) linkParent(m *manifest, n *nodeInfo) {
	if n.Parent == "" {
		return
	}
	at := n.Resource.RangeOf("parent")
	found := rs.meant(m, n.Parent, at)
	switch {
	case len(found) == 0 || found[0].guessed && found[0].Type != typePVE: // reported already
	case len(found) > 1:
		rs.ErrorAt(at, fmt.Sprintf("parent %s names %d nodes", lang.Quote(n.Parent), len(found)), "Name one of them, such as %s.", lang.Quote(found[0].Name))
	case found[0].Type != typePVE:
		rs.ErrorAt(at, fmt.Sprintf("parent %s is not a pve node", lang.Quote(n.Parent)), "Its type is %s: only a node of type pve can have children.", found[0].Type)
	default:
		p := found[0]
		n.Parent = p.Name
		p.Children = append(p.Children, n.Name)
	}
}

// meant finds the nodes for a name: the node itself, or all instances of the block of that name.
func (rs *rules) meant(m *manifest, name string, at diag.Range) []*nodeInfo {
	if n := m.byName[strings.ToLower(name)]; n != nil && n.Name == name {
		return []*nodeInfo{n}
	}
	decl := m.byDecl[name]
	if decl == nil {
		var known []string
		for _, n := range m.Nodes {
			known = append(known, n.Name)
		}
		rs.ErrorAt(at, "unknown node "+lang.Quote(name), "%s", rs.NearestOr(name, known, "The manifest has no other node."))
		return nil
	}
	var found []*nodeInfo
	for _, i := range decl.instances {
		if n := m.byName[strings.ToLower(i.name)]; n != nil {
			found = append(found, n)
		}
	}
	return found
}

// checkCircles finds cycles of parents and dependencies.
func (rs *rules) checkCircles(m *manifest) {
	const (
		unvisited = iota
		open
		closed
	)
	state := map[*nodeInfo]int{}
	var way []*nodeInfo
	var visit func(*nodeInfo)
	visit = func(n *nodeInfo) {
		switch state[n] {
		case closed:
			return
		case open:
			rs.reportCircle(way[slices.Index(way, n):])
			return
		}
		state[n] = open
		way = append(way, n)
		for _, name := range before(n) {
			if next := m.byName[strings.ToLower(name)]; next != nil {
				visit(next)
			}
		}
		way = way[:len(way)-1]
		state[n] = closed
	}
	for _, n := range m.Nodes {
		visit(m.byName[strings.ToLower(n.Name)])
	}
}

// before lists the nodes that must exist before one.
func before(n *nodeInfo) []string {
	all := slices.Concat(n.DependsOn, n.before)
	if n.Parent != "" {
		all = append([]string{n.Parent}, all...)
	}
	return all
}

// reportCircle reports a cycle at the attribute of its first node, in file order, that depends on
// the next one.
func (rs *rules) reportCircle(circle []*nodeInfo) {
	first := 0
	for i, n := range circle {
		if n.At.Start.Byte < circle[first].At.Start.Byte {
			first = i
		}
	}
	circle = append(slices.Clone(circle[first:]), circle[:first]...)
	var names []string
	for _, n := range circle {
		names = append(names, n.Name)
	}
	names = append(names, circle[0].Name)
	if len(names) > 12 {
		names = append(names[:11:11], "…", circle[0].Name)
	}
	n, next := circle[0], circle[1%len(circle)]
	path := "depends_on"
	if n.Parent == next.Name {
		path = "parent"
	}
	rs.ErrorAt(n.Resource.RangeOf(path), fmt.Sprintf("node %s depends on itself", lang.Quote(n.Name)), "%s: none of them could be created first. Remove one parent or depends_on.", strings.Join(names, " → "))
}
