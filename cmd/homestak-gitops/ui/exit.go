package ui

// Exit codes, and the code for an error or the report of a pass.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/site"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// Exit is an exit code.
type Exit int

// The exit codes. Scripts rely on them: a new meaning gets a new code.
const (
	ExitDone        Exit = 0
	ExitFailed      Exit = 1
	ExitPending     Exit = 2
	ExitInvalid     Exit = 3
	ExitRefused     Exit = 4
	ExitPartly      Exit = 5
	ExitDenied      Exit = 6
	ExitInterrupted Exit = 130
)

// ExitMeanings are the meanings of the codes, as help and manual print them.
func ExitMeanings() map[Exit]string {
	return map[Exit]string{
		ExitDone:        "done, nothing to do, or nothing to do now",
		ExitFailed:      "error; validate: the site is invalid, or a policy denies it",
		ExitPending:     "changes pending (plan --detailed-exitcode, fmt --check), or drift",
		ExitInvalid:     "the site is invalid, or a policy denies",
		ExitRefused:     "a guard refused (deletions, protection, ownership, a moved plan, another writer)",
		ExitPartly:      "partly applied: some steps are done, others are not",
		ExitDenied:      "not permitted, or not authenticated",
		ExitInterrupted: "interrupted",
	}
}

// WriteExitCodes prints them as a table.
func WriteExitCodes(w io.Writer) {
	meanings := ExitMeanings()
	for _, code := range slices.Sorted(maps.Keys(meanings)) {
		fmt.Fprintf(w, "%5d  %s\n", code, meanings[code])
	}
}

// ErrTimeout is the cause of a context that ends after --timeout.
var ErrTimeout = errors.New("the --timeout expired")

// With gives an error this exit code. With nil everything was reported before.
func (e Exit) With(err error) error { return &exitError{e, err} }

// exitError is an error that has its exit code.
type exitError struct {
	code Exit
	err  error // nil: there is nothing to report
}

// Error returns what there is to report, "" if nothing.
func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

// Unwrap returns the cause.
func (e *exitError) Unwrap() error { return e.err }

// ExitCode is the exit code of an error that ends the program.
func ExitCode(err error) Exit {
	var end *exitError
	var invalid *site.InvalidError
	var refused *control.RefusedError
	var denied *control.DeniedError
	switch {
	case err == nil:
		return ExitDone
	case errors.As(err, &end):
		return end.code
	case errors.As(err, &invalid):
		if engine.OutcomeOf(invalid.Found) == engine.Refused {
			return ExitRefused
		}
		return ExitInvalid
	case errors.As(err, &refused):
		return ExitRefused
	case errors.As(err, &denied):
		return ExitDenied
	case errors.Is(err, engine.ErrInterrupted):
		return ExitInterrupted
	case proxmox.IsDenied(err), deniedView(err), deniedByParent(err):
		return ExitDenied
	default:
		return ExitFailed
	}
}

// deniedView reports whether a part of a host could not be seen because a privilege is missing.
func deniedView(err error) bool {
	partial, ok := errors.AsType[*engine.NotObservedError](err)
	return ok && slices.ContainsFunc(partial.Parts, func(u model.Unknown) bool { return u.Denied })
}

// deniedByParent reports whether a server refused the credentials of this machine.
func deniedByParent(err error) bool {
	switch wire.CodeOf(err) {
	case wire.CodeNoCredential, wire.CodeRefused, wire.CodeNotYours, wire.CodeExpired:
		return true
	default:
		return false
	}
}

// ExitOfPass is the ending of a pass, nil if all is well. Its error says what the findings, nodes
// and progress of the report do not.
func ExitOfPass(r engine.Report) error {
	switch r.Outcome {
	case engine.Done, engine.Planned:
		return nil
	case engine.Invalid:
		if r.Denied && r.Plan != nil {
			return ExitInvalid.With(errors.New("a policy denies the plan, so nothing was done: see the findings above"))
		}
		return ExitInvalid.With(errors.New("the site has errors: see the findings above"))
	case engine.Refused:
		if r.Denied {
			return ExitRefused.With(errors.New("a guard refuses the plan, so nothing was done: see the findings above"))
		}
		return ExitRefused.With(errors.New("a guard refused something: see the findings above"))
	case engine.Partly:
		return ExitPartly.With(Unreported(r))
	case engine.Interrupted:
		return ExitInterrupted.With(Unreported(r))
	default:
		return max(ExitCode(r.Err), ExitFailed).With(Unreported(r))
	}
}

// Unreported returns the part of a report's error that was not reported step by step.
func Unreported(r engine.Report) error {
	switch {
	case len(r.Results) == 0:
		return r.Err
	case r.Outcome == engine.Interrupted:
		return fmt.Errorf("%w\ncompleted steps are kept: run the same command again to continue", engine.ErrInterrupted)
	case errors.Is(r.Err, ErrTimeout):
		return ErrTimeout
	default:
		if partial, ok := errors.AsType[*engine.NotObservedError](r.Err); ok {
			return partial
		}
		return nil
	}
}

// ExitOfPlan is the ending of a pass that only plans; detailed makes pending changes one of their
// own. Nothing to do ends well only where all of the host was seen and nothing was refused.
func ExitOfPlan(r engine.Report, detailed bool) error {
	if r.Outcome != engine.Planned {
		return ExitOfPass(r)
	}
	refused := engine.OutcomeOf(r.Findings)
	switch {
	case refused != "":
		r.Outcome = refused
		return ExitOfPass(r)
	case slices.ContainsFunc(r.Plan.Unknown, func(u model.Unknown) bool { return u.All }):
		return partly(r, "the host could not be seen, so there is nothing to plan")
	case detailed && len(r.Plan.Steps)+r.Omitted > 0:
		return ExitPending.With(nil)
	case len(r.Plan.Unknown) > 0 && len(r.Plan.Steps) > 0: // 0 would say that this is all there is to do, and apply does not end so either
		return partly(r, "part of the host could not be inspected, so there may be more to do")
	case len(r.Plan.Unknown) > 0:
		return partly(r, "nothing to do in what could be inspected, but part of the host could not be")
	case detailed && len(r.Plan.Drift) > 0:
		return ExitPending.With(nil)
	default: // apply changes nothing that is withheld, postponed or pending
		return nil
	}
}

// partly ends the plan of a host that was seen in part as apply would end on it.
func partly(r engine.Report, text string) error {
	return ExitCode(&engine.NotObservedError{Parts: r.Plan.Unknown}).With(errors.New(text))
}

// Because prefers the reason why a context ended over the fact that it did.
func Because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) &&
		(errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// LimitTime returns a context that ends with ErrTimeout after a time, if that is not 0.
func LimitTime(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout == 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, timeout, ErrTimeout)
}

// ErrorFindings returns an error as findings of a document.
func ErrorFindings(err error) diag.List {
	if invalid, ok := errors.AsType[*site.InvalidError](err); ok {
		return invalid.Found
	}
	if err == nil || err.Error() == "" {
		return nil
	}
	return engine.FindingOf(err)
}
