package view

import (
	"fmt"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// Why is the text of why, "" if nothing is known.
func Why(r control.Reasons) string {
	if r.NotFound {
		return ""
	}
	var b strings.Builder
	why := Explain(r)
	fmt.Fprintln(&b, why.Head)
	rows(why.Rows).write(&b, 10, "", false)
	if len(r.Receipts) > 0 {
		fmt.Fprintln(&b, "last done")
	}
	for _, done := range why.Done {
		fmt.Fprintf(&b, "  %s  %s\n", done.Label, done.Text)
		for _, line := range done.Below {
			fmt.Fprintf(&b, "      %s\n", line)
		}
	}
	return b.String()
}

// Explained is the answer of why in words.
type Explained struct {
	Head string
	Rows []Row
	Done []Row // the last steps, newest first, by when they began
}

// Explain puts the answer of why into words.
func Explain(r control.Reasons) Explained {
	head := r.Address
	if r.Node != nil && r.Node.VMID != 0 {
		head += fmt.Sprintf(" (%d)", r.Node.VMID)
	}
	if r.Declared != nil && r.Declared.Manifest != "" {
		head += ", of manifest " + r.Declared.Manifest
	}
	var out rows
	row := out.add
	switch {
	case r.Declared != nil:
		row("declared", "%s", r.Declared.At)
		row("by commit", "%s", Commit(r.InForce))
	case r.Removed != nil:
		row("removed", "with commit %s", named(r.Removed.Commit, r.Removed.Subject, r.Removed.Author))
		row("phase", "%s", plan.Decommissioned)
	case len(r.Unmanaged) > 0:
	case !r.Known && r.Running:
		row("declared", "unknown: the files of commit %s are not available before the next pass", Commit(r.InForce))
	case !r.Known:
		row("declared", "unknown: no agent is running")
	case len(r.Receipts) > 0:
		row("declared", "no: the commit in force does not have it, but it was not removed")
	}
	var nodes []engine.NodeStatus
	if r.Node != nil {
		nodes = append(nodes, *r.Node)
		row("is", "%s", standing(*r.Node))
		if r.Node.Life != "" {
			row("phase", "%s", r.Node.Life)
		}
		if b := r.Node.Backup; b != nil {
			row("backup", "%s", backup(b, time.Now()))
		}
	}
	for _, c := range r.Checks {
		row("check", "%s %s since %s%s", c.Check, c.State, When(c.Since), checkError(c, nodes))
	}
	for _, g := range r.Unmanaged {
		row("unmanaged", "%s %s (%d): %s; it is ignored", g.Kind, g.Name, g.VMID, g.Why)
	}
	for _, n := range r.Unknown {
		if text := n.Scope + ": " + n.Why; !saidBy(nodes, r.Address, text) {
			row("unknown", "%s", text)
		}
	}
	why := Explained{Head: diag.Clean(head), Rows: out}
	for _, rec := range r.Receipts {
		for _, st := range rec.Steps {
			why.Done = append(why.Done, pastStep(rec, st))
		}
	}
	return why
}

// pastStep describes one step of the past.
func pastStep(r ledger.Receipt, st ledger.Step) (row Row) {
	line := func(format string, args ...any) {
		row.Below = append(row.Below, diag.Clean(fmt.Sprintf(format, args...)))
	}
	drift := ""
	if r.Drift {
		drift = ", to revert changes on the host"
	}
	again := ""
	if r.Passes > 1 && r.First != nil {
		again = fmt.Sprintf(", %d times since %s", r.Passes, When(*r.First))
	}
	row.Label, row.Text = When(r.Began), diag.Clean(fmt.Sprintf("%s %s in %.1f s%s%s", st.Action, st.Status, st.Seconds, drift, again))
	line("by %s with commit %s", r.By, named(r.Commit, r.Subject, r.Author))
	if st.Reason != "" {
		line("because %s", st.Reason)
	}
	if st.Error != "" {
		line("error: %s", oneLine(st.Error))
	}
	if st.Action == "create" || st.Action == "delete" {
		return row // what it has, or had, is in the site
	}
	for _, c := range st.Changes {
		before, after := fmt.Sprint(c.Before), fmt.Sprint(c.After)
		if c.Sensitive {
			before, after = model.Sensitive, model.Sensitive
		}
		line("%s: %s → %s", c.Path, orNothing(before), orNothing(after))
	}
	return row
}
