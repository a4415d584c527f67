package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/view"
)

func reconcileVerb(a *app) *cobra.Command {
	f := &session.AgentFlags{}
	var noWait bool
	c := &cobra.Command{
		Use:   "reconcile [NODE]",
		Short: "Start a pass of the agent now, and wait for its result",
		Long: `The exit code is that of the pass. Ctrl-C stops only the waiting. With --server it needs
the operator key of that agent.

With NODE it asks a node in mode pull, or the child that manages it, to check itself, at
the latest when it connects again; "tree" shows the result.`,
		Args: ui.TakesArgs(0, 1),
		RunE: a.soon(func(ctx context.Context, args []string) error { return runReconcile(ctx, a, f, args, !noWait) }),
	}
	f.Anywhere(a.ui, c)
	c.Flags().BoolVar(&noWait, "no-wait", false, "do not wait for the pass")
	a.ui.JSONFlag(c)
	return c
}

func runReconcile(ctx context.Context, a *app, f *session.AgentFlags, node []string, wait bool) error {
	a.ui.Document = control.ProblemOf
	r, err := f.Running(ctx)
	if err != nil {
		return err
	}
	switch {
	case len(node) > 0:
		asked, err := r.CheckNode(ctx, node[0])
		if err != nil {
			return err
		}
		return a.ui.Show(asked, view.Asked(node[0], asked.Status)+"\n")
	case !wait:
		if err := r.CheckNow(ctx); err != nil {
			return err
		}
		return showAsked(a, r, f)
	}
	w := &view.PassProgress{Term: a.ui.Terminal()}
	e, err := r.Await(ctx, func(s agent.Status) { w.Show(s, time.Now()) })
	w.Erase()
	switch {
	case errors.Is(err, control.ErrNoPass):
		return showAsked(a, r, f)
	case err != nil:
		return err
	}
	for _, st := range e.Steps {
		a.ui.Notef("%s", view.StepEnd(st))
	}
	return showPass(a, e.Pass, e.Status())
}

// showAsked says which agent checks now, where no pass of it is waited for.
func showAsked(a *app, r *control.Client, f *session.AgentFlags) error {
	return a.ui.Show(struct{}{}, f.Name(r)+" checks now\n")
}

// showPass prints the result of the agent's pass, and returns its exit status. If the newest commit was refused, the
// pass used the last good one; that is reported, and counts as an error.
func showPass(a *app, l agent.PassStatus, after agent.Status) error {
	a.ui.Findings(l.Findings)
	if after.Refused != nil {
		a.ui.Findings(after.Refused.Findings)
	}
	if err := a.ui.Show(l, view.Reconciled(l, after, time.Now())+"\n"); err != nil {
		return err
	}
	return exitOfAgent(l, after)
}

// exitOfAgent is the exit status of a verb that waited for a pass of an agent, the same as apply's. If the newest
// commit was refused, the pass used the last good one, and the refusal counts.
func exitOfAgent(l agent.PassStatus, after agent.Status) error {
	switch r := after.Refused; {
	case r != nil && r.Outcome == engine.Refused:
		return ui.ExitRefused.With(fmt.Errorf("commit %.8s is refused by a guard: see the findings above", r.Commit))
	case r != nil:
		return ui.ExitInvalid.With(fmt.Errorf("commit %.8s is refused: see the findings above", r.Commit))
	case after.Repository.Error != "":
		return fmt.Errorf("the repository does not answer: %s", after.Repository.Error)
	}
	r := engine.Report{Outcome: l.Outcome}
	if l.Error != "" {
		r.Err = errors.New(l.Error)
	}
	return ui.ExitOfPass(r)
}
