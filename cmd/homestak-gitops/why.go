package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/view"
)

func whyVerb(a *app) *cobra.Command {
	f := &session.AgentFlags{}
	c := &cobra.Command{
		Use:   "why ADDRESS",
		Short: "Show where an object is declared, and its last changes",
		Long: `Shows file and line, state, and the passes that changed it, with reasons; for a removed
object the commit that removed it, for an unmanaged guest why it is ignored. ADDRESS is an
address such as vm.web-1, the name of a node, or a VMID.`,
		Args: ui.TakesArgs(1, 1),
		RunE: a.soon(func(ctx context.Context, args []string) error { return runWhy(ctx, a, f, args[0]) }),
	}
	f.Find(a.ui, c)
	a.ui.JSONFlag(c)
	c.ValidArgsFunction = f.CompleteAddress
	return c
}

func runWhy(ctx context.Context, a *app, f *session.AgentFlags, address string) error {
	a.ui.Document = control.ProblemOf
	r, err := f.NotedRecord(ctx)
	if err != nil {
		return err
	}
	doc, err := r.Why(ctx, address)
	if err != nil {
		return err
	}
	if err := a.ui.Show(doc, view.Why(doc)); err != nil {
		return err
	}
	if doc.NotFound {
		hint := cmp.Or(doc.Hint, "addresses look like vm.web-1; homestak-gitops status lists them")
		return fmt.Errorf("%q is not a known address\n%s", address, hint)
	}
	return nil
}
