package agent_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// A commit that is pushed while a pass waits for a slow guest is in force within one poll: the pass starts nothing new, and work
// inside of a guest ends before its next part.
func TestR4ASlowGuestDelaysNoCommit(t *testing.T) {
	live(t, func(w *world) {
		w.repo.push("c1", boxes(map[string]int{"a": 1, "b": 1}))
		w.start()
		require.Equal(t, "a=1 b=1", w.holds())

		begun := make(chan string, 10)
		w.set(func() {
			w.host.During = func(ctx context.Context, s plan.Step) error {
				begun <- s.Address.Name
				select {
				case <-apply.Stopping(ctx):
					return &apply.NotYetError{Err: errors.New("stopped before the next part")}
				case <-time.After(8 * time.Minute):
					return nil
				}
			}
		})
		w.options = func(o *agent.Options) { o.Width = 1 }
		w.end()
		w.start()
		w.repo.push("c2", boxes(map[string]int{"a": 2, "b": 2}))
		w.pass(67 * time.Second)
		require.Equal(t, "c2", w.agent.Status().Running.Commit)
		w.repo.push("c3", boxes(map[string]int{"a": 3, "b": 1}))
		w.set(func() { w.host.During = func(context.Context, plan.Step) error { return nil } })
		s := w.pass(67 * time.Second)
		require.Equal(t, "c3", s.Converged.ID)
		require.Equal(t, "a=3 b=1", w.holds())
		require.Equal(t, "a", <-begun)
		require.Empty(t, begun, "nothing new was started")
		require.Equal(t, 1, strings.Count(w.log.String(), "the running pass starts no new steps"))
	})
}

// Whoever pushes all the time does not keep passes from changing something: one that has begun nothing goes on.
func TestR4PushesDoNotStarveAPass(t *testing.T) {
	live(t, func(w *world) {
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		w.set(func() { w.host.look = func(context.Context) { <-time.After(5 * time.Minute) } })
		w.start()
		for _, id := range []string{"c2", "c3", "c4"} {
			w.repo.push(id, boxes(map[string]int{"a": 1, "b": 2}))
			w.pass(90 * time.Second)
		}
		w.pass(40 * time.Second)
		require.Equal(t, "a=1", w.holds())
		require.Equal(t, "done", w.receipts()[0].Outcome)
		w.set(func() { w.host.look = nil })
		s := w.pass(10 * time.Minute)
		require.Equal(t, engine.Done, s.Last.Outcome)
		require.Equal(t, "c4", s.Converged.ID)
	})
}

// What the repository answers beside a pass, or that it fails, changes nothing but that.
func TestR4TheRepositoryFailsBesideAPass(t *testing.T) {
	live(t, func(w *world) {
		w.set(func() { w.host.During = slow(6 * time.Minute) })
		first := boxes(map[string]int{"a": 1})
		first.Site.Objects = model.State{}
		for _, n := range first.Site.Manifests["web"].Nodes {
			n.Resource.Needs = nil
		}
		w.repo.push("c1", first)
		w.start()
		w.repo.fault(errors.New("no route to host"))
		w.pass(3 * time.Minute)
		w.repo.fault(nil)
		w.set(func() {
			w.repo.before = func(_ context.Context, call string) {
				if call == "head" && w.agent.Status().Running != nil {
					panic("a defect of the source")
				}
			}
		})
		s := w.pass(4 * time.Minute)
		require.Equal(t, "done", w.receipts()[0].Outcome)
		require.Equal(t, "c1", s.Converged.ID)
		require.Zero(t, strings.Count(w.log.String(), "starts no new steps"))
	})
}
