package view

import (
	"fmt"
	"strings"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/diag"
)

// Results counts the results in one line; it prints nothing if there was nothing to do. It reports
// whether steps are unfinished.
func Results(r engine.Report) (line string, unfinished bool) {
	if len(r.Results) == 0 {
		return "", false
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
	line = fmt.Sprintf("%s: %s in %.1f s\n", diag.Count(len(r.Results), "step"), strings.Join(parts, ", "), r.Seconds)
	return line, n[apply.Done] < len(r.Results)
}
