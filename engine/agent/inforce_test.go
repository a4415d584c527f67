package agent_test

import (
	"context"
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
		w.options = func(o *agent.Options) {
			o.InForce = func(_ context.Context, d engine.Desired, _ []string) {
				require.False(t, d.Findings.HasErrors())
				require.NotNil(t, d.Site)
				seen = append(seen, d.Commit)
			}
		}
		w.repo.push("a", boxes(map[string]int{"one": 1}))
		w.start()
		require.Equal(t, []string{"a"}, seen)
		w.look()
		require.Equal(t, []string{"a"}, slices.Compact(slices.Clone(seen)), "each pass says it again, since secrets may change")

		w.repo.push("b", engine.Desired{Findings: diag.List{diag.Errorf(diag.Range{}, "nonsense", "")}})
		require.Equal(t, "b", w.look().Refused.Commit)
		require.Equal(t, []string{"a"}, slices.Compact(slices.Clone(seen)))

		w.repo.push("c", boxes(map[string]int{"one": 2}))
		w.look()
		require.Equal(t, []string{"a", "c"}, slices.Compact(slices.Clone(seen)))

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
		require.Equal(t, []string{"c"}, seen)
		close(asked)
		w.pass(time.Second)
	})
}
