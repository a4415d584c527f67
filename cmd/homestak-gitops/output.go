package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
)

func outputVerb(a *app) *cobra.Command {
	f := &session.Flags{}
	c := &cobra.Command{
		Use:   "output [NAME]",
		Short: "Print an output of the site, or list all",
		Long: `Renders an output block from the site and the host. It changes nothing, and needs no
agent; only an agent knows the phases after provisioned.`,
		Args: cobra.MaximumNArgs(1),
		RunE: f.Within(func(ctx context.Context, args []string) error { return a.sites.PrintOutput(ctx, f, args) }),
	}
	f.Reach(a.ui, c)
	return c
}
