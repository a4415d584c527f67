package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/view"
)

func historyVerb(a *app) *cobra.Command {
	f := &session.AgentFlags{}
	var n int
	c := &cobra.Command{
		Use:   "history [ADDRESS]",
		Short: "Show past passes of the agent and their results",
		Long: `Shows the passes that changed something, or tried to, newest first; with ADDRESS only
those that touched it.`,
		Args: ui.TakesArgs(0, 1),
		RunE: a.soon(func(ctx context.Context, args []string) error {
			return runHistory(ctx, a, f, n, strings.Join(args, ""))
		}),
	}
	f.Find(a.ui, c)
	c.Flags().IntVarP(&n, "number", "n", 20, "show at most `N` passes; 0: all")
	c.Flags().BoolVar(&a.ui.JSON, "json", false, "print the receipts as JSON lines on stdout")
	c.ValidArgsFunction = f.CompleteAddress
	c.AddCommand(verifyVerb(a))
	return c
}

func verifyVerb(a *app) *cobra.Command {
	f := &session.AgentFlags{}
	c := &cobra.Command{
		Use:   "verify",
		Short: "Check that no receipt was changed or removed",
		Long: `Each pass has a receipt with the checksum of the one before. Exits 0 if the chain is
intact, 1 if a receipt was changed, is missing or cannot be read.`,
		Args: cobra.NoArgs,
		RunE: a.soon(func(ctx context.Context, _ []string) error { return runVerify(ctx, a, f) }),
	}
	f.Find(a.ui, c)
	a.ui.JSONFlag(c)
	return c
}

func runHistory(ctx context.Context, a *app, f *session.AgentFlags, n int, address string) error {
	if n < 0 {
		return fmt.Errorf("--number %d: want a number of passes, or 0 for all", n)
	}
	r, err := f.NotedRecord(ctx)
	if err != nil {
		return err
	}
	h, err := r.History(ctx, n, address)
	if err != nil {
		return err
	}
	if a.ui.JSON {
		for _, r := range h.Receipts {
			if err := a.ui.Line(r); err != nil {
				return err
			}
		}
	} else {
		showHistory(a, h.Receipts, address)
	}
	if h.Problem != "" {
		return fmt.Errorf("not all receipts can be read: %s\nsee: homestak-gitops history verify", h.Problem)
	}
	return nil
}

func runVerify(ctx context.Context, a *app, f *session.AgentFlags) error {
	a.ui.Document = control.ProblemOf
	r, err := f.Record(ctx)
	if err != nil {
		return err
	}
	c, err := r.Verify(ctx)
	if err != nil {
		return err
	}
	if a.ui.JSON {
		if err := a.ui.Emit(c); err != nil {
			return err
		}
	} else if len(c.Broken) == 0 {
		a.ui.Printf("the chain is intact: %s\n", diag.Count(c.Good, "receipt"))
	}
	if len(c.Broken) > 0 {
		return fmt.Errorf("the chain is broken at %s; %s hold\n%s", diag.Count(len(c.Broken), "receipt"), diag.Count(c.Good, "receipt"), strings.Join(c.Broken, "\n"))
	}
	return nil
}

// showHistory prints receipts as a table.
func showHistory(a *app, list []ledger.Receipt, address string) {
	switch {
	case len(list) > 0:
		a.ui.Wrapf("%s", view.History(list, address, a.ui.Paint()))
	case address == "":
		a.ui.Notef("nothing was changed yet")
	default:
		a.ui.Notef("no receipt is about %s", diag.Clean(address))
	}
}
