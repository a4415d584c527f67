package main

import (
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/exit"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/view"
)

// report tells how a pass went: the document, or a summary for people. It gives the
// ending of the verb.
func (a *app) report(r engine.Report) error {
	a.ui.findings(r.Findings)
	if a.ui.json {
		if err := a.ui.emit(r); err != nil {
			return err
		}
	}
	line, unfinished := view.Results(r)
	a.ui.printf("%s", line)
	if unfinished && r.Outcome != engine.Interrupted { // its error says it
		a.ui.notef("what is done stays done: mend the cause, then say the same again")
	}
	return exit.OfPass(r)
}
