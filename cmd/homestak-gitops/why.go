package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
)

// reasons is why something is as it is: the document of why.
type reasons struct {
	Address  string              `json:"address"`
	Running  bool                `json:"running"`   // an agent answered; otherwise only receipts are known
	InForce  *agent.CommitStatus `json:"in_force"`  // the commit that is converged to
	Known    bool                `json:"known"`     // whether Declared says anything: the site in force was read
	Declared *declaration        `json:"declared"`  // where the commit in force declares it; null if it does not
	Node     *engine.NodeStatus  `json:"node"`      // how it is; null if it is no node of the subtree
	Removed  *removal            `json:"removed"`   // how it left the host, if it did
	Foreign  []foreign           `json:"unmanaged"` // guests of that name that are not ours
	Unknown  []model.Unknown     `json:"unknown"`   // parts of the host that could not be seen
	Receipts []ledger.Receipt    `json:"receipts"`  // the last that touched it, newest first, with that step only
	NotFound bool                `json:"not_found"`
	Hint     string              `json:"hint"` // the nearly right address
}

// removal is the pass that took something away.
type removal struct {
	Commit  string `json:"commit"`
	Subject string `json:"subject"`
	Author  string `json:"author"`
	Receipt string `json:"receipt"`
}

const (
	touchesTold   = 5   // receipts that why tells of
	touchesLooked = 100 // receipts in which it looks for an address of that name
)

// reasonsOf gathers what is known of an address. The name of a node alone, or a VMID,
// stands for the address if one has it.
func reasonsOf(address string, s agent.Status, k *knowledge, from receipts) reasons {
	r := reasons{Address: address, Running: s.PID != 0, InForce: s.InForce, Foreign: []foreign{}, Unknown: []model.Unknown{}}
	id := ""
	if s.InForce != nil {
		id = s.InForce.ID
	}
	_, all, known := k.declared(id, "")
	for _, n := range s.Nodes {
		all = append(all, n.Address)
	}
	r.Known = known
	for _, rec := range remembered(from, touchesLooked, "").Receipts {
		for _, st := range rec.Steps {
			all = append(all, st.Address)
		}
	}
	r.Address = whole(address, all, s.Nodes)
	r.Declared, _, _ = k.declared(id, r.Address)
	for _, n := range s.Nodes {
		if n.Address == r.Address {
			r.Node = &n
		}
	}
	strangers, unknown := k.beyond()
	for _, f := range strangers {
		if f.Kind+"."+f.Name == r.Address || f.Name == address || strconv.Itoa(f.VMID) == address {
			r.Foreign = append(r.Foreign, f)
		}
	}
	r.Unknown = append(r.Unknown, unknown...)
	r.Receipts = remembered(from, touchesTold, r.Address).Receipts
	for i := range r.Receipts {
		r.Receipts[i].Findings = nil
		r.Receipts[i].Steps = slices.DeleteFunc(slices.Clone(r.Receipts[i].Steps), func(st ledger.Step) bool { return st.Address != r.Address })
	}
	r.Removed = removed(r)
	if r.Declared == nil && r.Node == nil && len(r.Foreign) == 0 && len(r.Receipts) == 0 {
		r.NotFound = true
		slices.Sort(all)
		r.Hint = diag.DidYouMean(address, slices.Compact(all))
	}
	return r
}

// whole finds the address that a name or VMID stands for; what none is stays.
func whole(text string, all []string, nodes []engine.NodeStatus) string {
	if slices.Contains(all, text) {
		return text
	}
	for _, n := range nodes {
		if n.Node == text || strconv.Itoa(n.VMID) == text {
			return n.Address
		}
	}
	for _, a := range all {
		if _, name, _ := strings.Cut(a, "."); name == text {
			return a
		}
	}
	return text
}

// removed tells which pass took something away that is not declared any more.
func removed(r reasons) *removal {
	if r.Declared != nil || len(r.Receipts) == 0 || len(r.Receipts[0].Steps) == 0 {
		return nil
	}
	last := r.Receipts[0]
	if st := last.Steps[len(last.Steps)-1]; st.Action != "delete" || st.Status != "done" {
		return nil
	}
	return &removal{last.Commit, last.Subject, last.Author, last.ID}
}

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
	a.ui.document = problemOf
	r, cfg, err := a.agentHere(ctx, f)
	var doc reasons
	switch {
	case err == nil:
		err = r.get(ctx, "/why/"+url.PathEscape(address), &doc)
	case errors.Is(err, errNoAgent):
		var m *memory
		if m, err = a.recall(cfg); err == nil {
			a.ui.notef("no agent is running here; this is what it knew at %s", when(m.status.At))
			doc = reasonsOf(address, m.status, &knowledge{}, m.ledger)
		}
	}
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
func (u *ui) reasons(r reasons) {
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
	case len(r.Foreign) > 0:
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
	for _, g := range r.Foreign {
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
