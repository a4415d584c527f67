package policy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/cover"
	"github.com/open-policy-agent/opa/v1/tester"
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
	list  []*tester.Result
	tally Tally
}

func (s *Set) run(ctx context.Context, o TestOptions) (run, error) {
	install()
	modules, found := s.parse(func(file) bool { return true })
	if found.HasErrors() {
		return run{}, listError(found)
	}
	c := compiler().WithEnablePrintStatements(true)
	runner := tester.NewRunner().SetCompiler(c).SetModules(modules).SetTimeout(s.limits.time).SetParallel(1)
	if o.Match != nil {
		runner.Filter(o.Match.String())
	}
	covered := cover.New()
	if o.Coverage {
		runner.SetCoverageQueryTracer(covered).SetCoverageRuns(nil)
	}
	results, err := runner.RunTests(ctx, nil)
	var errs ast.Errors
	switch {
	case errors.As(err, &errs):
		return run{}, listError(s.findingsOf(errs))
	case err != nil:
		return run{}, err
	}
	var out run
	for r := range results {
		out.list = append(out.list, r)
	}
	slices.SortFunc(out.list, func(a, b *tester.Result) int {
		return a.Location.Compare(b.Location)
	})
	if o.Coverage {
		out.coverage(covered.Report(rulesOnly(modules)))
	}
	return out, ctx.Err()
}

// rulesOnly leaves tests out: how much of themselves they run says nothing.
func rulesOnly(modules map[string]*ast.Module) map[string]*ast.Module {
	out := map[string]*ast.Module{}
	for name, m := range modules {
		if !strings.HasSuffix(name, testEnding) {
			out[name] = m
		}
	}
	return out
}

func (r *run) coverage(report cover.Report) {
	r.tally.Coverage = report.Coverage
	for _, name := range sortedKeys(report.Files) {
		for _, missed := range report.Files[name].NotCovered {
			r.tally.Missed = append(r.tally.Missed, fmt.Sprintf("%s:%d-%d", name, missed.Start.Row, missed.End.Row))
		}
	}
}

// listError is the error of findings.
func listError(found diag.List) error {
	var errs []error
	for _, f := range found {
		errs = append(errs, errors.New(f.String()))
	}
	return errors.Join(errs...)
}

func (t *Tally) count(r *tester.Result) {
	switch {
	case r.Skip:
		t.Skipped++
	case r.Error != nil:
		t.Errors++
	case len(r.SubResults) > 0:
		for _, sub := range r.SubResults.Iter {
			if len(sub.SubResults) > 0 {
				continue
			}
			if sub.Fail {
				t.Failed++
			} else {
				t.Passed++
			}
		}
	case r.Fail:
		t.Failed++
	default:
		t.Passed++
	}
}

// result converts the result of a test.
func (s *Set) result(r *tester.Result) testResult {
	out := testResult{
		Name: r.Package + "." + r.Name, File: r.Location.File, Line: r.Location.Row,
		Outcome: "passed", Shipped: s.shipped(r.Location.File),
	}
	for name, sub := range r.SubResults.Iter {
		if sub.Fail && len(sub.SubResults) == 0 {
			out.Failed = append(out.Failed, diag.Line(strings.Join(name, ", ")))
		}
	}
	switch {
	case r.Skip:
		out.Outcome = "skipped"
	case r.Error != nil:
		out.Outcome, out.Error = "error", cleanLines(clip(r.Error.Error()))
	case r.Fail:
		out.Outcome = "failed"
	}
	return out
}

// printResult writes how a test went, with what it printed.
func printResult(w io.Writer, r *tester.Result, verbose bool) {
	if r.Pass() && !verbose {
		return
	}
	fmt.Fprintf(w, "%s:%d: %s.%s: %s\n", r.Location.File, r.Location.Row, r.Package, r.Name, outcome(r))
	for name, sub := range r.SubResults.Iter {
		if sub.Fail || verbose {
			fmt.Fprintf(w, "  %s: %s\n", diag.Line(strings.Join(name, ", ")), map[bool]string{true: "FAIL", false: "PASS"}[sub.Fail])
		}
	}
	for line := range strings.Lines(string(r.Output[:min(len(r.Output), maxOutput)])) {
		fmt.Fprintln(w, "  "+diag.Clean(strings.TrimRight(line, "\r\n")))
	}
}

// maxOutput bounds what is shown of one test's print statements, in bytes.
const maxOutput = 64 << 10

func outcome(r *tester.Result) string {
	switch {
	case r.Skip:
		return "SKIPPED"
	case r.Error != nil:
		return "ERROR: " + strings.ReplaceAll(cleanLines(clip(r.Error.Error())), "\n", "\n  ")
	case r.Fail:
		return "FAIL"
	default:
		return "PASS"
	}
}
