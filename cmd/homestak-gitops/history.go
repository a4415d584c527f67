package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
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
		Long: `Lists the passes that changed something, or tried to, newest first; with ADDRESS only
those that touched it.`,
		Args: ui.TakesArgs(0, 1),
		RunE: a.soon(func(ctx context.Context, args []string) error {
			return runHistory(ctx, a, f, n, strings.Join(args, ""))
		}),
	}
	f.Find(a.ui, c)
	c.Flags().IntVarP(&n, "number", "n", 20, "`N`: most passes to show; 0: all")
	a.ui.JSONFlag(c)
	c.ValidArgsFunction = f.CompleteAddress
	c.AddCommand(verifyVerb(a), exportVerb(a))
	return c
}

func verifyVerb(a *app) *cobra.Command {
	f := &session.AgentFlags{}
	var e ledger.Expect
	c := &cobra.Command{
		Use:   "verify [FOLDER|FILE]",
		Short: "Check that no receipt was changed or removed",
		Long: `Each receipt has the checksum of the one before, and a signature. Exits 0 if the chain is
intact, 1 if a receipt was changed, is missing, has a foreign signature or cannot be read;
the first broken one comes first. FOLDER is a data folder, or one of receipts in it; FILE
is from "history export". Neither needs an agent.

The keys of a folder prove nothing to someone who may write there: name those that you
know with --key. Only --newest, with an ID that this command printed before, reveals that
receipts at the end were removed.`,
		Args: ui.TakesArgs(0, 1),
		RunE: a.soon(func(ctx context.Context, args []string) error {
			return runVerify(ctx, a, f, strings.Join(args, ""), e)
		}),
	}
	f.Find(a.ui, c)
	c.Flags().StringArrayVar(&e.Keys, "key", nil, "`KEY`: public key that may sign, such as ed25519:…; repeatable (default: those of the folder)")
	c.Flags().StringVar(&e.Newest, "newest", "", "`ID`: a receipt that must be there")
	a.ui.JSONFlag(c)
	return c
}

func exportVerb(a *app) *cobra.Command {
	f := &session.AgentFlags{}
	format := "json"
	c := &cobra.Command{
		Use:   "export [FOLDER]",
		Short: "Print all receipts for others to read or verify",
		Long: `Prints those of a data folder, oldest first: as lines of JSON that "history verify" can
check, as CSV with a row for each step, or as a table in Markdown.`,
		Args: ui.TakesArgs(0, 1),
		RunE: a.soon(func(_ context.Context, args []string) error {
			return runExport(a, f, strings.Join(args, ""), format)
		}),
		ValidArgsFunction: completeDirectory,
	}
	f.Find(a.ui, c)
	c.Flags().StringVar(&format, "format", format, "`FORMAT`: json, csv or md")
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

func runVerify(ctx context.Context, a *app, f *session.AgentFlags, at string, e ledger.Expect) error {
	a.ui.Document = control.ProblemOf
	p, err := prove(ctx, f, at, e)
	if err != nil {
		return err
	}
	if a.ui.JSON {
		if err := a.ui.Emit(p); err != nil {
			return err
		}
	} else if len(p.Broken) == 0 {
		a.ui.Printf("the chain is intact: %s\n", provedLine(p))
		for _, key := range p.Keys {
			a.ui.Printf("signed by %s\n", key)
		}
		if p.Newest != "" {
			a.ui.Printf("newest %s\n", p.Newest)
		}
	}
	if len(p.Broken) > 0 {
		return fmt.Errorf("the chain is broken at %s; %s hold\n%s", diag.Count(len(p.Broken), "receipt"), diag.Count(p.Intact, "receipt"), strings.Join(p.Broken, "\n"))
	}
	return nil
}

// prove checks the receipts at a path; those of the agent here for "".
func prove(ctx context.Context, f *session.AgentFlags, at string, e ledger.Expect) (p ledger.Proof, err error) {
	for _, key := range e.Keys {
		if _, err := ledger.ParseKey(key); err != nil {
			return p, fmt.Errorf("--key: %w", err)
		}
	}
	if at == "" && len(e.Keys) == 0 && e.Newest == "" {
		r, err := f.Record(ctx)
		if err != nil {
			return p, err
		}
		return r.Verify(ctx)
	}
	if info, err := os.Stat(at); err == nil && info.Mode().IsRegular() {
		return ledger.VerifyFile(at, e)
	}
	l, err := receiptsAt(f, at)
	if err != nil {
		return p, err
	}
	return l.Verify(e)
}

// receiptsAt finds the receipts in a folder; in the data folder of the agent here for "".
func receiptsAt(f *session.AgentFlags, at string) (*ledger.Ledger, error) {
	if at == "" {
		cfg, _ := f.Configuration()
		at = cfg.DataDir
	}
	for _, dir := range []string{at, control.Folder(at).Ledger()} {
		if _, err := os.Stat(filepath.Join(dir, ledger.ReceiptsDir)); err == nil {
			return ledger.Read(dir), nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("there are no receipts in %s\nname the data folder of an agent, such as /var/lib/homestak-gitops", at)
}

func provedLine(p ledger.Proof) string {
	text := diag.Count(p.Intact, "receipt")
	if p.Unsigned > 0 {
		text += fmt.Sprintf(", %d of them from before receipts were signed", p.Unsigned)
	}
	if p.Dropped > 0 {
		text += fmt.Sprintf(", and %d removed over the limit", p.Dropped)
	}
	return text
}

func runExport(a *app, f *session.AgentFlags, at, format string) error {
	if !slices.Contains([]string{"json", "csv", "md"}, format) {
		return fmt.Errorf("--format %s: want json, csv or md", format)
	}
	a.ui.Data = true
	l, err := receiptsAt(f, at)
	if err != nil {
		return err
	}
	if format == "json" {
		text, err := l.Export()
		if err == nil {
			_, err = a.ui.Stdout.Write(text)
		}
		return err
	}
	list, err := l.Last(0, nil)
	if err != nil {
		return err
	}
	text := view.ReceiptsCSV(list)
	if format == "md" {
		text = view.ReceiptsMarkdown(list)
	}
	_, err = io.WriteString(a.ui.Stdout, text)
	return err
}

// showHistory prints receipts as a table.
func showHistory(a *app, list []ledger.Receipt, address string) {
	switch {
	case len(list) > 0:
		a.ui.Wrapf("%s", a.ui.Paint().History(list, address))
	case address == "":
		a.ui.Notef("nothing was changed yet")
	default:
		a.ui.Notef("no receipt is about %s", diag.Clean(address))
	}
}
