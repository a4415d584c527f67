package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/ledger"
)

func (a *app) statusVerb() *cobra.Command {
	f := &agentFlags{}
	var watch bool
	c := &cobra.Command{
		Use:   "status",
		Short: "Tell how the agent of this machine and its nodes are",
		Long: `Asks the agent of this machine over its socket: which commit it converges to, what it
does, what it refused and why, and how each node is. Where no agent runs, it tells what
the last one left behind.

Exits 0 if the agent runs and is healthy: its last pass came to its end, and nothing is
refused; and while it makes its first pass. Otherwise, and where no agent runs, it exits 1.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.status(c.Context(), f, watch) },
	}
	f.find(c)
	c.Flags().BoolVarP(&watch, "watch", "w", false, "show it again every second, until Ctrl-C")
	a.ui.jsonFlag(c)
	return c
}

// watchEvery is how often --watch looks.
const watchEvery = time.Second

func (a *app) status(ctx context.Context, f *agentFlags, watch bool) error {
	ctx, cancel := a.stopping.soon(ctx)
	defer cancel()
	a.ui.document = func(err error) any {
		return agent.Status{
			Version: 1, State: control.Absent, At: time.Now().UTC(), Summary: err.Error(), Suspended: []ledger.Suspension{}, Nodes: []engine.NodeStatus{},
		}
	}
	if !watch {
		s, err := a.statusOf(ctx, f)
		if err != nil {
			return err
		}
		return a.tellStatus(s)
	}
	if a.ui.json {
		return errors.New("--watch and --json: a document is printed once, choose one of them")
	}
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		s, err := a.statusOf(ctx, f)
		switch {
		case ctx.Err() != nil:
			return nil // Ctrl-C is how one leaves
		case err != nil:
			return err
		}
		if a.outTerminal {
			a.ui.printf("\x1b[H\x1b[2J")
		}
		_ = a.tellStatus(s) // the text says it too
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// statusOf asks the agent, or reads what the last one left behind.
func (a *app) statusOf(ctx context.Context, f *agentFlags) (agent.Status, error) {
	r, err := a.recordOf(ctx, f)
	if err != nil {
		return agent.Status{}, err
	}
	return r.Status(ctx)
}

// tellStatus prints a status, and ends well if all is.
func (a *app) tellStatus(s agent.Status) error {
	if a.ui.json {
		if err := a.ui.emit(s); err != nil {
			return err
		}
	} else {
		_, color := a.ui.text()
		a.ui.printf("%s", statusText(s, time.Now(), paint(color)))
	}
	if !s.Healthy && !beginning(s) {
		return &ending{Code: exitError}
	}
	return nil
}

// beginning reports whether an agent is at its first pass, and nothing is wrong so far.
func beginning(s agent.Status) bool {
	return s.State != control.Absent && s.Last == nil && s.Refused == nil && s.Repository.Error == ""
}

// paint gives text its colour, or leaves it as it is.
type paint bool

func (p paint) as(code, text string) string {
	if !p || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

const (
	good = "32"
	bad  = "31;1"
	busy = "36"
	dim  = "2"
)

// statusText draws a status for people.
func statusText(s agent.Status, now time.Time, p paint) string {
	var b strings.Builder
	health := p.as(good, "healthy")
	switch {
	case s.State == control.Absent:
		health = p.as(bad, "no agent is running here; this is what it knew at "+when(s.At))
	case beginning(s):
		health = p.as(busy, "no pass has ended yet")
	case !s.Healthy:
		health = p.as(bad, "not healthy")
	}
	fmt.Fprintf(&b, "%s  %s", orNothing(s.Identity), health)
	if s.State != control.Absent {
		fmt.Fprintf(&b, "  %s  %s", p.as(busy, string(s.State)), p.as(dim, fmt.Sprintf("pid %d, up %s, %s", s.PID, ago(now, s.Started), s.Agent)))
	}
	fmt.Fprintln(&b)
	if s.Summary != "" {
		fmt.Fprintf(&b, "  %s\n", printable(s.Summary))
	}
	fmt.Fprintln(&b)
	row := func(label, format string, args ...any) {
		fmt.Fprintf(&b, "  %-11s %s\n", label, printable(fmt.Sprintf(format, args...)))
	}
	if s.Repository.URL != "" {
		place := s.Repository.URL + "  " + s.Repository.Branch
		if s.Repository.Path != "" && s.Repository.Path != "." {
			place += "  " + s.Repository.Path + "/"
		}
		row("repository", "%s", place)
		row("", "%s", looks(s, now))
	}
	commits(row, s, now)
	fmt.Fprint(&b, refusal(s, p))
	if s.Running != nil {
		fmt.Fprint(&b, runningText(*s.Running, now, p))
	}
	if s.Last != nil {
		row("last pass", "%s", passLine(untoldPass(s), now))
	}
	for _, sus := range s.Suspended {
		row("suspended", "%s", suspensionLine(sus, now))
	}
	nodesText(&b, s.Nodes, now, p)
	return b.String()
}

// untoldPass is the last pass, without an error that the status tells anyway.
func untoldPass(s agent.Status) agent.PassStatus {
	l := *s.Last
	l.Error, _, _ = strings.Cut(l.Error, "\n")
	if strings.Contains(s.Summary, l.Error) {
		l.Error = ""
	}
	return l
}

// looks tells of the looks at repository and host.
func looks(s agent.Status, now time.Time) string {
	var parts []string
	if r := s.Repository; r.Error != "" {
		since := ""
		if r.Failing != nil {
			since = " for " + ago(now, *r.Failing)
		}
		parts = append(parts, fmt.Sprintf("does not answer%s: %s", since, r.Error))
	} else if r.Checked != nil {
		parts = append(parts, "answered "+ago(now, *r.Checked)+" ago")
	}
	if s.NextLook != nil {
		parts = append(parts, "next look "+until(now, *s.NextLook))
	}
	if s.NextFull != nil {
		parts = append(parts, "next full check "+until(now, *s.NextFull))
	}
	if len(parts) == 0 {
		return "not looked at yet"
	}
	return strings.Join(parts, ", ")
}

// commits tells of head, the one in force and the converged one; in one line where
// all are the same.
func commits(row func(label, format string, args ...any), s agent.Status, now time.Time) {
	line := func(label string, c *agent.CommitStatus) {
		if c != nil {
			row(label, "%s, %s ago", commitLine(c), ago(now, c.Since))
		}
	}
	same := func(a, b *agent.CommitStatus) bool { return a != nil && b != nil && a.ID == b.ID }
	switch {
	case same(s.Head, s.InForce) && same(s.InForce, s.Converged):
		line("commit", s.Converged)
		return
	case same(s.Head, s.InForce):
		line("in force", s.InForce)
	default:
		line("head", s.Head)
		line("in force", s.InForce)
	}
	if !same(s.InForce, s.Converged) {
		line("converged", s.Converged)
	}
}

// suspensionLine tells of a suspension.
func suspensionLine(s ledger.Suspension, now time.Time) string {
	end := "until it is resumed"
	if s.Until != nil {
		end = "ends " + until(now, *s.Until)
	}
	return fmt.Sprintf("%s by %s, %s ago, %s: %s", control.SuspendedWhat(s.Manifest), s.By, ago(now, s.Since), end, s.Reason)
}
