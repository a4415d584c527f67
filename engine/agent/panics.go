package agent

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"

	"github.com/homestak/homestak-gitops/engine"
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

func (e *defectError) log(log *slog.Logger, commit string) {
	log.Error("defect of the program", "during", e.During, "commit", commit, "panic", fmt.Sprint(e.Value), "stack", string(e.Stack))
}

// phaseTexts say what the program was doing when a phase panicked.
var phaseTexts = map[engine.Phase]string{
	engine.Loading:   "while the site was read",
	engine.Opening:   "while the host was opened",
	engine.Observing: "while the host was observed",
	engine.Checking:  "while rules were asked",
	engine.Planning:  "while a pass was made",
	engine.Applying:  "while a pass was made",
}

// run makes the pass. A panic before the first step is the fault of the commit, which
// the program cannot cope with, so it is refused; but for a panic of the observation,
// which is a host that could not be seen.
func (l *loop) run(ctx context.Context, p *engine.Pass, c model.Commit) (r engine.Report) {
	var defect *defectError
	var phase engine.Phase
	p.Enter = func(next engine.Phase) {
		phase = next
		l.agent.send(moved{})
	}
	l.during(ctx, func(context.Context) { // a pass heeds its own Stop
		defer func() {
			if v := recover(); v != nil {
				defect = &defectError{phaseTexts[phase], v, debug.Stack()}
			}
		}()
		r = p.Run(ctx)
	})
	if defect == nil {
		return r
	}
	defect.log(l.o.Log, c.ID)
	r = engine.Report{Verb: verb, Host: p.Host, Commit: c.ID, Outcome: engine.Failed, Err: defect}
	switch {
	case phase == engine.Observing:
		r.Have = model.NotObserved(p.Host, defect)
	case !l.progress.begun:
		r.Findings, r.Outcome, r.Err, r.Denied = diag.List{defect.finding(phase)}, engine.Invalid, nil, true
	}
	return r
}

// finding refuses the commit that brought the defect out.
func (e *defectError) finding(phase engine.Phase) diag.Finding {
	f := engine.FindingOf(e)[0]
	if f.Source = diag.FromSite; phase == engine.Checking {
		f.Source = diag.FromPolicy
	}
	return f
}

// moved reports that the pass has entered its next phase.
type moved struct{}

func (moved) serve(l *loop) { l.moved() }
