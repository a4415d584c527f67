package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/policy"
)

func policyEvalVerb(a *app) *cobra.Command {
	f := &inputFlags{}
	c := &cobra.Command{
		Use:   "eval QUERY",
		Short: "Evaluate a query over the rules of a site, with its real input",
		Long: `Prints the value of a Rego query as JSON. The input is what "policy input" prints, or the
FILE of --input.

    homestak-gitops policy eval --plan data.homestak.guard.deny
    homestak-gitops policy eval 'some name; input.site.nodes[name].type == "pve"'`,
		Args: ui.TakesArgs(1, 1),
		RunE: f.Within(func(ctx context.Context, args []string) error { return runPolicyEval(ctx, a, f, args[0]) }),
		ValidArgsFunction: cobra.FixedCompletions([]string{
			"data.homestak.site.deny", "data.homestak.plan.deny", "data.homestak.guard.deny", "input.site", "input.plan",
		}, cobra.ShellCompDirectiveNoFileComp),
	}
	f.document(a, c)
	c.Flags().BoolVar(&f.explain, "explain", false, "explain the evaluation on stderr")
	c.Flags().StringVar(&f.file, "input", "", "`FILE`: input in JSON; - is stdin")
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
	s, err := a.sites.Open(ctx, &f.Flags)
	if err != nil {
		return err
	}
	defer s.Close()
	var input any
	if f.file != "" {
		input, err = policy.ReadInput(f.file, a.ui.Stdin)
	} else {
		input, err = s.PolicyDocument(ctx, f.plan)
	}
	if err != nil {
		return err
	}
	var explain io.Writer
	if f.explain {
		explain = a.ui.Stderr
	}
	value, err := s.Eval(ctx, query, input, explain)
	switch {
	case errors.Is(err, policy.ErrUndefined):
		return fmt.Errorf("%w: neither a rule nor the input gives it a value", err)
	case err != nil:
		return err
	case a.ui.JSON:
		return a.ui.Emit(answer{query, value})
	default:
		return a.ui.Emit(value)
	}
}
