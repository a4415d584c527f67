package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/drivers"
	"github.com/homestak/homestak-gitops/engine/site"
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
		Short: "Run the tests of the rules, like opa test",
		Long: `Runs the shipped tests and those in policy/*_test.rego of the site in DIR. It also fails
for errors in the policies. Exits 0 if all tests passed, otherwise 1.`,
		Args: ui.TakesArgs(0, 1),
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
	fs.StringVar(&f.site, "site", ".", "`DIR`: folder of the site")
	fs.StringVar(&f.run, "run", "", "`REGEX`: only tests with such names, as data.homestak.site_test.test_x")
	fs.BoolVar(&f.coverage, "coverage", false, "report how much of the rules the tests cover")
	a.ui.JSONFlag(c)
	ui.Must(c.MarkFlagDirname("site"))
	return c
}

func runPolicyTest(ctx context.Context, a *app, f *policyTestFlags, dir string) error {
	a.ui.Document = func(err error) any { return policy.Tally{}.Document(f.coverage, ui.ErrorFindings(err)) }
	match, err := regexp.Compile(f.run)
	if err != nil {
		return fmt.Errorf("--run: %w", err)
	}
	tree, done, err := site.OpenPolicies(dir)
	if err != nil {
		return err
	}
	defer done()
	set, found := policy.Compile(ctx, policy.Options{Site: tree, Kinds: drivers.Kinds()})
	a.ui.Findings(found)
	if found.HasErrors() {
		if a.ui.JSON {
			if err := a.ui.Emit(policy.Tally{}.Document(f.coverage, found)); err != nil {
				return err
			}
		}
		return ui.ExitFailed.With(errors.New("the policies have errors, so no test was run: see the findings above"))
	}
	w, _ := a.ui.Text()
	if a.ui.JSON {
		w = io.Discard
	}
	o := policy.TestOptions{Verbose: a.ui.Verbose, Coverage: f.coverage}
	if f.run != "" {
		o.Match = match
	}
	t, err := set.Test(ctx, w, o)
	switch {
	case err != nil:
		return err
	case f.run != "" && len(t.Tests) == 0:
		return fmt.Errorf("--run %s: no test has that name\nsee all of them: homestak-gitops policy test -v", f.run)
	case a.ui.JSON:
		if err := a.ui.Emit(t.Document(f.coverage, found)); err != nil {
			return err
		}
	default:
		w, _ := a.ui.Text()
		t.Text(w, f.coverage)
	}
	if !t.OK() {
		return ui.ExitFailed.With(nil)
	}
	return nil
}
