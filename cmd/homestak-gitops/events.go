package main

import (
	"context"
	"encoding/json"
	"time"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/engine/event"
	"github.com/homestak/homestak-gitops/engine/view"
)

func eventsVerb(a *app) *cobra.Command {
	f := &agentFlags{}
	var follow bool
	var after string
	c := &cobra.Command{
		Use:   "events",
		Short: "Show what happened to the agent of this machine",
		Long: `Lists what the running agent still knows of what happened, the oldest first: commits, passes
and their steps, nodes that became ready or are not any more. With --follow it goes on with
what happens until Ctrl-C, or until the agent ends. history has what was done in earlier runs.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.ask(c, func(ctx context.Context) error { return runEvents(ctx, a, f, after, follow) })
		},
	}
	f.anywhere(c)
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what happens")
	c.Flags().StringVar(&after, "after", "", "begin behind the event with this `ID`")
	c.Flags().BoolVar(&a.ui.json, "json", false, "print JSON lines, one for each event")
	return c
}

func runEvents(ctx context.Context, a *app, f *agentFlags, after string, follow bool) error {
	c, err := a.runningAgent(ctx, f)
	if err != nil {
		return err
	}
	_, color := a.ui.text()
	err = c.Events(ctx, after, follow, func(e event.Event) error {
		if a.ui.json {
			a.ui.written = true
			return json.NewEncoder(a.ui.stdout).Encode(e)
		}
		a.ui.printf("%s", view.Event(e, time.Local, view.Paint(color)))
		return nil
	})
	if err != nil && ctx.Err() != nil {
		err = nil // Ctrl-C is how one leaves
	}
	return err
}
