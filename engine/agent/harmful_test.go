package agent_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/diag"
)

// A commit whose evaluation had to be ended is refused for good: neither the next pass nor the next start
// tries it again. The last good one stays in force, and the agent is not healthy.
func TestS2ACommitThatTakesTooMuchIsTriedOnce(t *testing.T) {
	live(t, func(w *world) {
		w.repo.push("good", boxes(map[string]int{"a": 1}))
		w.start()
		why := diag.Errorf(diag.Range{File: "bomb.hcl", Start: diag.Pos{Line: 3, Column: 7}}, "the site takes too much to evaluate: it did not finish within 5s of processor time", "")
		w.repo.push("bomb", engine.Desired{Findings: diag.List{why}, Harmful: true})
		s := w.pass(67 * time.Second)
		require.Equal(t, "bomb", s.Refused.Commit)
		require.Equal(t, "good", s.InForce.ID)
		require.Equal(t, "a=1", w.holds())
		require.Contains(t, s.Summary, "bomb.hcl:3:7")

		w.end()
		w.set(func() { w.repo.sites["bomb"] = boxes(map[string]int{"a": 2}) }) // an evaluation would be seen
		w.start()
		s = w.pass(10 * time.Minute)
		require.Equal(t, "bomb", s.Refused.Commit)
		require.Contains(t, s.Summary, "bomb.hcl:3:7")
		require.Equal(t, "a=1", w.holds(), "it was not evaluated again")

		w.repo.push("better", boxes(map[string]int{"a": 3}))
		s = w.pass(67 * time.Second)
		require.Nil(t, s.Refused)
		require.Equal(t, "better", s.InForce.ID)
		require.Equal(t, "a=3", w.holds())

		w.end()
		w.options = func(o *agent.Options) { o.Program = "1.1" }
		w.set(func() { w.repo.head = "bomb" })
		w.start()
		w.pass(time.Minute)
		require.Equal(t, "a=2", w.holds(), "another version of the program may need less")
	})
}
