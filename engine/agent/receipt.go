package agent

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// Receipt returns the ledger's record of a pass that changed something, or tried to; false if
// no step was begun. By is the identity of the agent, or cli:USER@HOST. It holds nothing
// of what is unmanaged, of a sensitive change its name only, and no lines of the files.
func Receipt(r *engine.Report, by string, drift bool) (ledger.Receipt, bool) {
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
		out.Subject, out.Author, out.Reason, out.Signer = c.Subject, personOf(*c), c.Message, c.Signer
		if c.Reverts != "" {
			out.Reverts = &ledger.Revert{Commit: c.Reverts, Exact: c.RevertsExactly}
		}
	}
	if text, err := json.Marshal(r.Plan); err == nil {
		out.Digest = fmt.Sprintf("%x", sha256.Sum256(text))
	}
	for addr, report := range r.Checks {
		for _, c := range report.Results {
			out.Checks = append(out.Checks, ledger.Check{Address: addr.String(), Check: c.Name, OK: c.OK, Saw: diag.ShortLine(c.Detail, mostCheck), Seconds: c.Seconds})
		}
	}
	slices.SortStableFunc(out.Checks, func(a, b ledger.Check) int { return cmp.Compare(a.Address, b.Address) })
	return out, true
}

// Begun is what the ledger records of a pass if its process is killed in it; see Receipt.
func Begun(verb, host, by string, c model.Commit, made *plan.Plan) ledger.Receipt {
	r := engine.Report{Verb: verb, Host: host, Commit: c.ID, Plan: made, Began: time.Now(), About: &c, Outcome: engine.Interrupted}
	for _, s := range made.Steps {
		r.Results = append(r.Results, apply.Result{Step: s, Started: r.Began})
	}
	out, _ := Receipt(&r, by, false)
	return out
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
