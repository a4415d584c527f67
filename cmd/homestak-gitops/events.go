package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/engine/control"
)

func eventsVerb(a *app) *cobra.Command {
	f := &session.AgentFlags{}
	var follow bool
	var after string
	c := &cobra.Command{
		Use:   "events",
		Short: "Show the events of the agent on this machine",
		Long: `Lists what the running agent has kept, oldest first: commits, passes and their steps,
nodes that became ready or not ready, and checks that fail or pass again. "history" shows
earlier passes.`,
		Args: cobra.NoArgs,
		RunE: a.soon(func(ctx context.Context, _ []string) error { return runEvents(ctx, a, f, after, follow) }),
	}
	f.Anywhere(a.ui, c)
	c.Flags().BoolVarP(&follow, "follow", "f", false, "continue with new events")
	c.Flags().StringVar(&after, "after", "", "`ID`: start after this event")
	a.ui.JSONFlag(c)
	return c
}

func runEvents(ctx context.Context, a *app, f *session.AgentFlags, after string, follow bool) error {
	c, err := f.Running(ctx)
	if err != nil {
		return err
	}
	err = c.Events(ctx, after, follow, func(e control.Event) error {
		if a.ui.JSON {
			return a.ui.Line(e)
		}
		a.ui.Wrapf("%s", a.ui.Paint().Event(e, time.Local))
		return nil
	})
	if err != nil && ctx.Err() != nil {
		err = nil // Ctrl-C ends the verb
	}
	return err
}
