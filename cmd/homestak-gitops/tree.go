package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/engine/control"
)

func treeVerb(a *app) *cobra.Command {
	f := &session.AgentFlags{}
	c := &cobra.Command{
		Use:   "tree",
		Short: "Show the nodes of an agent and everything nested in them",
		Long: `Asks the agent of this machine, or the one at --server with its read key. A node that has
not reported for three periods is stale.`,
		Args: cobra.NoArgs,
		RunE: a.soon(func(ctx context.Context, _ []string) error { return runTree(ctx, a, f) }),
	}
	f.Anywhere(a.ui, c)
	a.ui.JSONFlag(c)
	return c
}

func runTree(ctx context.Context, a *app, f *session.AgentFlags) error {
	a.ui.Document = control.ProblemOf
	c, err := f.Running(ctx)
	if err != nil {
		return err
	}
	r, err := c.Tree(ctx)
	if err != nil {
		return err
	}
	return a.ui.Show(r, a.ui.Paint().Tree(r, time.Now()))
}
