package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/drivers"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/policy"
)

func policyVerb(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "policy",
		Short: "Test, evaluate and export the rules that a site must follow",
		Long: `The rules are written in Rego: the shipped ones, and those of the site in policy/*.rego.
validate, plan, apply and test always evaluate them.`,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(policyTestVerb(a), policyEvalVerb(a), policyInputVerb(a), policyExportVerb(a))
	c.Args = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return fmt.Errorf("unknown verb %q of policy\n%s\nsee: %s --help", args[0], diag.DidYouMean(args[0], ui.VerbNames(c)), c.CommandPath())
	}
	return c
}

// inputFlags say which document rules get as their input.
type inputFlags struct {
	session.Flags
	plan bool
	file string // of policy eval: a document from a file

	explain bool // of policy eval
}

// document adds the flags that say what is in the document.
func (f *inputFlags) document(a *app, c *cobra.Command) {
	f.Reach(a.ui, c)
	f.Grant(c)
	c.Flags().BoolVar(&f.plan, "plan", false, "read the host and make a plan; otherwise the plan is null")
}

func policyInputVerb(a *app) *cobra.Command {
	f := &inputFlags{}
	c := &cobra.Command{
		Use:   "input",
		Short: "Print the input document of the rules",
		Long: `Prints JSON: the site, the commit, the time, and with --plan the plan of a host. It
contains no secrets.`,
		Args: cobra.NoArgs,
		RunE: f.Within(func(ctx context.Context, _ []string) error { return runPolicyInput(ctx, a, f) }),
	}
	f.document(a, c)
	return c
}

func runPolicyInput(ctx context.Context, a *app, f *inputFlags) error {
	a.ui.Data = true
	s, err := a.sites.Open(ctx, &f.Flags)
	if err != nil {
		return err
	}
	defer s.Close()
	doc, err := s.PolicyDocument(ctx, f.plan)
	if err != nil {
		return err
	}
	return a.ui.Emit(doc)
}

func policyExportVerb(a *app) *cobra.Command {
	schema := ""
	c := &cobra.Command{
		Use:   "export DIR",
		Short: "Write the shipped rules and their tests to a folder",
		Long: `They are for reading, for editors, and to test the rules of a site with opa:

    homestak-gitops policy export shipped && opa test policy/ shipped/

Edited files are not overwritten. In the policy folder of a site, an unchanged export is
ignored. --schema adds schema.pass and schema.auth, for: opa check --schema SCHEMAS
policy/ shipped/`,
		Args: ui.TakesArgs(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			err := policy.Export(args[0])
			if err == nil && schema != "" {
				err = policy.ExportSchemas(schema, drivers.Kinds())
			}
			if err != nil {
				return err
			}
			a.ui.Printf("%s are in %s; with the real opa: opa test policy/ %s\n", diag.Count(len(policy.Shipped()), "file"), args[0], args[0])
			return nil
		},
		ValidArgsFunction: completeDirectory,
	}
	c.Flags().StringVar(&schema, "schema", "", "`FOLDER`: JSON Schemas of the inputs")
	ui.Must(c.MarkFlagDirname("schema"))
	return c
}

// completeDirectory completes one argument with the names of folders.
func completeDirectory(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return nil, cobra.ShellCompDirectiveFilterDirs
}
