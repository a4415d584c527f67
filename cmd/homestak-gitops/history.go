package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/usage"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/view"
)

func historyVerb(a *app) *cobra.Command {
	f := &agentFlags{}
	var n int
	c := &cobra.Command{
		Use:   "history [ADDRESS]",
		Short: "Show what the agent changed: when, by which commit, and how it went",
		Long: `Shows the passes that changed something, or tried to, the newest first; with ADDRESS
only those that touched it. Each is a receipt, a file in the agent's data folder.`,
		Args: usage.Takes(0, 1),
		RunE: func(c *cobra.Command, args []string) error {
			return a.ask(c, func(ctx context.Context) error { return runHistory(ctx, a, f, n, strings.Join(args, "")) })
		},
	}
	f.find(c)
	c.Flags().IntVarP(&n, "number", "n", 20, "show at most `N` passes; 0: all")
	c.Flags().BoolVar(&a.ui.json, "json", false, "print the receipts as JSON lines on stdout")
	c.ValidArgsFunction = completeAddresses(a, f)
	c.AddCommand(verifyVerb(a))
	return c
}

func verifyVerb(a *app) *cobra.Command {
	f := &agentFlags{}
	c := &cobra.Command{
		Use:   "verify",
		Short: "Check that no receipt was changed or taken out",
		Long: `Each receipt names the checksum of the one before. Exits 0 if the chain holds, 1 if a
receipt was changed, is missing or cannot be read.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.ask(c, func(ctx context.Context) error { return runVerify(ctx, a, f) })
		},
	}
	f.find(c)
	a.ui.jsonFlag(c)
	return c
}

func runHistory(ctx context.Context, a *app, f *agentFlags, n int, address string) error {
	if n < 0 {
		return fmt.Errorf("--number %d: want a number of passes, or 0 for all", n)
	}
	r, err := a.recordOf(ctx, f)
	if err != nil {
		return err
	}
	a.ui.noteOffline(ctx, r)
	h, err := r.History(ctx, n, address)
	if err != nil {
		return err
	}
	if a.ui.json {
		a.ui.written = true
		for _, r := range h.Receipts {
			if err := json.NewEncoder(a.ui.stdout).Encode(r); err != nil {
				return fmt.Errorf("write the receipts: %w", err)
			}
		}
	} else {
		a.ui.history(h.Receipts, address)
	}
	if h.Problem != "" {
		return fmt.Errorf("not all receipts can be read: %s\nsee: homestak-gitops history verify", h.Problem)
	}
	return nil
}

func runVerify(ctx context.Context, a *app, f *agentFlags) error {
	a.ui.document = control.ProblemOf
	r, err := a.recordOf(ctx, f)
	if err != nil {
		return err
	}
	c, err := r.Verify(ctx)
	if err != nil {
		return err
	}
	if a.ui.json {
		if err := a.ui.emit(c); err != nil {
			return err
		}
	} else if len(c.Broken) == 0 {
		a.ui.printf("the chain holds: %s\n", view.Count(c.Good, "receipt"))
	}
	if len(c.Broken) > 0 {
		return fmt.Errorf("the chain is broken at %s; %s hold\n%s", view.Count(len(c.Broken), "receipt"), view.Count(c.Good, "receipt"), strings.Join(c.Broken, "\n"))
	}
	return nil
}

// history prints receipts as a table.
func (u *ui) history(list []ledger.Receipt, address string) {
	switch {
	case len(list) > 0:
		_, color := u.text()
		u.printf("%s", view.History(list, address, view.Paint(color)))
	case address == "":
		u.notef("nothing was changed yet")
	default:
		u.notef("no receipt is about %s", view.Printable(address))
	}
}
