package web

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/view"
)

// entry is one line of the timeline: the receipt of a pass, or an event.
type entry struct {
	at  time.Time
	row row
}

func entryColumns() []string { return []string{"When", "What", "About", "Commit", "By", "Text"} }

// passEntry is a receipt.
func passEntry(r ledger.Receipt, address string) entry {
	c := view.ReceiptCells(r, address)
	outcome, about := cell{Text: "pass " + c[3], Tone: "bad"}, ""
	if r.Outcome == "done" {
		outcome.Tone = "good"
	}
	if len(r.Steps) == 1 {
		about = r.Steps[0].Address
	}
	return entry{r.Began, row{Cells: []cell{plain(c[0]), outcome, aboutCell(about), commitCell(r.Commit), plain(c[2]), {Text: clip(c[5]), Rest: "in " + c[4]}}}}
}

func aboutCell(address string) cell {
	if address == "" {
		return cell{}
	}
	return cell{Text: address, To: nodePath(address)}
}

// eventEntry is an event.
func eventEntry(e control.Event) entry {
	r := view.EventRow(e)
	return entry{e.At, row{Cells: []cell{plain(view.When(e.At)), {Text: r.Label, Tone: r.Tone}, aboutCell(e.Address), commitCell(e.Commit), {}, plain(clip(r.Text))}}}
}

const receiptsRead = 500 // of the timeline; history -n 0 prints all

// timelineView is the view of what happened.
func timelineView(x *request) (page, error) {
	q := x.URL.Query()
	address, commit, actor := q.Get("address"), q.Get("commit"), q.Get("actor")
	p := page{frame: x.frame("Timeline", "timeline"), Heading: "Timeline", SearchTo: "/timeline", Clear: address+commit+actor != "", Search: []field{
		{Label: "Address", Name: "address", Value: address, Hint: "vm.web-1"}, {Label: "Commit", Name: "commit", Value: commit}, {Label: "By", Name: "actor", Value: actor},
	}}
	h, err := x.o.Source.History(x.Context(), receiptsRead, address)
	if err != nil {
		return page{}, err
	}
	var all []entry
	for _, r := range h.Receipts {
		if strings.HasPrefix(r.Commit, commit) && (actor == "" || contains(r.By, actor) || contains(r.Author, actor) || editedBy(r, actor)) {
			all = append(all, passEntry(r, address))
		}
	}
	if actor == "" { // events do not say who
		err = x.o.Source.Events(x.Context(), "", false, func(e control.Event) error {
			if strings.HasPrefix(e.Commit, commit) && (address == "" || e.Address == address) {
				all = append(all, eventEntry(e))
			}
			return nil
		})
		if err != nil {
			return page{}, err
		}
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].at.After(all[j].at) })
	s := entries(x, "list", "Passes and events", all)
	if len(all) == 0 {
		s.Notes = []string{"Nothing matches, or nothing was done yet."}
	}
	if h.Problem != "" {
		s.Notes = append(s.Notes, h.Problem)
	}
	if len(h.Receipts) == receiptsRead && commit+actor != "" {
		s.Notes = append(s.Notes, fmt.Sprintf("The newest %d passes were searched. history -n 0 prints all.", receiptsRead))
	}
	p.Sections = []section{s}
	return p, nil
}

// entries is a section of the timeline.
func entries(x *request, id, title string, all []entry) section {
	s := section{ID: id, Title: title, Table: &table{Caption: title + ", newest first", Class: "timeline", Columns: entryColumns()}}
	all, s.Table.Pager = cut(x, "page", all, 2*pageSize)
	for _, e := range all {
		s.Table.Rows = append(s.Table.Rows, e.row)
	}
	return s
}

func contains(text, part string) bool {
	return strings.Contains(strings.ToLower(text), strings.ToLower(part))
}

// editedBy reports whether a receipt reverted a change by a user.
func editedBy(r ledger.Receipt, actor string) bool {
	return slices.ContainsFunc(r.Steps, func(s ledger.Step) bool {
		return slices.ContainsFunc(s.EditedBy, func(user string) bool { return contains(user, actor) })
	})
}

// commitInForce leads to the newest commit.
func commitInForce(x *request) (page, error) {
	s, err := x.o.Source.Status(x.Context())
	if err != nil {
		return page{}, err
	}
	for _, c := range []*agent.CommitStatus{s.Head, s.InForce, s.Converged} {
		if c != nil {
			return page{}, redirectError{commitPath(c.ID)}
		}
	}
	return page{}, errNoCommit
}

var errNoCommit = errors.New("the agent has no commit yet")

const leastID = 4 // characters of an abbreviated commit

// commitView is the view of one commit.
func commitView(x *request) (page, error) {
	s, t, err := x.statusAndTree()
	if err != nil {
		return page{}, err
	}
	id := x.PathValue("id")
	is := func(commit string) bool { return len(id) >= leastID && strings.HasPrefix(commit, id) }
	p := page{frame: x.frame("Commit "+view.Short(id), "commit"), Heading: "Commit " + view.Short(id)}
	whole, role := id, []string{}
	for _, c := range []struct {
		name string
		*agent.CommitStatus
	}{{"the newest", s.Head}, {"in force", s.InForce}, {"converged", s.Converged}} {
		if c.CommitStatus != nil && is(c.ID) {
			if whole, role = c.ID, append(role, c.name); c.Subject != "" {
				p.Lead = view.Commit(c.CommitStatus)
			}
		}
	}
	var found diag.List
	if s.Last != nil && is(s.Last.Commit) {
		found = append(found, s.Last.Findings...)
	}
	if s.Refused != nil && is(s.Refused.Commit) {
		found = append(found, s.Refused.Findings...)
		for _, r := range view.StatusRows(s, x.now) {
			if r.Label == "refused" {
				p.Facts = facts([]view.Row{r})
			}
		}
	}
	h, err := x.o.Source.History(x.Context(), receiptsRead, "")
	if err != nil {
		return page{}, err
	}
	var passes []entry
	for _, r := range h.Receipts {
		if is(r.Commit) {
			whole, passes, found = r.Commit, append(passes, passEntry(r, "")), append(found, r.Findings...)
		}
	}
	have, others := hostTable("Hosts that have it"), hostTable("Hosts at another commit")
	var having, lacking []*node
	for _, n := range t.hosts() {
		if is(n.Commit) {
			having = append(having, n)
		} else {
			lacking = append(lacking, n)
		}
	}
	p.Facts = append([]fact{
		{Label: "id", Value: plain(whole)},
		{Label: "here", Value: plain(strings.Join(role, ", "))},
		{Label: "hosts", Value: plain(strconv.Itoa(len(having)) + " of " + strconv.Itoa(len(having)+len(lacking)) + " have it")},
	}, p.Facts...)
	x.fill(&have, "have", having)
	p.Sections = []section{have}
	if len(lacking) > 0 {
		x.fill(&others, "others", lacking)
		p.Sections = append(p.Sections, others)
	}
	policies, rest := section{ID: "policies", Title: "Policies"}, section{ID: "findings", Title: "Findings"}
	for _, f := range found.Sorted() {
		if f.Source == diag.FromPolicy {
			policies.Items = append(policies.Items, findings(diag.List{f})...)
		} else {
			rest.Items = append(rest.Items, findings(diag.List{f})...)
		}
	}
	if len(policies.Items) == 0 {
		policies.Notes = []string{"No rule warned or denied, as far as the last passes say."}
	}
	if len(rest.Items) == 0 {
		rest.Notes = []string{"There are none."}
	}
	done := entries(x, "passes", "Passes", passes)
	if len(passes) == 0 {
		done.Notes = []string{"No pass with it changed anything."}
	}
	if h.Problem != "" {
		done.Notes = append(done.Notes, h.Problem)
	}
	p.Sections = append(p.Sections, policies, rest, done)
	return p, nil
}

// hostTable is an empty table of hosts with their commits.
func hostTable(title string) section {
	return section{Title: title, Table: &table{Caption: title, Columns: []string{"Host", "State", "Commit", "Reported"}}}
}

// fill lists hosts.
func (x *request) fill(s *section, id string, list []*node) {
	s.ID = id
	if len(list) == 0 {
		s.Notes = []string{"There are none."}
	}
	list, s.Table.Pager = cut(x, id, list, pageSize)
	for _, n := range list {
		w := view.TreeNodeOf(n.ReportNode, x.now)
		s.Table.Rows = append(s.Table.Rows, row{Cells: []cell{{Text: w.Name, To: hostPath(n.Name)}, stateOf(n), commitCell(n.Commit), plain(w.Reported)}})
	}
}
