package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/plan"
)

func (a *app) reconcileVerb() *cobra.Command {
	f := &agentFlags{}
	var noWait bool
	c := &cobra.Command{
		Use:   "reconcile",
		Short: "Make the agent look now, and wait for what comes of it",
		Long: `Asks the agent of this machine to look at repository and host now, instead of when its
time has come, and waits for the end of that pass. The exit code is that of the pass, as
apply would give it. Ctrl-C leaves the waiting; the agent goes on.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.reconcile(c.Context(), f, !noWait) },
	}
	f.find(c)
	c.Flags().BoolVar(&noWait, "no-wait", false, "do not wait for the pass")
	a.ui.jsonFlag(c)
	return c
}

// lookEvery is how often a client looks at a pass under way.
const lookEvery = 300 * time.Millisecond

func (a *app) reconcile(ctx context.Context, f *agentFlags, wait bool) error {
	ctx, cancel := a.stopping.soon(ctx)
	defer cancel()
	a.ui.document = control.ProblemOf
	r, err := a.runningAgent(ctx, f)
	if err != nil {
		return err
	}
	if !wait {
		if err := r.CheckNow(ctx); err != nil {
			return err
		}
		if a.ui.json {
			return a.ui.emit(struct{}{})
		}
		a.ui.printf("the agent of host %s looks now\n", r.Card.Identity)
		return nil
	}
	asked := time.Now().UTC()
	type answer struct {
		pass agent.PassStatus
		err  error
	}
	ended := make(chan answer, 1)
	go func() {
		var got answer
		got.pass, got.err = r.Reconcile(ctx)
		ended <- got
	}()
	w := &passWatch{ui: a.ui}
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		select {
		case got := <-ended:
			w.erase()
			if got.err != nil {
				return got.err
			}
			if err := a.tellSteps(ctx, r, asked); err != nil {
				return err
			}
			after, err := r.Status(ctx)
			if err != nil {
				return err
			}
			return a.tellPass(got.pass, after)
		case <-ticker.C:
			if s, err := r.Status(ctx); err == nil { // else the answer will say what is wrong
				w.tell(s, time.Now())
			}
		}
	}
}

// tellSteps tells how each step of the newest receipt ended, if its pass ended since
// then: the one that was under way when the agent was asked was seen beginning.
func (a *app) tellSteps(ctx context.Context, r *control.Client, since time.Time) error {
	h, err := r.History(ctx, 1, "")
	if err != nil {
		return err
	}
	if len(h.Receipts) == 0 {
		return nil
	}
	last := h.Receipts[0]
	if last.Began.Add(time.Duration(last.Seconds * float64(time.Second))).Before(since) {
		return nil
	}
	for _, st := range last.Steps {
		a.ui.notef("%s", printable(stepEnd(st)))
	}
	return nil
}

// stepEnd says how a step ended, in the words of progress.
func stepEnd(st ledger.Step) string {
	name := st.Address
	switch apply.Status(st.Status) {
	case apply.Done:
		if st.VMID != 0 {
			name = fmt.Sprintf("%s: %s (%d)", name, did(plan.Action(st.Action)), st.VMID)
		} else {
			name = fmt.Sprintf("%s: %s", name, did(plan.Action(st.Action)))
		}
		return fmt.Sprintf("%s in %.1f s", name, st.Seconds)
	case apply.Failed:
		return fmt.Sprintf("%s: failed after %.1f s: %s", name, st.Seconds, st.Error)
	case apply.RolledBack:
		return name + ": removed again"
	default:
		return fmt.Sprintf("%s: %s: %s", name, st.Status, st.Error)
	}
}

// tellPass prints how a pass of the agent ended, and ends likewise. Where the newest
// commit was refused the pass was made with the last good one; that is told, and counts.
func (a *app) tellPass(l agent.PassStatus, after agent.Status) error {
	a.ui.findings(l.Findings)
	if after.Refused != nil {
		a.ui.findings(after.Refused.Findings)
	}
	if a.ui.json {
		if err := a.ui.emit(l); err != nil {
			return err
		}
	} else {
		told := l
		told.Error, _, _ = strings.Cut(l.Error, "\n")
		if said := after.Refused == nil && after.Repository.Error == ""; said || refusedFor(after, told.Error) {
			told.Error = "" // the ending says it, or a finding has
		}
		a.ui.printf("%s: %s\n", short(l.Commit), printable(passLine(told, time.Now())))
	}
	switch r := after.Refused; {
	case r != nil && r.Outcome == engine.Refused:
		return &ending{exitRefused, fmt.Errorf("commit %s is refused by a guard: see the findings above", short(r.Commit))}
	case r != nil:
		return &ending{exitInvalid, fmt.Errorf("commit %s is refused: see the findings above", short(r.Commit))}
	case after.Repository.Error != "":
		return fmt.Errorf("the repository does not answer: %s", after.Repository.Error)
	}
	r := engine.Report{Outcome: l.Outcome}
	if l.Error != "" {
		r.Err = errors.New(l.Error)
	}
	return endingOf(r)
}

// refusedFor reports whether that is why the newest commit is refused.
func refusedFor(s agent.Status, summary string) bool {
	return s.Refused != nil && slices.ContainsFunc(s.Refused.Findings, func(f diag.Finding) bool { return f.Summary == summary })
}

// passWatch tells on stderr how a pass comes on, from one status of the agent to the
// next: in lines, or on a terminal in one live line. It belongs to one goroutine.
type passWatch struct {
	ui      *ui
	running []agent.StepNow
	drawn   bool
}

// tell shows what is new in a status.
func (w *passWatch) tell(s agent.Status, now time.Time) {
	var running []agent.StepNow
	if s.Running != nil {
		running = s.Running.Now
	}
	w.erase()
	has := func(list []agent.StepNow, n agent.StepNow) bool {
		return slices.ContainsFunc(list, func(m agent.StepNow) bool { return m.Address == n.Address && m.Since.Equal(n.Since) })
	}
	for _, n := range running {
		if !has(w.running, n) && !w.ui.errTerminal {
			w.ui.notef("%s: %s", printable(n.Address), doing(n.Action))
		}
	}
	w.running = running
	if w.ui.errTerminal {
		w.draw(s, now)
	}
}

func (w *passWatch) draw(s agent.Status, now time.Time) {
	text := string(s.State)
	if s.State == agent.Waiting {
		text = s.Summary
	}
	if r := s.Running; r != nil && r.Steps > 0 {
		parts := []string{fmt.Sprintf("%d of %s done", r.Done, count(r.Steps, "step"))}
		for _, n := range r.Now {
			parts = append(parts, stepLine(n, now))
		}
		text = strings.Join(parts, " · ")
	}
	line := []rune(printable(text))
	if width := w.ui.width; width > 1 && len(line) >= width {
		line = append(line[:width-2], '…')
	}
	fmt.Fprint(w.ui.stderr, string(line))
	w.drawn = true
}

// erase takes the live line away.
func (w *passWatch) erase() {
	if w.drawn {
		fmt.Fprint(w.ui.stderr, "\r\x1b[K")
		w.drawn = false
	}
}
