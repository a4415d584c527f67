package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// refusal tells why a commit is not in force.
func refusal(s agent.Status, p paint) string {
	if s.Refused == nil {
		return ""
	}
	var b, text strings.Builder
	fmt.Fprintf(&b, "  %-11s %s\n", "refused", p.as(bad, fmt.Sprintf("%s is %s since %s", short(s.Refused.Commit), s.Refused.Outcome, when(s.Refused.Since))))
	errs := slices.DeleteFunc(slices.Clone(s.Refused.Findings), func(f diag.Finding) bool { return f.Severity != diag.Error })
	diag.Text(&text, errs)
	for line := range strings.Lines(strings.TrimRight(printable(text.String()), "\n") + "\n") {
		if line != "\n" {
			line = "    " + line
		}
		fmt.Fprint(&b, line)
	}
	if more := len(s.Refused.Findings) - len(errs); more > 0 {
		fmt.Fprintf(&b, "    and %s; all of it: homestak-gitops status --json\n", count(more, "warning"))
	}
	return b.String()
}

// runningText tells of the pass under way: what runs, what comes.
func runningText(r agent.Running, now time.Time, p paint) string {
	var b strings.Builder
	head := fmt.Sprintf("pass on %s for %s", short(r.Commit), ago(now, r.Since))
	if r.Steps > 0 {
		head += fmt.Sprintf(", %d of %s done", r.Done, count(r.Steps, "step"))
	}
	if r.Seconds > 0 {
		head += ", about " + span(time.Duration(r.Seconds*float64(time.Second))) + " left"
	}
	fmt.Fprintf(&b, "  %-11s %s\n", "running", p.as(busy, head))
	for _, n := range r.Now {
		fmt.Fprintf(&b, "    now   %s\n", stepLine(n, now))
	}
	const told = 5
	for i, addr := range r.Next {
		if i == told {
			fmt.Fprintf(&b, "    next  and %d more\n", len(r.Next)-told)
			break
		}
		fmt.Fprintf(&b, "    next  %s\n", printable(addr))
	}
	return b.String()
}

// stepLine tells of a step that runs.
func stepLine(n agent.StepNow, now time.Time) string {
	text := fmt.Sprintf("%s %s for %s", n.Address, doing(n.Action), ago(now, n.Since))
	if n.Usually > 0 {
		text += fmt.Sprintf(" (usually %s)", span(time.Duration(n.Usually*float64(time.Second))))
	}
	return printable(text)
}

// passLine tells how a pass ended.
func passLine(l agent.PassStatus, now time.Time) string {
	text := fmt.Sprintf("%s %s ago in %s", l.Outcome, ago(now, l.Ended), span(time.Duration(l.Seconds*float64(time.Second))))
	s := l.Summary
	if whole := l.Outcome == engine.Done || l.Outcome == engine.Planned; whole || s.Create+s.Update+s.Replace+s.Delete > 0 {
		text += ": " + summaryLine(s) // of a pass that could not even plan it would say that nothing is to be done
	}
	if l.Drift {
		text += ", put back what was changed on the host"
	}
	if l.Unknown > 0 {
		text += fmt.Sprintf(", %d not seen", l.Unknown)
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
	}{{s.Create, "add"}, {s.Update, "change"}, {s.Replace, "replace"}, {s.Delete, "destroy"}} {
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
func nodesText(b *strings.Builder, nodes []engine.NodeStatus, now time.Time, p paint) {
	if len(nodes) == 0 {
		return
	}
	rows := [][]string{{"NODE", "VMID", "ON", "SINCE", "STATE"}}
	for _, n := range nodes {
		id := ""
		if n.VMID != 0 {
			id = fmt.Sprint(n.VMID)
		}
		since := ""
		if !n.Since.IsZero() {
			since = ago(now, n.Since)
		}
		rows = append(rows, []string{n.Address, id, orDash(n.Place), since, standing(n)})
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

// standing says how a node is.
func standing(n engine.NodeStatus) string {
	var text string
	switch {
	case n.Ready:
		text = "ready"
	case n.Drift > 0:
		text = count(n.Drift, "difference")
	case n.Phase == "create":
		text = "to be created"
	case n.Phase == "destroy":
		text = "to be destroyed"
	default:
		text = "not ready"
	}
	if n.Error != "" {
		text += ": " + n.Error
	}
	return text
}

// table draws rows in columns; mark gives a cell its colour.
func table(b *strings.Builder, rows [][]string, mark func(row, column int, text string) string) {
	width := map[int]int{}
	for _, r := range rows {
		for i, cell := range r {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	for row, r := range rows {
		var line strings.Builder
		line.WriteString("  ")
		for i, cell := range r {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell)+2)
			if i == len(r)-1 {
				pad = ""
			}
			line.WriteString(mark(row, i, printable(cell)) + pad)
		}
		fmt.Fprintln(b, strings.TrimRight(line.String(), " "))
	}
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// commitLine names a commit for people.
func commitLine(c *agent.CommitStatus) string {
	if c == nil {
		return "none"
	}
	return named(c.ID, c.Subject, c.Author)
}

func named(id, subject, author string) string {
	text := short(id)
	if subject != "" {
		text += " “" + subject + "”"
	}
	if author != "" {
		text += " (" + author + ")"
	}
	return text
}

// short is the beginning of a commit's id that people recognise.
func short(id string) string {
	if id == "" {
		return "no commit"
	}
	return id[:min(len(id), 8)]
}

// when writes a point in time, as the clock on the wall has it.
func when(t time.Time) string {
	if t.IsZero() {
		return "a time unknown"
	}
	return t.Local().Format(time.DateTime)
}

// ago tells how long something is past.
func ago(now, t time.Time) string { return span(now.Sub(t)) }

// until tells when something comes.
func until(now, t time.Time) string {
	if !t.After(now) {
		return "now"
	}
	return "in " + span(t.Sub(now))
}

// span writes a length of time in its two largest units at most.
func span(d time.Duration) string {
	switch d = max(d, 0); {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d <= 90*time.Minute:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%d days", int(d.Hours())/24)
	}
}
