package agent

import (
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// receipt returns the ledger's record of a pass that changed something, or tried to; false if
// no step was begun. By is the identity of the agent, or cli:USER@HOST. It holds nothing
// of what is unmanaged, of a sensitive change its name only, and no lines of the files.
func receipt(r *engine.Report, by string, drift bool) (ledger.Receipt, bool) {
	begun := false
	steps := make([]ledger.Step, len(r.Results))
	for i := range r.Results {
		steps[i] = receiptStep(&r.Results[i])
		begun = begun || !r.Results[i].Started.IsZero()
	}
	if !begun {
		return ledger.Receipt{}, false
	}
	out := ledger.Receipt{
		Verb: r.Verb, By: by, Host: r.Host, Site: r.Plan.Site, Commit: r.Commit, Plan: r.Plan.ID,
		Began: r.Began.UTC(), Seconds: r.Seconds, Outcome: string(r.Outcome), Drift: drift, Steps: steps,
		Findings: listed(r.Findings),
	}
	for i := range out.Findings {
		out.Findings[i].Code = ""
	}
	if c := r.About; c != nil {
		out.Subject, out.Author = c.Subject, personOf(*c)
	}
	return out, true
}

func receiptStep(res *apply.Result) ledger.Step {
	s := &res.Step
	out := ledger.Step{
		Address: s.Address.String(), VMID: s.VMID, Action: string(s.Action), Class: string(s.Class), Reason: s.Reason,
		Changes: make([]ledger.Change, len(s.Changes)), Tasks: res.Tasks, EditedBy: s.EditedBy(), Status: string(res.Status),
		Began: res.Started.UTC(), Seconds: seconds(res.Duration),
	}
	if res.Err != nil {
		out.Error = res.Err.Error()
	}
	for i, c := range s.Changes {
		out.Changes[i] = receiptChange(c)
	}
	return out
}

func receiptChange(c plan.Change) ledger.Change {
	if c.Sensitive {
		return ledger.Change{Path: c.Path, Sensitive: true}
	}
	return ledger.Change{Path: c.Path, Before: c.Before, After: c.After}
}
