package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/exit"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/site"
	"github.com/homestak/homestak-gitops/engine/view"
	"github.com/homestak/homestak-gitops/policy"
)

func policyVerb(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "policy",
		Short: "Test, ask and export the rules that a site is held against",
		Long: `Policies are rules in Rego: some are shipped with this program, a site adds its
own in policy/*.rego. validate, plan, apply and test ask them by themselves; these
verbs are for who writes them.`,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(policyTestVerb(a), policyEvalVerb(a), policyInputVerb(a), policyExportVerb(a))
	c.Args = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return fmt.Errorf("unknown verb %q of policy\n%s\nsee: %s --help", args[0], diag.DidYouMean(args[0], verbs(c)), c.CommandPath())
	}
	return c
}

// inputFlags say which document rules are asked with.
type inputFlags struct {
	siteFlags
	plan bool
	file string // of policy eval: a document from a file
}

// document adds the flags that say what is in the document.
func (f *inputFlags) document(a *app, c *cobra.Command) {
	f.reach(a, c)
	f.grant(c)
	c.Flags().BoolVar(&f.plan, "plan", false, "read the host and plan; without it the plan is null")
}

func policyInputVerb(a *app) *cobra.Command {
	f := &inputFlags{}
	c := &cobra.Command{
		Use:   "input",
		Short: "Print the document that rules get as their input",
		Long: `Prints the real input of the rules for this site, as JSON: the site, the commit and
the time; with --plan also the plan of a host, which is looked at for it. Secrets are
not in it. Kept in a file it is good for tests, and for "policy eval --input FILE".`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return f.within(c, func(ctx context.Context) error {
				return runPolicyInput(ctx, a, f)
			})
		},
	}
	f.document(a, c)
	return c
}

func runPolicyInput(ctx context.Context, a *app, f *inputFlags) error {
	a.ui.data = true
	s, err := a.open(ctx, &f.siteFlags)
	if err != nil {
		return err
	}
	defer s.Close()
	doc, err := s.input(ctx, f)
	if err != nil {
		return err
	}
	return a.ui.emit(doc)
}

func policyEvalVerb(a *app) *cobra.Command {
	f := &inputFlags{}
	c := &cobra.Command{
		Use:   "eval QUERY",
		Short: "Evaluate a query over the rules of a site, with its real input",
		Long: `Evaluates a query in Rego over all rules, shipped and the site's, and prints its value
as JSON. The input is what "policy input" prints, or the document of --input.

    homestak-gitops policy eval data.homestak.site.deny
    homestak-gitops policy eval --plan data.homestak.guard.deny
    homestak-gitops policy eval 'some name; input.site.nodes[name].type == "pve"'`,
		Args: takes(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			return f.within(c, func(ctx context.Context) error {
				return runPolicyEval(ctx, a, f, args[0])
			})
		},
		ValidArgsFunction: cobra.FixedCompletions([]string{
			"data.homestak.site.deny", "data.homestak.plan.deny", "data.homestak.guard.deny", "input.site", "input.plan",
		}, cobra.ShellCompDirectiveNoFileComp),
	}
	f.document(a, c)
	c.Flags().StringVar(&f.file, "input", "", "take the input from `FILE`, in JSON; - is stdin")
	return c
}

// answer is the document of policy eval --json.
type answer struct {
	Query  string `json:"query"`
	Result any    `json:"result"`
}

func runPolicyEval(ctx context.Context, a *app, f *inputFlags, query string) error {
	if f.file != "" && f.plan {
		return errors.New("--input and --plan: the input comes from one of them")
	}
	s, err := a.open(ctx, &f.siteFlags)
	if err != nil {
		return err
	}
	defer s.Close()
	var input any
	if f.file != "" {
		input, err = readInput(a, f.file)
	} else {
		input, err = s.input(ctx, f)
	}
	if err != nil {
		return err
	}
	value, err := s.Eval(ctx, query, input)
	switch {
	case errors.Is(err, policy.ErrUndefined):
		return fmt.Errorf("%w: neither a rule nor the input gives it a value", err)
	case err != nil:
		return err
	case a.ui.json:
		return a.ui.emit(answer{query, value})
	default:
		return a.ui.emit(value)
	}
}

// readInput reads the document of --input.
func readInput(a *app, name string) (any, error) {
	in := a.stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("open the input: %w", err)
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	var doc any
	d := json.NewDecoder(in)
	d.UseNumber()
	if err := d.Decode(&doc); err != nil {
		return nil, fmt.Errorf("read the input from %s: %w", name, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read the input from %s: something follows the document", name)
	}
	return doc, nil
}

// input is the document that rules get of this site and, with --plan, of a host. That
// they deny it is no reason not to look at it.
func (s *session) input(ctx context.Context, f *inputFlags) (map[string]any, error) {
	if err := s.CheckLoaded(); err != nil {
		return nil, err
	}
	if !f.plan {
		return s.PolicyInput()
	}
	m, h, err := s.choice()
	if err != nil {
		return nil, err
	}
	if err := site.CheckDeployed(m, "plan", h); err != nil {
		return nil, err
	}
	p, err := scope{Manifest: f.manifest, AllowDeletes: f.allowDeletes}.limit(s.pass(h, ""))
	if err != nil {
		return nil, err
	}
	p.Load = func(context.Context) engine.Desired {
		return engine.Desired{Site: s.Desired.Site, Commit: s.Desired.Commit} // what speaks against it is not asked
	}
	progress := view.Watch(s.app.ui.terminal())
	progress.Waits(view.Observing(h.Name))
	r := p.Run(ctx)
	progress.Close()
	if r.Plan == nil || r.Err != nil {
		s.app.ui.findings(r.Findings)
		return nil, exit.OfPass(r)
	}
	return s.PolicyInputOf(r.Plan, r.Have, p.AllowDeletes)
}

func policyExportVerb(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "export DIR",
		Short: "Write the shipped rules and their tests into a folder",
		Long: `Writes the rules that are shipped with this program, and their tests, into a folder:
to be read, for editors, and so that the real opa can test those of a site with them:

    homestak-gitops policy export shipped && opa test policy/ shipped/

What has been changed there is not overwritten. In the folder policy of a site an
unchanged export is ignored, since it is in force anyway.`,
		Args: takes(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := policy.Export(args[0]); err != nil {
				return err
			}
			a.ui.printf("%s are in %s; with the real opa: opa test policy/ %s\n", view.Count(len(policy.Shipped()), "file"), args[0], args[0])
			return nil
		},
		ValidArgsFunction: completeDirectory,
	}
}

func completeDirectory(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return nil, cobra.ShellCompDirectiveFilterDirs
}
