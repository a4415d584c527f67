package agent_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/model"
)

func TestAPushIsAllThatIsNeeded(t *testing.T) {
	live(t, func(w *world) {
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		s := w.start().Status()
		require.Equal(t, agent.Idle, s.State)
		require.Equal(t, "a=1", w.holds())
		require.Equal(t, "in sync at c1", s.Summary)
		require.True(t, s.Healthy)
		require.Equal(t, agent.CommitStatus{ID: "c1", Subject: "about c1", Author: "Ada", Since: s.Started}, *s.Head)
		require.Equal(t, s.Head, s.InForce)
		require.Equal(t, s.Head, s.Converged)
		require.Nil(t, s.Refused)
		require.Nil(t, s.Running)
		require.Equal(t, engine.Done, s.Last.Outcome)
		require.False(t, s.Last.Drift)
		require.Equal(t, 2, s.Last.Summary.Create)

		w.repo.push("c2", boxes(map[string]int{"a": 1, "b": 2}))
		s = w.pass(67 * time.Second)
		require.Equal(t, "a=1 b=2", w.holds())
		require.Equal(t, "c2", s.Converged.ID)
		require.Equal(t, []string{"c2"}, w.repo.kept)

		list := w.receipts()
		require.Len(t, list, 2)
		require.Equal(t, "c2", list[0].Commit)
		require.Equal(t, "agent", list[0].Verb)
		require.Equal(t, "father", list[0].By)
		require.Equal(t, "about c2", list[0].Subject)
		require.Equal(t, "create", list[0].Steps[0].Action)
	})
}

func TestABadCommitLeavesTheLastGoodOneInForce(t *testing.T) {
	live(t, func(w *world) {
		bad := diag.List{diag.Errorf(diag.Range{File: "a.hcl", Start: diag.Pos{Line: 7, Column: 3}}, "no such thing", "")}
		w.repo.push("good", boxes(map[string]int{"a": 1}))
		w.start()
		w.repo.push("bad", engine.Desired{Findings: bad})
		s := w.pass(67 * time.Second)
		require.Equal(t, "bad", s.Head.ID)
		require.Equal(t, "good", s.InForce.ID)
		require.Equal(t, engine.Invalid, s.Refused.Outcome)
		require.Equal(t, bad, s.Refused.Findings)
		require.False(t, s.Healthy)
		require.Equal(t, "commit bad refused: a.hcl:7:3: no such thing; good stays in force", s.Summary)

		w.byHand(func(h model.State) { delete(h, enginetest.Addr("box", "a")) })
		s = w.pass(6 * time.Minute)
		require.Equal(t, "a=1", w.holds(), "drift is reverted all the same")
		require.Equal(t, "good", s.Last.Commit)
		require.Equal(t, 1, strings.Count(w.log.String(), "commit refused"), "once, and not at every check")

		w.repo.push("mended", boxes(map[string]int{"a": 3}))
		s = w.pass(67 * time.Second)
		require.Equal(t, "a=3", w.holds())
		require.Nil(t, s.Refused)
		require.True(t, s.Healthy)
	})
}
