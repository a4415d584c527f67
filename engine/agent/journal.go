package agent

import (
	"log/slog"
	"strings"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/model"
)

// journal logs the results of passes. It does not repeat a result at every check.
type journal struct {
	log         *slog.Logger
	refusal     string // commit and outcome
	unknown     string // the commit without the identity
	lastTrouble string
}

// unknownIdentity logs that the newest commit does not know the identity.
func (j *journal) unknownIdentity(c model.Commit, r engine.Report) {
	if j.unknown != c.ID {
		j.log.Error("nothing is converged", "error", r.Err, "commit", c.ID)
		j.unknown = c.ID
	}
}

// refused logs that head must not converge.
func (j *journal) refused(c model.Commit, r engine.Report, good string) {
	if key := c.ID + string(r.Outcome); j.refusal != key {
		j.refusal = key
		j.log.Error("commit refused", "commit", c.ID, "outcome", string(r.Outcome), "errors", r.Findings.Errors(), "first", firstError(r.Decisive()), "in_force", good)
	}
}

// accepted logs that head is not refused any more.
func (j *journal) accepted(c model.Commit) {
	if j.refusal != "" && strings.HasPrefix(j.refusal, c.ID) {
		j.log.Info("commit is not refused any more", "commit", c.ID)
	}
	j.refusal, j.unknown = "", ""
}

// ended logs a pass that was not completed: once for each reason.
func (j *journal) ended(c model.Commit, r engine.Report, last *PassStatus) {
	switch {
	case r.Outcome == engine.Failed || r.Outcome == engine.Partly:
		if j.lastTrouble != last.Error {
			j.log.Warn("the pass was not completed; retrying", "commit", c.ID, "outcome", string(r.Outcome), "error", r.Err)
		}
		j.lastTrouble = last.Error
	case r.Outcome == engine.Done && j.lastTrouble != "":
		j.lastTrouble = ""
		j.log.Info("pass succeeded again", "commit", c.ID)
	default:
		j.log.Debug("pass ended", "commit", c.ID, "outcome", string(r.Outcome), "plan", last.Plan, "seconds", last.Seconds)
	}
}

// changed logs a pass that changed something.
func (j *journal) changed(c model.Commit, r engine.Report, drift bool) {
	n := map[apply.Status]int{}
	for _, res := range r.Results {
		n[res.Status]++
	}
	s := r.Plan.Summary
	what := "pass changed the host"
	if drift {
		what = "drift was reverted"
	}
	j.log.Info(what, //nolint:sloglint // one of two constants
		"commit", c.ID, "plan", r.Plan.ID, "outcome", string(r.Outcome), "seconds", r.Seconds,
		"create", s.Create, "update", s.Update, "replace", s.Replace, "delete", s.Delete,
		"done", n[apply.Done], "failed", n[apply.Failed], "skipped", n[apply.Skipped], "rolled_back", n[apply.RolledBack])
}
