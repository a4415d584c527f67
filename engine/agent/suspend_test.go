package agent_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

func in(d time.Duration) *time.Time {
	t := time.Now().Add(d).UTC()
	return &t
}

// slow makes every step take so long.
func slow(d time.Duration) func(ctx context.Context, s plan.Step) error {
	return func(ctx context.Context, _ plan.Step) error {
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func TestWhileEverythingIsSuspendedItLooksPlansAndChangesNothing(t *testing.T) {
	live(t, func(w *world) {
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		w.start()
		require.NoError(t, w.agent.Suspend(ledger.Suspension{Reason: "disk swap", By: "ops@pve", Until: in(3 * time.Hour)}))
		w.repo.push("c2", boxes(map[string]int{"a": 2, "b": 1}))
		s := w.pass(67 * time.Second)
		require.Equal(t, "a=1", w.holds())
		require.Equal(t, "c2", s.InForce.ID, "it loads, and no rule denies its plan")
		require.Equal(t, "c1", s.Converged.ID)
		require.Equal(t, engine.Planned, s.Last.Outcome)
		require.Equal(t, 1, s.Last.Summary.Update)
		until := s.Suspended[0].Until.Local().Format("15:04")
		require.Equal(t, "suspended by ops@pve until "+until+": disk swap (2 changes wait)", s.Summary)
		require.Len(t, s.Nodes, 2)
		require.Equal(t, 1, s.Nodes[0].Drift)
		require.Equal(t, "create", s.Nodes[1].Phase)

		w.end() // it outlives a restart
		w.start()
		require.Len(t, w.pass(time.Hour).Suspended, 1)
		require.Equal(t, "a=1", w.holds())

		s = w.pass(2 * time.Hour) // and ends by itself, at once
		require.Equal(t, "a=2 b=1", w.holds())
		require.Empty(t, s.Suspended)
		require.Empty(t, w.state().Suspended)
		require.Equal(t, "c2", s.Converged.ID)
		require.Len(t, w.receipts(), 2)
	})
}

func TestASuspendedManifestIsLeftAsItIs(t *testing.T) {
	live(t, func(w *world) {
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		w.start()
		require.NoError(t, w.agent.Suspend(ledger.Suspension{Manifest: "web", By: "ops", Reason: "by hand"}))
		w.byHand(func(h model.State) { h[enginetest.Addr("box", "a")].Spec.(*enginetest.Box).Size = 7 })
		s := w.pass(6 * time.Minute)
		require.Equal(t, "a=7", w.holds())
		require.Equal(t, engine.Done, s.Last.Outcome)
		require.Equal(t, "in sync at c1; manifest web suspended by ops: by hand", s.Summary)
		require.Equal(t, "run", s.Nodes[0].Phase)
		require.False(t, s.Nodes[0].Ready)
		require.Contains(t, s.Nodes[0].Error, "suspended")

		// What leaves the site while it is suspended stays, too.
		gone := boxes(nil)
		gone.Site.Manifests = map[string]*model.Manifest{}
		w.repo.push("gone", gone)
		w.pass(6 * time.Minute)
		require.Equal(t, "a=7", w.holds())

		w.repo.push("back", boxes(map[string]int{"a": 2}))
		s = w.pass(6 * time.Minute)
		require.Equal(t, "back", s.Converged.ID)
		ok, err := w.agent.Resume("web")
		require.NoError(t, err)
		require.True(t, ok)
		s = w.pass(0)
		require.Equal(t, "a=2", w.holds())
		require.False(t, s.Last.Drift, "it was never converged to: nobody changed it by hand since")
		ok, err = w.agent.Resume("web")
		require.NoError(t, err)
		require.False(t, ok)
	})
}

func TestASuspensionOfWhatIsNotThereIsAnError(t *testing.T) {
	live(t, func(w *world) {
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		a := w.new()
		require.NoError(t, a.Suspend(ledger.Suspension{Manifest: "wob"}), "nobody knows yet")
		w.start()
		require.EqualError(t, w.agent.Suspend(ledger.Suspension{Manifest: "wep"}), `unknown manifest "wep": did you mean "web"?`)
		require.ErrorContains(t, w.agent.Suspend(ledger.Suspension{Until: in(-time.Second)}), "that is over")
		require.Len(t, w.agent.Status().Suspended, 1)
		require.NoError(t, w.agent.Suspend(ledger.Suspension{Manifest: "web", Reason: "one"}))
		require.NoError(t, w.agent.Suspend(ledger.Suspension{Manifest: "web", Reason: "two"}))
		require.Len(t, w.agent.Status().Suspended, 2)
		require.Equal(t, "two", w.agent.Status().Suspended[1].Reason)
	})
}

// Who suspends while a pass runs may rely on it: what runs is finished, nothing new
// is begun.
func TestASuspensionStopsThePassUnderWay(t *testing.T) {
	for name, manifest := range map[string]string{"everything": "", "the manifest": "web"} {
		t.Run(name, func(t *testing.T) {
			live(t, func(w *world) {
				w.repo.push("c1", boxes(map[string]int{"a": 1, "b": 2}))
				w.set(func() { w.host.During = slow(time.Minute) })
				w.start()
				require.Equal(t, "disk.base", w.agent.Status().Running.Now[0].Address)
				require.NoError(t, w.agent.Suspend(ledger.Suspension{Manifest: manifest, By: "ops"}))
				s := w.pass(10 * time.Minute)
				require.Equal(t, []string{"create disk.base"}, w.host.Applied)
				require.Len(t, s.Suspended, 1)
				require.Len(t, w.receipts(), 1)
				require.Equal(t, "interrupted", w.receipts()[0].Outcome)
				require.Nil(t, s.Running)
				require.Equal(t, agent.Idle, s.State)
				_, err := w.agent.Resume(manifest)
				require.NoError(t, err)
				w.pass(2 * time.Minute)
				require.Equal(t, "a=1 b=2", w.holds())
			})
		})
	}
}

// Nothing is begun after Suspend has returned, whenever it is called.
func TestASuspensionHoldsWhenItReturns(t *testing.T) {
	for at := range 40 {
		live(t, func(w *world) {
			w.repo.push("c1", boxes(map[string]int{"a": 1, "b": 2, "c": 3}))
			w.set(func() { w.host.During = slow(time.Second) })
			w.set(func() { w.host.look = func(context.Context) { <-time.After(500 * time.Millisecond) } })
			w.options = func(o *agent.Options) { o.Width = 1 }
			w.start()
			<-time.After(time.Duration(at)*125*time.Millisecond + time.Millisecond) // never at the moment of an end
			require.NoError(t, w.agent.Suspend(ledger.Suspension{}))
			running := 0
			if r := w.agent.Status().Running; r != nil {
				running = len(r.Now)
			}
			w.host.Mu.Lock()
			done := len(w.host.Applied)
			w.host.Mu.Unlock()
			w.pass(time.Hour)
			require.LessOrEqual(t, len(w.host.Applied), done+running)
		})
	}
}
