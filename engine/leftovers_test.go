package engine_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// A VMID under which something is left is tried once; the next pass draws another, also
// one of an agent that was restarted.
func TestAnAgentTriesAVMIDWithSomethingLeftOnce(t *testing.T) {
	live(t, func(w *world) {
		var tried []int
		w.host.during = func(_ context.Context, s plan.Step) error {
			if s.Address.Kind != "box" {
				return nil
			}
			tried = append(tried, s.VMID)
			if s.VMID == 100 || s.VMID == 101 {
				return &model.LeftoverError{VMID: s.VMID, Err: errors.New("a volume is left")}
			}
			return nil
		}
		w.repo.push("c1", boxes(map[string]int{"web": 1}))
		w.start()
		w.pass(time.Second)
		require.Equal(t, []int{100}, w.state().Leftovers)
		w.end()
		w.start()
		w.pass(time.Hour)
		require.Equal(t, []int{100, 101, 102}, tried)
		require.Equal(t, "web=1", w.holds())
		require.Equal(t, []int{100, 101}, w.state().Leftovers)
	})
}
