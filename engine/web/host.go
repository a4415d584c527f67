package web

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/engine/view"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// planned is a plan, or why there is none.
type planned struct {
	doc     plan.Document
	problem []string
}

// planned has the plan of a host made, if the address of the page asks for it: it takes as long as reading the host.
// The plan lists all attributes of the resource at an address, unless that is empty.
func (x *request) planned(p *page, host, attributes string) (made *planned, to string) {
	to = with(x.URL.RequestURI(), "plan", "now")
	if !x.URL.Query().Has("plan") {
		return nil, to
	}
	p.Live = false // or each event would have the host read again
	ctx, cancel := context.WithTimeout(x.Context(), planTime)
	defer cancel()
	_ = http.NewResponseController(x.w).SetWriteDeadline(x.now.Add(planTime + takeTime)) // not every writer has deadlines
	r, err := x.o.Source.Plan(ctx, host, attributes)
	if err == nil && r.Outcome != wire.TaskDone {
		err = fmt.Errorf("host %s has no plan: %s: %s", host, r.Outcome, r.Error)
	}
	var doc plan.Document
	if err == nil {
		doc, err = plan.Read(r.Plan)
	}
	if err != nil {
		return &planned{problem: strings.Split(err.Error(), "\n")}, to
	}
	return &planned{doc: doc}, to
}

// hostView is the view of one host.
func hostView(x *request) (page, error) {
	t, err := x.tree()
	if err != nil {
		return page{}, err
	}
	name := x.PathValue("name")
	n := t.byName[name]
	if n == nil {
		return page{}, unknown("no host is named "+diag.Line(name), t, name)
	}
	p := page{frame: x.frame("Host "+name, ""), Heading: n.Name, State: stateOf(n), Above: t.crumbs(n)}
	nodes := section{ID: "nodes", Title: "Nodes", Table: &table{Caption: "Nodes of this host", Columns: nodeColumns(false)}}
	if name == t.report.Identity {
		s, err := x.o.Source.Status(x.Context())
		if err != nil {
			return page{}, err
		}
		p.Suspended, p.Operate, p.Facts = suspensions(x, s), true, facts(view.StatusRows(s, x.now))
		nodes.Table.Columns = []string{"Node", "VMID", "On", "Since", "State"}
		list, pager := cut(x, "page", s.Nodes, pageSize)
		nodes.Table.Pager = pager
		for _, g := range list {
			c := view.NodeCells(g, x.now)
			state := cell{Text: clip(c[4]), Tone: "bad"}
			if g.Ready {
				state.Tone = "good"
			}
			nodes.Table.Rows = append(nodes.Table.Rows, row{Cells: []cell{{Text: c[0], To: nodePath(g.Address)}, plain(c[1]), plain(c[2]), plain(c[3]), state}})
		}
	} else {
		p.Node, p.Facts = n.Name, x.nodeFacts(n)
		var below []*node
		for _, m := range t.nodes[1:] {
			if m.Parent == name {
				below = append(below, m)
			}
		}
		below, nodes.Table.Pager = cut(x, "page", below, pageSize)
		for _, m := range below {
			nodes.Table.Rows = append(nodes.Table.Rows, x.nodeRow(m, false))
		}
	}
	if len(nodes.Table.Rows) == 0 {
		nodes.Notes = []string{"There are none."}
	}
	made, to := x.planned(&p, name, "")
	p.Sections = []section{planSection(made, to), nodes}
	return p, nil
}

// unknown is the error of a name that nothing has, with the nearest one.
func unknown(message string, t *tree, name string) error {
	names := make([]string, 0, len(t.nodes))
	for _, n := range t.nodes {
		names = append(names, n.Name)
	}
	return &control.ProblemError{Status: http.StatusNotFound, Message: message, Hint: diag.DidYouMean(name, names)}
}

const historyShown = 20

// nodeView is the view of one node.
func nodeView(x *request) (page, error) {
	t, err := x.tree()
	if err != nil {
		return page{}, err
	}
	name := x.PathValue("name")
	why, err := x.o.Source.Why(x.Context(), name)
	if err != nil {
		return page{}, err
	}
	n := t.byName[name]
	if _, short, is := strings.Cut(name, "."); n == nil && is {
		n = t.byName[short]
	}
	if n == nil && why.Node != nil {
		n = t.byName[why.Node.Node]
	}
	if n == nil && why.NotFound {
		return page{}, unknown("nothing is known of "+diag.Line(name), t, name)
	}
	p, host, known := page{frame: x.frame(name, ""), Heading: name}, t.report.Identity, !why.NotFound
	if n != nil {
		p.State, p.Above = stateOf(n), t.crumbs(n)
		if n.Parent != host && n.Parent != "" {
			known, host = false, n.Parent // the agent that answers may have one of this name, too
		}
	}
	explained := view.Explain(why)
	if known {
		p.Heading, p.Facts = explained.Head, facts(explained.Rows)
	}
	if n != nil {
		p.Facts = append(p.Facts, x.nodeFacts(n)...)
	}
	made, to := x.planned(&p, host, why.Address)
	p.Sections = append(p.Sections, differences(made, to, why.Address, n))
	if !known {
		p.Sections = append(p.Sections, section{ID: "history", Title: "History", Notes: []string{"What was done to it is known to the agent of its host: open the page there."}})
		return p, nil
	}
	done := section{ID: "done", Title: "Last changes"}
	done.Items = facts(explained.Done)
	h, err := x.o.Source.History(x.Context(), historyShown, why.Address)
	if err != nil {
		return page{}, err
	}
	history := section{ID: "history", Title: "History", Button: cell{Text: "Its timeline", To: with("/timeline", "address", why.Address)}, Table: &table{Caption: "Passes that touched it, newest first", Columns: []string{"When", "Commit", "By", "Outcome", "Took", "Text"}}}
	if h.Problem != "" {
		history.Notes = []string{h.Problem}
	}
	for _, r := range h.Receipts {
		c := view.ReceiptCells(r, why.Address)
		history.Table.Rows = append(history.Table.Rows, row{Cells: []cell{plain(c[0]), commitCell(r.Commit), plain(c[2]), plain(c[3]), plain(c[4]), plain(c[5])}})
	}
	if len(done.Items) > 0 {
		p.Sections = append(p.Sections, done)
	}
	p.Sections = append(p.Sections, history)
	return p, nil
}

// differences are the attributes of an address, as declared and as observed: those that a plan changes come first.
func differences(p *planned, to, address string, n *node) section {
	s, made := p.section("differences", "Declared and observed", cell{Text: "Compare now", To: to})
	if !made {
		return s
	}
	s.Table = &table{Caption: "Attributes", Columns: []string{"Attribute", "Observed", "Declared", "Cost", "Last logged change by"}}
	differ := map[string]bool{}
	for _, step := range p.doc.Plan.Steps {
		if step.Address.String() != address && (n == nil || step.Node != n.Name) {
			continue
		}
		for _, c := range step.Changes {
			observed, declared := c.Values()
			by := ""
			for _, e := range step.Edits {
				if e.Path == c.Path {
					by = e.User + ", " + view.When(e.At)
				}
			}
			differ[c.Path] = true
			s.Table.Rows = append(s.Table.Rows, row{Cells: []cell{plain(c.Path), {Text: observed, Tone: "bad"}, plain(declared), plain(string(c.Class)), plain(by)}})
		}
	}
	s.Notes, s.Button.Text = nil, "Compare again"
	if len(differ) == 0 {
		s.Notes = []string{"No attribute differs."}
	}
	for _, a := range p.doc.Attributes {
		if declared, observed := a.Values(); !differ[a.Path] {
			s.Table.Rows = append(s.Table.Rows, row{Cells: []cell{plain(a.Path), plain(observed), plain(declared), {}, {}}})
		}
	}
	return s
}
