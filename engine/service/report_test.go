package service

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
)

// A parent destroys a machine that is empty, so whatever is on it, or may be, keeps it.
func TestIsEmpty(t *testing.T) {
	at := func(change func(*agent.Status)) agent.Status {
		commit := &agent.CommitStatus{ID: "c"}
		s := agent.Status{
			Identity: "inner", At: time.Now(), Converged: commit, InForce: commit, Parent: &agent.ParentStatus{},
			Last: &agent.PassStatus{Commit: "c", Outcome: engine.Done},
		}
		change(&s)
		return s
	}
	require.True(t, report(at(func(*agent.Status) {})).Empty)
	for name, change := range map[string]func(*agent.Status){
		"a node":               func(s *agent.Status) { s.Nodes = []engine.NodeStatus{{Node: "app", Address: "vm.app"}} },
		"somebody else's":      func(s *agent.Status) { s.Last.Unmanaged = 2 },
		"not all was seen":     func(s *agent.Status) { s.Last.Unknown = 1 },
		"a pass that failed":   func(s *agent.Status) { s.Last.Outcome = engine.Partly },
		"a pass under way":     func(s *agent.Status) { s.Running = &agent.Running{} },
		"no pass yet":          func(s *agent.Status) { s.Last = nil },
		"of an earlier commit": func(s *agent.Status) { s.Last.Commit = "b" },
		"a refused commit":     func(s *agent.Status) { s.Refused = &agent.Refusal{} },
	} {
		require.False(t, report(at(change)).Empty, name)
	}
	r := report(at(func(s *agent.Status) { s.Last.Unmanaged = 2 }))
	require.Equal(t, "inner is not empty: 2 guests on it are not managed", r.Findings[0].Summary)
	require.Contains(t, r.Findings[0].Detail, "Allow-Orphans: inner")
}
