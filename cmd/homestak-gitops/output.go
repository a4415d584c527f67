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
		Long: `Reads the site and the host, and renders an output block: a hosts file, an inventory, or
whatever its template makes. It changes nothing, and needs no agent; only an agent knows the
phases after provisioned. Without a NAME it lists the outputs.`,
		Args: cobra.MaximumNArgs(1),
		RunE: f.Within(func(ctx context.Context, args []string) error { return a.sites.PrintOutput(ctx, f, args) }),
	}
	f.Reach(a.ui, c)
	return c
}
