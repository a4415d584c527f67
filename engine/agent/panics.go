package agent

import (
	"fmt"
	"log/slog"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
)

// defectError is a panic: the program is at fault, and says so instead of dying.
type defectError struct {
	During string
	Value  any
	Stack  []byte
}

// Error says what the program was doing.
func (e *defectError) Error() string {
	return fmt.Sprintf("the program is at fault: panic %s: %v\nplease report it; the log has the stack", e.During, e.Value)
}

func (e *defectError) log(log *slog.Logger, commit string) {
	log.Error("defect of the program", "during", e.During, "commit", commit, "panic", fmt.Sprint(e.Value), "stack", string(e.Stack))
}

// phaseTexts say what the program was doing when a phase panicked.
var phaseTexts = map[engine.Phase]string{
	engine.Loading:   "while the site was read",
	engine.Opening:   "while the host was opened",
	engine.Observing: "while the host was observed",
	engine.Checking:  "while policies were evaluated",
	engine.Planning:  "while a plan was made",
	engine.Applying:  "while a plan was applied",
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
