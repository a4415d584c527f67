package view

import (
	"fmt"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine"
)

// Verified draws a row for each check that was run.
func (p Paint) Verified(v engine.Verified) string {
	if len(v.Checks) == 0 {
		return "no checks\n"
	}
	rows := [][]string{{"NODE", "CHECK", "RESULT", "TOOK", "SAW"}}
	for _, c := range v.Checks {
		took := ""
		if c.Status != engine.RunSkipped {
			took = span(time.Duration(c.Seconds * float64(time.Second)))
		}
		rows = append(rows, []string{c.Address, c.Check, string(c.Status), took, oneLine(c.Detail)})
	}
	var b strings.Builder
	table(&b, rows, func(row, column int, text string) string {
		switch {
		case row == 0:
			return p.as(dim, text)
		case column != 2:
			return text
		case v.Checks[row-1].Status == engine.RunPassed:
			return p.as(good, text)
		case v.Checks[row-1].Status == engine.RunFailed:
			return p.as(bad, text)
		default:
			return text
		}
	})
	if n := v.Failed(); n > 0 {
		fmt.Fprintf(&b, "%d of %d failed\n", n, len(v.Checks))
	}
	return b.String()
}
