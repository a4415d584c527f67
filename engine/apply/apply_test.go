package apply_test

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

	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

func addr(s string) model.Address {
	a, err := model.ParseAddress(s)
	if err != nil {
		panic(err)
	}
	return a
}

// create makes a step of manifest web; image.* and pool.* belong to none.
func create(name string, after ...string) plan.Step {
	s := plan.Step{Address: addr(name), Action: plan.Create, Manifest: "web", VMID: 100, Want: &model.Resource{Addr: addr(name)}}
	if s.Address.Kind != "vm" {
		s.Manifest = ""
	}
	for _, a := range after {
		s.After = append(s.After, addr(a))
	}
	return s
}

func of(manifest string, s plan.Step) plan.Step {
	s.Manifest = manifest
	return s
}

func with(a plan.Action, s plan.Step) plan.Step {
	s.Action = a
	return s
}

func always(policy string) func(string) string { return func(string) string { return policy } }

var errFull = errors.New("storage is full")

// failing makes a Do that fails for some addresses, at any action but a removal.
func failing(names ...string) apply.Do {
	return func(_ context.Context, s plan.Step) error {
		if slices.Contains(names, s.Address.String()) && s.Action != plan.Delete {
			return errFull
		}
		return nil
	}
}

// told lists what became of steps: "vm.a failed: storage is full".
func told(results []apply.Result) []string {
	var out []string
	for _, r := range results {
		text := r.Step.Address.String() + " " + string(r.Status)
		if r.Err != nil {
			text += ": " + r.Err.Error()
		}
		out = append(out, text)
	}
	return out
}

// tape records events as one line each.
type tape []string

func (l *tape) notify(e apply.Event) {
	text := string(e.What)
	switch e.What {
	case apply.Started:
		text += fmt.Sprintf(" %s %s", e.Step.Action, e.Step.Address)
	case apply.Finished:
		text += fmt.Sprintf(" %s %s: %s", e.Step.Action, e.Step.Address, e.Result.Status)
	default:
		text += " " + e.Text
	}
	*l = append(*l, fmt.Sprintf("%s (%d running, %d left)", text, e.Running, e.Left))
}

func TestOneAfterTheOther(t *testing.T) {
	var seen tape
	steps := []plan.Step{create("vm.a"), create("vm.b", "vm.a"), create("vm.c", "vm.b", "vm.elsewhere")}
	got := apply.Run(t.Context(), steps, apply.Options{Width: 1, Notify: seen.notify}, failing())
	require.Equal(t, []string{"vm.a done", "vm.b done", "vm.c done"}, told(got))
	require.Equal(t, tape{
		"started create vm.a (1 running, 2 left)", "finished create vm.a: done (0 running, 2 left)",
		"started create vm.b (1 running, 1 left)", "finished create vm.b: done (0 running, 1 left)",
		"started create vm.c (1 running, 0 left)", "finished create vm.c: done (0 running, 0 left)",
	}, seen)
	require.Empty(t, apply.Run(t.Context(), nil, apply.Options{}, failing()))
}

// Peers run side by side, as many as allowed; what waits runs as soon as it may.
func TestWidth(t *testing.T) {
	for width, expect := range map[int]time.Duration{1: 50 * time.Second, 7: 8 * time.Second, 0: 5 * time.Second, 50: time.Second} {
		synctest.Test(t, func(t *testing.T) {
			var steps []plan.Step
			for i := range 50 {
				steps = append(steps, create(fmt.Sprintf("vm.w-%d", i)))
			}
			begun := time.Now()
			got := apply.Run(t.Context(), steps, apply.Options{Width: width}, lasting(time.Second))
			require.Equal(t, expect, time.Since(begun))
			for i, r := range got {
				require.Equal(t, steps[i].Address, r.Step.Address)
				require.Equal(t, []any{apply.Done, time.Second}, []any{r.Status, r.Duration})
				require.False(t, r.Started.IsZero())
			}
		})
	}
}

// lasting makes a Do that takes a while, and lets go when told so.
func lasting(d time.Duration) apply.Do {
	return func(ctx context.Context, _ plan.Step) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(d):
			return nil
		}
	}
}

func TestFailures(t *testing.T) {
	chain := []plan.Step{create("vm.a"), create("vm.peer"), create("vm.b", "vm.a"), create("vm.c", "vm.b"), create("vm.d", "vm.c")}
	for name, c := range map[string]struct {
		steps  []plan.Step
		fails  []string
		policy string
		width  int
		expect []string
	}{
		"stop": {
			steps: chain, fails: []string{"vm.b"}, width: 1,
			expect: []string{
				"vm.a done", "vm.peer done", "vm.b failed: storage is full", "vm.c skipped: it depends on vm.b, which failed",
				"vm.d skipped: it depends on vm.c, which was not done",
			},
		},
		"stop before the peer": {
			steps: []plan.Step{create("vm.a"), create("vm.peer"), of("db", create("vm.other"))}, fails: []string{"vm.a"}, width: 1,
			expect: []string{"vm.a failed: storage is full", "vm.peer skipped: manifest web stopped when vm.a failed", "vm.other done"},
		},
		"continue": {
			steps: []plan.Step{create("vm.a"), create("vm.b", "vm.a"), create("vm.peer")}, fails: []string{"vm.a"}, width: 1, policy: apply.Continue,
			expect: []string{"vm.a failed: storage is full", "vm.b skipped: it depends on vm.a, which failed", "vm.peer done"},
		},
		"rollback": {
			steps: append(slices.Clone(chain), create("vm.late"), of("db", create("vm.other"))), fails: []string{"vm.c"}, width: 2, policy: apply.Rollback,
			expect: []string{
				"vm.a rolled-back", "vm.peer rolled-back", "vm.b rolled-back", "vm.c failed: storage is full",
				"vm.d skipped: it depends on vm.c, which failed", "vm.late rolled-back", "vm.other done",
			},
		},
		"rollback removes only what it made": {
			steps: []plan.Step{with(plan.Update, create("vm.a")), create("vm.b"), with(plan.Replace, create("vm.c")), create("image.a"), create("vm.d", "image.a")},
			fails: []string{"vm.d"}, width: 1, policy: apply.Rollback,
			expect: []string{"vm.a done", "vm.b rolled-back", "vm.c done", "image.a done", "vm.d failed: storage is full"},
		},
		"rollback spares what others live on": {
			steps: []plan.Step{create("vm.a"), create("vm.b", "vm.a"), of("db", create("vm.db", "vm.b")), create("vm.c"), create("vm.d", "vm.c", "vm.db")},
			fails: []string{"vm.d"}, width: 4, policy: apply.Rollback,
			expect: []string{"vm.a done", "vm.b done", "vm.db done", "vm.c rolled-back", "vm.d failed: storage is full"},
		},
		"rollback spares them in whatever order they are listed": {
			steps: []plan.Step{of("db", create("vm.db", "vm.b")), create("vm.d", "vm.c", "vm.db"), create("vm.b", "vm.a"), create("vm.a"), create("vm.c")},
			fails: []string{"vm.d"}, width: 4, policy: apply.Rollback,
			expect: []string{"vm.db done", "vm.d failed: storage is full", "vm.b done", "vm.a done", "vm.c rolled-back"},
		},
		"rollback skips what would live on it": {
			steps: []plan.Step{create("vm.a"), create("vm.b"), of("db", create("vm.db", "vm.a", "vm.slow")), of("db", create("vm.slow"))},
			fails: []string{"vm.b"}, width: 1, policy: apply.Rollback,
			expect: []string{
				"vm.a rolled-back", "vm.b failed: storage is full", "vm.db skipped: it depends on vm.a, which is rolled back", "vm.slow done",
			},
		},
		"an object fails for all that need it": {
			steps: []plan.Step{create("image.a"), create("pool.a", "image.a"), create("vm.a", "pool.a"), create("vm.peer"), of("db", create("vm.db"))},
			fails: []string{"image.a"}, width: 1,
			expect: []string{
				"image.a failed: storage is full", "pool.a skipped: it depends on image.a, which failed", "vm.a skipped: it depends on pool.a, which was not done",
				"vm.peer skipped: manifest web stopped when image.a failed", "vm.db done",
			},
		},
		"an object that nobody needs": {
			steps: []plan.Step{create("image.a"), create("image.b"), create("vm.a")}, fails: []string{"image.a"}, width: 1,
			expect: []string{"image.a failed: storage is full", "image.b done", "vm.a done"},
		},
		"steps in a circle": {
			steps: []plan.Step{create("vm.a", "vm.b"), create("vm.b", "vm.a"), create("vm.c", "vm.a"), create("vm.d")},
			expect: []string{
				"vm.a skipped: it depends on itself", "vm.b skipped: it depends on vm.a, which was not done", "vm.c skipped: it depends on vm.a, which was not done", "vm.d done",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			policy := func(manifest string) string {
				require.NotEmpty(t, manifest, "an object has no policy")
				return c.policy
			}
			if c.policy == "" {
				policy = nil
			}
			got := apply.Run(t.Context(), c.steps, apply.Options{Width: c.width, OnError: policy}, failing(c.fails...))
			require.Equal(t, c.expect, told(got))
		})
	}
}

// The removal waits until nothing of the manifest runs any more, goes children
// first, and gets what it needs to find what was made.
func TestRollback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		steps := []plan.Step{create("vm.a"), create("vm.b", "vm.a"), create("vm.c", "vm.a"), create("vm.slow"), of("db", create("vm.other")), of("db", create("vm.later", "vm.other"))}
		steps[1].Node, steps[1].VMID = "b", 102
		var mu sync.Mutex
		var undone []plan.Step
		var seen tape
		do := func(ctx context.Context, s plan.Step) error {
			took := map[string]time.Duration{"vm.slow": time.Minute, "vm.other": 2 * time.Minute}[s.Address.String()]
			if err := lasting(took+time.Second)(ctx, s); err != nil {
				return err
			}
			if s.Action == plan.Delete {
				mu.Lock()
				defer mu.Unlock()
				undone = append(undone, s)
				return nil
			}
			return failing("vm.c")(ctx, s)
		}
		got := apply.Run(t.Context(), steps, apply.Options{OnError: always(apply.Rollback), Notify: seen.notify}, do)
		require.Equal(t, []string{"vm.a rolled-back", "vm.b rolled-back", "vm.c failed: storage is full", "vm.slow rolled-back", "vm.other done", "vm.later done"}, told(got))
		require.Equal(t, 61*time.Second, got[3].Duration, "the removal does not count")
		require.Contains(t, seen, "note vm.c failed: rolling back manifest web, 4 created by this run to remove (1 running, 1 left)")
		event := func(text string) int {
			return slices.IndexFunc(seen, func(e string) bool { return strings.HasPrefix(e, text) })
		}
		for _, removed := range []string{"vm.a", "vm.b", "vm.c", "vm.slow"} {
			require.Positive(t, event("finished delete "+removed+": rolled-back "), removed)
		}
		require.Len(t, undone, 4)
		require.Less(t, event("finished delete vm.b"), event("started delete vm.a"), "parents last")
		require.Less(t, event("finished delete vm.c"), event("started delete vm.a"), "parents last")
		i := slices.IndexFunc(undone, func(s plan.Step) bool { return s.Address.Name == "b" })
		require.Equal(t, plan.Step{
			Address: addr("vm.b"), Node: "b", Manifest: "web", VMID: 102, Action: plan.Delete, Class: model.ClassNone,
			Reason: "vm.c failed, and manifest web is rolled back", Changes: []plan.Change{}, After: []model.Address{}, Have: steps[1].Want,
		}, undone[i])
	})
}

func TestRollbackThatFails(t *testing.T) {
	var seen tape
	do := func(_ context.Context, s plan.Step) error {
		if name := s.Address.Name; s.Action == plan.Create && name == "d" || s.Action == plan.Delete && (name == "b" || name == "e") {
			return errFull
		}
		return nil
	}
	steps := []plan.Step{create("vm.a"), create("vm.b", "vm.a"), create("vm.c", "vm.b"), create("vm.d", "vm.c"), create("vm.e")}
	got := apply.Run(t.Context(), steps, apply.Options{Width: 1, OnError: always(apply.Rollback), Notify: seen.notify}, do)
	require.Equal(t, []string{
		"vm.a done", "vm.b failed: roll back vm.b: storage is full", "vm.c rolled-back", "vm.d failed: storage is full", "vm.e failed: roll back vm.e: storage is full",
	}, told(got))
	require.Contains(t, seen, "note vm.a stays: vm.b could not be removed (0 running, 0 left)")
}

func BenchmarkRun(b *testing.B) {
	for _, n := range []int{1000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			steps := []plan.Step{create("image.a")}
			for i := range n {
				steps = append(steps, create(fmt.Sprintf("vm.w-%d", i), "image.a"))
			}
			for b.Loop() {
				apply.Run(b.Context(), steps, apply.Options{}, failing())
			}
		})
	}
}
