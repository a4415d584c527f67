package agent_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// A VMID under which something is left is tried once; the next pass draws another, also
// one of an agent that was restarted.
func TestAnAgentTriesAVMIDWithSomethingLeftOnce(t *testing.T) {
	live(t, func(w *world) {
		var tried []int
		w.host.During = func(_ context.Context, s plan.Step) error {
			if s.Address.Kind != "box" {
				return nil
			}
			tried = append(tried, s.VMID)
			if s.VMID == 100 || s.VMID == 101 {
				return &model.UnusableVMIDError{VMID: s.VMID, Err: errors.New("a volume is left")}
			}
			return nil
		}
		w.repo.push("c1", boxes(map[string]int{"web": 1}))
		w.start()
		w.pass(time.Second)
		require.Equal(t, []int{100}, w.state().UnusableVMIDs)
		w.end()
		w.start()
		w.pass(time.Hour)
		require.Equal(t, []int{100, 101, 102}, tried)
		require.Equal(t, "web=1", w.holds())
		require.Equal(t, []int{100, 101}, w.state().UnusableVMIDs)
	})
}

// What a look leaves to be remembered is told to the next one, also after a restart and
// after looks that saw nothing.
func TestAnAgentTellsTheNextLookWhatTheLastOneLeft(t *testing.T) {
	live(t, func(w *world) {
		var told [][]string
		leaves := []string{"seeds father local"}
		w.options = func(o *agent.Options) {
			o.Open = func(engine.Desired, *model.Host) (engine.Driver, error) {
				return recalling{w.host, &told, &leaves}, nil
			}
		}
		w.repo.push("c1", boxes(map[string]int{"web": 1}))
		w.start()
		w.pass(time.Second)
		w.set(func() { w.host.ObserveErr = errors.New("dark") })
		w.look()
		w.end()
		w.set(func() { w.host.ObserveErr = nil })
		w.start()
		w.pass(time.Second)
		leaves = nil
		w.look()
		w.look()
		kept := []string{"seeds father local"}
		require.Equal(t, [][]string{nil, kept, kept, kept, nil}, told)
		require.Empty(t, w.state().SweepHints)
	})
}

// recalling is a host that leaves something to be remembered.
type recalling struct {
	*eye
	told   *[][]string
	leaves *[]string
}

func (r recalling) Observe(ctx context.Context, want *model.Want) (model.Observed, error) {
	*r.told = append(*r.told, want.SweepHints)
	have, err := r.eye.Observe(ctx, want)
	have.SweepHints = *r.leaves
	return have, err
}
