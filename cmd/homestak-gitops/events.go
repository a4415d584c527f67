package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/agentref"
	"github.com/homestak/homestak-gitops/engine/event"
	"github.com/homestak/homestak-gitops/engine/view"
)

func eventsVerb(a *app) *cobra.Command {
	f := &agentref.Flags{}
	var follow bool
	var after string
	c := &cobra.Command{
		Use:   "events",
		Short: "Show what happened to the agent of this machine",
		Long: `Lists what the running agent still knows of what happened, the oldest first: commits, passes
and their steps, nodes that became ready or are not any more. With --follow it goes on with
what happens until Ctrl-C, or until the agent ends. history has what was done in earlier runs.`,
		Args: cobra.NoArgs,
		RunE: a.soon(func(ctx context.Context, _ []string) error { return runEvents(ctx, a, f, after, follow) }),
	}
	f.Anywhere(a.ui, c)
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what happens")
	c.Flags().StringVar(&after, "after", "", "begin behind the event with this `ID`")
	c.Flags().BoolVar(&a.ui.JSON, "json", false, "print JSON lines, one for each event")
	return c
}

func runEvents(ctx context.Context, a *app, f *agentref.Flags, after string, follow bool) error {
	c, err := f.Running(ctx)
	if err != nil {
		return err
	}
	err = c.Events(ctx, after, follow, func(e event.Event) error {
		if a.ui.JSON {
			return a.ui.Line(e)
		}
		a.ui.Printf("%s", view.Event(e, time.Local, a.ui.Paint()))
		return nil
	})
	if err != nil && ctx.Err() != nil {
		err = nil // Ctrl-C is how one leaves
	}
	return err
}
