package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/engine/ledger"

	"github.com/homestak/homestak-gitops/engine/control"
)

func (a *app) whyVerb() *cobra.Command {
	f := &agentFlags{}
	c := &cobra.Command{
		Use:   "why ADDRESS",
		Short: "Tell where something comes from, and what was last done to it",
		Long: `Tells which file and line of the commit in force declares an object, how it is,
and which passes touched it, with what they changed and why. ADDRESS is one such as
vm.web-1; the name of a node or a VMID will do. Of what left the site it tells which
commit removed it, of an unmanaged guest why it is left alone.`,
		Args: takes(1, 1),
		RunE: func(c *cobra.Command, args []string) error { return a.why(c.Context(), f, args[0]) },
	}
	f.find(c)
	a.ui.jsonFlag(c)
	c.ValidArgsFunction = a.completeAddresses(f)
	return c
}

func (a *app) why(ctx context.Context, f *agentFlags, address string) error {
	ctx, cancel := a.stopping.soon(ctx)
	defer cancel()
	a.ui.document = control.ProblemOf
	r, err := a.recordOf(ctx, f)
	if err != nil {
		return err
	}
	a.noteOffline(ctx, r)
	doc, err := r.Why(ctx, address)
	if err != nil {
		return err
	}
	if a.ui.json {
		if err := a.ui.emit(doc); err != nil {
			return err
		}
	} else {
		a.ui.reasons(doc)
	}
	if doc.NotFound {
		hint := doc.Hint
		if hint == "" {
			hint = "addresses look like vm.web-1; homestak-gitops status lists them"
		}
		return fmt.Errorf("nothing is known of %q\n%s", address, hint)
	}
	return nil
}

// reasons writes the text of why.
func (u *ui) reasons(r control.Reasons) {
	if r.NotFound {
		return
	}
	var b strings.Builder
	head := r.Address
	if r.Node != nil && r.Node.VMID != 0 {
		head += fmt.Sprintf(" (%d)", r.Node.VMID)
	}
	if r.Declared != nil && r.Declared.Manifest != "" {
		head += ", of manifest " + r.Declared.Manifest
	}
	fmt.Fprintln(&b, head)
	row := func(label, format string, args ...any) {
		fmt.Fprintf(&b, "  %-10s %s\n", label, fmt.Sprintf(format, args...))
	}
	switch {
	case r.Declared != nil:
		row("declared", "%s", r.Declared.At)
		row("by commit", "%s", commitLine(r.InForce))
	case r.Removed != nil:
		row("removed", "with commit %s", named(r.Removed.Commit, r.Removed.Subject, r.Removed.Author))
	case len(r.Unmanaged) > 0:
	case !r.Known && r.Running:
		row("declared", "not known: the files of commit %s are not at hand; it is after the next pass", commitLine(r.InForce))
	case !r.Known:
		row("declared", "not known: no agent is running that could tell")
	case len(r.Receipts) > 0:
		row("declared", "no: the commit in force does not have it, but it was not removed")
	}
	if r.Node != nil {
		row("is", "%s", standing(*r.Node))
	}
	for _, g := range r.Unmanaged {
		row("unmanaged", "%s %s (%d): %s; it is left alone", g.Kind, g.Name, g.VMID, g.Why)
	}
	for _, n := range r.Unknown {
		row("unknown", "%s: %s", n.Scope, n.Why)
	}
	if len(r.Receipts) > 0 {
		fmt.Fprintln(&b, "last done")
	}
	for _, rec := range r.Receipts {
		for _, st := range rec.Steps {
			tellStep(&b, rec, st)
		}
	}
	u.printf("%s", printable(b.String()))
}

// tellStep tells of one step of the past.
func tellStep(b *strings.Builder, r ledger.Receipt, st ledger.Step) {
	drift := ""
	if r.Drift {
		drift = ", to put back what was changed on the host"
	}
	fmt.Fprintf(b, "  %s  %s %s in %.1f s%s\n", when(r.Began), st.Action, st.Status, st.Seconds, drift)
	fmt.Fprintf(b, "      by %s with commit %s\n", r.By, named(r.Commit, r.Subject, r.Author))
	if st.Reason != "" {
		fmt.Fprintf(b, "      because %s\n", st.Reason)
	}
	if st.Error != "" {
		fmt.Fprintf(b, "      error: %s\n", st.Error)
	}
	if st.Action == "create" || st.Action == "delete" {
		return // what it has, or had, is in the site
	}
	for _, c := range st.Changes {
		before, after := fmt.Sprint(c.Before), fmt.Sprint(c.After)
		if c.Sensitive {
			before, after = "(sensitive)", "(sensitive)"
		}
		fmt.Fprintf(b, "      %s: %s → %s\n", c.Path, orNothing(before), orNothing(after))
	}
}

func orNothing(s string) string {
	if s == "" || s == "<nil>" {
		return "nothing"
	}
	return s
}
