package main

import (
	"fmt"
	"strings"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/apply"
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
	a.ui.summary(r)
	return endingOf(r)
}

// summary tells in a line what was done; nothing where there was nothing to do,
// since the plan said so.
func (u *ui) summary(r engine.Report) {
	if len(r.Results) == 0 {
		return
	}
	n := map[apply.Status]int{}
	for _, res := range r.Results {
		n[res.Status]++
	}
	var parts []string
	for _, s := range []struct {
		status apply.Status
		what   string
	}{{apply.Done, "done"}, {apply.Failed, "failed"}, {apply.RolledBack, "rolled back"}, {apply.Skipped, "skipped"}} {
		if n[s.status] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n[s.status], s.what))
		}
	}
	u.printf("%s: %s in %.1f s\n", count(len(r.Results), "step"), strings.Join(parts, ", "), r.Seconds)
	if n[apply.Done] < len(r.Results) && r.Outcome != engine.Interrupted { // its error says it
		u.notef("what is done stays done: mend the cause, then say the same again")
	}
}
