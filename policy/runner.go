package policy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"sort"
	"strings"

	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// TestOptions say which tests are run, and what is printed of them.
type TestOptions struct {
	Match    *regexp.Regexp // of full names such as data.homestak.site_test.test_x; nil: all
	Verbose  bool           // print what passes, too
	Coverage bool           // measure which lines of the rules the tests reach
}

// Tally counts test results. A test with cases counts once for every case, as it does in `opa test`; one that
// failed to be evaluated counts in Errors.
type Tally struct {
	Passed, Failed, Skipped, Errors int

	Coverage float64  // percent of lines, with TestOptions.Coverage
	Missed   []string // rules' lines that no test reached, FILE:FIRST-LAST, with TestOptions.Coverage

	Tests []testResult // by file and line
}

// testResult is the result of one test.
type testResult struct {
	Name    string   `json:"name"` // data.homestak.site_test.test_x
	File    string   `json:"file"` // from the root of the site; of shipped ones shipped/NAME
	Line    int      `json:"line"`
	Outcome string   `json:"outcome"`          // passed, failed, skipped or error
	Error   string   `json:"error,omitempty"`  // why it could not be evaluated
	Failed  []string `json:"failed,omitempty"` // its cases that failed, if it has cases
	Shipped bool     `json:"shipped"`
}

// OK reports whether no test failed. Skipped tests do not count as failed; `opa test` exits with 2
// for them.
func (t Tally) OK() bool { return t.Failed+t.Errors == 0 }

// Test runs all tests, shipped and the site's, as `opa test` does, and writes what
// fails. Tests run under the limits of an evaluation each; all together may take the
// memory of one. An error means that the tests could not be run: they do not compile,
// or a limit ended them.
func (s *Set) Test(ctx context.Context, w io.Writer, o TestOptions) (Tally, error) {
	if s == nil || len(s.sources) == 0 {
		return Tally{}, errors.New("run tests of policies: no policies were read")
	}
	l := limits{time: math.MaxInt64, memory: s.limits.memory} // time is limited for each test instead
	results, err := within(ctx, &l, func(ctx context.Context, _ topdown.Cancel) (run, error) { return s.run(ctx, o) })
	if err != nil {
		return Tally{}, fmt.Errorf("run tests of policies: %w", err)
	}
	t := results.tally
	for _, r := range results.list {
		t.count(r)
		t.Tests = append(t.Tests, s.result(r))
		printResult(w, r, o.Verbose)
	}
	return t, nil
}

type run struct {
	list  []*testRun
	tally Tally
}

func (s *Set) run(ctx context.Context, o TestOptions) (run, error) {
	install()
	modules, found := s.parse(func(file) bool { return true })
	if found.HasErrors() {
		return run{}, listError(found)
	}
	c := compiler().WithEnablePrintStatements(true)
	numberTests(c)
	markCases(c)
	if c.Compile(modules); c.Failed() {
		return run{}, listError(s.findingsOf(c.Errors))
	}
	var out run
	var reached *coverage
	if o.Coverage {
		reached = newCoverage()
	}
	for _, name := range sortedKeys(c.Modules) {
		for _, rule := range c.Modules[name].Rules {
			t := testOf(rule)
			if t == nil || o.Match != nil && !o.Match.MatchString(t.ref().String()) {
				continue
			}
			if t.evaluate(ctx, c, s.limits.time, reached); ctx.Err() != nil {
				return run{}, ctx.Err()
			}
			out.list = append(out.list, t)
		}
	}
	sort.SliceStable(out.list, func(i, j int) bool { return out.list[i].rule.Loc().Compare(out.list[j].rule.Loc()) < 0 })
	if o.Coverage {
		out.tally.Coverage, out.tally.Missed = reached.of(modules)
	}
	return out, nil
}

// listError is the error of findings.
func listError(found diag.List) error {
	var errs []error
	for _, f := range found {
		errs = append(errs, errors.New(f.String()))
	}
	return errors.Join(errs...)
}

func (t *Tally) count(r *testRun) {
	switch {
	case r.skipped:
		t.Skipped++
	case r.err != nil:
		t.Errors++
	case len(r.cases) > 0:
		for _, c := range r.cases.all() {
			switch {
			case len(c.cases) > 0:
			case c.failed:
				t.Failed++
			default:
				t.Passed++
			}
		}
	case r.failed:
		t.Failed++
	default:
		t.Passed++
	}
}

// result converts the result of a test.
func (s *Set) result(r *testRun) testResult {
	at := r.rule.Loc()
	out := testResult{Name: r.fullName(), File: at.File, Line: at.Row, Outcome: "passed", Shipped: s.shipped(at.File)}
	for _, c := range r.cases.all() {
		if c.failed && len(c.cases) == 0 {
			out.Failed = append(out.Failed, c.fullName)
		}
	}
	switch {
	case r.skipped:
		out.Outcome = "skipped"
	case r.err != nil:
		out.Outcome, out.Error = "error", cleanLines(clip(r.err.Error()))
	case r.failed:
		out.Outcome = "failed"
	}
	return out
}

// printResult writes how a test went, with what it printed.
func printResult(w io.Writer, r *testRun, verbose bool) {
	word := outcome(r)
	if word == "PASS" && !verbose {
		return
	}
	fmt.Fprintf(w, "%s:%d: %s: %s\n", r.rule.Loc().File, r.rule.Loc().Row, r.fullName(), word)
	for _, c := range r.cases.all() {
		if c.failed || verbose {
			fmt.Fprintf(w, "  %s: %s\n", c.fullName, map[bool]string{true: "FAIL", false: "PASS"}[c.failed])
		}
	}
	for line := range strings.Lines(r.output.String()[:min(r.output.Len(), maxOutput)]) {
		fmt.Fprintln(w, "  "+diag.Clean(strings.TrimRight(line, "\r\n")))
	}
}

// maxOutput bounds what is shown of one test's print statements, in bytes.
const maxOutput = 64 << 10

func outcome(r *testRun) string {
	switch {
	case r.skipped:
		return "SKIPPED"
	case r.err != nil:
		return "ERROR: " + strings.ReplaceAll(cleanLines(clip(r.err.Error())), "\n", "\n  ")
	case r.failed:
		return "FAIL"
	default:
		return "PASS"
	}
}
