package view

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// StepEnd describes the result of a step in one line, with the words of Progress.
func StepEnd(st ledger.Step) string { return oneLine(stepEnd(st)) }

func stepEnd(st ledger.Step) string {
	name := st.Address
	switch apply.Status(st.Status) {
	case apply.Done:
		if st.VMID != 0 {
			name = fmt.Sprintf("%s: %s (%d)", name, words(plan.Action(st.Action)).did, st.VMID)
		} else {
			name = fmt.Sprintf("%s: %s", name, words(plan.Action(st.Action)).did)
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

// Reconciled describes the result of a requested pass in one line. It omits an error that the
// status after it shows anyway.
func Reconciled(l agent.PassStatus, after agent.Status, now time.Time) string {
	l.Error, _, _ = strings.Cut(l.Error, "\n")
	said := after.Refused == nil && after.Repository.Error == ""
	if after.Refused != nil {
		said = slices.ContainsFunc(after.Refused.Findings, func(f diag.Finding) bool { return f.Summary == l.Error })
	}
	if said {
		l.Error = ""
	}
	return fmt.Sprintf("%s: %s", Short(l.Commit), diag.Clean(passLine(l, now)))
}

// PassProgress shows the progress of a pass on stderr, from one status of the agent to the next: in
// lines, or on a terminal in one live line. It is for one goroutine.
type PassProgress struct {
	Term    Terminal
	running []agent.StepNow
	drawn   bool
}

// Show shows what is new in a status.
func (w *PassProgress) Show(s agent.Status, now time.Time) {
	var running []agent.StepNow
	if s.Running != nil {
		running = s.Running.Now
	}
	w.Erase()
	has := func(list []agent.StepNow, n agent.StepNow) bool {
		return slices.ContainsFunc(list, func(m agent.StepNow) bool { return m.Address == n.Address && m.Since.Equal(n.Since) })
	}
	for _, n := range running {
		if !has(w.running, n) && !w.Term.Live {
			w.Term.notef("%s: %s", diag.Clean(n.Address), words(n.Action).doing)
		}
	}
	w.running = running
	if w.Term.Live {
		w.draw(s, now)
	}
}

func (w *PassProgress) draw(s agent.Status, now time.Time) {
	text := string(s.State)
	if s.State == agent.Waiting {
		text = s.Summary
	}
	if r := s.Running; r != nil && r.Steps > 0 {
		parts := []string{fmt.Sprintf("%d of %s done", r.Done, diag.Count(r.Steps, "step"))}
		for _, n := range r.Now {
			parts = append(parts, stepLine(n, now))
		}
		text = strings.Join(parts, " · ")
	}
	line := []rune(diag.Clean(text))
	if width := w.Term.Width; width > 1 && len(line) >= width {
		line = append(line[:width-2], '…')
	}
	fmt.Fprint(w.Term.W, string(line))
	w.drawn = true
}

// Erase removes the live line.
func (w *PassProgress) Erase() {
	if w.drawn {
		fmt.Fprint(w.Term.W, "\r\x1b[K")
		w.drawn = false
	}
}

// Terminal is the terminal for progress.
type Terminal struct {
	W       io.Writer
	Live    bool // it is a terminal, which can show a live line
	Width   int  // columns, 0 if unknown
	Verbose bool // other lines report what is done
}

func (t Terminal) notef(format string, args ...any) { fmt.Fprintf(t.W, format+"\n", args...) }
