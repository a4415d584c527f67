package agent_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
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

// slowInside is a host that can observe the guest a alone, which is off if its size is 0.
type slowInside struct {
	engine.Driver
	mu    sync.Mutex
	looks []string
}

func (s *slowInside) Observe(ctx context.Context, w *model.Want) (model.Observed, error) {
	have, err := s.Driver.Observe(ctx, w)
	a := enginetest.Addr("box", "a")
	is := have.State[a]
	have.Only = w.StartFirst && is != nil && is.Spec.(*enginetest.Box).Size == 0
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.looks = append(s.looks, "all"); have.Only {
		s.looks[len(s.looks)-1] = "off"
		have.State = model.State{a: is}
	}
	return have, err
}

// A full check starts guests that are off before it looks into the others, and then checks all, whether or not they could be started.
func TestR10AFullCheckStartsGuestsFirst(t *testing.T) {
	for _, fails := range []bool{false, true} {
		live(t, func(w *world) {
			h := &slowInside{Driver: w.host}
			w.options = func(o *agent.Options) {
				o.Open = func(engine.Desired, *model.Host) (engine.Driver, error) { return h, nil }
			}
			w.repo.push("c1", boxes(map[string]int{"a": 1, "b": 1}))
			w.start()
			w.pass(time.Hour)
			size := func(name string, size int) {
				w.byHand(func(s model.State) { s[enginetest.Addr("box", name)].Spec.(*enginetest.Box).Size = size })
			}
			size("a", 0)
			size("b", 5)
			w.set(func() {
				h.looks, w.host.Applied = nil, nil
				if fails {
					w.host.Fail = map[string]error{"box.a": errors.New("no")}
				}
			})
			began := time.Now()
			s, err := w.agent.Reconcile(w.t.Context())
			require.NoError(t, err)
			require.Less(t, time.Since(began), 10*time.Second, "without a pause in between")
			require.Equal(t, []string{"off", "all"}, h.looks[:2])
			require.Equal(t, "update box.a", w.host.Applied[0])
			require.Contains(t, w.host.Applied, "update box.b")
			require.Equal(t, !fails, s.Outcome == engine.Done, "who waits hears of the check of all")
			require.Equal(t, map[bool]string{false: "a=1 b=1", true: "a=0 b=1"}[fails], w.holds())
			if !fails { // with nothing off that is one pass
				h.looks = nil
				_, err = w.agent.Reconcile(w.t.Context())
				require.NoError(t, err)
				require.Equal(t, []string{"all"}, h.looks)
			}
		})
	}
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
