package ui_test

import (
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
)

// A wrong command line is answered with what was probably meant.
func TestExplain(t *testing.T) {
	root := &cobra.Command{Use: "tool", SilenceErrors: true, SilenceUsage: true, DisableSuggestions: true}
	run := func(*cobra.Command, []string) error { return nil }
	plan := &cobra.Command{Use: "plan", Args: cobra.NoArgs, RunE: run}
	plan.Flags().String("manifest", "", "")
	root.AddCommand(plan, &cobra.Command{Use: "eval QUERY", Args: ui.TakesArgs(1, 1), RunE: run})
	for _, c := range []struct{ verb, arg, want string }{
		{"pln", "", "unknown verb \"pln\"\ndid you mean \"plan\"?\nsee: tool --help"},
		{"plan", "web", "tool plan takes no argument, but \"web\" was given\na manifest is named by -M, the folder of a site by --site\nsee: tool plan --help"},
		{"eval", "", "tool eval takes 1 argument, but none was given\nusage: tool eval QUERY [flags]\nsee: tool eval --help"},
	} {
		args := []string{c.verb}
		if c.arg != "" {
			args = append(args, c.arg)
		}
		root.SetArgs(args)
		require.EqualError(t, ui.ExplainUsage(root, root.Execute()), c.want)
	}
	require.NoError(t, ui.ExplainUsage(root, nil))
	require.Contains(t, ui.VerbNames(root), "plan")
}
