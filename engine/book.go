package engine

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// strangerError says that a site does not have the identity, and which it may mean.
func strangerError(identity string, s *model.Site, c model.Commit) error {
	hint := diag.DidYouMean(identity, slices.Collect(maps.Keys(s.Hosts)))
	if hint == "" {
		hint = "it declares no host"
	}
	return fmt.Errorf("%w: %s is no host of site %s at commit %s: %s\nnothing is converged, since another agent may own the guests now; declare the host again, or mend the identity",
		ErrUnknownIdentity, identity, s.Name, c.Short(), hint)
}

// strange books that the newest commit does not know the identity.
func (a *Agent) strange(c model.Commit, r Report) {
	text, _, _ := strings.Cut(r.Err.Error(), "\n")
	if a.said.stranger != c.ID {
		a.o.Log.Error("nothing is converged", "error", r.Err, "commit", c.ID)
		a.said.stranger = c.ID
	}
	a.note(func(s *ledger.State) {
		if s.Unknown.ID != c.ID {
			s.Unknown = mark(c.ID)
		}
	})
	a.edit(func(d *desk) {
		d.stranger = text
		d.status.refuse(c.ID, r)
	})
	a.ended(c, r, false)
}

// refuse books that head must not converge.
func (a *Agent) refuse(c model.Commit, r Report) {
	good := ""
	a.edit(func(d *desk) {
		good = d.state.Good.ID
		d.stranger = ""
		d.status.refuse(c.ID, r)
	})
	if r.want != nil { // the site loaded, and has the identity
		a.known()
	}
	if key := c.ID + string(r.Outcome); a.said.refused != key {
		a.said.refused = key
		a.o.Log.Error("commit refused", "commit", c.ID, "outcome", string(r.Outcome), "errors", r.Findings.Errors(), "first", firstError(r.decisive()), "in_force", good)
	}
	a.ended(c, r, false)
}

// refuse says why a commit is not in force.
func (s *AgentStatus) refuse(id string, r Report) {
	since := time.Now().UTC()
	if s.Refused != nil && s.Refused.Commit == id {
		since = s.Refused.Since
	}
	s.Refused = &Refusal{Commit: id, Outcome: r.Outcome, Since: since, Findings: r.decisive()}
}

// decisive are the findings, those by which rules deny all of it before those that only
// keep single steps back.
func (r *Report) decisive() diag.List {
	denies := func(f diag.Finding) bool {
		return f.Severity == diag.Error && slices.ContainsFunc(r.ruled, func(g diag.Finding) bool { return same(f, g) })
	}
	out, rest := diag.List{}, diag.List{}
	for _, f := range r.Findings {
		if denies(f) {
			out = append(out, f)
		} else {
			rest = append(rest, f)
		}
	}
	return append(out, rest...)
}

// accept books that head is not refused, or not any more.
func (a *Agent) accept(c model.Commit, r Report) {
	if r.want != nil {
		a.known()
		a.edit(func(d *desk) { d.stranger = "" })
	}
	if !r.accepted {
		return // nobody could say what is wrong with it so far
	}
	if a.said.refused != "" && strings.HasPrefix(a.said.refused, c.ID) {
		a.o.Log.Info("commit is not refused any more", "commit", c.ID)
	}
	a.said.refused, a.said.stranger = "", ""
	a.edit(func(d *desk) { d.status.Refused = nil })
}

// known books that the newest commit has the identity.
func (a *Agent) known() {
	a.note(func(s *ledger.State) { s.Unknown = ledger.Mark{} })
}

// booked writes down a pass with a commit: in the receipts if it changed something,
// in the state, in the status. It is called before anybody else may write.
func (a *Agent) booked(c model.Commit, r Report, drift bool, held []ledger.Suspension) {
	if receipt, ok := r.Receipt(a.o.Identity, drift); ok {
		if _, err := a.o.Ledger.Write(receipt); err != nil {
			a.o.Log.Warn("the receipt was not kept", "error", err)
		}
		a.logChanges(c, r, drift)
	}
	a.noteUnwell(r)
	a.noteLeftovers(r)
	a.noteRecall(r)
	a.note(func(s *ledger.State) {
		if r.accepted && s.Good.ID != c.ID {
			s.Good = mark(c.ID)
		}
		if r.Outcome != Done {
			return
		}
		aside := resting(held)
		if s.Converged.ID == c.ID {
			aside = slices.DeleteFunc(aside, func(m string) bool { return !slices.Contains(s.Aside, m) })
		} else {
			a.settle(s, c)
		}
		if !slices.Equal(s.Aside, aside) {
			s.Aside = aside
		}
	})
	if !r.Denied {
		a.ended(c, r, drift)
	}
}

// removes reports whether a step takes a guest away.
func removes(s *plan.Step) bool {
	return (s.Action == plan.Delete || s.Action == plan.Replace) && s.Have != nil && s.Have.Guest != nil
}

// drifted reports whether a pass found differences that no commit asked for: the host
// was as this commit says before, but for what was suspended then.
func (a *Agent) drifted(c model.Commit, r Report) bool {
	if r.Plan == nil {
		return false
	}
	var s ledger.State
	a.edit(func(d *desk) { s = d.state })
	return s.Converged.ID == c.ID && slices.ContainsFunc(r.Plan.Steps, func(st plan.Step) bool {
		return st.Manifest == "" || !slices.Contains(s.Aside, st.Manifest)
	})
}

// ended puts the end of a pass into the status. Of the report, no more is kept than
// stands there.
func (a *Agent) ended(c model.Commit, r Report, drift bool) {
	last := &PassStatus{
		Commit: c.ID, Outcome: r.Outcome, Ended: time.Now().UTC(), Seconds: r.Seconds, Drift: drift, Findings: listed(r.Findings),
	}
	if r.Err != nil {
		last.Error = r.Err.Error()
	}
	if r.Plan != nil {
		last.Plan, last.Summary = r.Plan.ID, r.Plan.Summary
		last.Unknown, last.Pending = len(r.Plan.Unknown), len(r.Plan.Pending)
	}
	a.edit(func(d *desk) {
		d.status.Last, d.trouble = last, r.trouble()
		if nodes := r.nodeStatus(d.status.Nodes, last.Ended); nodes != nil {
			d.status.Nodes = nodes
		}
	})
	a.logEnd(c, r, last)
	a.moved()
}

// trouble says in a line why a pass did not come to its end, "" if it did.
func (r *Report) trouble() string {
	if r.Outcome != Failed && r.Outcome != Partly || r.Err == nil {
		return ""
	}
	failed := 0
	for _, res := range r.Results {
		if res.Status == apply.Failed {
			failed++
		}
	}
	text := firstLine(r.Err.Error())
	switch {
	case failed > 1:
		return fmt.Sprintf("%s (and %d more)", text, failed-1)
	case r.Plan != nil && len(r.Results) == 0 && slices.ContainsFunc(r.Have.Unknown, func(u model.Unknown) bool { return u.All }):
		return "host could not be seen: " + text
	default:
		return text
	}
}

// logEnd tells of a pass that did not come to its end: once for each reason.
func (a *Agent) logEnd(c model.Commit, r Report, last *PassStatus) {
	switch {
	case r.Outcome == Failed || r.Outcome == Partly:
		if a.said.trouble != last.Error {
			a.o.Log.Warn("the pass did not come to its end; it is tried again", "commit", c.ID, "outcome", string(r.Outcome), "error", r.Err)
		}
		a.said.trouble = last.Error
	case r.Outcome == Done && a.said.trouble != "":
		a.said.trouble = ""
		a.o.Log.Info("passes come to their end again", "commit", c.ID)
	default:
		a.o.Log.Debug("pass ended", "commit", c.ID, "outcome", string(r.Outcome), "plan", last.Plan, "seconds", last.Seconds)
	}
}

// logChanges tells of a pass that changed something.
func (a *Agent) logChanges(c model.Commit, r Report, drift bool) {
	n := map[apply.Status]int{}
	for _, res := range r.Results {
		n[res.Status]++
	}
	s := r.Plan.Summary
	what := "pass changed the host"
	if drift {
		what = "drift was put back"
	}
	a.o.Log.Info(what, //nolint:sloglint // one of two constants
		"commit", c.ID, "plan", r.Plan.ID, "outcome", string(r.Outcome), "seconds", r.Seconds,
		"create", s.Create, "update", s.Update, "replace", s.Replace, "delete", s.Delete,
		"done", n[apply.Done], "failed", n[apply.Failed], "skipped", n[apply.Skipped], "rolled_back", n[apply.RolledBack])
}

// firstError is the first error in a line, with its place.
func firstError(l diag.List) string {
	for _, f := range l {
		switch {
		case f.Severity != diag.Error:
		case f.At.IsZero():
			return f.Summary
		default:
			return f.At.String() + ": " + f.Summary
		}
	}
	return ""
}

func listed(l diag.List) diag.List { return append(diag.List{}, l...) }
