package view

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// refusal explains why a commit is not in force.
func refusal(out *rows, s agent.Status) {
	if s.Refused == nil {
		return
	}
	var text strings.Builder
	row := Row{Label: "refused", Text: fmt.Sprintf("%s is %s since %s", Short(s.Refused.Commit), s.Refused.Outcome, When(s.Refused.Since)), Tone: bad}
	errs := slices.DeleteFunc(slices.Clone(s.Refused.Findings), func(f diag.Finding) bool { return f.Severity != diag.Error })
	errs.Write(&text)
	row.Below = strings.Split(strings.TrimRight(diag.Clean(text.String()), "\n"), "\n")
	if more := len(s.Refused.Findings) - len(errs); more > 0 {
		row.Below = append(row.Below, fmt.Sprintf("and %s; all of it: homestak-gitops status --json", diag.Count(more, "warning")))
	}
	*out = append(*out, row)
}

// runningText describes the running pass: current and next steps.
func runningText(out *rows, r agent.Running, now time.Time) {
	head := fmt.Sprintf("pass on %s for %s", Short(r.Commit), ago(now, r.Since))
	if r.Steps > 0 {
		head += fmt.Sprintf(", %d of %s done", r.Done, diag.Count(r.Steps, "step"))
	}
	if r.Seconds > 0 {
		head += ", about " + span(time.Duration(r.Seconds*float64(time.Second))) + " left"
	}
	row := Row{Label: "running", Text: head, Tone: busy}
	for _, n := range r.Now {
		row.Below = append(row.Below, "now   "+stepLine(n, now))
	}
	const most = 5
	for i, addr := range r.Next {
		if i == most {
			row.Below = append(row.Below, fmt.Sprintf("next  and %d more", len(r.Next)-most))
			break
		}
		row.Below = append(row.Below, "next  "+diag.Clean(addr))
	}
	*out = append(*out, row)
}

// stepLine describes a running step.
func stepLine(n agent.StepNow, now time.Time) string {
	text := fmt.Sprintf("%s %s for %s", n.Address, words(n.Action).doing, ago(now, n.Since))
	if n.Usually > 0 {
		text += fmt.Sprintf(" (usually %s)", span(time.Duration(n.Usually*float64(time.Second))))
	}
	return diag.Clean(text)
}

// passLine describes the result of a pass.
func passLine(l agent.PassStatus, now time.Time) string {
	text := fmt.Sprintf("%s %s ago in %s", l.Outcome, ago(now, l.Ended), span(time.Duration(l.Seconds*float64(time.Second))))
	s := l.Summary
	if whole := l.Outcome == engine.Done || l.Outcome == engine.Planned; whole || s.Create+s.Update+s.Replace+s.Delete > 0 {
		text += ": " + summaryLine(s) // for a pass without a plan it would say that there is nothing to do
	}
	if l.Drift {
		if l.Outcome == engine.Planned {
			text += ", the host was changed; nothing is reverted"
		} else {
			text += ", reverted changes on the host"
		}
	}
	if l.Unknown > 0 {
		text += fmt.Sprintf(", %d unknown", l.Unknown)
	}
	if l.Pending > 0 {
		text += fmt.Sprintf(", %d pending", l.Pending)
	}
	if l.Error != "" {
		text += ": " + l.Error
	}
	return text
}

// summaryLine counts the steps of a plan.
func summaryLine(s plan.Summary) string {
	var parts []string
	for _, n := range []struct {
		n    int
		what string
	}{{s.Adopt, "adopt"}, {s.Create, "add"}, {s.Update, "change"}, {s.Replace, "replace"}, {s.Delete, "destroy"}, {s.Forget, "give up"}} {
		if n.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n.n, n.what))
		}
	}
	if len(parts) == 0 {
		parts = append(parts, "nothing to do")
	}
	if s.Unmanaged > 0 {
		parts = append(parts, fmt.Sprintf("%d unmanaged", s.Unmanaged))
	}
	return strings.Join(parts, ", ")
}

// nodesText draws the table of nodes.
func nodesText(b *strings.Builder, nodes []engine.NodeStatus, now time.Time, p Paint) {
	if len(nodes) == 0 {
		return
	}
	rows := [][]string{{"NODE", "VMID", "ON", "SINCE", "STATE"}}
	for _, n := range nodes {
		rows = append(rows, NodeCells(n, now))
	}
	fmt.Fprintln(b)
	table(b, rows, func(row, column int, text string) string {
		switch {
		case row == 0:
			return p.as(dim, text)
		case column < 4:
			return text
		case nodes[row-1].Ready:
			return p.as(good, text)
		default:
			return p.as(bad, text)
		}
	})
}

// NodeCells are the address of a node, its VMID, its PVE node, since when, and its state.
func NodeCells(n engine.NodeStatus, now time.Time) []string {
	id := ""
	if n.VMID != 0 {
		id = fmt.Sprint(n.VMID)
	}
	since := ""
	if !n.Since.IsZero() {
		since = ago(now, n.Since)
	}
	return []string{oneLine(n.Address), id, orDash(oneLine(n.PVENode)), since, oneLine(standing(n))}
}

// standing describes the state of a node.
func standing(n engine.NodeStatus) string {
	var text string
	switch {
	case n.Ready && n.Life == plan.Planned:
		text = string(n.Life)
	case n.Ready:
		text = "ready"
		if n.Life != "" && n.Life != plan.Operating {
			text += ", " + string(n.Life)
		}
	case n.Drift > 0:
		text = diag.Count(n.Drift, "difference")
	case n.Phase == "create":
		text = "to be created"
	case n.Phase == "destroy":
		text = "to be destroyed"
	default:
		text = "not ready"
	}
	if n.Overdue != "" {
		text += ", review overdue since " + n.Overdue
	}
	if n.Error != "" {
		text += ": " + n.Error
	}
	return text
}

// backup describes the backups of a node.
func backup(b *model.BackupState, now time.Time) string {
	text := "none on " + b.Storage
	if b.Newest != nil {
		text = fmt.Sprintf("%s old: %s", ago(now, *b.Newest), b.Archive)
	}
	if b.Stale != "" {
		text += "; stale: " + b.Stale
	}
	if b.Proved != nil {
		text += fmt.Sprintf("; a restore booted %s ago", ago(now, *b.Proved))
	}
	if b.Failed != "" {
		text += "; the last restore failed: " + b.Failed
	}
	return oneLine(text)
}

// Beginning reports whether an agent is in its first pass, without problems so far.
func Beginning(s agent.Status) bool {
	return s.State != control.Absent && s.Last == nil && s.Refused == nil && s.Repository.Error == ""
}

// Health says in words whether an agent is healthy.
func Health(s agent.Status) (string, Tone) {
	switch {
	case s.State == control.Absent:
		return "no agent is running here; this is its state at " + When(s.At), bad
	case Beginning(s):
		return "no pass has finished yet", busy
	case !s.Healthy:
		return "not healthy", bad
	default:
		return "healthy", good
	}
}

// Status draws a status for people.
func (p Paint) Status(s agent.Status, now time.Time) string {
	var b strings.Builder
	health, tone := Health(s)
	fmt.Fprintf(&b, "%s  %s", orNothing(s.Identity), p.as(tone, health))
	if s.State != control.Absent {
		fmt.Fprintf(&b, "  %s  %s", p.as(busy, string(s.State)), p.as(dim, fmt.Sprintf("pid %d, up %s, %s", s.PID, ago(now, s.Started), s.Agent)))
	}
	fmt.Fprintln(&b)
	if s.Summary != "" {
		fmt.Fprintf(&b, "  %s\n", diag.Clean(s.Summary))
	}
	fmt.Fprintln(&b)
	rows(StatusRows(s, now)).write(&b, 11, "    ", p)
	nodesText(&b, s.Nodes, now, p)
	hostsText(&b, s.Hosts, now, p)
	return b.String()
}

// StatusRows are the statements of a status, without its nodes and hosts.
func StatusRows(s agent.Status, now time.Time) []Row {
	var out rows
	row := out.add
	if s.Repository.URL != "" {
		at := s.Repository.URL + "  " + s.Repository.Branch
		if s.Repository.Path != "" && s.Repository.Path != "." {
			at += "  " + s.Repository.Path + "/"
		}
		row("repository", "%s", at)
		row("", "%s", checksLine(s, now))
	}
	around(row, s, now)
	commits(row, s, now)
	refusal(&out, s)
	if s.Running != nil {
		runningText(&out, *s.Running, now)
	}
	if s.Last != nil {
		row("last pass", "%s", passLine(withoutKnownError(s), now))
		warnings(row, s)
	}
	for _, sus := range s.Suspended {
		row("suspended", "%s", Suspension(sus, now))
	}
	checksText(row, s, now)
	notifyText(&out, s, now)
	outputsText(row, s)
	return out
}

// notifyText lists the notifiers that fail, or dropped messages.
func notifyText(out *rows, s agent.Status, now time.Time) {
	for _, n := range s.Notify {
		if n.Error == "" && n.Dropped == 0 {
			continue
		}
		text, tone := diag.Clean(n.Name)+"  recovered", good
		if n.Error != "" {
			text, tone = diag.Clean(n.Name)+"  failing", bad
			if n.Failing != nil {
				text += " for " + ago(now, *n.Failing)
			}
			text += ": " + diag.Line(n.Error)
		}
		if n.Queued > 0 {
			text += "; " + diag.Count(n.Queued, "message") + " waiting"
		}
		if n.Dropped > 0 {
			text += "; " + diag.Count(n.Dropped, "message") + " dropped"
		}
		*out = append(*out, Row{Label: "notify", Text: text, Tone: tone})
	}
}

// outputsText lists the outputs that are not as they should be.
func outputsText(row func(label, format string, args ...any), s agent.Status) {
	for _, o := range s.Outputs {
		if o.Error != "" {
			row("output", "%s (%s): %s", o.Name, o.To, o.Error)
		}
	}
}

// checksText lists the checks that fail.
func checksText(row func(label, format string, args ...any), s agent.Status, now time.Time) {
	var texts []string
	for _, c := range s.FailingChecks() {
		texts = append(texts, fmt.Sprintf("check %s of %s for %s", c.Check, c.Address, ago(now, c.Since))+checkError(c, s.Nodes))
	}
	limited(row, "failing", texts)
}

// checkError is why a check failed, unless its node says so, and why it does not run.
func checkError(c agent.CheckStatus, nodes []engine.NodeStatus) (text string) {
	if c.Error != "" && !saidBy(nodes, c.Address, c.Error) {
		text = ": " + c.Error
	}
	if c.Idle != "" {
		text += " (not run now: " + c.Idle + ")"
	}
	return text
}

// saidBy reports whether the state of a node contains a text.
func saidBy(nodes []engine.NodeStatus, address, text string) bool {
	return slices.ContainsFunc(nodes, func(n engine.NodeStatus) bool { return n.Address == address && strings.Contains(n.Error, text) })
}

// limited adds the first of some texts as rows, and how many more there are.
func limited(row func(label, format string, args ...any), label string, texts []string) {
	const most = 5
	for _, text := range texts[:min(len(texts), most)] {
		row(label, "%s", text)
		label = ""
	}
	if more := len(texts) - most; more > 0 {
		row("", "and %d more: homestak-gitops status --json", more)
	}
}

// hostsText lists the hosts below.
func hostsText(b *strings.Builder, hosts []agent.HostBelow, now time.Time, p Paint) {
	if len(hosts) == 0 {
		return
	}
	fmt.Fprintf(b, "\nhosts below: %d\n", len(hosts))
	width := 0
	for _, h := range hosts {
		width = max(width, len(h.Name))
	}
	for _, h := range hosts {
		state, tone := ready(h.Ready, h.Stale, "")
		fields := []string{fmt.Sprintf("  %-*s", width, h.Name), p.as(tone, state)}
		if h.Commit != "" {
			fields = append(fields, "at "+Short(h.Commit))
		}
		if h.Reported != nil {
			fields = append(fields, "reported "+ago(now, *h.Reported)+" ago")
		}
		if h.Error != "" {
			fields = append(fields, diag.Clean(firstOf(h.Error)))
		}
		fmt.Fprintln(b, strings.Join(fields, "  "))
	}
}

// around describes the server for nodes, and the parent.
func around(row func(label, format string, args ...any), s agent.Status, now time.Time) {
	failing := func(since *time.Time, what string) string {
		if since == nil {
			return what
		}
		return "for " + ago(now, *since) + ": " + what
	}
	if v := s.Server; v != nil {
		switch {
		case v.Error != "":
			row("server", "%s  fails to serve %s", v.Address, failing(v.Failing, v.Error))
		case v.Commit == "":
			row("server", "%s  has no commit to serve yet", v.Address)
		default:
			row("server", "%s  serves %s at %s", v.Address, diag.Count(v.Nodes, "node"), Short(v.Commit))
		}
		if len(v.Pins) > 0 {
			row("", "pin %s", v.Pins[0])
		}
		for _, h := range v.Waiting {
			row("waiting", "%s  joined from %s %s ago, and no commit in force has a host of this name", diag.Clean(h.Name), h.From, ago(now, h.Since))
		}
	}
	if v := s.Parent; v != nil {
		switch {
		case v.Error != "":
			row("parent", "%s  does not accept reports %s", v.URL, failing(v.Failing, v.Error))
		case v.Reported == nil:
			row("parent", "%s  no report sent yet", v.URL)
		default:
			row("parent", "%s  last report %s ago", v.URL, ago(now, *v.Reported))
		}
	}
}

// warnings lists what the last pass reported of guests that are as the files say.
func warnings(row func(label, format string, args ...any), s agent.Status) {
	var texts []string
	for _, f := range s.Last.Findings {
		if f.Source == diag.FromHost && !saidBy(s.Nodes, f.Address, f.Summary) {
			texts = append(texts, f.Summary)
		}
	}
	limited(row, "warnings", texts)
}

// withoutKnownError is the last pass, without an error that the status shows anyway.
func withoutKnownError(s agent.Status) agent.PassStatus {
	l := *s.Last
	l.Error, _, _ = strings.Cut(l.Error, "\n")
	if strings.Contains(s.Summary, l.Error) {
		l.Error = ""
	}
	return l
}

// checksLine describes when the agent checks repository and host.
func checksLine(s agent.Status, now time.Time) string {
	var parts []string
	if r := s.Repository; r.Error != "" {
		since := ""
		if r.Failing != nil {
			since = " for " + ago(now, *r.Failing)
		}
		what := "does not answer" + since
		if r.Condition == agent.BranchMissing {
			what = "answers without the branch" + since
		}
		parts = append(parts, what+": "+r.Error)
	} else if r.Checked != nil {
		parts = append(parts, "answered "+ago(now, *r.Checked)+" ago")
	}
	if s.NextCheck != nil {
		parts = append(parts, "next check "+until(now, *s.NextCheck))
	}
	if s.NextFull != nil {
		full := "next full check " + until(now, *s.NextFull)
		if s.Watch != nil && s.Watch.Error == "" {
			full += ", changes of guests at once"
		}
		parts = append(parts, full)
	}
	if len(parts) == 0 {
		return "not checked yet"
	}
	return strings.Join(parts, ", ")
}

// commits describes the head, the commit in force and the converged one; in one line if all are the
// same.
func commits(row func(label, format string, args ...any), s agent.Status, now time.Time) {
	line := func(label string, c *agent.CommitStatus) {
		if c != nil {
			row(label, "%s, %s ago", Commit(c), ago(now, c.Since))
		}
	}
	same := func(a, b *agent.CommitStatus) bool { return a != nil && b != nil && a.ID == b.ID }
	switch {
	case same(s.Head, s.InForce) && same(s.InForce, s.Converged):
		line("commit", s.Converged)
		return
	case same(s.Head, s.InForce):
		line("in force", s.InForce)
	default:
		line("head", s.Head)
		line("in force", s.InForce)
	}
	if !same(s.InForce, s.Converged) {
		line("converged", s.Converged)
	}
}

// Suspension describes a suspension.
func Suspension(s ledger.Suspension, now time.Time) string {
	end := "until it is resumed"
	if s.Until != nil {
		end = "ends " + until(now, *s.Until)
	}
	return fmt.Sprintf("%s by %s, %s ago, %s: %s", control.SuspendedWhat(s.Manifest), s.By, ago(now, s.Since), end, s.Reason)
}

// Busy describes what a busy agent does.
func Busy(host string, s agent.Status) string {
	if s.Running == nil {
		return "the agent of host " + host + " is busy"
	}
	text := "the agent is converging host " + host
	if s.Running.Steps > 0 {
		text += fmt.Sprintf(", %d of %s done", s.Running.Done, diag.Count(s.Running.Steps, "step"))
	}
	if s.Running.Seconds > 0 {
		text += ", about " + span(time.Duration(s.Running.Seconds*float64(time.Second))) + " left"
	}
	return text
}
