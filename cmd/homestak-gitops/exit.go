package main

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/view"
)

// The exit codes. Scripts rely on them: a new meaning gets a new code.
const (
	exitDone        = 0
	exitError       = 1
	exitPending     = 2
	exitInvalid     = 3
	exitRefused     = 4
	exitPartly      = 5
	exitDenied      = 6
	exitInterrupted = 130
)

// exitCodes is the one table of the codes, as help and manual print it.
func exitCodes() []struct {
	Code    int
	Meaning string
} {
	return []struct {
		Code    int
		Meaning string
	}{
		{exitDone, "done, or nothing to do"},
		{exitError, "error; validate: the site is invalid, or a policy denies it"},
		{exitPending, "changes pending (plan --detailed-exitcode, fmt --check), or drift"},
		{exitInvalid, "the site is invalid, or a policy denies"},
		{exitRefused, "a guard refused (deletions, protection, ownership, a moved plan, another writer)"},
		{exitPartly, "partly applied: some steps are done, others are not"},
		{exitDenied, "not permitted, or not authenticated"},
		{exitInterrupted, "interrupted"},
	}
}

func writeExitCodes(w io.Writer) {
	for _, c := range exitCodes() {
		fmt.Fprintf(w, "%5d  %s\n", c.Code, c.Meaning)
	}
}

// ending is an error that knows its exit code. With Err nil all was said before.
type ending struct {
	Code int
	Err  error
}

// Error gives what there is to report, "" if nothing.
func (e *ending) Error() string {
	if e.Err == nil {
		return ""
	}
	return e.Err.Error()
}

// Unwrap gives the cause.
func (e *ending) Unwrap() error { return e.Err }

// codeOf gives the exit code of an error that ends the program.
func codeOf(err error) int {
	var end *ending
	var invalid *invalidSiteError
	var refused *control.RefusedError
	var denied *control.DeniedError
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &end):
		return end.Code
	case errors.As(err, &invalid):
		return exitInvalid
	case errors.As(err, &refused):
		return exitRefused
	case errors.As(err, &denied):
		return exitDenied
	case errors.Is(err, engine.ErrInterrupted):
		return exitInterrupted
	case proxmox.IsDenied(err), deniedSight(err):
		return exitDenied
	default:
		return exitError
	}
}

// deniedSight reports whether a part of a host could not be seen for want of a privilege.
func deniedSight(err error) bool {
	unseen, ok := errors.AsType[*engine.NotObservedError](err)
	return ok && slices.ContainsFunc(unseen.Parts, func(u model.Unknown) bool { return u.Denied })
}

// endingOf gives the ending of a pass, nil if all is well. What its report does not
// hold in findings, nodes or progress is in the error.
func endingOf(r engine.Report) error {
	switch r.Outcome {
	case engine.Done, engine.Planned:
		return nil
	case engine.Invalid:
		if r.Denied && r.Plan != nil {
			return &ending{exitInvalid, errors.New("a policy denies the plan, so nothing of it is done: see the findings above")}
		}
		return &ending{exitInvalid, errors.New("the site cannot be converged as it is: see the findings above")}
	case engine.Refused:
		if r.Denied {
			return &ending{exitRefused, errors.New("a guard refuses the plan, so nothing of it is done: see the findings above")}
		}
		return &ending{exitRefused, errors.New("a guard refused something: see the findings above")}
	case engine.Partly:
		return &ending{exitPartly, unreported(r)}
	case engine.Interrupted:
		return &ending{exitInterrupted, unreported(r)}
	default:
		return &ending{max(codeOf(r.Err), exitError), unreported(r)}
	}
}

// unreported is what of a report's error was not reported step by step.
func unreported(r engine.Report) error {
	switch {
	case len(r.Results) == 0:
		return r.Err
	case r.Outcome == engine.Interrupted:
		return fmt.Errorf("%w\nwhat is done stays done: say the same again to go on", engine.ErrInterrupted)
	case errors.Is(r.Err, errTimeout):
		return errTimeout
	default:
		if unseen, ok := errors.AsType[*engine.NotObservedError](r.Err); ok {
			return unseen
		}
		return nil
	}
}

// invalidSiteError ends a verb on a site that must not converge.
type invalidSiteError struct {
	Name  string // of its folder
	Found diag.List
}

// Error counts; the findings themselves are shown before.
func (e *invalidSiteError) Error() string {
	return fmt.Sprintf("the site in %s is %s: %s", e.Name, notGood(e.Found), view.Count(e.Found.Errors(), "error"))
}

// notGood says in which way a site with errors is not good.
func notGood(found diag.List) string {
	for _, f := range found {
		if f.Severity == diag.Error && f.Source != diag.FromPolicy {
			return "not valid"
		}
	}
	if found.HasErrors() {
		return "denied by its policies"
	}
	return "not valid" // there is none
}
