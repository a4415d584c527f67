package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/view"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

func jobsVerb(a *app) *cobra.Command {
	f := &session.AgentFlags{}
	var n int
	var history bool
	c := &cobra.Command{
		Use:   "jobs [NAME]",
		Short: "Show the jobs of an agent, and what they did",
		Long: `Lists the jobs with nodes on the host of this machine's agent: when each runs next, and
its last outcome. With NAME it shows the receipts of that job, newest first, with
--history those of all commands, also of exec. --json has their output.`,
		Args: ui.TakesArgs(0, 1),
		RunE: a.soon(func(ctx context.Context, args []string) error {
			if len(args) > 0 || history {
				return runJobHistory(ctx, a, f, strings.Join(args, ""), n)
			}
			return runJobs(ctx, a, f)
		}),
	}
	f.Find(a.ui, c)
	c.Flags().IntVarP(&n, "number", "n", 20, "`N`: most receipts to show; 0: all")
	c.Flags().BoolVar(&history, "history", false, "show the receipts of all commands")
	a.ui.JSONFlag(c)
	return c
}

func runJobs(ctx context.Context, a *app, f *session.AgentFlags) error {
	r, err := f.Running(ctx)
	if err != nil {
		return err
	}
	list, err := r.Jobs(ctx)
	if err != nil {
		return err
	}
	for _, j := range list {
		if a.ui.JSON {
			if err := a.ui.Line(j); err != nil {
				return err
			}
			continue
		}
		when, last := "once, "+j.Once, "has not run"
		if j.Next != nil {
			when = "next " + view.When(*j.Next)
		}
		if j.Last != nil {
			last = fmt.Sprintf("ran %s on %s", view.When(*j.Last), diag.Count(len(j.Ran), "node"))
			if j.Failed > 0 {
				last += fmt.Sprintf(", %d failed", j.Failed)
			}
		}
		a.ui.Printf("%s  %s  %s  %s\n", j.Name, strings.Join(j.Nodes, " "), when, last)
	}
	if len(list) == 0 {
		a.ui.Notef("no job has nodes on this host")
	}
	return nil
}

func runJobHistory(ctx context.Context, a *app, f *session.AgentFlags, job string, n int) error {
	if n < 0 {
		return fmt.Errorf("--number %d: want a number of receipts, or 0 for all", n)
	}
	r, err := f.Running(ctx)
	if err != nil {
		return err
	}
	h, err := r.Runs(ctx, n, job)
	if err != nil {
		return err
	}
	if len(h.Receipts) == 0 && h.Problem == "" {
		return noRuns(ctx, a, r, job)
	}
	for _, got := range h.Receipts {
		if a.ui.JSON {
			if err := a.ui.Line(got); err != nil {
				return err
			}
			continue
		}
		outcome := runOutcome(wire.TaskOutcome(got.Outcome), got.Run.Code, got.Run.Error)
		took := time.Duration(got.Seconds * float64(time.Second)).Round(100 * time.Millisecond)
		a.ui.Printf("%s  %s%s by %s on %s in %s: %s\n", view.When(got.Began), got.Verb, strings.TrimRight(" "+got.Run.Job, " "), got.By, got.Run.Node, took, diag.Clean(outcome))
	}
	if h.Problem != "" {
		return fmt.Errorf("not all receipts can be read: %s", h.Problem)
	}
	return nil
}

// noRuns says that there are no receipts of a job, or of any command. A name that no job has is an error.
func noRuns(ctx context.Context, a *app, r *control.Client, job string) error {
	if job == "" {
		a.ui.Notef("no command has run")
		return nil
	}
	list, err := r.Jobs(ctx)
	if err != nil {
		return err
	}
	var names []string
	for _, j := range list {
		names = append(names, j.Name)
	}
	if !slices.Contains(names, job) {
		return fmt.Errorf("no job %q has nodes on this host\n%s", job, diag.DidYouMean(job, names))
	}
	a.ui.Notef("job %s has not run", job)
	return nil
}
