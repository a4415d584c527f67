package converge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/guest/aspect"
)

// aside has the steps that an apply puts aside. A step that a user of the machine blocks is put aside alone, so that only root
// can block the other steps.
//
// The rest is about packages that could not be fetched: a machine whose name server or mirror is unreachable gets
// the rest of its spec. The zero value is ready for use.
//
// The order stays. A step runs if what it needs is on the machine (Step.Needs). If it fails because of an
// undeclared need, it is put aside as well. Withdrawals wait, since the successor may be among the failed steps;
// access is withdrawn only if all granted access is in place.
type aside struct {
	blocked []failure // a user other than root blocks them
	failed  []failure
	waiting []string // the texts of steps that wait
	access  bool     // some of them give access
}

type failure struct {
	text string
	err  error
}

// waits reports whether a step waits for one that was put aside.
func (a *aside) waits(ctx context.Context, r *runner, s aspect.Step) (bool, error) {
	if len(a.failed) == 0 {
		return false, nil
	}
	waits := s.Stage >= aspect.StageWithdrawGroups || s.Stage >= aspect.StageWithdrawSudo && a.access || s.Supplies
	if !waits && s.Needs != "" {
		out, err := r.run(ctx, "if "+s.Needs+"; then echo there; fi")
		if err != nil {
			return false, err
		}
		waits = strings.TrimSpace(out) != "there"
	}
	if waits {
		a.waiting = append(a.waiting, s.Text)
		a.access = a.access || givesAccess(s)
	}
	return waits, nil
}

// takes puts a step aside that failed; false if the apply has to end.
func (a *aside) takes(s aspect.Step, err error) bool {
	if _, blocked := errors.AsType[*blockedError](err); blocked {
		a.blocked = append(a.blocked, failure{s.Text, err})
		return true
	}
	_, failed := errors.AsType[*failedError](err)
	_, busy := errors.AsType[*busyError](err)
	if !failed && !busy || len(a.failed) == 0 && !s.Supplies {
		return false
	}
	a.failed = append(a.failed, failure{s.Text, err})
	a.access = a.access || givesAccess(s)
	return true
}

func givesAccess(s aspect.Step) bool {
	return s.Stage == aspect.StageUsers || s.Stage == aspect.StageKeys || s.Stage == aspect.StageSudo || s.Stage == aspect.StageSSHD
}

// result reports what was put aside; nil for nothing.
func (a *aside) result(node string) error {
	all := slices.Concat(a.failed, a.blocked)
	if len(all) == 0 {
		return nil
	}
	var text strings.Builder
	for _, f := range all[1:] {
		fmt.Fprintf(&text, "; %s: %v", f.text, f.err)
	}
	if len(a.waiting) > 0 {
		fmt.Fprintf(&text, " (waiting for it: %s)", strings.Join(a.waiting, ", "))
	}
	return fmt.Errorf("%s: %s: %w%s", node, all[0].text, all[0].err, text.String())
}
