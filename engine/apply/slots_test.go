package apply_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// counter counts what works on it at once, and what of each manifest was begun and is
// not over. The lock is there since steps come from many goroutines.
type counter struct {
	mu         sync.Mutex
	works      int
	peak       int
	begun, top map[string]int
}

func newCounter() *counter { return &counter{begun: map[string]int{}, top: map[string]int{}} }

func (h *counter) count(work, begun int, manifest string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.works += work
	h.peak = max(h.peak, h.works)
	h.begun[manifest] += begun
	h.top[manifest] = max(h.top[manifest], h.begun[manifest])
}

func (h *counter) work(ctx context.Context, d time.Duration) error {
	h.count(1, 0, "")
	defer h.count(-1, 0, "")
	return pause(ctx, d)
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

var errIll = errors.New("it does not answer")

// checked works for a minute, and waits five more for a check that fails where the
// manifest is ill.
func (h *counter) checked(ctx context.Context, s plan.Step) error {
	h.count(0, 1, s.Manifest)
	defer h.count(0, -1, s.Manifest)
	if err := h.work(ctx, time.Minute); err != nil || s.Manifest != "ill" {
		return err
	}
	apply.YieldForever(ctx)
	if err := pause(ctx, 5*time.Minute); err != nil {
		return err
	}
	return errIll
}

func many(manifest string, n int, do plan.Action) []plan.Step {
	var out []plan.Step
	for i := range n {
		out = append(out, with(do, of(manifest, create(fmt.Sprintf("vm.%s-%d", manifest, i)))))
	}
	return out
}

func ends(results []apply.Result) map[apply.Status]int {
	out := map[apply.Status]int{}
	for _, r := range results {
		out[r.Status]++
	}
	return out
}

// Who waits for its check holds nobody up but those of its manifest that a failure
// would stop, or take down.
func TestWaitingIsNoWork(t *testing.T) {
	for name, c := range map[string]struct {
		do     plan.Action
		policy string
		top    int // of the ill manifest
		ends   map[apply.Status]int
		took   time.Duration
	}{
		// 170 minutes of work in ten places.
		"a failure stops nothing": {plan.Create, apply.Continue, 20, map[apply.Status]int{apply.Failed: 20, apply.Done: 150}, 17 * time.Minute},
		// The second ten are begun after 6 minutes.
		"a failure stops nothing, but guests that ran may be down": {plan.Update, apply.Continue, 10, map[apply.Status]int{apply.Failed: 20, apply.Done: 150}, 17 * time.Minute},
		"a failure stops the manifest":                             {plan.Create, apply.Stop, 10, map[apply.Status]int{apply.Failed: 10, apply.Skipped: 10, apply.Done: 150}, 16 * time.Minute},
		"a failure rolls the manifest back":                        {plan.Create, apply.Rollback, 10, map[apply.Status]int{apply.Failed: 10, apply.Skipped: 10, apply.Done: 150}, 17 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, begun := newCounter(), time.Now()
				do := func(ctx context.Context, s plan.Step) error {
					if s.Action == plan.Delete {
						return h.work(ctx, time.Minute)
					}
					return h.checked(ctx, s)
				}
				got := apply.Run(t.Context(), append(many("ill", 20, c.do), many("web", 150, plan.Create)...), apply.Options{OnError: always(c.policy)}, do)
				require.Equal(t, c.ends, ends(got))
				require.Equal(t, c.top, h.top["ill"])
				require.Equal(t, 10, h.peak)
				require.Equal(t, c.took, time.Since(begun))
			})
		})
	}
}

// Who rested and works on has a place again before anything new is begun.
func TestBackToWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, begun := newCounter(), time.Now()
		do := func(ctx context.Context, s plan.Step) error {
			if s.Manifest != "web" {
				return h.work(ctx, 10*time.Minute)
			}
			back := apply.Yield(ctx)
			if err := pause(ctx, time.Minute); err != nil {
				return err
			}
			if err := back(ctx); err != nil {
				return err
			}
			return h.work(ctx, time.Minute)
		}
		got := apply.Run(t.Context(), append(many("web", 2, plan.Create), many("db", 3, plan.Create)...), apply.Options{Width: 1}, do)
		require.Equal(t, map[apply.Status]int{apply.Done: 5}, ends(got))
		require.Equal(t, 1, h.peak)
		require.Equal(t, 11*time.Minute, got[0].Duration, "a minute of rest, and one of work when the first of db was done")
		require.Equal(t, 32*time.Minute, time.Since(begun))
	})
}

// Who waits for a place does so no longer than its context, nor than its deadline.
func TestNoPlaceInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		do := func(ctx context.Context, s plan.Step) error {
			if s.Manifest != "web" {
				return pause(ctx, time.Hour)
			}
			back := apply.Yield(ctx)
			if err := pause(ctx, time.Second); err != nil {
				return err
			}
			return back(ctx)
		}
		limit := func(s plan.Step) time.Duration {
			return map[string]time.Duration{"web": 5 * time.Minute}[s.Manifest]
		}
		got := apply.Run(t.Context(), append(many("web", 1, plan.Create), many("db", 1, plan.Create)...), apply.Options{Width: 1, Deadline: limit}, do)
		require.Equal(t, []string{"vm.web-0 failed: gave up after 5m0s: context deadline exceeded", "vm.db-0 done"}, told(got))
	})
	require.NoError(t, apply.Yield(t.Context())(t.Context()), "outside of a run there are no places")
	apply.YieldForever(t.Context())
}

// However steps work and rest: no more than there are places work at once, no manifest
// has more begun than that unless it wants so, and all come to an end.
func TestPlacesAreKept(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		width := rapid.IntRange(1, 4).Draw(rt, "width")
		policies := map[string]string{}
		var steps []plan.Step
		rests := map[string][]int{}
		for i := range rapid.IntRange(1, 25).Draw(rt, "steps") {
			manifest := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "manifest")
			s := of(manifest, create(fmt.Sprintf("vm.g-%d", i)))
			s.Action = rapid.SampledFrom([]plan.Action{plan.Create, plan.Update}).Draw(rt, "action")
			for j := range i {
				if rapid.IntRange(0, 9).Draw(rt, "waits") == 0 {
					s.After = append(s.After, steps[j].Address)
				}
			}
			steps = append(steps, s)
			rests[s.Address.Name] = rapid.SliceOfN(rapid.IntRange(0, 3), 1, 4).Draw(rt, "turns")
			policies[manifest] = rapid.SampledFrom([]string{apply.Stop, apply.Rollback, apply.Continue}).Draw(rt, "policy")
		}
		bad := rapid.SampledFrom(steps).Draw(rt, "fails").Address
		h := newCounter()
		do := func(ctx context.Context, s plan.Step) error {
			h.count(0, 1, s.Manifest)
			defer h.count(0, -1, s.Manifest)
			for i, d := range rests[s.Address.Name] {
				if err := h.work(ctx, time.Duration(d)*time.Minute); err != nil {
					return err
				}
				if i == 3 {
					apply.YieldForever(ctx)
					return pause(ctx, time.Minute)
				}
				back := apply.Yield(ctx)
				if err := errors.Join(pause(ctx, time.Minute), back(ctx)); err != nil {
					return err
				}
			}
			if s.Address == bad {
				return errIll
			}
			return nil
		}
		synctest.Test(t, func(t *testing.T) {
			got := apply.Run(t.Context(), steps, apply.Options{Width: width, OnError: func(m string) string { return policies[m] }}, do)
			require.Len(rt, got, len(steps))
		})
		require.LessOrEqual(rt, h.peak, width)
		for m, n := range h.top {
			if policies[m] != apply.Continue {
				require.LessOrEqual(rt, n, width, m)
			}
		}
	})
}
