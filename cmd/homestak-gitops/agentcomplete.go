package main

import (
	"github.com/spf13/cobra"
)

// completeAddresses completes an address with those of the agent's nodes. Where no
// agent answers, nothing completes and nothing is said: the verb itself will.
func completeAddresses(a *app, f *agentFlags) func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		s, err := statusOf(c.Context(), a, f)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var out []string
		for _, n := range s.Nodes {
			out = append(out, n.Address)
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}
