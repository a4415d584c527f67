package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/exit"
	"github.com/homestak/homestak-gitops/drivers"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/view"
	"github.com/homestak/homestak-gitops/policy"
)

// policyTestFlags are those of policy test.
type policyTestFlags struct {
	site     string
	run      string
	coverage bool
}

func policyTestVerb(a *app) *cobra.Command {
	f := &policyTestFlags{}
	c := &cobra.Command{
		Use:   "test [DIR]",
		Short: "Run the tests of the rules, as opa test does",
		Long: `Runs all tests, shipped and those of policy/*_test.rego of the site in DIR, as
"opa test" does, and tells which failed. What validate would find wrong with the
policies fails, too. Exits 0 if all passed, else 1.`,
		Args: takes(0, 1),
		RunE: func(c *cobra.Command, args []string) error {
			dir := f.site
			if len(args) > 0 {
				if c.Flags().Changed("site") {
					return errors.New("a folder and --site: name the site once")
				}
				dir = args[0]
			}
			return runPolicyTest(c.Context(), a, f, dir)
		},
		ValidArgsFunction: completeDirectory,
	}
	fs := c.Flags()
	fs.StringVar(&f.site, "site", ".", "test the policies of the site in `DIR`")
	fs.StringVar(&f.run, "run", "", "only tests whose full name, such as data.homestak.site_test.test_x, matches `REGEX`")
	fs.BoolVar(&f.coverage, "coverage", false, "report how much of the rules the tests reach")
	a.ui.jsonFlag(c)
	must(c.MarkFlagDirname("site"))
	return c
}

// policyTests is the document of policy test --json.
type policyTests struct {
	Passed   int                 `json:"passed"`
	Failed   int                 `json:"failed"`
	Errors   int                 `json:"errors"`
	Skipped  int                 `json:"skipped"`
	Coverage *float64            `json:"coverage"` // percent; null unless asked for
	Missed   []string            `json:"missed"`   // lines that no test reached, FILE:FIRST-LAST
	Tests    []policy.TestResult `json:"tests"`
	Findings diag.List           `json:"findings"`
}

func runPolicyTest(ctx context.Context, a *app, f *policyTestFlags, dir string) error {
	a.ui.document = func(err error) any { return documentOf(policy.Tally{}, f, found(err)) }
	match, err := regexp.Compile(f.run)
	if err != nil {
		return fmt.Errorf("--run: %w", err)
	}
	tree, done, err := openPolicies(dir)
	if err != nil {
		return err
	}
	defer done()
	set, found := policy.Compile(ctx, policy.Options{Site: tree, Kinds: drivers.Kinds()})
	a.ui.findings(found)
	if found.HasErrors() {
		if a.ui.json {
			if err := a.ui.emit(documentOf(policy.Tally{}, f, found)); err != nil {
				return err
			}
		}
		return exit.With(exit.Failed, errors.New("the policies have errors, so no test was run: see the findings above"))
	}
	w, _ := a.ui.text()
	if a.ui.json {
		w = io.Discard
	}
	o := policy.TestOptions{Verbose: a.ui.verbose, Coverage: f.coverage}
	if f.run != "" {
		o.Match = match
	}
	t, err := set.Test(ctx, w, o)
	switch {
	case err != nil:
		return err
	case f.run != "" && len(t.Tests) == 0:
		return fmt.Errorf("--run %s: no test has such a name\nsee all of them: homestak-gitops policy test -v", f.run)
	case a.ui.json:
		if err := a.ui.emit(documentOf(t, f, found)); err != nil {
			return err
		}
	default:
		a.ui.tallied(t, f.coverage)
	}
	if !t.OK() {
		return &exit.Error{Code: exit.Failed}
	}
	return nil
}

func documentOf(t policy.Tally, f *policyTestFlags, found diag.List) policyTests {
	doc := policyTests{
		Passed: t.Passed, Failed: t.Failed, Errors: t.Errors, Skipped: t.Skipped,
		Missed: append([]string{}, t.Missed...), Tests: append([]policy.TestResult{}, t.Tests...), Findings: append(diag.List{}, found...),
	}
	if f.coverage {
		doc.Coverage = &t.Coverage
	}
	return doc
}

// tallied tells how tests went, all together. A test with cases counts once for each.
func (u *ui) tallied(t policy.Tally, coverage bool) {
	own := 0
	for _, r := range t.Tests {
		if !r.Shipped {
			own++
		}
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
	u.printf("%s, in %s: %d shipped, %d of the site\n", strings.Join(parts, ", "), view.Count(len(t.Tests), "test"), len(t.Tests)-own, own)
	if coverage {
		u.printf("%.1f %% of the lines of all rules were reached\n", t.Coverage)
		for _, m := range t.Missed {
			u.printf("  not %s\n", m)
		}
	}
}

// openPolicies opens the folder of a site, of which policies are read: DIR itself, or
// where that is the folder policy of a site, the one around it.
func openPolicies(dir string) (tree fs.FS, done func(), err error) {
	abs, err := filepath.Abs(dir)
	if err == nil && filepath.Base(abs) == "policy" {
		if _, serr := os.Stat(filepath.Join(abs, "policy")); serr != nil {
			abs = filepath.Dir(abs)
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("open site folder: %w", err)
	}
	root, err := os.OpenRoot(abs)
	if err != nil {
		return nil, nil, fmt.Errorf("open site folder: %w", err)
	}
	return root.FS(), func() { _ = root.Close() }, nil
}
