package agent_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
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

// parent is a world in which box inner is a child with a box below it.
func parent(w *world, reports map[string]model.Child) {
	w.options = func(o *agent.Options) {
		o.Children = func() map[string]model.Child {
			w.repo.mu.Lock()
			defer w.repo.mu.Unlock()
			return maps.Clone(reports)
		}
	}
	w.repo.push("c1", boxes(map[string]int{"a": 1, "b": 1, "inner": 1}))
	w.start()
	w.byHand(func(h model.State) { h[enginetest.Addr("box", "inner")].Guest.Orphan = model.OrphanRefuse })
}

// A child that left the site goes when it has reported that it is empty at a commit that has it no more; until then
// the commit is in force, and nothing is wrong.
func TestAChildGoesAfterItsReport(t *testing.T) {
	live(t, func(w *world) {
		reports := map[string]model.Child{}
		report := func(commit string, empty bool) {
			w.set(func() { reports["inner"] = model.Child{At: time.Now(), Commit: commit, Empty: empty} })
		}
		var shown, forgotten []string
		parent(w, reports)
		before := w.options
		w.end()
		w.options = func(o *agent.Options) {
			before(o)
			o.InForce = func(_ context.Context, d engine.Desired, host agent.HostState) {
				w.set(func() { shown = append(shown, d.Commit+" without "+strings.Join(host.Removed, " ")) })
			}
			o.Forget = func(child string) { w.set(func() { forgotten = append(forgotten, child) }) }
		}
		last := func() string {
			w.repo.mu.Lock()
			defer w.repo.mu.Unlock()
			return shown[len(shown)-1]
		}
		w.start()
		require.Equal(t, "c1 without ", last())
		w.repo.push("c2", boxes(map[string]int{"a": 1, "b": 1}))
		s := w.look()
		require.Equal(t, "c2 without inner", last(), "it is published as soon as the commit is in force")
		require.Equal(t, "a=1 b=1 inner=1", w.holds())
		require.Equal(t, engine.Done, s.Last.Outcome)
		require.Empty(t, s.Last.Findings)
		require.Equal(t, "c2", w.state().Good.ID)
		require.Equal(t, "c1", w.state().Converged.ID, "it is not all done")
		require.Equal(t, map[string]string{"inner": "c2"}, w.state().Withdrawn)

		report("c1", true)
		w.look()
		require.Equal(t, "a=1 b=1 inner=1", w.holds(), "c1 has it")
		report("c2", true)
		w.end()
		w.repo.push("c3", boxes(map[string]int{"a": 2, "b": 1}))
		w.set(func() { shown = nil })
		require.Empty(t, forgotten)
		w.start()
		w.set(func() {
			require.Equal(t, "c2 without inner", shown[0], "that is remembered over a restart")
			require.Equal(t, []string{"inner"}, forgotten, "what the next one of the name reports is its own")
		})
		require.Equal(t, "a=2 b=1", w.holds(), "c2 has it no more, and is before c3")
		require.Contains(t, w.receipts()[0].Steps[0].Reason+w.receipts()[0].Steps[1].Reason, "nothing is left in it, as it reported at c2")
		require.Equal(t, "c3", w.state().Converged.ID)
		w.look()
		require.Empty(t, w.state().Withdrawn)
		require.Equal(t, "c3 without ", last())
	})
}

// While everything is suspended no child hears that it left the site: it would empty itself.
func TestAChildIsNotRemovedWhileAllIsSuspended(t *testing.T) {
	live(t, func(w *world) {
		var shown []string
		parent(w, map[string]model.Child{})
		before := w.options
		w.end()
		w.options = func(o *agent.Options) {
			before(o)
			o.InForce = func(_ context.Context, d engine.Desired, host agent.HostState) {
				w.set(func() { shown = append(shown, d.Commit+" without "+strings.Join(host.Removed, " ")) })
			}
		}
		w.start()
		require.NoError(t, w.agent.Suspend(ledger.Suspension{}))
		w.repo.push("c2", boxes(map[string]int{"a": 1, "b": 1}))
		w.look()
		w.look()
		w.end()
		w.start()
		w.look()
		for _, text := range shown {
			require.NotContains(t, text, "inner")
		}
		_, err := w.agent.Resume("")
		require.NoError(t, err)
		w.look()
		require.Contains(t, shown, "c2 without inner")
	})
}

// What a guest reported counts no more as soon as it is made again: before the first step that may fail.
func TestAGuestThatIsMadeAgainIsForgotten(t *testing.T) {
	live(t, func(w *world) {
		var events []string
		w.options = func(o *agent.Options) {
			o.Forget = func(node string) { w.set(func() { events = append(events, "forget "+node) }) }
		}
		w.host.During = func(_ context.Context, s plan.Step) error {
			w.set(func() { events = append(events, string(s.Action)+" "+s.Address.Name) })
			return nil
		}
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		w.start()
		w.byHand(func(h model.State) { delete(h, enginetest.Addr("box", "a")) })
		w.look()
		w.repo.push("c2", boxes(map[string]int{"a": 2}))
		w.look()
		require.Equal(t, []string{"create base", "forget a", "create a", "forget a", "create a", "update a"}, events, "the image base has no reports")
	})
}

// What could not be seen is not gone: such a child is still one that leaves.
func TestAChildThatCannotBeSeenIsStillLeaving(t *testing.T) {
	live(t, func(w *world) {
		parent(w, map[string]model.Child{})
		w.repo.push("c2", boxes(map[string]int{"a": 1, "b": 1}))
		w.look()
		w.byHand(func(h model.State) { delete(h, enginetest.Addr("box", "inner")) })
		w.host.Unknown = []model.Unknown{{Scope: "node far", Why: "it is off"}}
		w.look()
		require.Equal(t, map[string]string{"inner": "c2"}, w.state().Withdrawn)
		w.host.Unknown = nil
		w.look()
		require.Empty(t, w.state().Withdrawn)
	})
}

// A commit that has the child again ends what was known.
func TestAChildThatReturnsIsNotGone(t *testing.T) {
	live(t, func(w *world) {
		reports := map[string]model.Child{}
		parent(w, reports)
		w.repo.push("c2", boxes(map[string]int{"a": 1, "b": 1}))
		w.look()
		w.repo.push("c3", boxes(map[string]int{"a": 1, "b": 1, "inner": 1}))
		w.look()
		require.Empty(t, w.state().Withdrawn)
		w.set(func() { reports["inner"] = model.Child{At: time.Now(), Commit: "c2", Empty: true} })
		w.repo.push("c4", boxes(map[string]int{"a": 1, "b": 1}))
		w.look()
		require.Equal(t, "a=1 b=1 inner=1", w.holds(), "c3 may have filled it")
		w.set(func() { reports["inner"] = model.Child{At: time.Now(), Commit: "c4", Empty: true} })
		w.look()
		require.Equal(t, "a=1 b=1", w.holds())
	})
}

// A trailer lets a child go with what is in it. It counts once, and only where it is known since when.
func TestATrailerLetsAChildGo(t *testing.T) {
	live(t, func(w *world) {
		parent(w, map[string]model.Child{})
		w.repo.push("c2", boxes(map[string]int{"a": 1, "b": 1}), "Allow-Orphans: other")
		w.look()
		require.Equal(t, "a=1 b=1 inner=1", w.holds())
		w.repo.push("c3", boxes(map[string]int{"a": 1, "b": 1}), "Allow-Orphans: x, inner")
		w.look()
		require.Equal(t, "a=1 b=1", w.holds())
		require.Contains(t, w.receipts()[0].Steps[0].Reason, "Allow-Orphans")
		require.Equal(t, "Ada", w.receipts()[0].Author)
		require.Equal(t, []string{"c3", "c2"}, w.state().UsedTrailers)
	})
	// It counts once also while the commit is not converged: the child came back, and left again.
	live(t, func(w *world) {
		parent(w, map[string]model.Child{})
		w.host.During = func(_ context.Context, s plan.Step) error {
			if s.Address.Name == "a" {
				return errors.New("a is stuck")
			}
			return nil
		}
		w.repo.push("c2", boxes(map[string]int{"a": 2, "b": 1}), "Allow-Orphans: inner")
		w.look()
		require.Equal(t, "a=1 b=1", w.holds())
		require.Equal(t, "c1", w.state().Converged.ID)
		w.repo.push("c3", boxes(map[string]int{"a": 2, "b": 1, "inner": 1}))
		w.look()
		w.byHand(func(h model.State) { h[enginetest.Addr("box", "inner")].Guest.Orphan = model.OrphanRefuse })
		w.repo.push("c4", boxes(map[string]int{"a": 2, "b": 1}))
		w.look()
		require.Equal(t, "a=1 b=1 inner=1", w.holds())
	})
	// Also where no commit ever converged, by the very commit: a child that cannot leave keeps all from converging.
	live(t, func(w *world) {
		parent(w, map[string]model.Child{})
		w.end()
		require.NoError(t, os.Remove(filepath.Join(w.dir, "state.json")))
		w.repo.push("c2", boxes(map[string]int{"a": 1, "b": 1}))
		w.start()
		require.Equal(t, "a=1 b=1 inner=1", w.holds())
		require.Empty(t, w.state().Converged.ID)
		w.repo.push("c3", boxes(map[string]int{"a": 1, "b": 1}), "Allow-Orphans: inner")
		s := w.look()
		require.Equal(t, "a=1 b=1", w.holds())
		require.Empty(t, s.Last.Findings)
		require.Equal(t, "c3", w.state().Converged.ID)
	})
}
