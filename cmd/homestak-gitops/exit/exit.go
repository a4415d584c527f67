// Package exit decides how the program ends: the exit codes, and which one an error or the
// report of a pass gives.
package exit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/site"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// The exit codes. Scripts rely on them: a new meaning gets a new code.
const (
	Done        = 0
	Failed      = 1
	Pending     = 2
	Invalid     = 3
	Refused     = 4
	Partly      = 5
	Denied      = 6
	Interrupted = 130
)

// Meaning is a row of the table of exit codes.
type Meaning struct {
	Code    int
	Meaning string
}

// Meanings is the table of the codes, as help and manual print it.
func Meanings() []Meaning {
	return []Meaning{
		{Done, "done, or nothing to do"},
		{Failed, "error; validate: the site is invalid, or a policy denies it"},
		{Pending, "changes pending (plan --detailed-exitcode, fmt --check), or drift"},
		{Invalid, "the site is invalid, or a policy denies"},
		{Refused, "a guard refused (deletions, protection, ownership, a moved plan, another writer)"},
		{Partly, "partly applied: some steps are done, others are not"},
		{Denied, "not permitted, or not authenticated"},
		{Interrupted, "interrupted"},
	}
}

// Write prints the table.
func Write(w io.Writer) {
	for _, c := range Meanings() {
		fmt.Fprintf(w, "%5d  %s\n", c.Code, c.Meaning)
	}
}

// ErrTimeout is why a context ends when --timeout has passed.
var ErrTimeout = errors.New("the --timeout expired")

// Error is an error that has its exit code. With Err nil everything was reported before.
type Error struct {
	Code int
	Err  error
}

// With gives an error its exit code.
func With(code int, err error) error { return &Error{code, err} }

// Error gives what there is to report, "" if nothing.
func (e *Error) Error() string {
	if e.Err == nil {
		return ""
	}
	return e.Err.Error()
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Code is the exit code of an error that ends the program.
func Code(err error) int {
	var end *Error
	var invalid *site.InvalidError
	var refused *control.RefusedError
	var denied *control.DeniedError
	switch {
	case err == nil:
		return Done
	case errors.As(err, &end):
		return end.Code
	case errors.As(err, &invalid):
		return Invalid
	case errors.As(err, &refused):
		return Refused
	case errors.As(err, &denied):
		return Denied
	case errors.Is(err, engine.ErrInterrupted):
		return Interrupted
	case proxmox.IsDenied(err), deniedView(err), deniedByParent(err):
		return Denied
	default:
		return Failed
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

// OfPass is the ending of a pass, nil if all is well. Its error says what the findings, nodes
// and progress of the report do not.
func OfPass(r engine.Report) error {
	switch r.Outcome {
	case engine.Done, engine.Planned:
		return nil
	case engine.Invalid:
		if r.Denied && r.Plan != nil {
			return &Error{Invalid, errors.New("a policy denies the plan, so nothing was done: see the findings above")}
		}
		return &Error{Invalid, errors.New("the site has errors: see the findings above")}
	case engine.Refused:
		if r.Denied {
			return &Error{Refused, errors.New("a guard refuses the plan, so nothing was done: see the findings above")}
		}
		return &Error{Refused, errors.New("a guard refused something: see the findings above")}
	case engine.Partly:
		return &Error{Partly, Unreported(r)}
	case engine.Interrupted:
		return &Error{Interrupted, Unreported(r)}
	default:
		return &Error{max(Code(r.Err), Failed), Unreported(r)}
	}
}

// Unreported is what of a report's error was not reported step by step.
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

// OfPlan is the ending of a pass that only plans; detailed makes pending changes one of their
// own. Nothing to do ends well only where all of the host was seen and nothing was refused.
func OfPlan(r engine.Report, detailed bool) error {
	if r.Outcome != engine.Planned {
		return OfPass(r)
	}
	refused := engine.OutcomeOf(r.Findings)
	switch {
	case refused != "":
		r.Outcome = refused
		return OfPass(r)
	case slices.ContainsFunc(r.Plan.Unknown, func(u model.Unknown) bool { return u.All }):
		return partly(r, "the host could not be seen, so there is nothing to plan")
	case detailed && len(r.Plan.Steps)+r.Omitted > 0:
		return &Error{Code: Pending}
	case len(r.Plan.Unknown) > 0 && len(r.Plan.Steps) > 0: // 0 would say that this is all there is to do, and apply does not end so either
		return partly(r, "part of the host could not be inspected, so there may be more to do")
	case len(r.Plan.Unknown) > 0:
		return partly(r, "nothing to do in what could be inspected, but part of the host could not be")
	case detailed && len(r.Plan.Drift) > 0:
		return &Error{Code: Pending}
	default: // what waits is no change that apply would make
		return nil
	}
}

// partly ends the plan of a host that was seen in part as apply would end on it.
func partly(r engine.Report, text string) error {
	return &Error{Code(&engine.NotObservedError{Parts: r.Plan.Unknown}), errors.New(text)}
}

// Because prefers the reason why a context ended over the fact that it did.
func Because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) &&
		(errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// Limit gives a context that ends with ErrTimeout after a time, if that is not 0.
func Limit(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout == 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, timeout, ErrTimeout)
}

// Findings are what a document has of an error.
func Findings(err error) diag.List {
	if invalid, ok := errors.AsType[*site.InvalidError](err); ok {
		return invalid.Found
	}
	if err == nil || err.Error() == "" {
		return nil
	}
	return engine.FindingOf(err)
}

// OfAgent is the ending of a verb that waited for a pass of an agent, as apply would have ended. Where the
// newest commit was refused the pass was made with the last good one, and the refusal counts.
func OfAgent(l agent.PassStatus, after agent.Status) error {
	switch r := after.Refused; {
	case r != nil && r.Outcome == engine.Refused:
		return With(Refused, fmt.Errorf("commit %.8s is refused by a guard: see the findings above", r.Commit))
	case r != nil:
		return With(Invalid, fmt.Errorf("commit %.8s is refused: see the findings above", r.Commit))
	case after.Repository.Error != "":
		return fmt.Errorf("the repository does not answer: %s", after.Repository.Error)
	}
	r := engine.Report{Outcome: l.Outcome}
	if l.Error != "" {
		r.Err = errors.New(l.Error)
	}
	return OfPass(r)
}
