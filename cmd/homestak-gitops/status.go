package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/view"
)

func statusVerb(a *app) *cobra.Command {
	f := &session.AgentFlags{}
	var watch bool
	c := &cobra.Command{
		Use:   "status",
		Short: "Show the state of the agent on this machine and its nodes",
		Long: `Shows which commit the agent converges to, what it is doing, what it refused and why, and
the state of each node; if no agent runs, what the last one stored.

Exits 0 if the agent is healthy: its last pass completed (or the first one runs), nothing
is refused, the repository answered one of the last three polls and still has the branch,
and no check of a node fails. Otherwise, and if no agent runs, it exits 1.`,
		Args: cobra.NoArgs,
		RunE: a.soon(func(ctx context.Context, _ []string) error { return runStatus(ctx, a, f, watch) }),
	}
	f.Anywhere(a.ui, c)
	c.Flags().BoolVarP(&watch, "watch", "w", false, "refresh every second, until Ctrl-C")
	a.ui.JSONFlag(c)
	return c
}

// watchEvery is the interval at which --watch reads the status.
const watchEvery = time.Second

func runStatus(ctx context.Context, a *app, f *session.AgentFlags, watch bool) error {
	a.ui.Document = func(err error) any {
		return agent.Status{
			Version: 1, State: control.Absent, At: time.Now().UTC(), Summary: err.Error(), Suspended: []ledger.Suspension{}, Nodes: []engine.NodeStatus{}, Hosts: []agent.HostBelow{}, Checks: []agent.CheckStatus{}, Notify: []agent.NotifyStatus{},
		}
	}
	if !watch {
		s, err := f.Status(ctx)
		if err != nil {
			return err
		}
		return showStatus(a, s)
	}
	if a.ui.JSON {
		return errors.New("--watch and --json cannot be combined")
	}
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		s, err := f.Status(ctx)
		switch {
		case ctx.Err() != nil:
			return nil // Ctrl-C ends the verb
		case err != nil:
			return err
		}
		if a.ui.OutTerminal {
			a.ui.Printf("\x1b[H\x1b[2J")
		}
		_ = showStatus(a, s) // the text says it too
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// showStatus prints a status, and ends well if all is.
func showStatus(a *app, s agent.Status) error {
	if err := a.ui.Show(s, a.ui.Paint().Status(s, time.Now())); err != nil {
		return err
	}
	if !s.Healthy && !view.Beginning(s) || len(s.FailingChecks()) > 0 {
		return ui.ExitFailed.With(nil)
	}
	return nil
}
