package control

// The events of an agent follow from its statuses: a new commit, the start and end of a pass and of its
// steps, a node that becomes ready or not ready.
//
// Read in this order: Event, Between (the events between two statuses), Log (the last events, and
// their followers), stream.go (over HTTP).

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// Event is one thing that happened.
type Event struct {
	ID      string    `json:"id"` // its place in the stream: RUN-NUMBER
	At      time.Time `json:"at"`
	Type    EventType `json:"type"`
	Agent   string    `json:"agent"` // identity of the agent that it happened to
	Commit  string    `json:"commit,omitempty"`
	Address string    `json:"address,omitempty"`
	Text    string    `json:"text"` // one line for people
}

// EventType is the sort of an event.
type EventType string

// The types of events.
const (
	Started            EventType = "started" // the agent
	Stopping           EventType = "stopping"
	CommitFetched      EventType = "commit-fetched"
	CommitRefused      EventType = "commit-refused" // it does not come into force
	CommitInForce      EventType = "commit-in-force"
	PassStarted        EventType = "pass-started"
	PassEnded          EventType = "pass-ended"
	StepStarted        EventType = "step-started"
	StepEnded          EventType = "step-ended"
	NodeReady          EventType = "node-ready"
	NodeNotReady       EventType = "node-not-ready"
	NodeGone           EventType = "node-gone"
	CheckFailing       EventType = "check-failing" // of a node, between passes
	CheckPassing       EventType = "check-passing" // again
	RepositoryFailing  EventType = "repository-failing"
	RepositoryAnswered EventType = "repository-answered" // again
	HistoryRewritten   EventType = "history-rewritten"   // the new head is not a descendant of the one before it
	Suspended          EventType = "suspended"
	Resumed            EventType = "resumed"
	HostReady          EventType = "host-ready" // one below, by a report
	HostNotReady       EventType = "host-not-ready"
)

// between lists the events between two statuses of an agent, in a natural order. Of the first
// status, before is the zero value.
func between(before, after agent.Status) []Event {
	d := differ{before: before, after: after}
	if before.Identity == "" {
		d.add(Started, "", "", "version %s, process %d", after.Agent, after.PID)
	}
	d.repository()
	d.commits()
	d.suspensions()
	d.pass()
	d.nodes()
	d.checks()
	if after.State == agent.Stopping && before.State != agent.Stopping {
		d.add(Stopping, "", "", "finishes running steps, starts no new ones")
	}
	return d.out
}

// differ collects the events between two statuses.
type differ struct {
	before, after agent.Status
	out           []Event
}

func (d *differ) add(t EventType, commit, address, format string, args ...any) {
	d.out = append(d.out, Event{
		At: d.after.At, Type: t, Agent: d.after.Identity, Commit: commit, Address: address, Text: oneLine(fmt.Sprintf(format, args...)),
	})
}

func (d *differ) repository() {
	was, is := d.before.Repository.Error, d.after.Repository.Error
	switch {
	case is != "" && was == "":
		d.add(RepositoryFailing, "", "", "%s", is)
	case is == "" && was != "":
		d.add(RepositoryAnswered, "", "", "%s", d.after.Repository.URL)
	}
	if is := d.after.Repository.Rewritten; is != "" && is != d.before.Repository.Rewritten {
		d.add(HistoryRewritten, "", "", "%s", is)
	}
}

func (d *differ) commits() {
	if is := d.after.Head; is != nil && (d.before.Head == nil || d.before.Head.ID != is.ID) {
		d.add(CommitFetched, is.ID, "", "%s (%s)", is.Subject, is.Author)
	}
	if is := d.after.Refused; is != nil && (d.before.Refused == nil || d.before.Refused.Commit != is.Commit) {
		why := string(is.Outcome)
		if len(is.Findings) > 0 {
			why += ": " + is.Findings[0].String()
		}
		d.add(CommitRefused, is.Commit, "", "%s", why)
	}
	if is := d.after.InForce; is != nil && (d.before.InForce == nil || d.before.InForce.ID != is.ID) {
		d.add(CommitInForce, is.ID, "", "%s", is.Subject)
	}
}

func (d *differ) suspensions() {
	for _, s := range d.after.Suspended {
		if !slices.ContainsFunc(d.before.Suspended, is(s)) {
			d.add(Suspended, "", "", "%s", strings.TrimSpace(manifest(s.Manifest)+": "+s.Reason))
		}
	}
	for _, s := range d.before.Suspended {
		if !slices.ContainsFunc(d.after.Suspended, is(s)) {
			d.add(Resumed, "", "", "%s", manifest(s.Manifest))
		}
	}
}

// is recognises a suspension in another status.
func is(s ledger.Suspension) func(ledger.Suspension) bool {
	return func(o ledger.Suspension) bool { return o.Manifest == s.Manifest && o.Since.Equal(s.Since) }
}

func manifest(name string) string {
	if name == "" {
		return "everything"
	}
	return "manifest " + name
}

// pass lists the beginning and end of a pass, and of its steps in between. A status may have
// passed over a whole pass. Adoptions change no guest and may be hundreds, so that the end of the
// pass alone counts them.
func (d *differ) pass() {
	was, is, ended := d.before.Running, d.after.Running, d.after.Last
	same := was != nil && is != nil && was.Since.Equal(is.Since)
	if was != nil {
		var now []agent.StepNow
		if same {
			now = is.Now
		}
		for _, s := range was.Now {
			if s.Action != "adopt" && !slices.ContainsFunc(now, func(n agent.StepNow) bool { return n.Address == s.Address }) {
				d.add(StepEnded, was.Commit, s.Address, "%s, after %s", s.Action, d.after.At.Sub(s.Since).Round(time.Second))
			}
		}
	}
	if ended != nil && (d.before.Last == nil || !d.before.Last.Ended.Equal(ended.Ended)) {
		d.add(PassEnded, ended.Commit, "", "%s", passText(ended))
	}
	if is == nil {
		return
	}
	if !same {
		d.add(PassStarted, is.Commit, "", "at commit %.8s", is.Commit)
		was = &agent.Running{}
	}
	for _, s := range is.Now {
		if s.Action != "adopt" && !slices.ContainsFunc(was.Now, func(n agent.StepNow) bool { return n.Address == s.Address }) {
			d.add(StepStarted, is.Commit, s.Address, "%s", s.Action)
		}
	}
}

func passText(p *agent.PassStatus) string {
	text, s := []string{string(p.Outcome)}, p.Summary
	for _, n := range []struct {
		n    int
		word string
	}{{s.Adopt, "to adopt"}, {s.Create, "to create"}, {s.Update, "to update"}, {s.Replace, "to replace"}, {s.Delete, "to delete"}, {s.Forget, "to give up"}} {
		if n.n > 0 {
			text = append(text, fmt.Sprintf("%d %s", n.n, n.word))
		}
	}
	if p.Drift {
		text = append(text, "drift")
	}
	line := strings.Join(text, ", ")
	if p.Error != "" {
		line += ": " + p.Error
	}
	return line
}

// nodes compares the nodes. They are published after a pass, as a separate list.
func (d *differ) nodes() {
	was, is := d.before.Nodes, d.after.Nodes
	if len(was) == len(is) && (len(is) == 0 || &was[0] == &is[0]) {
		return
	}
	known := make(map[string]*engine.NodeStatus, len(was))
	for i := range was {
		known[was[i].Address] = &was[i]
	}
	for i := range is {
		n, old := &is[i], known[is[i].Address]
		delete(known, n.Address)
		switch {
		case n.Ready && (old == nil || !old.Ready):
			d.add(NodeReady, "", n.Address, "%s", n.Phase)
		case !n.Ready && (old == nil || old.Ready || old.Error != n.Error || old.Phase != n.Phase || old.Drift != n.Drift):
			d.add(NodeNotReady, "", n.Address, "%s", problem(n))
		}
	}
	for i := range was {
		if known[was[i].Address] != nil {
			d.add(NodeGone, "", was[i].Address, "%s", was[i].Phase)
		}
	}
}

// mostChecks is the number of checks that have events of their own when they turn together, as behind a broken switch.
const mostChecks = 100

// checks compares the checks. Those that failed before the agent started are not new.
func (d *differ) checks() {
	was, is := d.before.Checks, d.after.Checks
	if d.before.Identity == "" || len(was) == len(is) && (len(is) == 0 || &was[0] == &is[0]) {
		return
	}
	type key struct{ address, check string }
	known := make(map[key]agent.CheckState, len(was))
	for _, c := range was {
		known[key{c.Address, c.Check}] = c.State
	}
	turned := 0
	for _, c := range is {
		old := known[key{c.Address, c.Check}]
		fails := c.State == agent.CheckFailing && old != agent.CheckFailing
		passes := c.State == agent.CheckPassing && old == agent.CheckFailing
		if !fails && !passes {
			continue
		}
		switch turned++; {
		case turned > mostChecks:
		case fails:
			d.add(CheckFailing, "", c.Address, "%s: %s", c.Check, c.Error)
		default:
			d.add(CheckPassing, "", c.Address, "%s", c.Check)
		}
	}
	if more := turned - mostChecks; more > 0 {
		d.add(CheckFailing, "", "", "and %d more checks fail or pass again: see status", more)
	}
}

// hostsBetween lists which hosts turned ready or not between two reports of a child: itself, and those below it. Of a child that did
// not report before, a host that is ready is news, too. A host that falls silent sends no report, and so causes no event. Hosts that
// are not below the child are left out: it could claim any.
func hostsBetween(before, after wire.Report, at time.Time, below func(host string) bool) []Event {
	was := map[string]bool{}
	if before.Identity != "" {
		was[before.Identity] = before.Ready
		for _, n := range before.Nodes {
			was[n.Name] = n.Ready
		}
	}
	var out []Event
	add := func(name, agent string, ready bool, problem string) {
		if old, known := was[name]; known && old == ready || name != after.Identity && !below(name) {
			return
		}
		e := Event{At: at, Type: HostNotReady, Agent: agent, Address: model.Address{Kind: model.HostKind, Name: name}.String(), Text: oneLine(problem)}
		if ready {
			e.Type, e.Text = HostReady, ""
		}
		out = append(out, e)
	}
	add(after.Identity, after.Identity, after.Ready, after.Problem())
	for _, n := range after.Nodes {
		if n.Type == model.PVEType {
			add(n.Name, n.Parent, n.Ready, n.Error)
		}
	}
	return out
}

func problem(n *engine.NodeStatus) string {
	text := n.Phase
	if n.Drift > 0 {
		text += fmt.Sprintf(", %d differ", n.Drift)
	}
	if n.Error != "" {
		text += ": " + n.Error
	}
	return text
}

// mostText is the maximum length of the text of an event, in bytes.
const mostText = 500

// oneLine limits a text, and removes control characters: a stream has one line for each event, and
// it may be printed on a terminal.
func oneLine(s string) string {
	return diag.ShortLine(s, mostText)
}
