package agent_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/diag"
)

// Whoever shows the commit in force gets it at the start, before the repository answers, and whenever
// another one comes into force; never one that is refused.
func TestInForce(t *testing.T) {
	live(t, func(w *world) {
		var seen []string
		var converged string
		w.options = func(o *agent.Options) {
			o.InForce = func(_ context.Context, d engine.Desired, host agent.HostState) {
				require.False(t, d.Findings.HasErrors())
				require.NotNil(t, d.Site)
				seen, converged = append(seen, d.Commit), host.Converged
			}
		}
		w.repo.push("a", boxes(map[string]int{"one": 1}))
		w.start()
		require.Equal(t, []string{"a"}, slices.Compact(slices.Clone(seen)))
		require.Equal(t, "a", converged, "that is known as soon as the pass has ended")
		w.look()
		require.Equal(t, []string{"a"}, slices.Compact(slices.Clone(seen)), "each pass says it again, since secrets may change")

		w.repo.push("b", engine.Desired{Findings: diag.List{diag.Errorf(diag.Range{}, "nonsense", "")}})
		require.Equal(t, "b", w.look().Refused.Commit)
		require.Equal(t, []string{"a"}, slices.Compact(slices.Clone(seen)))

		w.repo.push("c", boxes(map[string]int{"one": 2}))
		w.look()
		require.Equal(t, []string{"a", "c"}, slices.Compact(slices.Clone(seen)))

		// What was accepted is in force, and what was converged to completely is the last good one.
		w.set(func() { w.host.Fail = map[string]error{"box.one": errors.New("no")} })
		w.repo.push("d", boxes(map[string]int{"one": 3}))
		w.look()
		require.Equal(t, []string{"a", "c", "d"}, slices.Compact(slices.Clone(seen)))
		require.Equal(t, "c", converged)
		w.set(func() { w.host.Fail = nil })
		w.look()
		require.Equal(t, "d", converged)

		// The next start shows the last good one at once, while the repository does not answer.
		w.end()
		seen = nil
		asked := make(chan struct{})
		w.repo.before = func(ctx context.Context, call string) {
			if call == "head" {
				select {
				case <-asked:
				case <-ctx.Done():
				}
			}
		}
		w.start()
		require.Equal(t, []string{"d"}, seen)
		require.Equal(t, "d", converged)
		close(asked)
		w.pass(time.Second)
	})
}
