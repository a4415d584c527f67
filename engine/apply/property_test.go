package apply_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// host is a world of addresses that checks at each call whether it may come now.
// The mutex is there since workers call it side by side.
type host struct {
	mu      sync.Mutex
	steps   map[model.Address]plan.Step
	takes   map[model.Address]time.Duration
	fails   map[model.Address]bool // as wanted; leaves a half-made thing behind
	stuck   map[model.Address]bool // cannot be removed again
	there   map[model.Address]bool
	done    map[model.Address]bool
	begun   map[model.Address]int
	running int
	peak    int
	wrong   []string
}

func (h *host) do(ctx context.Context, s plan.Step) error {
	undo := s.Action == plan.Delete && h.steps[s.Address].Action == plan.Create
	h.enter(s, undo)
	select {
	case <-ctx.Done():
		h.mu.Lock()
		defer h.mu.Unlock()
		h.running--
		return ctx.Err()
	case <-time.After(h.takes[s.Address]):
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running--
	switch {
	case undo && h.stuck[s.Address], !undo && h.fails[s.Address]:
		h.there[s.Address] = true
		return errFull
	case s.Action == plan.Delete:
		h.there[s.Address] = false
	default:
		h.there[s.Address] = true
	}
	h.done[s.Address] = !undo
	return nil
}

func (h *host) enter(s plan.Step, undo bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running++
	h.peak = max(h.peak, h.running)
	complain := func(format string, args ...any) { h.wrong = append(h.wrong, fmt.Sprintf(format, args...)) }
	if !undo {
		h.begun[s.Address]++
		for _, a := range s.After {
			if _, among := h.steps[a]; among && !h.done[a] {
				complain("%s begun before %s succeeded", s.Address, a)
			}
		}
		return
	}
	if h.begun[s.Address] != 1 {
		complain("%s removed without being made", s.Address)
	}
	for _, other := range h.steps {
		if other.Action != plan.Delete && h.done[other.Address] && slices.Contains(other.After, s.Address) {
			complain("%s removed under %s", s.Address, other.Address)
		}
	}
}

// Whatever fails, whenever it is stopped: nothing starts before its predecessors
// succeeded, nothing twice, never too much at once; each step has one result, and
// it is the truth.
func TestRunKeepsItsWord(t *testing.T) {
	outer := t
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 14).Draw(t, "steps")
		h := &host{
			steps: map[model.Address]plan.Step{}, takes: map[model.Address]time.Duration{}, fails: map[model.Address]bool{}, stuck: map[model.Address]bool{},
			there: map[model.Address]bool{}, done: map[model.Address]bool{}, begun: map[model.Address]int{},
		}
		var steps []plan.Step
		for i := range n {
			s := create(rapid.SampledFrom([]string{"vm", "vm", "image"}).Draw(t, "kind") + fmt.Sprintf(".g-%d", i))
			s.Action = rapid.SampledFrom([]plan.Action{plan.Create, plan.Create, plan.Update, plan.Delete}).Draw(t, "action")
			if s.Manifest != "" {
				s.Manifest = rapid.SampledFrom([]string{"web", "db", "mail"}).Draw(t, "manifest")
			}
			for _, b := range steps {
				if rapid.IntRange(0, 3).Draw(t, "after") == 0 {
					s.After = append(s.After, b.Address)
				}
			}
			h.steps[s.Address], h.there[s.Address] = s, s.Action != plan.Create
			h.takes[s.Address] = time.Duration(rapid.IntRange(1, 5).Draw(t, "seconds")) * time.Second
			h.fails[s.Address] = rapid.IntRange(0, 4).Draw(t, "fails") == 0
			h.stuck[s.Address] = rapid.IntRange(0, 7).Draw(t, "stuck") == 0
			steps = append(steps, s)
		}
		steps = rapid.Permutation(steps).Draw(t, "order")
		policies := map[string]string{}
		for _, m := range []string{"web", "db", "mail"} {
			policies[m] = rapid.SampledFrom([]string{apply.Stop, apply.Rollback, apply.Continue, ""}).Draw(t, m)
		}
		width := rapid.IntRange(1, 5).Draw(t, "width")
		ended := rapid.IntRange(0, 3).Draw(t, "ended") == 0
		after := time.Duration(rapid.IntRange(0, 20).Draw(t, "stop after"))*time.Second + time.Millisecond

		var events []apply.Event
		var got []apply.Result
		synctest.Test(outer, func(inner *testing.T) { // nothing in here may fail: rapid must not
			ctx, cancel := context.WithCancel(inner.Context())
			defer cancel()
			stop := make(chan struct{})
			if ended {
				time.AfterFunc(after, func() { close(stop) })
				time.AfterFunc(after+2*time.Second, cancel)
			}
			got = apply.Run(ctx, steps, apply.Options{
				Width: width, Stop: stop, Notify: func(e apply.Event) { events = append(events, e) },
				OnError: func(m string) string { return policies[m] },
			}, h.do)
		})

		require.Empty(t, h.wrong)
		require.LessOrEqual(t, h.peak, width)
		require.Zero(t, h.running)
		require.Len(t, got, len(steps))
		failed := map[string]bool{}
		status := map[model.Address]apply.Status{}
		for i, r := range got {
			a := r.Step.Address
			require.Equal(t, steps[i], r.Step)
			require.LessOrEqual(t, h.begun[a], 1)
			require.Equal(t, r.Status == apply.Skipped, h.begun[a] == 0, a)
			require.Equal(t, r.Status == apply.Done || r.Status == apply.RolledBack, r.Err == nil, a)
			switch r.Status {
			case apply.Done:
				require.True(t, h.done[a])
				require.Equal(t, r.Step.Action != plan.Delete, h.there[a], a)
			case apply.RolledBack:
				require.False(t, h.there[a], a)
				require.Equal(t, apply.Rollback, policies[r.Step.Manifest])
			case apply.Failed:
				failed[r.Step.Manifest] = true
			default:
				require.Equal(t, r.Step.Action != plan.Create, h.there[a], a)
			}
			status[a] = r.Status
		}
		for _, r := range got {
			if r.Status == apply.Skipped && !ended && policies[r.Step.Manifest] == apply.Continue {
				require.True(t, slices.ContainsFunc(r.Step.After, func(a model.Address) bool {
					s, among := status[a]
					return among && s != apply.Done
				}), "%s was skipped although all it waits for was done", r.Step.Address)
			}
			if r.Status == apply.Skipped && !ended && len(failed) == 0 {
				t.Fatalf("%s was skipped although nothing failed", r.Step.Address)
			}
		}
		checkEvents(t, events, policies, len(steps))
	})
}

// checkEvents: as many ends as beginnings, one end a step, and after a failure
// nothing new of a manifest that wants none.
func checkEvents(t *rapid.T, events []apply.Event, policies map[string]string, steps int) {
	begun, finished, over := 0, 0, map[string]bool{}
	for _, e := range events {
		undo := e.Step.Have != nil
		switch e.What {
		case apply.Started:
			begun++
			require.False(t, over[e.Step.Manifest] && !undo, "%s begun after its manifest failed", e.Step.Address)
		case apply.Finished:
			if !undo {
				finished++
			}
			if e.Result.Status != apply.Skipped {
				begun--
			}
			if p := policies[e.Step.Manifest]; e.Result.Status == apply.Failed && e.Step.Manifest != "" && p != apply.Continue {
				over[e.Step.Manifest] = true
			}
		default:
			require.NotEmpty(t, e.Text)
		}
		require.Equal(t, begun, e.Running)
		require.GreaterOrEqual(t, e.Left, 0)
	}
	require.Equal(t, steps, finished)
}
