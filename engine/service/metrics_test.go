package service

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/specserve"
)

// samples are the lines of the figures without the comments.
func samples(t *testing.T, of ...specserve.Collector) string {
	t.Helper()
	text, err := specserve.NewRegistry(of...).Text()
	require.NoError(t, err)
	require.NotContains(t, string(text), "canary")
	var out []string
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "#") {
			out = append(out, line)
		}
	}
	return strings.Join(out, "")
}

// What a status says is in the figures, and no text of it that a stranger wrote.
func TestFigures(t *testing.T) {
	start := time.Unix(1_800_000_000, 0)
	status := agent.Status{
		Agent: "1.2.3", Identity: "father", Started: start,
		Repository: agent.RepositoryStatus{Error: "no route to the canary"},
		Head:       &agent.CommitStatus{ID: "ccc", Subject: "canary"}, InForce: &agent.CommitStatus{ID: "bbb"}, Converged: &agent.CommitStatus{ID: "aaa"},
		Refused:   &agent.Refusal{Commit: "ccc"},
		Suspended: []ledger.Suspension{{Manifest: "web"}},
		Last: &agent.PassStatus{
			Outcome: engine.Partly, Ended: start.Add(time.Minute), Seconds: 2.25, Error: "canary",
			Findings: diag.List{{Severity: diag.Error, Summary: "canary"}, {Severity: diag.Warning}},
		},
		Nodes:  []engine.NodeStatus{{Node: "a", Ready: true}, {Node: "b", Drift: 2}, {Node: "c", Drift: 1, Error: "canary"}},
		Server: &agent.ServerStatus{}, Parent: &agent.ParentStatus{Error: "canary"}, Watch: &agent.WatchStatus{},
	}
	require.Equal(t, `homestak_agent_commit_info{as="converged",commit="aaa"} 1
homestak_agent_commit_info{as="head",commit="ccc"} 1
homestak_agent_commit_info{as="in_force",commit="bbb"} 1
homestak_agent_drift_attributes 3
homestak_agent_failing{what="commit"} 1
homestak_agent_failing{what="history"} 0
homestak_agent_failing{what="parent"} 1
homestak_agent_failing{what="pass"} 1
homestak_agent_failing{what="repository"} 1
homestak_agent_failing{what="server"} 0
homestak_agent_failing{what="watch"} 0
homestak_agent_healthy 0
homestak_agent_info{identity="father",version="1.2.3"} 1
homestak_agent_last_pass_end_time_seconds 1.80000006e+09
homestak_agent_last_pass_errors 1
homestak_agent_last_pass_seconds 2.25
homestak_agent_nodes 3
homestak_agent_nodes_not_ready 2
homestak_agent_start_time_seconds 1.8e+09
homestak_agent_suspensions 1
`, samples(t, specserve.CurrentFigures(func(add adder) { figures(add, status) })))
}

// An agent that has not done anything yet has no pass and no commit, and nothing fails.
func TestFiguresOfTheFirstMoment(t *testing.T) {
	status := agent.Status{Agent: "1.2.3", Identity: "father", Healthy: true, Started: time.Unix(1, 0)}
	require.Equal(t, `homestak_agent_drift_attributes 0
homestak_agent_failing{what="commit"} 0
homestak_agent_failing{what="history"} 0
homestak_agent_failing{what="pass"} 0
homestak_agent_failing{what="repository"} 0
homestak_agent_healthy 1
homestak_agent_info{identity="father",version="1.2.3"} 1
homestak_agent_nodes 0
homestak_agent_nodes_not_ready 0
homestak_agent_start_time_seconds 1
homestak_agent_suspensions 0
`, samples(t, specserve.CurrentFigures(func(add adder) { figures(add, status) })))
}

// Each pass is counted once, however often its status is published.
func TestPassesAndRequestsAreCounted(t *testing.T) {
	c := newCounts()
	publish := passes(c.passed)
	began := time.Now()
	for _, p := range []*agent.PassStatus{nil, {Outcome: engine.Done, Seconds: 0.5}, {Outcome: engine.Done, Seconds: 20}, {Outcome: engine.Failed, Seconds: 9000}} {
		if began = began.Add(time.Hour); p != nil {
			p.Ended = began
		}
		publish(agent.Status{Last: p})
		publish(agent.Status{Last: p})
	}
	c.sent("POST", 500)
	c.sent("GET", 200)
	c.sent("GET", 204)
	c.sent("GET", 596)
	c.sent("GET", 0)
	require.Equal(t, `homestak_agent_pass_seconds_bucket{le="0.1"} 0
homestak_agent_pass_seconds_bucket{le="0.5"} 1
homestak_agent_pass_seconds_bucket{le="2.5"} 1
homestak_agent_pass_seconds_bucket{le="10"} 1
homestak_agent_pass_seconds_bucket{le="60"} 2
homestak_agent_pass_seconds_bucket{le="300"} 2
homestak_agent_pass_seconds_bucket{le="1800"} 2
homestak_agent_pass_seconds_bucket{le="7200"} 2
homestak_agent_pass_seconds_bucket{le="+Inf"} 3
homestak_agent_pass_seconds_sum 9020.5
homestak_agent_pass_seconds_count 3
homestak_agent_passes_total{outcome="done"} 2
homestak_agent_passes_total{outcome="failed"} 1
homestak_agent_passes_total{outcome="interrupted"} 0
homestak_agent_passes_total{outcome="invalid"} 0
homestak_agent_passes_total{outcome="partly"} 0
homestak_agent_passes_total{outcome="planned"} 0
homestak_agent_passes_total{outcome="refused"} 0
homestak_agent_pve_requests_total{class="2xx",method="GET"} 2
homestak_agent_pve_requests_total{class="5xx",method="GET"} 1
homestak_agent_pve_requests_total{class="5xx",method="POST"} 1
homestak_agent_pve_requests_total{class="none",method="GET"} 1
`, samples(t, c.all()...))
}
