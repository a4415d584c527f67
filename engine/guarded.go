package engine

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// defectError is a panic: the program is at fault, and says so instead of dying.
type defectError struct {
	During string
	Value  any
	Stack  []byte
}

// Error says what the program was doing.
func (e *defectError) Error() string {
	return fmt.Sprintf("the program is at fault: panic %s: %v\nplease report it; the log holds the stack", e.During, e.Value)
}

// guarded calls f; a panic comes back as its error.
func guarded(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &defectError{"while the repository was asked", v, debug.Stack()}
		}
	}()
	return f()
}

// logDefect puts the stack of a panic into the log.
func logDefect(log *slog.Logger, e *defectError, commit string) {
	log.Error("defect of the program", "during", e.During, "commit", commit, "panic", fmt.Sprint(e.Value), "stack", string(e.Stack))
}

// finding refuses a commit that the program cannot cope with.
func (e *defectError) finding(source string) diag.Finding {
	f := FindingOf(e)[0]
	f.Source = source
	return f
}

// safely makes a Load whose panic refuses the commit.
func (a *Agent) safely(load func(context.Context, model.Commit) Desired) func(context.Context, model.Commit) Desired {
	return func(ctx context.Context, c model.Commit) (d Desired) {
		defer func() {
			if v := recover(); v != nil {
				e := &defectError{"while the site was read", v, debug.Stack()}
				logDefect(a.o.Log, e, c.ID)
				d = Desired{Commit: c.ID, Findings: diag.List{e.finding(diag.FromSite)}}
			}
		}()
		return load(ctx, c)
	}
}

// watched makes a Judge that the watchdog knows of, and whose panic denies the plan.
func (a *Agent) watched(judge Judge) Judge {
	if judge == nil {
		return nil
	}
	return func(ctx context.Context, q Question) (found diag.List) {
		a.moved()
		defer a.moved()
		defer func() {
			if v := recover(); v != nil {
				e := &defectError{"while rules were asked", v, debug.Stack()}
				logDefect(a.o.Log, e, q.Commit.ID)
				found = diag.List{e.finding(diag.FromPolicy)}
			}
		}()
		return judge(ctx, q)
	}
}

// open opens a host for one commit. A panic is a *defectError.
func (a *Agent) open(d Desired, h *model.Host) (driver Driver, err error) {
	a.moved()
	defer func() {
		if v := recover(); v != nil {
			err = &defectError{"while the host was opened", v, debug.Stack()}
		}
	}()
	driver, err = a.o.Open(d, h)
	return watchedDriver{driver, a}, err
}

// watchedDriver lets the watchdog know of observations, and takes their panics for
// a host that could not be seen.
type watchedDriver struct {
	Driver
	a *Agent
}

// Unwrap gives the driver; see Inside.
func (w watchedDriver) Unwrap() Driver { return w.Driver }

// Observe is that of the driver.
func (w watchedDriver) Observe(ctx context.Context, want *model.Want) (have model.Observed, err error) {
	w.a.moved()
	defer w.a.moved()
	defer func() {
		if v := recover(); v != nil {
			e := &defectError{"while the host was observed", v, debug.Stack()}
			logDefect(w.a.o.Log, e, "")
			err = e
		}
	}()
	return w.Driver.Observe(ctx, want)
}
