package web

import (
	"net/url"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/engine/view"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// Views are made of the parts below, so that the markup of each part is written once: see page.templ.

// frame is what is around every view.
type frame struct {
	Title    string
	View     string // the entry of the menu; "" for none
	Here     string // the address of this page
	Wall     bool
	Live     bool // it follows the events
	SignedIn bool
	Visitor  visitor
}

// page is a view.
type page struct {
	frame

	Above   []cell // the hosts above, from the agent down
	Heading string
	State   cell
	Lead    string
	Counts  []cell
	Facts   []fact

	Suspended []suspended
	Operate   bool   // forms for the whole agent
	Node      string // or a form for this host

	Search   []field
	SearchTo string // where the form leads
	Clear    bool   // a link to all
	Sections []section
}

// cell is a text with what it leads to.
type cell struct {
	Text string
	To   string // address; "": none
	Tone view.Tone
	Pill bool     // it is a state
	Here bool     // it leads to what is shown
	Rest string   // what only screen readers need after it
	More []string // lines below it
}

// fact is a labelled text.
type fact struct {
	Label string // "": it continues the one before
	Value cell
	Below []string // as they are
}

// field is one of a search.
type field struct {
	Label, Name, Value, Hint string
	Options                  []string // none: any text; "" is shown as any
	Hidden                   bool
}

// section is a part with a heading.
type section struct {
	ID, Title string
	Still     bool // events do not change it
	Alert     bool
	Notes     []string
	Strong    string
	Button    cell
	Table     *table
	Items     []fact
}

// table is a list of objects, the first cell of each row names one.
type table struct {
	Caption, Class string
	Columns        []string
	Rows           []row
	Pager          pager
}

type row struct {
	Tone  view.Tone
	Depth int
	Cells []cell
}

// suspended is a suspension as the page shows it.
type suspended struct{ Manifest, Text string }

func plain(text string) cell { return cell{Text: text} }

func stateOf(n *node) cell { return cell{Text: n.State, Tone: n.Tone, Pill: true} }

func commitCell(id string) cell {
	if id == "" {
		return cell{}
	}
	return cell{Text: view.Short(id), To: commitPath(id)}
}

// facts are rows of the terminal.
func facts(rows []view.Row) (out []fact) {
	for _, r := range rows {
		out = append(out, fact{Label: r.Label, Value: cell{Text: r.Text, Tone: r.Tone}, Below: r.Below})
	}
	return out
}

// findings are a list of findings.
func findings(list diag.List) (out []fact) {
	for _, f := range list {
		g := fact{Label: string(f.Severity), Value: cell{Text: diag.Line(f.Summary), Tone: "busy"}}
		if f.Severity == diag.Error {
			g.Value.Tone = "bad"
		}
		if !f.At.IsZero() {
			g.Value.Rest = diag.Line(f.At.String())
		}
		if f.Detail != "" {
			g.Value.More = strings.Split(f.Detail, "\n")
		}
		out = append(out, g)
	}
	return out
}

// section begins a section about a plan, and reports whether there is one to fill it from.
func (p *planned) section(id, title string, button cell) (section, bool) {
	s := section{ID: id, Title: title, Still: true, Button: button, Notes: []string{"It reads the host, and changes nothing."}}
	if p != nil && p.doc.Plan == nil {
		s.Notes = p.problem
	}
	return s, p != nil && p.doc.Plan != nil
}

// planSection is a plan, or the way to one.
func planSection(p *planned, to string) section {
	s, made := p.section("plan", "Plan", cell{Text: "Make the plan now", To: to})
	if !made {
		return s
	}
	title, lines, last := p.doc.Plan.Lines()
	s.Notes, s.Strong, s.Items, s.Button.Text = []string{title}, last, findings(p.doc.Plan.Findings), "Make it again"
	if len(lines) > 0 {
		s.Table = &table{Caption: "Steps of the plan, and what is left alone", Columns: []string{"Object", "Sign", "VMID", "What", "Cost"}}
	}
	for _, l := range lines {
		s.Table.Rows = append(s.Table.Rows, planRow(l))
	}
	return s
}

func planRow(l plan.Line) row {
	name, vmid := plain(l.Thing), ""
	if l.Address != "" {
		name.To = nodePath(l.Address)
	}
	if l.VMID != 0 {
		vmid = strconv.Itoa(l.VMID)
	}
	return row{Cells: []cell{name, plain(l.Sign), plain(vmid), {Text: l.What, More: l.Notes}, plain(l.Cost)}}
}

// nodeColumns are those of nodeRow.
func nodeColumns(where bool) []string {
	if where {
		return []string{"Node", "State", "Type", "Host", "Phase", "Commit", "Reported", "Notes"}
	}
	return []string{"Node", "State", "Type", "Phase", "Commit", "Reported", "Notes"}
}

// nodeRow is a node of the tree; where names its host.
func (x *request) nodeRow(n *node, where bool) row {
	w := view.TreeNodeOf(n.ReportNode, x.now)
	cells := []cell{{Text: w.Name, To: pathOf(n.ReportNode)}, stateOf(n), plain(w.Type)}
	if where {
		cells = append(cells, plain(n.Parent))
	}
	notes := cell{}
	for _, text := range []string{w.Drift, clip(w.Error), clip(w.Check)} {
		if text != "" {
			notes.More = append(notes.More, text)
		}
	}
	return row{Cells: append(cells, plain(w.Phase), commitCell(n.Commit), plain(w.Reported), notes)}
}

// nodeFacts are what the tree says of a node.
func (x *request) nodeFacts(n *node) (out []fact) {
	w := view.TreeNodeOf(n.ReportNode, x.now)
	for _, f := range []fact{
		{Label: "type", Value: plain(w.Type)},
		{Label: "phase", Value: plain(w.Phase)},
		{Label: "drift", Value: cell{Text: w.Drift, Tone: "bad"}},
		{Label: "commit", Value: commitCell(n.Commit)},
		{Label: "reported", Value: plain(w.Reported)},
		{Label: "error", Value: cell{Text: w.Error, Tone: "bad"}},
		{Label: "failing", Value: cell{Text: w.Check, Tone: "bad"}},
	} {
		if f.Value.Text != "" {
			out = append(out, f)
		}
	}
	return out
}

// pager is a place in a long list.
type pager struct {
	Pages  string
	Before string // address; "": there is none
	After  string
	Total  int
}

// cut gives the part of a list that is on the page of a query.
func cut[E any](x *request, key string, list []E, size int) ([]E, pager) {
	pages, page := max(1, (len(list)+size-1)/size), 1
	if n, err := strconv.Atoi(x.URL.Query().Get(key)); err == nil {
		page = min(max(n, 1), pages)
	}
	p, here := pager{Total: len(list)}, x.URL.RequestURI()
	if pages > 1 {
		p.Pages = "Page " + strconv.Itoa(page) + " of " + strconv.Itoa(pages)
	}
	if page > 1 {
		p.Before = with(here, key, strconv.Itoa(page-1))
	}
	if page < pages {
		p.After = with(here, key, strconv.Itoa(page+1))
	}
	from := (page - 1) * size
	return list[from:min(from+size, len(list))], p
}

// mostText is the length of a text in a list, in bytes; the page of the object has all of it.
const mostText = 240

// clip cuts a text for a list.
func clip(text string) string {
	if len(text) <= mostText {
		return text
	}
	return strings.ToValidUTF8(text[:mostText], "") + "…"
}

// hostPath and the others are addresses of views.
func hostPath(name string) string { return "/host/" + url.PathEscape(name) }

func nodePath(address string) string { return "/node/" + url.PathEscape(address) }

func commitPath(id string) string { return "/commit/" + url.PathEscape(id) }

// pathOf is the address of the page of a node of the tree.
func pathOf(n wire.ReportNode) string {
	if n.Type == typeHost {
		return hostPath(n.Name)
	}
	return nodePath(n.Name)
}

// typeHost is the type of nodes that have an agent of their own.
const typeHost = "pve"

// with is the address of a page with another value in its query; "" takes the value away.
func with(here, key, value string) string {
	u, err := url.Parse(here)
	if err != nil {
		return "/"
	}
	q := u.Query()
	if q.Del(key); value != "" {
		q.Set(key, value)
	}
	u.RawQuery = q.Encode()
	return u.RequestURI()
}

// local reports whether a text is an address of this site, and may be redirected to.
func local(to string) bool {
	return strings.HasPrefix(to, "/") && !strings.HasPrefix(to, "//") && !strings.ContainsAny(to, "\\\t\r\n")
}
