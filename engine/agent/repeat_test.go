package agent_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// TestAnAgentDoesNotInsist: a host that never says how a step ended is tried a few times in
// each pass, and passes come as seldom as after any other failure.
func TestAnAgentDoesNotInsist(t *testing.T) {
	live(t, func(w *world) {
		var tries atomic.Int64
		w.set(func() {
			w.host.During = func(_ context.Context, s plan.Step) error {
				if s.Address.String() != "box.a" {
					return nil
				}
				tries.Add(1)
				return enginetest.LostError("596")
			}
		})
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		w.start()
		w.pass(8 * time.Second)
		require.EqualValues(t, 4, tries.Load(), "the first pass")
		require.Equal(t, 3, strings.Count(w.log.String(), "the outcome is unknown; checking"), "each further try is logged")
		require.Equal(t, 4, w.looks())
		w.pass(time.Hour)
		// 10 s, 20 s, … 5 min, then every 5 min: some 16 passes.
		require.Less(t, tries.Load(), int64(4*20))
		require.Less(t, w.looks(), 4*20)
		require.Zero(t, w.agent.Stuck())
	})
}

// TestALookOfAStepKeepsItsTime: a step that looked at the host again still has all of its
// own time, and not that of a look, before the agent counts as stuck.
func TestALookOfAStepKeepsItsTime(t *testing.T) {
	live(t, func(w *world) {
		gate := make(chan struct{})
		var first atomic.Bool
		first.Store(true)
		w.set(func() {
			w.host.During = func(_ context.Context, s plan.Step) error {
				if s.Address.String() != "disk.base" {
					return nil
				}
				if first.Swap(false) {
					return enginetest.LostError("596")
				}
				<-gate
				return nil
			}
		})
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		w.start()
		w.pass(50 * time.Minute) // of the hour that an object beside the manifests has
		require.False(t, first.Load())
		require.Zero(t, w.agent.Stuck())
		close(gate)
	})
}
