package agent

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/ledger"
)

// summary says all of it in one sentence: what it does, or else what stands against
// the host being as the repository says, the gravest first.
func (v *view) summary(s *Status, now time.Time) string {
	switch {
	case s.State == Stopping:
		return "stopping: running steps finish, no new ones start"
	case s.State == Waiting && v.pausedBy != "":
		return v.pausedBy + " holds the write lock of the host; " + v.standing(s, now)
	case s.State == Waiting && v.lockedBy != "":
		return "waiting for the write lock of the host, which is " + v.lockedBy + "; " + v.standing(s, now)
	case s.State == Converging && s.Running != nil && s.Running.Steps > 0:
		return converging(s.Running)
	default:
		return v.standing(s, now)
	}
}

func converging(r *Running) string {
	text := fmt.Sprintf("converging %s: %d of %s done", short(r.Commit), r.Done, diag.Count(r.Steps, "step"))
	if r.Seconds > 0 {
		text += fmt.Sprintf(", about %s to go", time.Duration(max(r.Seconds, 1)*float64(time.Second)).Round(time.Second))
	}
	return text
}

// standing says how things stand, whatever is being done about them.
func (v *view) standing(s *Status, now time.Time) string {
	force := "nothing is in force"
	if s.InForce != nil {
		force = short(s.InForce.ID) + " stays in force"
	}
	var parts []string
	all := slices.IndexFunc(s.Suspended, func(x ledger.Suspension) bool { return x.Manifest == "" })
	if all >= 0 {
		parts = append(parts, pause(s.Suspended[all], now)+waiting(v.withheld))
	}
	switch {
	case v.unknown != "":
		parts = append(parts, v.unknown)
	case s.Refused != nil && s.InForce != nil && s.InForce.ID == s.Refused.Commit:
		parts = append(parts, fmt.Sprintf("commit %s is refused now: %s; nothing is changed", short(s.Refused.Commit), firstError(s.Refused.Findings)))
	case s.Refused != nil:
		parts = append(parts, fmt.Sprintf("commit %s refused: %s; %s", short(s.Refused.Commit), firstError(s.Refused.Findings), force))
	}
	if f := s.Repository.Failing; f != nil {
		text := fmt.Sprintf("repository does not answer since %s: %s", clock(*f, now), diag.FirstLine(s.Repository.Error))
		if s.Repository.Condition == BranchMissing {
			text = diag.FirstLine(s.Repository.Error)
		}
		if s.Refused == nil && v.unknown == "" {
			text += "; " + force
		}
		parts = append(parts, text)
	}
	if text := v.lastPass(s); text != "" {
		parts = append(parts, text)
	}
	if text := s.Repository.Rewritten; text != "" {
		parts = append(parts, text)
	}
	switch failing := s.FailingChecks(); len(failing) {
	case 0:
	case 1:
		parts = append(parts, fmt.Sprintf("check %s of %s fails", failing[0].Check, failing[0].Address))
	default:
		parts = append(parts, fmt.Sprintf("%d checks fail", len(failing)))
	}
	for _, sus := range s.Suspended {
		if sus.Manifest != "" {
			parts = append(parts, pause(sus, now))
		}
	}
	if len(parts) == 0 {
		return "nothing is known yet"
	}
	return strings.Join(parts, "; ")
}

// lastPass summarizes the last pass, unless a more serious condition applies.
func (v *view) lastPass(s *Status) string {
	if s.Last == nil || v.unknown != "" {
		return ""
	}
	switch s.Last.Outcome {
	case engine.Done:
		if s.Refused != nil || s.Repository.Failing != nil {
			return ""
		}
		if s.Converged == nil || s.Converged.ID != s.Last.Commit {
			return "as " + short(s.Last.Commit) + " says, but for children that are kept until nothing is left in them: the status of each says what is known"
		}
		return "in sync at " + short(s.Last.Commit)
	case engine.Failed, engine.Partly:
		return v.trouble
	case engine.Refused, engine.Invalid:
		if s.Refused != nil {
			return ""
		}
		if text := firstError(s.Last.Findings); text != "" {
			return fmt.Sprintf("%s is in force, but %s", short(s.Last.Commit), text)
		}
		return diag.FirstLine(s.Last.Error)
	case engine.Interrupted:
		return "the last pass with " + short(s.Last.Commit) + " was interrupted"
	default:
		return ""
	}
}

// pause says who suspended what, until when, and why.
func pause(s ledger.Suspension, now time.Time) string {
	text := "suspended"
	if s.Manifest != "" {
		text = "manifest " + s.Manifest + " suspended"
	}
	if s.By != "" {
		text += " by " + s.By
	}
	if s.Until != nil {
		text += " until " + clock(*s.Until, now)
	}
	if s.Reason != "" {
		text += ": " + diag.FirstLine(s.Reason)
	}
	return text
}

func waiting(n int) string {
	if n == 0 {
		return ""
	}
	if n == 1 {
		return " (1 change waits)"
	}
	return fmt.Sprintf(" (%d changes wait)", n)
}

// clock names a time by its hour, and by its day where that is another one.
func clock(t, now time.Time) string {
	t, now = t.Local(), now.Local()
	if t.Format(time.DateOnly) == now.Format(time.DateOnly) {
		return t.Format("15:04")
	}
	return t.Format("2006-01-02 15:04")
}
