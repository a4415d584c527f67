package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/view"
)

func treeVerb(a *app) *cobra.Command {
	f := &agentFlags{}
	c := &cobra.Command{
		Use:   "tree",
		Short: "Show the nodes of an agent, and what those have below them",
		Long: `Asks the agent of this machine, or one that is named by --server with its read key, for its nodes
and what these reported of their own: how far each is, whether it is ready, and how old
that is. What has not reported for three periods is stale.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.ask(c, func(ctx context.Context) error { return runTree(ctx, a, f) })
		},
	}
	f.anywhere(c)
	a.ui.jsonFlag(c)
	return c
}

func runTree(ctx context.Context, a *app, f *agentFlags) error {
	a.ui.document = control.ProblemOf
	c, err := a.runningAgent(ctx, f)
	if err != nil {
		return err
	}
	r, err := c.Tree(ctx)
	if err != nil {
		return err
	}
	_, color := a.ui.text()
	return a.ui.show(r, view.Tree(r, time.Now(), view.Paint(color)))
}
