package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

func TestAWatchdogIsFedAsLongAsThingsMove(t *testing.T) {
	live(t, func(w *world) {
		w.set(func() { w.host.During = slow(9 * time.Minute) })
		w.set(func() { w.host.look = func(context.Context) { <-time.After(9 * time.Minute) } })
		w.repo.push("c1", boxes(map[string]int{"a": 1, "b": 2}))
		w.start()
		for range 24 * 60 {
			w.pass(time.Minute)
			require.Zero(t, w.agent.Stuck(), "%s %s", time.Now(), w.agent.Status().Summary)
		}
		require.Equal(t, "a=1 b=2", w.holds())
	})
}

func TestAHangIsStuckAfterItsTime(t *testing.T) {
	forever := func(gate chan struct{}) func(context.Context, string) {
		return func(context.Context, string) { <-gate }
	}
	for name, c := range map[string]struct {
		hang  func(w *world, gate chan struct{})
		after time.Duration
	}{
		"an observation": {func(w *world, gate chan struct{}) { w.host.look = func(context.Context) { <-gate } }, 12 * time.Minute},
		"the repository": {func(w *world, gate chan struct{}) {
			w.repo.before = func(ctx context.Context, call string) {
				if call == "head" {
					forever(gate)(ctx, call)
				}
			}
		}, 32 * time.Minute},
		"a load": {func(w *world, gate chan struct{}) {
			w.repo.before = func(ctx context.Context, call string) {
				if call == "load" {
					forever(gate)(ctx, call)
				}
			}
		}, 12 * time.Minute},
		"a step of three minutes": {func(w *world, gate chan struct{}) {
			w.host.During = func(_ context.Context, s plan.Step) error {
				if s.Node != "" {
					<-gate
				}
				return nil
			}
		}, 5 * time.Minute},
		"rules": {func(w *world, gate chan struct{}) {
			d := w.repo.sites["c1"]
			d.PolicyCheck = func(context.Context, engine.Question) diag.List { <-gate; return nil }
			w.repo.sites["c1"] = d
		}, 12 * time.Minute},
		"a lock that tells nothing": {func(w *world, gate chan struct{}) {
			w.options = func(o *Options) {
				o.Exclusive = func(context.Context, *model.Host, func(string)) (func(), error) { <-gate; return func() {}, nil }
			}
		}, 12 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			live(t, func(w *world) {
				d := boxes(map[string]int{"a": 1})
				d.Site.Manifests["web"].Settings = &model.Settings{Timeout: 3 * time.Minute}
				w.repo.push("c1", d)
				gate := make(chan struct{})
				c.hang(w, gate)
				began := time.Now()
				w.start()
				w.pass(c.after - time.Second)
				require.Zero(t, w.agent.Stuck())
				w.pass(2 * time.Second)
				require.Equal(t, began.Add(c.after), w.agent.Stuck())
				close(gate)
				w.pass(time.Second)
				require.Zero(t, w.agent.Stuck(), "it came on")
			})
		})
	}
}

func TestProgressSaysWhatRunsAndHowLongItTakes(t *testing.T) {
	live(t, func(w *world) {
		w.options = func(o *Options) { o.Width = 2 }
		w.set(func() { w.host.During = slow(40 * time.Second) })
		w.repo.push("c1", boxes(map[string]int{"a": 1, "b": 1}))
		s := w.start().Status()
		require.Equal(t, Converging, s.State)
		require.Equal(t, "converging c1: 0 of 3 steps done", s.Summary, "no estimate yet")
		require.Zero(t, s.Running.Seconds)
		w.pass(10 * time.Minute)

		w.repo.push("c2", boxes(map[string]int{"a": 1, "b": 1, "c": 1, "d": 1, "e": 1, "f": 1}))
		s = w.look()
		require.Equal(t, 4, s.Running.Steps)
		require.Equal(t, []string{"box.e", "box.f"}, s.Running.Next)
		require.InDelta(t, 80, s.Running.Seconds, 0)
		s = w.pass(55 * time.Second)
		require.Equal(t, "c2", s.Running.Commit)
		require.Equal(t, 2, s.Running.Done)
		require.Empty(t, s.Running.Next)
		require.Len(t, s.Running.Now, 2)
		require.Equal(t, "box.e", s.Running.Now[0].Address)
		require.Equal(t, plan.Create, s.Running.Now[0].Action)
		require.InDelta(t, 40, s.Running.Now[0].Usually, 0)
		require.Equal(t, 15*time.Second, time.Since(s.Running.Now[0].Since))
		require.Equal(t, "converging c2: 2 of 4 steps done, about 25s to go", s.Summary)
		require.Nil(t, w.pass(time.Minute).Running)
	})
}

// Tell hears of everything on the agent's goroutine, also of a look.
func TestEveryChangeOfStateIsReported(t *testing.T) {
	live(t, func(w *world) {
		var told []string
		w.options = func(o *Options) {
			o.Notify = func(s Status) {
				n := 0
				if s.Running != nil {
					n = len(s.Running.Now)
				}
				told = append(told, fmt.Sprintf("%s %d", s.State, n))
			}
		}
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		w.start()
		w.end()
		require.Equal(t, []string{
			"starting 0", "looking 0", "looking 0", "converging 0",
			"converging 1", "converging 0", "converging 1", "converging 0", "idle 0",
		}, told)
	})
}

func TestAnotherProcessHasTheWriteLock(t *testing.T) {
	live(t, func(w *world) {
		w.set(func() { w.host.During = slow(time.Minute) })
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		w.start()
		held := make(chan func(), 1)
		go func() {
			release, err := w.agent.Pause(w.t.Context(), "ops@pve (destroy)")
			if err != nil {
				t.Error(err)
			}
			held <- release
		}()
		s := w.pass(90 * time.Second)
		require.Empty(t, held, "the pass under way comes to its end first")
		require.Equal(t, Converging, s.State)
		s = w.pass(time.Minute)
		release := <-held
		require.Equal(t, Waiting, s.State)
		require.Equal(t, "ops@pve (destroy) holds the write lock of the host; in sync at c1", s.Summary)

		w.repo.push("c2", boxes(map[string]int{"a": 2}))
		s = w.pass(24 * time.Hour)
		require.Equal(t, "a=1", w.holds())
		require.Equal(t, Waiting, s.State)
		require.Zero(t, w.agent.Stuck(), "it is not its fault")
		release()
		release()
		w.pass(2 * time.Minute)
		require.Equal(t, "a=2", w.holds())

		ctx, cancel := context.WithCancel(w.t.Context())
		_, err := w.agent.Pause(ctx, "a process that dies")
		require.NoError(t, err)
		require.Equal(t, Waiting, w.agent.Status().State)
		gone, cause := context.WithCancelCause(w.t.Context())
		cause(errors.New("no patience"))
		_, err = w.agent.Pause(gone, "another")
		require.EqualError(t, err, "no patience")
		cancel()
		synctest.Wait()
		require.Equal(t, Idle, w.agent.Status().State)
		w.byHand(func(h model.State) { delete(h, enginetest.Addr("box", "a")) })
		w.look()
		w.pass(2 * time.Minute)
		require.Equal(t, "a=2", w.holds())
	})
}

func TestAPassThatMayWriteTakesTheLock(t *testing.T) {
	live(t, func(w *world) {
		var calls []string
		free := make(chan struct{})
		w.options = func(o *Options) {
			o.Exclusive = func(ctx context.Context, _ *model.Host, blocked func(string)) (func(), error) {
				calls = append(calls, "lock")
				select {
				case <-free:
				default:
					blocked("changed by ops: pid 7, destroy")
					select {
					case <-free:
					case <-ctx.Done():
						return nil, ctx.Err()
					}
				}
				return func() { calls = append(calls, "unlock"+w.holds()) }, nil
			}
		}
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		s := w.start().Status()
		require.Equal(t, Waiting, s.State)
		require.Equal(t, "waiting for the write lock of the host, which is changed by ops: pid 7, destroy; nothing is known yet", s.Summary)
		w.pass(time.Hour)
		require.Zero(t, w.agent.Stuck())
		w.end() // a stop ends the wait
		require.Empty(t, w.holds())

		w.start()
		close(free)
		w.pass(time.Second)
		require.Equal(t, "a=1", w.holds())
		require.Equal(t, []string{"lock", "lock", "unlocka=1"}, calls)

		require.NoError(t, w.agent.Suspend(ledger.Suspension{}))
		w.pass(time.Hour)
		require.Len(t, calls, 3, "a pass that changes nothing takes no lock")
	})
}

func TestReconcileWaitsForAPassThatBeganAfterIt(t *testing.T) {
	live(t, func(w *world) {
		w.set(func() { w.host.During = slow(time.Minute) })
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		w.start()
		type answer struct {
			s   PassStatus
			err error
		}
		answers := make(chan answer, 10)
		for range 3 {
			go func() {
				s, err := w.agent.Reconcile(w.t.Context())
				answers <- answer{s, err}
			}()
		}
		synctest.Wait()
		w.repo.push("c2", boxes(map[string]int{"a": 1, "b": 1}))
		w.pass(121 * time.Second)
		require.Empty(t, answers, "the pass with c1 began before")
		w.pass(time.Minute)
		for range 3 {
			got := <-answers
			require.NoError(t, got.err)
			require.Equal(t, "c2", got.s.Commit)
			require.Equal(t, engine.Done, got.s.Outcome)
		}
		ctx, cancel := context.WithTimeoutCause(w.t.Context(), time.Second, errors.New("too slow"))
		defer cancel()
		w.set(func() { w.host.look = func(context.Context) { <-time.After(time.Minute) } })
		_, err := w.agent.Reconcile(ctx)
		require.EqualError(t, err, "too slow")
		go func() {
			s, err := w.agent.Reconcile(w.t.Context())
			answers <- answer{s, err}
		}()
		synctest.Wait()
		w.end()
		require.ErrorIs(t, (<-answers).err, engine.ErrInterrupted)
		_, err = w.agent.Reconcile(w.t.Context())
		require.ErrorIs(t, err, engine.ErrInterrupted, "and after the end")
	})
}

func TestManyReadsAreOne(t *testing.T) {
	live(t, func(w *world) {
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		w.set(func() { w.host.look = func(context.Context) { <-time.After(time.Second) } })
		w.start()
		for range 100 {
			w.agent.CheckNow()
		}
		asked := w.repo.asked()
		w.pass(5 * time.Second)
		require.Equal(t, asked+1, w.repo.asked())
		require.Equal(t, 2, w.looks())
	})
}

func TestAStopFinishesWhatRunsAndACancelLeaves(t *testing.T) {
	live(t, func(w *world) {
		w.set(func() { w.host.During = slow(time.Minute) })
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		w.start()
		close(w.halt)
		s := w.pass(0)
		require.Equal(t, Stopping, s.State)
		require.True(t, strings.HasPrefix(s.Summary, "stopping"))
		w.pass(30 * time.Second)
		require.Empty(t, w.ended)
		w.pass(31 * time.Second)
		require.NoError(t, <-w.ended)
		w.halt = nil
		require.Equal(t, []string{"create disk.base"}, w.host.Applied)
		require.Len(t, w.receipts(), 1)

		ctx, cancel := context.WithCancelCause(w.t.Context())
		a, ended := w.new(), make(chan error, 1)
		go func() { ended <- a.Run(ctx, nil) }()
		synctest.Wait()
		leave := errors.New("leave now")
		cancel(leave)
		require.ErrorIs(t, <-ended, leave)
		require.Empty(t, w.holds())
		require.True(t, slices.Equal([]string{"create disk.base"}, w.host.Applied))
	})
}

// A change by hand is reverted at once. A change by the agent itself is checked once more, and no further.
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
			w.options = func(o *Options) {
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

// A person who makes the same change again and again does not keep the agent busy.
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
