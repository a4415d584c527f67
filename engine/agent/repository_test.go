package agent_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/model"
)

// A repository that does not answer three polls in a row makes the agent unhealthy, and one answer makes it healthy again.
func TestN4ARepositoryThatDoesNotAnswer(t *testing.T) {
	live(t, func(w *world) {
		w.options = func(o *agent.Options) { o.Poll = time.Minute }
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		w.start()
		require.True(t, w.pass(time.Second).Healthy)
		w.repo.fault(errors.New("no route to host"))
		asked := w.repo.asked()
		for w.repo.asked() < asked+2 {
			require.True(t, w.pass(time.Second).Healthy, "one or two polls without an answer happen")
		}
		require.Empty(t, w.agent.Status().Repository.Condition)
		for w.repo.asked() < asked+3 {
			w.pass(time.Second)
		}
		s := w.agent.Status()
		require.False(t, s.Healthy)
		require.Equal(t, agent.NotAnswering, s.Repository.Condition)
		require.Equal(t, "c1", s.InForce.ID, "the last good commit stays in force")
		w.repo.fault(nil)
		s = w.look()
		require.True(t, s.Healthy)
		require.Empty(t, s.Repository.Condition)
	})
}

// A branch that is gone is no repository without a commit, and not healthy; what was in force stays so.
func TestN4ABranchThatIsGone(t *testing.T) {
	for _, kind := range []error{model.ErrNoBranch, model.ErrNoCommit} {
		live(t, func(w *world) {
			w.repo.fault(fmt.Errorf("https://git.example/site.git: %w; push a first commit", kind))
			w.start()
			s := w.pass(time.Second)
			require.NotEqual(t, agent.BranchMissing, s.Repository.Condition, "it was never there")
			require.NotContains(t, s.Summary, "is gone")

			w.repo.fault(nil)
			w.repo.push("c1", boxes(map[string]int{"a": 1}))
			require.True(t, w.pass(time.Hour).Healthy)
			w.repo.fault(fmt.Errorf("https://git.example/site.git: %w; push a first commit", kind))
			s = w.look()
			require.False(t, s.Healthy)
			require.Equal(t, agent.BranchMissing, s.Repository.Condition)
			require.Contains(t, s.Summary, "branch main is gone: it was deleted or renamed there. Push it again, or name the new one in agent.hcl")
			require.Contains(t, s.Summary, "c1 stays in force")
			require.Equal(t, "a=1", w.holds())
		})
	}
}

// A rewritten branch is accepted, and shown until the next commit on top of it.
func TestN4ARewrittenHistory(t *testing.T) {
	live(t, func(w *world) {
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		w.start()
		w.repo.push("c2", boxes(map[string]int{"a": 2}))
		require.Empty(t, w.pass(time.Hour).Repository.Rewritten)

		w.repo.rewrite("x1", boxes(map[string]int{"a": 3}))
		s := w.pass(time.Hour)
		require.Equal(t, agent.HistoryRewritten, s.Repository.Condition)
		require.Equal(t, "history of main was rewritten: c2 is not an ancestor of x1", s.Repository.Rewritten)
		require.Contains(t, s.Summary, s.Repository.Rewritten)
		require.True(t, s.Healthy)
		require.Equal(t, "a=3", w.holds())

		w.repo.push("x2", boxes(map[string]int{"a": 4}))
		s = w.pass(time.Hour)
		require.Empty(t, s.Repository.Rewritten)
		require.Empty(t, s.Repository.Condition)
	})
}
