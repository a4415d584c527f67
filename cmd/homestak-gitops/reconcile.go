package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/exit"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/usage"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/view"
)

func reconcileVerb(a *app) *cobra.Command {
	f := &agentFlags{}
	var noWait bool
	c := &cobra.Command{
		Use:   "reconcile [NODE]",
		Short: "Make the agent check now, and wait for the result",
		Long: `Asks the agent of this machine to look at repository and host now, instead of when its
time has come, and waits for the end of that pass. The exit code is that of the pass, as
apply would give it. Ctrl-C leaves the waiting; the agent goes on.

With NODE a node in mode pull below is asked to check itself, or the child that manages it; tree
shows what comes of it. An agent that is named by --server is asked with its operator key.`,
		Args: usage.Takes(0, 1),
		RunE: func(c *cobra.Command, args []string) error {
			return a.ask(c, func(ctx context.Context) error { return runReconcile(ctx, a, f, args, !noWait) })
		},
	}
	f.anywhere(c)
	c.Flags().BoolVar(&noWait, "no-wait", false, "do not wait for the pass")
	a.ui.jsonFlag(c)
	return c
}

func runReconcile(ctx context.Context, a *app, f *agentFlags, node []string, wait bool) error {
	a.ui.document = control.ProblemOf
	r, err := a.runningAgent(ctx, f)
	if err != nil {
		return err
	}
	switch {
	case len(node) > 0:
		if err := r.CheckNode(ctx, node[0]); err != nil {
			return err
		}
		return a.ui.show(struct{}{}, fmt.Sprintf("%s is asked to check itself\n", node[0]))
	case !wait:
		if err := r.CheckNow(ctx); err != nil {
			return err
		}
		return showAsked(a, r, f)
	}
	w := &view.PassProgress{Term: a.ui.terminal()}
	e, err := r.Await(ctx, func(s agent.Status) { w.Show(s, time.Now()) })
	w.Erase()
	switch {
	case errors.Is(err, control.ErrNoPass):
		return showAsked(a, r, f)
	case err != nil:
		return err
	}
	for _, st := range e.Steps {
		a.ui.notef("%s", view.Printable(view.StepEnd(st)))
	}
	return showPass(a, e.Pass, e.Status())
}

// showAsked says who checks now, without anybody waiting for it.
func showAsked(a *app, r *control.Client, f *agentFlags) error {
	who := "the server at " + f.elsewhere.Server
	if r.Card.Identity != "" {
		who = "the agent of host " + r.Card.Identity
	}
	return a.ui.show(struct{}{}, who+" looks now\n")
}

// showPass prints how a pass of the agent ended, and ends likewise. Where the newest
// commit was refused the pass was made with the last good one; that is reported, and counts.
func showPass(a *app, l agent.PassStatus, after agent.Status) error {
	a.ui.findings(l.Findings)
	if after.Refused != nil {
		a.ui.findings(after.Refused.Findings)
	}
	if err := a.ui.show(l, view.Reconciled(l, after, time.Now())+"\n"); err != nil {
		return err
	}
	return exit.OfAgent(l, after)
}
