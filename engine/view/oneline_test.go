package view

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/ledger"
)

// An error of several lines breaks no table and no line.
func TestN8AnErrorOfSeveralLines(t *testing.T) {
	const long = "Job failed.\n  See \"systemctl status\"\n\tfor details."
	const short = `Job failed. See "systemctl status" for details.`
	s := agent.Status{Nodes: []engine.NodeStatus{{Address: "pve.a", Phase: "run", Drift: 1, Error: long}, {Address: "pve.b", Phase: "run", Ready: true}}}
	text := Status(s, noon, false)
	require.Contains(t, text, "difference: "+short+"\n  pve.b ")

	step := ledger.Step{Address: "agent.a", Action: "update", Status: "failed", Error: long, Seconds: 2}
	require.Equal(t, "agent.a: failed after 2.0 s: "+short, StepEnd(step))

	why := Why(control.Reasons{Address: "pve.a", Running: true, Known: true, Node: &s.Nodes[0], Receipts: []ledger.Receipt{{By: "father", Steps: []ledger.Step{step}}}})
	require.Contains(t, why, "1 difference: "+short+"\n")
	require.Contains(t, why, "error: "+short+"\n")
}

// Passes that failed in the same way are one line of the history, with their number.
func TestN8HistoryCountsPasses(t *testing.T) {
	first := before(14 * time.Minute)
	r := ledger.Receipt{Began: noon, Commit: "c0ffee00", By: "father", Verb: "agent", Outcome: "failed", Passes: 31, First: &first, Steps: []ledger.Step{{Address: "agent.a", Action: "update", Status: "failed"}}}
	text := History([]ledger.Receipt{r}, "", false)
	require.Contains(t, text, "1 change (the last of 31 such passes since "+When(first)+")")
	require.Equal(t, 2, strings.Count(text, "\n"))
	require.Contains(t, Why(control.Reasons{Address: "agent.a", Receipts: []ledger.Receipt{r}}), "update failed in 0.0 s, 31 times since "+When(first))
}
