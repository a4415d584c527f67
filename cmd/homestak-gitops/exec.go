package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/service"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

func execVerb(a *app) *cobra.Command {
	f, of, ask := &session.Flags{}, &session.AgentFlags{}, &wire.Asking{Kind: wire.TaskRun}
	ofSite := []string{"site", "host", "sim", "secrets", "var"}
	timeout, wait := 10*time.Minute, 2*time.Minute
	c := &cobra.Command{
		Use:   "exec [NODE…] -- COMMAND [ARG…]",
		Short: "Run a command on nodes",
		Long: `The agent of this machine runs it as root, without a shell (write -- sh -c '…' for one),
and prints each line of output after the name of its node. It enters push nodes as their
specs say; pull nodes and children take the command when they ask their parent next. The
agent keeps receipts: see "jobs".

With a flag of the site or --sim this program enters push nodes itself, without an agent
and without a receipt.

-M and --spec choose among the nodes below the agent. Ctrl-C ends the commands, but not
those that another machine has taken. Exits 0 if all commands did, 5 if some did, else 1.
--json has the exit code of each.`,
		Args: cobra.ArbitraryArgs,
	}
	c.RunE = a.soon(func(ctx context.Context, args []string) error {
		at := c.ArgsLenAtDash()
		if at < 0 || at == len(args) {
			return errors.New("no command is given: write it behind --, such as: exec web-1 -- uptime")
		}
		ask.Nodes, ask.Command = args[:at], args[at:]
		if len(ask.Nodes) == 0 && ask.Manifest == "" && ask.Spec == "" {
			return errors.New("no node is named: name nodes, or choose them with -M or --spec")
		}
		ask.Timeout, ask.Wait = int(timeout.Seconds()), int(wait.Seconds())
		if ask.Timeout < 1 || ask.Wait < 1 || ask.Parallel < 1 {
			return errors.New("--timeout and --wait are at least 1s, --parallel at least 1")
		}
		if slices.ContainsFunc(ofSite, c.Flags().Changed) {
			f.Manifest = ask.Manifest
			return showRuns(a, func(each func(wire.TaskResult) error) error { return execHere(ctx, a, f, *ask, each) })
		}
		a.ui.Document = control.ProblemOf
		r, err := of.Running(ctx)
		if err != nil {
			return err
		}
		ask.By = control.Whoami()
		return showRuns(a, func(each func(wire.TaskResult) error) error { return r.Exec(ctx, *ask, each) })
	})
	of.Find(a.ui, c)
	f.Files(a.ui, c)
	fs := c.Flags()
	fs.StringVarP(&f.Host, "host", "H", "", "`NAME`: host (default: that of the manifest, or the only one)")
	fs.BoolVar(&f.Sim, "sim", false, "use a fresh simulator for every host of the site")
	fs.StringVarP(&ask.Manifest, "manifest", "M", "", "`NAME`: only this manifest")
	fs.StringVar(&ask.Spec, "spec", "", "`NAME`: only nodes with this spec")
	fs.IntVar(&ask.Parallel, "parallel", 8, "`N`: nodes that run it at once")
	fs.DurationVar(&timeout, "timeout", timeout, "`TIME`: time limit on each node")
	fs.DurationVar(&wait, "wait", wait, "`TIME`: time limit for a node to take the command")
	return c
}

// showRuns prints the results of commands as they come, and returns the exit status.
func showRuns(a *app, run func(each func(wire.TaskResult) error) error) error {
	all, done := 0, 0
	err := run(func(got wire.TaskResult) error {
		all++
		if got.Outcome == wire.TaskDone {
			done++
		}
		if a.ui.JSON {
			return a.ui.Line(got)
		}
		showRun(a, got)
		return nil
	})
	switch {
	case err != nil:
		return err
	case all == 0:
		return errors.New("no node was chosen: tree shows the nodes")
	case done == all:
		return nil
	}
	code := ui.ExitFailed
	if done > 0 {
		code = ui.ExitPartly
	}
	return code.With(fmt.Errorf("the command did not succeed on %s of %d", diag.Count(all-done, "node"), all))
}

// execHere runs a command on push nodes of a host by the access of this program.
func execHere(ctx context.Context, a *app, f *session.Flags, ask wire.Asking, each func(wire.TaskResult) error) error {
	s, h, err := a.sites.ReachDeployed(ctx, f, "exec")
	if err != nil {
		return err
	}
	defer s.Close()
	m, err := s.Manifest(f.Manifest)
	if err != nil {
		return err
	}
	for _, name := range ask.Nodes {
		if _, err := s.Node(name, m); err != nil {
			return err
		}
	}
	driver, err := s.Access("").Open(s.Desired, h)
	if err != nil {
		return err
	}
	if r, ok := driver.(engine.Releaser); ok {
		defer r.Release()
	}
	return service.ExecBy(ctx, driver, s.Desired.Site, h, ask, each)
}

// showRun prints what a command wrote, and how it ended where that is not well.
func showRun(a *app, r wire.TaskResult) {
	for line := range strings.Lines(r.Output) {
		a.ui.Printf("%s %s\n", a.ui.Paint().Prefix(r.Node), strings.TrimSuffix(line, "\n"))
	}
	if text := runOutcome(r.Outcome, r.Code, r.Error); r.Outcome != wire.TaskDone {
		a.ui.Notef("%s: %s", r.Node, diag.Clean(text))
	}
}

// runOutcome says how a command ended.
func runOutcome(outcome wire.TaskOutcome, code int, why string) string {
	text := string(outcome)
	if code > 0 {
		text += fmt.Sprintf(", exit code %d", code)
	}
	if why != "" {
		text += ": " + why
	}
	return text
}
