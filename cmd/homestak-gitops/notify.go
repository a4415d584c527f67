package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine/control"
)

func notifyVerb(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "notify",
		Short: "Test the notifications of a site",
		Long:  `The notify blocks of a site configure them. "status" shows notifiers that fail.`,
		Args:  cobra.NoArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(notifyTestVerb(a))
	return c
}

func notifyTestVerb(a *app) *cobra.Command {
	f := &session.AgentFlags{}
	c := &cobra.Command{
		Use:   "test NAME",
		Short: "Send a test by a notify block of the site",
		Long: `The agent of this machine sends it, by the notify block NAME of the commit in force. Exits
0 if the receiver accepted it.`,
		Args: ui.TakesArgs(1, 1),
		RunE: a.soon(func(ctx context.Context, args []string) error { return runNotifyTest(ctx, a, f, args[0]) }),
	}
	c.ValidArgsFunction = f.CompleteNotify
	f.Find(a.ui, c)
	a.ui.JSONFlag(c)
	return c
}

func runNotifyTest(ctx context.Context, a *app, f *session.AgentFlags, name string) error {
	a.ui.Document = control.ProblemOf
	r, err := f.Running(ctx)
	if err != nil {
		return err
	}
	if err := r.TestNotify(ctx, name); err != nil {
		return err
	}
	return a.ui.Show(control.Sent{Notify: name}, "sent by notify "+name+"\n")
}
