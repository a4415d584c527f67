package agent

import (
	"cmp"
	"fmt"
	"time"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
)

// recordUnknownIdentity records that the newest commit does not know the identity.
func (l *loop) recordUnknownIdentity(c model.Commit, r engine.Report) {
	l.journal.unknownIdentity(c, r)
	l.memory.setIdentityUnknown(c.ID)
	l.unknownIdentity = diag.FirstLine(r.Err.Error())
	l.status.refuse(c.ID, r)
	l.recordEnd(c, r, false)
}

// noteMembership records whether a commit has the agent. After the agent left the site, no older commit is applied
// again: it would recreate what was removed.
func (m *memory) noteMembership(c model.Commit, course course) {
	if course == courseEmpty || course == courseVacant {
		m.setIdentityUnknown(c.ID)
		return
	}
	m.setIdentityUnknown("")
}

// recordRefused records that head must not converge.
func (l *loop) recordRefused(c model.Commit, r engine.Report) {
	good := l.memory.Good.ID
	l.unknownIdentity = ""
	l.status.refuse(c.ID, r)
	if r.Want != nil { // the site loaded, and has the identity
		l.memory.noteMembership(c, l.course)
	}
	l.journal.refused(c, r, good)
	l.recordEnd(c, r, false)
}

// refuse says why a commit is not in force.
func (s *Status) refuse(id string, r engine.Report) {
	since := time.Now().UTC()
	if s.Refused != nil && s.Refused.Commit == id {
		since = s.Refused.Since
	}
	s.Refused = &Refusal{Commit: id, Outcome: r.Outcome, Since: since, Findings: r.Decisive()}
}

// recordAccepted records that head is not refused, or not any more.
func (l *loop) recordAccepted(c model.Commit, r engine.Report) {
	if r.Want != nil {
		l.memory.noteMembership(c, l.course)
		l.unknownIdentity = ""
	}
	if !r.Accepted {
		return // not checked yet
	}
	l.journal.accepted(c)
	l.status.Refused = nil
}

// recordPass records a pass with a commit: in the receipts if it changed something, in
// the state, in the status. It is called before another goroutine may write. Aside is what was
// suspended in it.
func (l *loop) recordPass(c model.Commit, r engine.Report, aside []ledger.Suspension) {
	drift := l.memory.drifted(c.ID, r.Plan)
	receipt, changed := Receipt(&r, l.o.Identity, drift)
	var err error
	if changed {
		if receipt, err = l.o.Ledger.Write(receipt); receipt.Passes == 0 {
			l.journal.changed(c, r, drift)
		}
	}
	switch {
	case err != nil: // the next pass with steps, or the next start, records what was begun
	case r.Plan == nil: // it panicked
		err = settle(l)
	case len(l.progress.steps) > 0: // it is recorded, or did nothing
		err = ledger.End(l.o.Ledger, "")
	}
	if err != nil {
		l.o.Log.Warn("the receipt was not saved", "error", err)
	}
	m := &l.memory
	m.noteFailing(&r)
	m.noteUnusable(&r)
	m.noteRestores(&r)
	if !r.Have.Only {
		m.noteSweepHints(&r)
		m.noteWithdrawn(&r, c.ID)
	}
	if r.Accepted && m.Good.ID != c.ID {
		m.Good = refNow(c.ID)
	}
	if r.Accepted && l.course == courseConverge {
		m.Member = c.ID
	}
	m.noteSpecs(&r, c.ID)
	if isCompleted(&r) {
		m.Member = cmp.Or(m.Member, m.Converged.ID)
		m.converged(c.ID, l.grants, suspendedManifests(aside))
	}
	m.persist()
	if r.Have.Only && r.Outcome == engine.Done && len(r.Plan.Steps) == 0 {
		return // what the last pass about all of the host found still holds
	}
	if !r.Denied {
		l.recordEnd(c, r, drift)
	}
}

// settle writes the receipt of a pass that was cut off.
func settle(l *loop) error {
	found, err := ledger.Settle(l.o.Ledger, "")
	if found {
		l.o.Log.Warn("a pass was cut off; its receipt says which steps are unknown")
	}
	return err
}

// isCompleted reports whether the host is as the commit says, and nothing is left to a later pass.
func isCompleted(r *engine.Report) bool {
	return r.Outcome == engine.Done && len(r.Plan.Postponed()) == 0
}

// recordEnd puts the end of a pass into the status. Of the report, no more is kept than
// is there.
func (l *loop) recordEnd(c model.Commit, r engine.Report, drift bool) {
	last := &PassStatus{
		Commit: c.ID, Outcome: r.Outcome, Ended: time.Now().UTC(), Seconds: r.Seconds, Drift: drift, Findings: listed(r.Findings),
	}
	if r.Err != nil {
		last.Error = r.Err.Error()
	}
	if r.Plan != nil {
		last.Plan, last.Summary = r.Plan.ID, r.Plan.Summary
		last.Unknown, last.Pending, last.Unmanaged = len(r.Plan.Unknown), len(r.Plan.Pending), len(r.Have.Unmanaged)
	}
	if before := l.status.Last; r.Have.Only && before != nil { // it says nothing about the other guests
		last.Pending, last.Unmanaged = before.Pending, before.Unmanaged
		for _, f := range before.Findings {
			if addr, err := model.ParseAddress(f.Address); err != nil || r.Want.State[addr] == nil {
				last.Findings = append(last.Findings, f)
			}
		}
	}
	l.status.Last, l.trouble = last, trouble(&r)
	if drift {
		l.status.Drifted = last
	}
	if nodes := r.NodeStatus(l.status.Nodes, last.Ended); nodes != nil {
		relive(l, nodes)
		last.Findings = append(last.Findings, skipped(l)...)
		l.memory.persist()
	}
	l.journal.ended(c, r, last)
	l.moved()
}

// trouble says in a line why a pass was not completed, "" if it was.
func trouble(r *engine.Report) string {
	if r.Outcome != engine.Failed && r.Outcome != engine.Partly || r.Err == nil {
		return ""
	}
	failed := 0
	for _, res := range r.Results {
		if res.Status == apply.Failed {
			failed++
		}
	}
	text := diag.FirstLine(r.Err.Error())
	switch {
	case failed > 1:
		return fmt.Sprintf("%s (and %d more)", text, failed-1)
	case len(r.Results) == 0 && r.Have.NothingSeen():
		return "host could not be seen: " + text
	default:
		return text
	}
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
