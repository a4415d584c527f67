package policy

import (
	"fmt"
	"io"
	"strings"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// TallyDocument is the document of a run of tests.
type TallyDocument struct {
	Passed   int          `json:"passed"`
	Failed   int          `json:"failed"`
	Errors   int          `json:"errors"`
	Skipped  int          `json:"skipped"`
	Coverage *float64     `json:"coverage"` // percent; null unless asked for
	Missed   []string     `json:"missed"`   // lines that no test reached, FILE:FIRST-LAST
	Tests    []testResult `json:"tests"`
	Findings diag.List    `json:"findings"`
}

// Document is the tally as a document, with findings about the rules. Coverage is in it
// where that was asked for.
func (t Tally) Document(coverage bool, found diag.List) TallyDocument {
	doc := TallyDocument{
		Passed: t.Passed, Failed: t.Failed, Errors: t.Errors, Skipped: t.Skipped,
		Missed: append([]string{}, t.Missed...), Tests: append([]testResult{}, t.Tests...), Findings: append(diag.List{}, found...),
	}
	if coverage {
		doc.Coverage = &t.Coverage
	}
	return doc
}

// Text writes how the tests went, all together. A test with cases counts once for each.
func (t Tally) Text(w io.Writer, coverage bool) {
	own := 0
	for _, r := range t.Tests {
		if !r.Shipped {
			own++
		}
	}
	tests := fmt.Sprintf("%d tests", len(t.Tests))
	if len(t.Tests) == 1 {
		tests = "1 test"
	}
	var parts []string
	for _, p := range []struct {
		n    int
		what string
	}{{t.Passed, "passed"}, {t.Failed, "failed"}, {t.Errors, "could not be evaluated"}, {t.Skipped, "skipped"}} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.what))
		}
	}
	if len(parts) == 0 {
		parts = []string{"nothing was tested"}
	}
	fmt.Fprintf(w, "%s, in %s: %d shipped, %d of the site\n", strings.Join(parts, ", "), tests, len(t.Tests)-own, own)
	if coverage {
		fmt.Fprintf(w, "%.1f %% of the lines of all rules were reached\n", t.Coverage)
		for _, m := range t.Missed {
			fmt.Fprintf(w, "  not %s\n", m)
		}
	}
}
