package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/exit"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/view"
)

func reconcileVerb(a *app) *cobra.Command {
	f := &agentFlags{}
	var noWait bool
	c := &cobra.Command{
		Use:   "reconcile",
		Short: "Make the agent check now, and wait for the result",
		Long: `Asks the agent of this machine to look at repository and host now, instead of when its
time has come, and waits for the end of that pass. The exit code is that of the pass, as
apply would give it. Ctrl-C leaves the waiting; the agent goes on.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.ask(c, func(ctx context.Context) error { return runReconcile(ctx, a, f, !noWait) })
		},
	}
	f.find(c)
	c.Flags().BoolVar(&noWait, "no-wait", false, "do not wait for the pass")
	a.ui.jsonFlag(c)
	return c
}

// pollEvery is how often a client reads the status of a pass under way.
const pollEvery = 300 * time.Millisecond

func runReconcile(ctx context.Context, a *app, f *agentFlags, wait bool) error {
	a.ui.document = control.ProblemOf
	r, err := a.runningAgent(ctx, f)
	if err != nil {
		return err
	}
	if !wait {
		if err := r.CheckNow(ctx); err != nil {
			return err
		}
		return a.ui.show(struct{}{}, fmt.Sprintf("the agent of host %s looks now\n", r.Card.Identity))
	}
	asked := time.Now().UTC()
	type answer struct {
		pass agent.PassStatus
		err  error
	}
	ended := make(chan answer, 1)
	go func() {
		var got answer
		got.pass, got.err = r.Reconcile(ctx)
		ended <- got
	}()
	w := &view.PassProgress{Term: a.ui.terminal()}
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		select {
		case got := <-ended:
			w.Erase()
			if got.err != nil {
				return got.err
			}
			if err := showSteps(ctx, a, r, asked); err != nil {
				return err
			}
			after, err := r.Status(ctx)
			if err != nil {
				return err
			}
			return showPass(a, got.pass, after)
		case <-ticker.C:
			if s, err := r.Status(ctx); err == nil { // else the answer will say what is wrong
				w.Show(s, time.Now())
			}
		}
	}
}

// showSteps reports how each step of the newest receipt ended, if its pass ended since
// then: the one that was under way when the agent was asked was seen beginning.
func showSteps(ctx context.Context, a *app, r *control.Client, since time.Time) error {
	h, err := r.History(ctx, 1, "")
	if err != nil {
		return err
	}
	if len(h.Receipts) == 0 {
		return nil
	}
	last := h.Receipts[0]
	if last.Began.Add(time.Duration(last.Seconds * float64(time.Second))).Before(since) {
		return nil
	}
	for _, st := range last.Steps {
		a.ui.notef("%s", view.Printable(view.StepEnd(st)))
	}
	return nil
}

// tellPass prints how a pass of the agent ended, and ends likewise. Where the newest
// commit was refused the pass was made with the last good one; that is reported, and counts.
func showPass(a *app, l agent.PassStatus, after agent.Status) error {
	a.ui.findings(l.Findings)
	if after.Refused != nil {
		a.ui.findings(after.Refused.Findings)
	}
	if err := a.ui.show(l, view.Reconciled(l, after, time.Now())+"\n"); err != nil {
		return err
	}
	switch r := after.Refused; {
	case r != nil && r.Outcome == engine.Refused:
		return exit.With(exit.Refused, fmt.Errorf("commit %s is refused by a guard: see the findings above", view.Short(r.Commit)))
	case r != nil:
		return exit.With(exit.Invalid, fmt.Errorf("commit %s is refused: see the findings above", view.Short(r.Commit)))
	case after.Repository.Error != "":
		return fmt.Errorf("the repository does not answer: %s", after.Repository.Error)
	}
	r := engine.Report{Outcome: l.Outcome}
	if l.Error != "" {
		r.Err = errors.New(l.Error)
	}
	return exit.OfPass(r)
}
