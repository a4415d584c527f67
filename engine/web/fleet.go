package web

import (
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/view"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// pageSize is the number of rows of a list on one page.
const pageSize = 50

// node is a node of the tree with its place in it.
type node struct {
	wire.ReportNode

	State string
	Tone  view.Tone
	Depth int
	Nodes int // that its agent manages itself
	Bad   int // of them
}

// states are in the order of attention: what is not known first.
func states() []string { return []string{"stale", "not ready", "failing", "ready"} }

func (n *node) trouble() bool { return n.Tone != "good" }

func (n *node) rank() int { return slices.Index(states(), n.State) }

// folded says of a host how its nodes are.
func (n *node) folded() string {
	switch {
	case n.Nodes == 0:
		return "no nodes"
	case n.Bad == 0:
		return "all " + strconv.Itoa(n.Nodes) + " ready"
	default:
		return strconv.Itoa(n.Bad) + " of " + strconv.Itoa(n.Nodes) + " need attention"
	}
}

// tree is the agent and all below it, in the order of the report.
type tree struct {
	report wire.Report
	nodes  []*node // the agent first
	byName map[string]*node
}

// tree reads the tree.
func (x *request) tree() (*tree, error) {
	r, err := x.o.Source.Tree(x.Context())
	if err != nil {
		return nil, err
	}
	return treeOf(r), nil
}

// statusAndTree reads both.
func (x *request) statusAndTree() (agent.Status, *tree, error) {
	s, r, err := x.o.Source.StatusAndTree(x.Context())
	if err != nil {
		return s, nil, err
	}
	return s, treeOf(r), nil
}

func treeOf(r wire.Report) *tree {
	t := &tree{report: r, byName: make(map[string]*node, len(r.Nodes)+1), nodes: make([]*node, 0, len(r.Nodes)+1)}
	add := func(of wire.ReportNode, depth int) *node {
		n := &node{ReportNode: of, Depth: depth}
		n.State, n.Tone = view.TreeState(of)
		t.nodes, t.byName[of.Name] = append(t.nodes, n), n
		return n
	}
	add(wire.ReportNode{Name: r.Identity, Type: typeHost, Phase: r.Phase, Ready: r.Ready, Commit: r.Commit}, 0)
	for _, of := range r.Nodes {
		parent, depth := t.byName[of.Parent], 1
		if parent != nil {
			depth = parent.Depth + 1
		}
		n := add(of, depth)
		if parent != nil {
			parent.Nodes++
			if n.trouble() {
				parent.Bad++
			}
		}
	}
	return t
}

// above lists the hosts above a node, the agent first.
func (t *tree) above(n *node) (out []*node) {
	for parent := t.byName[n.Parent]; parent != nil && len(out) < len(t.nodes); parent = t.byName[parent.Parent] {
		out = append(out, parent)
	}
	slices.Reverse(out)
	return out
}

// crumbs lead to the hosts above a node.
func (t *tree) crumbs(n *node) (out []cell) {
	for _, a := range t.above(n) {
		out = append(out, cell{Text: a.Name, To: hostPath(a.Name)})
	}
	return out
}

// below reports whether a node is below a host, or is it.
func (t *tree) below(n *node, host string) bool {
	return n.Name == host || slices.ContainsFunc(t.above(n), func(a *node) bool { return a.Name == host })
}

// hosts lists what has an agent.
func (t *tree) hosts() (out []*node) {
	for i, n := range t.nodes {
		if i == 0 || n.Type == typeHost {
			out = append(out, n)
		}
	}
	return out
}

// filter is what the fleet is searched for.
type filter struct{ search, state, under string }

// shows reports whether a node belongs to the list.
func (f filter) shows(t *tree, n *node) bool {
	if f == (filter{}) {
		return n.trouble()
	}
	if f.state != "" && n.State != f.state || f.under != "" && !t.below(n, f.under) {
		return false
	}
	for word := range strings.FieldsSeq(strings.ToLower(f.search)) {
		if !strings.Contains(strings.ToLower(n.Name), word) && !strings.Contains(strings.ToLower(n.Error), word) && !strings.Contains(n.Type+" "+n.Parent+" "+n.Commit, word) {
			return false
		}
	}
	return true
}

// suspensions are those of a status.
func suspensions(x *request, s agent.Status) (out []suspended) {
	for _, sus := range s.Suspended {
		out = append(out, suspended{sus.Manifest, view.Suspension(sus, x.now)})
	}
	return out
}

// fleetView is the view of all.
func fleetView(x *request) (page, error) {
	s, t, err := x.statusAndTree()
	if err != nil {
		return page{}, err
	}
	q := x.URL.Query()
	f := filter{strings.TrimSpace(q.Get("q")), q.Get("state"), q.Get("under")}
	p := page{frame: x.frame("Fleet", "fleet"), Heading: s.Identity, Lead: s.Summary, Suspended: suspensions(x, s), Operate: true, SearchTo: "/", Clear: f != filter{}}
	p.State.Text, p.State.Tone = view.Health(s)
	p.State.Pill = true
	p.Counts = counts(t, f)
	p.Search = []field{
		{Label: "Search", Name: "q", Value: f.search, Hint: "name, host or error"},
		{Label: "State", Name: "state", Value: f.state, Options: states()},
		{Name: "under", Value: f.under, Hidden: true},
	}
	var list []*node
	for _, n := range t.nodes[1:] {
		if f.shows(t, n) {
			list = append(list, n)
		}
	}
	sort.SliceStable(list, func(i, j int) bool { return list[i].rank() < list[j].rank() })
	found := section{ID: "list", Title: "Needs attention", Table: &table{Caption: "Nodes, those that need attention first", Columns: nodeColumns(true)}}
	switch {
	case p.Clear:
		found.Title = strconv.Itoa(len(list)) + " found"
		if f.under != "" {
			found.Title += " below " + f.under
		}
		if len(list) == 0 {
			found.Notes = []string{"No node matches."}
		}
	case len(t.nodes) == 1:
		found.Notes = []string{"There are no nodes yet."}
	case len(list) == 0:
		found.Notes = []string{"Nothing. Every node is ready, and no check fails."}
	}
	list, found.Table.Pager = cut(x, "page", list, pageSize)
	for _, n := range list {
		found.Table.Rows = append(found.Table.Rows, x.nodeRow(n, true))
	}
	if t.report.Cut > 0 {
		found.Notes = append(found.Notes, view.Cut(t.report.Cut))
	}
	if p.Sections = []section{found}; !p.Clear {
		p.Sections = append(p.Sections, x.hostSection(t))
	}
	return p, nil
}

// counts counts the states; each leads to its nodes.
func counts(t *tree, f filter) (out []cell) {
	n, all := map[string]int{}, 0
	for _, m := range t.nodes[1:] {
		if f.under == "" || t.below(m, f.under) {
			n[m.State]++
			all++
		}
	}
	base := with("/", "under", f.under)
	for _, state := range states() {
		c := cell{Text: strconv.Itoa(n[state]) + "\n" + state, To: with(base, "state", state), Here: f.state == state}
		if c.Tone = "bad"; n[state] == 0 {
			c.Tone = ""
		} else if state == "ready" {
			c.Tone = "good"
		}
		out = append(out, c)
	}
	return append(out, cell{Text: strconv.Itoa(all) + "\nnodes", To: base})
}

// hostSection lists the hosts, each below the one that it reports to, with healthy nodes folded.
func (x *request) hostSection(t *tree) section {
	s := section{ID: "hosts", Title: "Hosts", Table: &table{Caption: "Hosts, each below the one that it reports to", Class: "hosts", Columns: []string{"Host", "State", "Nodes", "Commit", "Reported"}}}
	list, p := cut(x, "hosts", t.hosts(), pageSize)
	s.Table.Pager = p
	for _, n := range list {
		w := view.TreeNodeOf(n.ReportNode, x.now)
		tone := n.Tone
		if n.Bad > 0 {
			tone = "bad"
		}
		s.Table.Rows = append(s.Table.Rows, row{Tone: tone, Depth: min(n.Depth, 6), Cells: []cell{
			{Text: w.Name, To: hostPath(n.Name)}, stateOf(n), {Text: n.folded(), To: with("/", "under", n.Name)}, commitCell(n.Commit), plain(w.Reported),
		}})
	}
	return s
}
