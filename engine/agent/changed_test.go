package agent_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/model"
)

// What somebody changes is put back at once. What the agent itself changes is checked once more, and that is all.
func TestAChangeOfTheHostIsCheckedAtOnce(t *testing.T) {
	live(t, func(w *world) {
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		w.start()
		w.pass(time.Minute)
		asked, looks := w.repo.asked(), w.looks()
		edit := func() {
			w.byHand(func(h model.State) { h[enginetest.Addr("box", "a")].Spec.(*enginetest.Box).Size = 5 })
			w.agent.HostChanged()
			synctest.Wait()
		}
		edit()
		require.Equal(t, "a=1", w.holds())
		require.Equal(t, asked, w.repo.asked(), "the repository is not asked for that")
		w.agent.HostChanged() // as the watcher does for the change that put it back
		synctest.Wait()
		require.Equal(t, looks+1, w.looks())
		w.pass(5 * time.Second)
		require.Equal(t, looks+2, w.looks(), "it is checked once more")
		w.pass(30 * time.Second)
		require.Equal(t, looks+2, w.looks())
		edit()
		require.Equal(t, "a=1", w.holds())
	})
}

// A pass that fails is tried again when that is due, although it changes something each time.
func TestOwnChangesDoNotHurryAnAgentThatFails(t *testing.T) {
	live(t, func(w *world) {
		w.repo.push("c1", boxes(map[string]int{"a": 1, "b": 1}))
		w.set(func() { w.host.Fail = map[string]error{"box.b": errors.New("no")} })
		w.start()
		w.agent.HostChanged()
		synctest.Wait()
		looks := w.looks()
		for range 5 {
			w.agent.HostChanged()
			w.pass(300 * time.Millisecond)
		}
		require.Equal(t, looks, w.looks())
	})
}

// Somebody who changes the same thing again and again does not keep the agent busy.
func TestAnAgentDoesNotFight(t *testing.T) {
	live(t, func(w *world) {
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		w.start()
		w.pass(time.Minute)
		looks := w.looks()
		for range 600 {
			w.byHand(func(h model.State) { h[enginetest.Addr("box", "a")].Spec.(*enginetest.Box).Size = 5 })
			w.agent.HostChanged()
			w.pass(100 * time.Millisecond)
		}
		require.Less(t, w.looks()-looks, 40, "in a minute")
	})
}
