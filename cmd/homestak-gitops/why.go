package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/usage"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/view"
)

func whyVerb(a *app) *cobra.Command {
	f := &agentFlags{}
	c := &cobra.Command{
		Use:   "why ADDRESS",
		Short: "Show where something comes from, and what was last done to it",
		Long: `Shows which file and line of the commit in force declares an object, how it is,
and which passes touched it, with what they changed and why. ADDRESS is one such as
vm.web-1; the name of a node or a VMID will do. Of what left the site it shows which
commit removed it, of an unmanaged guest why it is ignored.`,
		Args: usage.Takes(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			return a.ask(c, func(ctx context.Context) error { return runWhy(ctx, a, f, args[0]) })
		},
	}
	f.find(c)
	a.ui.jsonFlag(c)
	c.ValidArgsFunction = completeAddresses(a, f)
	return c
}

func runWhy(ctx context.Context, a *app, f *agentFlags, address string) error {
	a.ui.document = control.ProblemOf
	r, err := a.recordOf(ctx, f)
	if err != nil {
		return err
	}
	a.ui.noteOffline(ctx, r)
	doc, err := r.Why(ctx, address)
	if err != nil {
		return err
	}
	if err := a.ui.show(doc, view.Why(doc)); err != nil {
		return err
	}
	if doc.NotFound {
		hint := doc.Hint
		if hint == "" {
			hint = "addresses look like vm.web-1; homestak-gitops status lists them"
		}
		return fmt.Errorf("nothing is known of %q\n%s", address, hint)
	}
	return nil
}
