package apply

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

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
func failing(names ...string) Do {
	return func(_ context.Context, s plan.Step) error {
		if slices.Contains(names, s.Address.String()) && s.Action != plan.Delete {
			return errFull
		}
		return nil
	}
}

// outcomes lists what became of steps: "vm.a failed: storage is full".
func outcomes(results []Result) []string {
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

func (l *tape) notify(e Event) {
	text := string(e.What)
	switch e.What {
	case Started:
		text += fmt.Sprintf(" %s %s", e.Step.Action, e.Step.Address)
	case Finished:
		text += fmt.Sprintf(" %s %s: %s", e.Step.Action, e.Step.Address, e.Result.Status)
	default:
		text += " " + e.Text
	}
	*l = append(*l, fmt.Sprintf("%s (%d running, %d left)", text, e.Running, e.Left))
}

func TestOneAfterTheOther(t *testing.T) {
	var seen tape
	steps := []plan.Step{create("vm.a"), create("vm.b", "vm.a"), create("vm.c", "vm.b", "vm.elsewhere")}
	got := Run(t.Context(), steps, Options{Width: 1, Notify: seen.notify}, failing())
	require.Equal(t, []string{"vm.a done", "vm.b done", "vm.c done"}, outcomes(got))
	require.Equal(t, tape{
		"started create vm.a (1 running, 2 left)", "finished create vm.a: done (0 running, 2 left)",
		"started create vm.b (1 running, 1 left)", "finished create vm.b: done (0 running, 1 left)",
		"started create vm.c (1 running, 0 left)", "finished create vm.c: done (0 running, 0 left)",
	}, seen)
	require.Empty(t, Run(t.Context(), nil, Options{}, failing()))
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
			got := Run(t.Context(), steps, Options{Width: width}, lasting(time.Second))
			require.Equal(t, expect, time.Since(begun))
			for i, r := range got {
				require.Equal(t, steps[i].Address, r.Step.Address)
				require.Equal(t, []any{Done, time.Second}, []any{r.Status, r.Duration})
				require.False(t, r.Started.IsZero())
			}
		})
	}
}

// lasting makes a Do that takes a while, and lets go when told so.
func lasting(d time.Duration) Do {
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
			steps: []plan.Step{create("vm.a"), create("vm.b", "vm.a"), create("vm.peer")}, fails: []string{"vm.a"}, width: 1, policy: onErrorContinue,
			expect: []string{"vm.a failed: storage is full", "vm.b skipped: it depends on vm.a, which failed", "vm.peer done"},
		},
		"rollback": {
			steps: append(slices.Clone(chain), create("vm.late"), of("db", create("vm.other"))), fails: []string{"vm.c"}, width: 2, policy: onErrorRollback,
			expect: []string{
				"vm.a rolled-back", "vm.peer rolled-back", "vm.b rolled-back", "vm.c failed: storage is full",
				"vm.d skipped: it depends on vm.c, which failed", "vm.late rolled-back", "vm.other done",
			},
		},
		"rollback removes only what it made": {
			steps: []plan.Step{with(plan.Update, create("vm.a")), create("vm.b"), with(plan.Replace, create("vm.c")), create("image.a"), create("vm.d", "image.a")},
			fails: []string{"vm.d"}, width: 1, policy: onErrorRollback,
			expect: []string{"vm.a done", "vm.b rolled-back", "vm.c done", "image.a done", "vm.d failed: storage is full"},
		},
		"rollback spares what others live on": {
			steps: []plan.Step{create("vm.a"), create("vm.b", "vm.a"), of("db", create("vm.db", "vm.b")), create("vm.c"), create("vm.d", "vm.c", "vm.db")},
			fails: []string{"vm.d"}, width: 4, policy: onErrorRollback,
			expect: []string{"vm.a done", "vm.b done", "vm.db done", "vm.c rolled-back", "vm.d failed: storage is full"},
		},
		"rollback spares them in whatever order they are listed": {
			steps: []plan.Step{of("db", create("vm.db", "vm.b")), create("vm.d", "vm.c", "vm.db"), create("vm.b", "vm.a"), create("vm.a"), create("vm.c")},
			fails: []string{"vm.d"}, width: 4, policy: onErrorRollback,
			expect: []string{"vm.db done", "vm.d failed: storage is full", "vm.b done", "vm.a done", "vm.c rolled-back"},
		},
		"rollback skips what would live on it": {
			steps: []plan.Step{create("vm.a"), create("vm.b"), of("db", create("vm.db", "vm.a", "vm.slow")), of("db", create("vm.slow"))},
			fails: []string{"vm.b"}, width: 1, policy: onErrorRollback,
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
		"an object that nothing needs": {
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
			got := Run(t.Context(), c.steps, Options{Width: c.width, OnError: policy}, failing(c.fails...))
			require.Equal(t, c.expect, outcomes(got))
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
		got := Run(t.Context(), steps, Options{OnError: always(onErrorRollback), Notify: seen.notify}, do)
		require.Equal(t, []string{"vm.a rolled-back", "vm.b rolled-back", "vm.c failed: storage is full", "vm.slow rolled-back", "vm.other done", "vm.later done"}, outcomes(got))
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
	got := Run(t.Context(), steps, Options{Width: 1, OnError: always(onErrorRollback), Notify: seen.notify}, do)
	require.Equal(t, []string{
		"vm.a done", "vm.b failed: roll back vm.b: storage is full", "vm.c rolled-back", "vm.d failed: storage is full", "vm.e failed: roll back vm.e: storage is full",
	}, outcomes(got))
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
				Run(b.Context(), steps, Options{}, failing())
			}
		})
	}
}

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
func TestRunInvariants(t *testing.T) {
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
			policies[m] = rapid.SampledFrom([]string{onErrorStop, onErrorRollback, onErrorContinue, ""}).Draw(t, m)
		}
		width := rapid.IntRange(1, 5).Draw(t, "width")
		ended := rapid.IntRange(0, 3).Draw(t, "ended") == 0
		after := time.Duration(rapid.IntRange(0, 20).Draw(t, "stop after"))*time.Second + time.Millisecond

		var events []Event
		var got []Result
		synctest.Test(outer, func(inner *testing.T) { // nothing in here may fail: rapid must not
			ctx, cancel := context.WithCancel(inner.Context())
			defer cancel()
			stop := make(chan struct{})
			if ended {
				time.AfterFunc(after, func() { close(stop) })
				time.AfterFunc(after+2*time.Second, cancel)
			}
			got = Run(ctx, steps, Options{
				Width: width, Stop: stop, Notify: func(e Event) { events = append(events, e) },
				OnError: func(m string) string { return policies[m] },
			}, h.do)
		})

		require.Empty(t, h.wrong)
		require.LessOrEqual(t, h.peak, width)
		require.Zero(t, h.running)
		require.Len(t, got, len(steps))
		failed := map[string]bool{}
		status := map[model.Address]Status{}
		for i, r := range got {
			a := r.Step.Address
			require.Equal(t, steps[i], r.Step)
			require.LessOrEqual(t, h.begun[a], 1)
			require.Equal(t, r.Status == Skipped, h.begun[a] == 0, a)
			require.Equal(t, r.Status == Done || r.Status == RolledBack, r.Err == nil, a)
			switch r.Status {
			case Done:
				require.True(t, h.done[a])
				require.Equal(t, r.Step.Action != plan.Delete, h.there[a], a)
			case RolledBack:
				require.False(t, h.there[a], a)
				require.Equal(t, onErrorRollback, policies[r.Step.Manifest])
			case Failed:
				failed[r.Step.Manifest] = true
			default:
				require.Equal(t, r.Step.Action != plan.Create, h.there[a], a)
			}
			status[a] = r.Status
		}
		for _, r := range got {
			if r.Status == Skipped && !ended && policies[r.Step.Manifest] == onErrorContinue {
				require.True(t, slices.ContainsFunc(r.Step.After, func(a model.Address) bool {
					s, among := status[a]
					return among && s != Done
				}), "%s was skipped although all it waits for was done", r.Step.Address)
			}
			if r.Status == Skipped && !ended && len(failed) == 0 {
				t.Fatalf("%s was skipped although nothing failed", r.Step.Address)
			}
		}
		checkEvents(t, events, policies, len(steps))
	})
}

// checkEvents: as many ends as beginnings, one end a step, and after a failure
// nothing new of a manifest that wants none.
func checkEvents(t *rapid.T, events []Event, policies map[string]string, steps int) {
	begun, finished, over := 0, 0, map[string]bool{}
	for _, e := range events {
		undo := e.Step.Have != nil
		switch e.What {
		case Started:
			begun++
			require.False(t, over[e.Step.Manifest] && !undo, "%s begun after its manifest failed", e.Step.Address)
		case Finished:
			if !undo {
				finished++
			}
			if e.Result.Status != Skipped {
				begun--
			}
			if p := policies[e.Step.Manifest]; e.Result.Status == Failed && e.Step.Manifest != "" && p != onErrorContinue {
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

type locker struct {
	Password string            `hcl:"password" secret:"true"`
	Comment  string            `hcl:"comment"`
	Options  map[string]string `hcl:"options"`
}

// What a host says of a value that it does not like goes into logs and receipts, the
// value does not.
func TestAnErrorDoesNotRepeatSecrets(t *testing.T) {
	cause := errors.New("cause")
	step := plan.Step{
		Address: model.Address{Kind: "locker", Name: "a"}, Action: plan.Update,
		Want: &model.Resource{
			Spec:      &locker{Password: "hunter2 & more", Comment: "plain comment", Options: map[string]string{"args": "t0ken!"}},
			Sensitive: []string{"options.args"},
		},
		Changes: []plan.Change{{Path: "keys", Before: "older-secret", After: []string{"newer-secret", "x"}, Sensitive: true}},
	}
	results := Run(t.Context(), []plan.Step{step}, Options{}, func(context.Context, plan.Step) error {
		return fmt.Errorf("400: bad 'hunter2 & more' or 'hunter2+%%26+more' of plain comment, t0ken!, older-secret, newer-secret, x: %w", cause)
	})
	require.Equal(t, "400: bad '(sensitive)' or '(sensitive)' of plain comment, (sensitive), (sensitive), (sensitive), x: cause", results[0].Err.Error())
	require.ErrorIs(t, results[0].Err, cause)
}

// lost is an error that leaves open what was done.
type lost string

func (l lost) Error() string      { return string(l) }
func (lost) OutcomeUnknown() bool { return true }

func TestOutcomeUnknown(t *testing.T) {
	for _, err := range []error{
		lost("x"), fmt.Errorf("starting: %w", lost("x")), errors.Join(errors.New("one"), lost("x")),
		fmt.Errorf("%w; and %w", locked(true), fmt.Errorf("again: %w", lost("x"))),
	} {
		require.True(t, outcomeUnknown(err), err.Error())
	}
	for _, err := range []error{nil, errors.New("no"), fmt.Errorf("starting: %w", locked(true)), errors.Join(errors.New("one"), errors.New("two"))} {
		require.False(t, outcomeUnknown(err))
	}
}

// TestRepeat: looks before each further try, and does what the look leaves.
func TestRepeat(t *testing.T) {
	web := plan.Step{Address: model.Address{Kind: "vm", Name: "web"}, Action: plan.Create, VMID: 100}
	other := web
	other.VMID = 101
	for name, c := range map[string]struct {
		answers []error // of the step, in turn
		looks   []any   // *plan.Step or error or nil, in turn
		done    []int   // VMIDs that were tried
		err     string
		most    time.Duration
	}{
		"done at once":            {answers: []error{nil}, done: []int{100}},
		"refused":                 {answers: []error{errors.New("no")}, done: []int{100}, err: "no"},
		"nothing is left":         {answers: []error{lost("596")}, looks: []any{nil}, done: []int{100}, most: time.Second},
		"the same is left":        {answers: []error{lost("596"), nil}, looks: []any{&web}, done: []int{100, 100}, most: time.Second},
		"something else is left":  {answers: []error{lost("596"), lost("596"), nil}, looks: []any{&other, &other}, done: []int{100, 101, 101}, most: 3 * time.Second},
		"then it is refused":      {answers: []error{lost("596"), errors.New("no")}, looks: []any{&web}, done: []int{100, 100}, err: "no", most: time.Second},
		"it must not go on":       {answers: []error{lost("596")}, looks: []any{errors.New("plan again")}, done: []int{100}, err: "596; plan again", most: time.Second},
		"first it cannot be seen": {answers: []error{lost("596"), nil}, looks: []any{lost("dark"), &web}, done: []int{100, 100}, most: 3 * time.Second},
		"it can never be seen": {
			answers: []error{lost("596")}, looks: []any{lost("dark"), lost("dark"), lost("dark")}, done: []int{100}, most: 7 * time.Second,
			err: "tried 4 times, checking the host before each retry; the outcome is still unknown: 596; and checking it failed: dark",
		},
		"never": {
			answers: []error{lost("1"), lost("2"), lost("3"), lost("4")}, looks: []any{&web, &web, &web}, done: []int{100, 100, 100, 100}, most: 7 * time.Second,
			err: "tried 4 times, checking the host before each retry; the outcome is still unknown: 4",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var done []int
				answers, looks := c.answers, c.looks
				do := func(_ context.Context, s plan.Step) error {
					done = append(done, s.VMID)
					err := answers[0]
					answers = answers[1:]
					return err
				}
				look := func(_ context.Context, _ plan.Step, since time.Time) (*plan.Step, error) {
					require.True(t, time.Now().After(since))
					next := looks[0]
					looks = looks[1:]
					switch next := next.(type) {
					case error:
						return nil, next
					case *plan.Step:
						return next, nil
					default:
						return nil, nil //nolint:nilnil // nothing is left
					}
				}
				began := time.Now()
				err := Backoff{}.Repeat(do, look, nil)(t.Context(), web)
				if c.err == "" {
					require.NoError(t, err)
				} else {
					require.EqualError(t, err, c.err)
				}
				require.Equal(t, c.done, done)
				require.Empty(t, answers)
				require.Empty(t, looks)
				require.LessOrEqual(t, time.Since(began), c.most)
				require.GreaterOrEqual(t, time.Since(began), c.most/2)
			})
		})
	}
}

// TestRepeatIsLeft: nothing is tried once the run shall stop, or past the time of a step.
// Progress is a note, without secrets.
func TestRepeatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		tries := 0
		do := func(context.Context, plan.Step) error {
			tries++
			return lost("596: password hunter22")
		}
		look := func(_ context.Context, s plan.Step, _ time.Time) (*plan.Step, error) { return &s, nil }
		again := Backoff{}.Repeat(do, look, stop)
		s := plan.Step{
			Address: model.Address{Kind: "vm", Name: "web"}, Action: plan.Create,
			Changes: []plan.Change{{Path: "password", After: "hunter22", Sensitive: true}},
		}
		short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		require.ErrorContains(t, again(short, s), "596")
		require.Equal(t, 1, tries)

		var notes []string
		results := Run(t.Context(), []plan.Step{s}, Options{Stop: stop, Notify: func(e Event) {
			if e.What != Note {
				return
			}
			require.Equal(t, s.Address, e.Step.Address)
			notes = append(notes, e.Text)
			if len(notes) == 2 {
				close(stop)
			}
		}}, again)
		require.Equal(t, 3, tries)
		require.Equal(t, Failed, results[0].Status)
		require.Len(t, notes, 2)
		require.True(t, strings.HasPrefix(notes[0], "vm.web: the outcome is unknown; checking the host and retrying in 0."), notes[0])
		require.Contains(t, notes[1], "(try 3 of 4): 596: password (sensitive)")
	})
}

type locked bool

func (locked) Error() string     { return "got timeout" }
func (l locked) Temporary() bool { return bool(l) }

func TestRetry(t *testing.T) {
	for name, c := range map[string]struct {
		errs       []error // one a try; none after the last
		backoff    Backoff
		deadline   time.Duration
		cancel     time.Duration
		tries      int
		err        string
		least, max time.Duration
	}{
		"good at once":     {tries: 1},
		"final":            {errs: []error{locked(false), nil}, tries: 1, err: "got timeout"},
		"unknown is final": {errs: []error{errFull}, tries: 1, err: "storage is full"},
		"temporary":        {errs: []error{fmt.Errorf("put config: %w", locked(true)), locked(true)}, tries: 3, least: 1500 * time.Millisecond, max: 3 * time.Second},
		"for ever": {
			errs: []error{locked(true), locked(true), locked(true), locked(true), locked(true)}, tries: 4, err: "tried 4 times: got timeout",
			least: 3500 * time.Millisecond, max: 7 * time.Second,
		},
		"pauses are bounded": {
			errs: []error{locked(true), locked(true), locked(true), locked(true)}, backoff: Backoff{Tries: 5, First: time.Minute, Most: 2 * time.Minute},
			tries: 5, least: 210 * time.Second, max: 420 * time.Second,
		},
		"a deadline that the pause would outlast": {errs: []error{locked(true)}, deadline: 400 * time.Millisecond, tries: 1, err: "got timeout"},
		"cancelled in the pause":                  {errs: []error{locked(true)}, cancel: 100 * time.Millisecond, tries: 1, err: "got timeout", least: 100 * time.Millisecond, max: 100 * time.Millisecond},
		"cancelled before":                        {errs: []error{locked(true)}, cancel: -1, tries: 1, err: "got timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.deadline > 0 {
					ctx, cancel = context.WithTimeout(ctx, c.deadline)
					defer cancel()
				}
				if c.cancel > 0 {
					time.AfterFunc(c.cancel, cancel)
				} else if c.cancel < 0 {
					cancel()
				}
				tries, begun := 0, time.Now()
				err := c.backoff.Retry(func(context.Context, plan.Step) error {
					tries++
					if tries > len(c.errs) {
						return nil
					}
					return c.errs[tries-1]
				})(ctx, create("vm.a"))
				took := time.Since(begun)
				if c.err == "" {
					require.NoError(t, err)
				} else {
					require.EqualError(t, err, c.err)
					require.True(t, errors.Is(err, c.errs[len(c.errs)-1]) || errors.As(err, new(locked)))
				}
				require.Equal(t, c.tries, tries)
				require.GreaterOrEqual(t, took, c.least)
				require.LessOrEqual(t, took, c.max)
			})
		})
	}
}

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
	YieldForever(ctx)
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

func ends(results []Result) map[Status]int {
	out := map[Status]int{}
	for _, r := range results {
		out[r.Status]++
	}
	return out
}

// A step that waits for its check delays only the steps of its manifest that a failure would stop or roll back.
func TestWaitingStepsReleaseTheirSlot(t *testing.T) {
	for name, c := range map[string]struct {
		do     plan.Action
		policy string
		top    int // of the ill manifest
		ends   map[Status]int
		took   time.Duration
	}{
		// 170 minutes of work in ten places.
		"a failure stops nothing": {plan.Create, onErrorContinue, 20, map[Status]int{Failed: 20, Done: 150}, 17 * time.Minute},
		// The second ten are begun after 6 minutes.
		"a failure stops nothing, but guests that ran may be down": {plan.Update, onErrorContinue, 10, map[Status]int{Failed: 20, Done: 150}, 17 * time.Minute},
		"a failure stops the manifest":                             {plan.Create, onErrorStop, 10, map[Status]int{Failed: 10, Skipped: 10, Done: 150}, 16 * time.Minute},
		"a failure rolls the manifest back":                        {plan.Create, onErrorRollback, 10, map[Status]int{Failed: 10, Skipped: 10, Done: 150}, 17 * time.Minute},
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
				got := Run(t.Context(), append(many("ill", 20, c.do), many("web", 150, plan.Create)...), Options{OnError: always(c.policy)}, do)
				require.Equal(t, c.ends, ends(got))
				require.Equal(t, c.top, h.top["ill"])
				require.Equal(t, 10, h.peak)
				require.Equal(t, c.took, time.Since(begun))
			})
		})
	}
}

// A step that yielded and continues gets a slot again before anything new is begun.
func TestBackToWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, begun := newCounter(), time.Now()
		do := func(ctx context.Context, s plan.Step) error {
			if s.Manifest != "web" {
				return h.work(ctx, 10*time.Minute)
			}
			back := Yield(ctx)
			if err := pause(ctx, time.Minute); err != nil {
				return err
			}
			if err := back(ctx); err != nil {
				return err
			}
			return h.work(ctx, time.Minute)
		}
		got := Run(t.Context(), append(many("web", 2, plan.Create), many("db", 3, plan.Create)...), Options{Width: 1}, do)
		require.Equal(t, map[Status]int{Done: 5}, ends(got))
		require.Equal(t, 1, h.peak)
		require.Equal(t, 11*time.Minute, got[0].Duration, "a minute of rest, and one of work when the first of db was done")
		require.Equal(t, 32*time.Minute, time.Since(begun))
	})
}

// The wait for a slot ends with the context and at the deadline.
func TestNoPlaceInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		do := func(ctx context.Context, s plan.Step) error {
			if s.Manifest != "web" {
				return pause(ctx, time.Hour)
			}
			back := Yield(ctx)
			if err := pause(ctx, time.Second); err != nil {
				return err
			}
			return back(ctx)
		}
		limit := func(s plan.Step) time.Duration {
			return map[string]time.Duration{"web": 5 * time.Minute}[s.Manifest]
		}
		got := Run(t.Context(), append(many("web", 1, plan.Create), many("db", 1, plan.Create)...), Options{Width: 1, Deadline: limit}, do)
		require.Equal(t, []string{"vm.web-0 failed: gave up after 5m0s: context deadline exceeded", "vm.db-0 done"}, outcomes(got))
	})
	require.NoError(t, Yield(t.Context())(t.Context()), "outside of a run there are no places")
	YieldForever(t.Context())
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
			policies[manifest] = rapid.SampledFrom([]string{onErrorStop, onErrorRollback, onErrorContinue}).Draw(rt, "policy")
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
					YieldForever(ctx)
					return pause(ctx, time.Minute)
				}
				back := Yield(ctx)
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
			got := Run(t.Context(), steps, Options{Width: width, OnError: func(m string) string { return policies[m] }}, do)
			require.Len(rt, got, len(steps))
		})
		require.LessOrEqual(rt, h.peak, width)
		for m, n := range h.top {
			if policies[m] != onErrorContinue {
				require.LessOrEqual(rt, n, width, m)
			}
		}
	})
}

func TestDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		got := Run(t.Context(), []plan.Step{create("vm.a"), create("vm.b"), create("vm.c", "vm.a")}, Options{
			OnError: always(onErrorContinue),
			Deadline: func(s plan.Step) time.Duration {
				return map[string]time.Duration{"vm.a": 10 * time.Minute, "vm.b": 0}[s.Address.String()]
			},
		}, lasting(time.Hour))
		require.Equal(t, []string{
			"vm.a failed: gave up after 10m0s: context deadline exceeded", "vm.b done", "vm.c skipped: it depends on vm.a, which failed",
		}, outcomes(got))
		require.ErrorIs(t, got[0].Err, context.DeadlineExceeded)
		require.Equal(t, 10*time.Minute, got[0].Duration)
		require.Equal(t, time.Hour, time.Since(begun))
	})
}

// Once: nothing new is started and what runs may finish. Twice: leave now.
func TestStopAndCancel(t *testing.T) {
	steps := []plan.Step{create("vm.a"), create("vm.b"), create("vm.c", "vm.a"), create("vm.d")}
	run := func(t *testing.T, stopAt, cancelAt time.Duration, o Options, do Do) ([]Result, time.Duration) {
		stop := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if stopAt > 0 {
			time.AfterFunc(stopAt, func() { close(stop) })
		}
		if cancelAt > 0 {
			time.AfterFunc(cancelAt, cancel)
		}
		begun := time.Now()
		o.Width, o.Stop = 2, stop
		got := Run(ctx, steps, o, do)
		return got, time.Since(begun)
	}
	t.Run("stop", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var seen tape
			got, took := run(t, time.Minute, 0, Options{Notify: seen.notify}, lasting(time.Hour))
			require.Equal(t, time.Hour, took)
			require.Equal(t, []string{"vm.a done", "vm.b done", "vm.c skipped: stopped before it started", "vm.d skipped: stopped before it started"}, outcomes(got))
			require.Contains(t, seen, "waiting nothing new is started, 2 still running (2 running, 2 left)")
		})
	})
	t.Run("stop, then cancel", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			got, took := run(t, time.Minute, 2*time.Minute, Options{}, lasting(time.Hour))
			require.Equal(t, 2*time.Minute, took)
			require.Equal(t, []string{"vm.a failed: context canceled", "vm.b failed: context canceled", "vm.c skipped: it depends on vm.a, which failed", "vm.d skipped: stopped before it started"}, outcomes(got))
		})
	})
	t.Run("cancel", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			got, took := run(t, 0, time.Minute, Options{
				OnError: always(onErrorRollback), Deadline: func(plan.Step) time.Duration { return 2 * time.Hour },
			}, lasting(time.Hour))
			require.Equal(t, time.Minute, took)
			require.Equal(t, []string{
				"vm.a failed: context canceled", "vm.b failed: context canceled",
				"vm.c skipped: it depends on vm.a, which failed", "vm.d skipped: context canceled",
			}, outcomes(got), "and nothing is rolled back after that")
		})
	})
	t.Run("stop while rolling back", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var seen tape
			got, took := run(t, 150*time.Minute, 0, Options{OnError: always(onErrorRollback), Notify: seen.notify}, func(ctx context.Context, s plan.Step) error {
				if err := lasting(time.Hour)(ctx, s); err != nil {
					return err
				}
				return failing("vm.d")(ctx, s)
			})
			require.Equal(t, 3*time.Hour, took)
			require.Equal(t, []string{"vm.a done", "vm.b done", "vm.c rolled-back", "vm.d failed: storage is full"}, outcomes(got))
			require.Contains(t, seen, "note vm.a stays: stopped before it started (0 running, 0 left)")
		})
	})
	t.Run("before it began", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		stop := make(chan struct{})
		close(stop)
		for _, r := range append(Run(ctx, steps, Options{}, nil), Run(t.Context(), steps, Options{Stop: stop}, nil)...) {
			require.Equal(t, Skipped, r.Status)
			require.Error(t, r.Err)
			require.Zero(t, r.Started)
		}
	})
}

// Run leaves no worker running: it waits for a slow one.
func TestRunWaitsForItsWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		gone := false
		Run(ctx, []plan.Step{create("vm.a")}, Options{}, func(ctx context.Context, _ plan.Step) error {
			<-ctx.Done()
			<-time.After(time.Minute)
			gone = true
			return nil
		})
		require.True(t, gone)
	})
}

func TestPanicsAreErrors(t *testing.T) {
	do := func(_ context.Context, s plan.Step) error {
		switch s.Address.Name {
		case "a":
			panic("boom")
		case "b":
			panic(io.ErrUnexpectedEOF)
		case "c":
			runtime.Goexit()
		}
		return nil
	}
	got := Run(t.Context(), []plan.Step{create("vm.a"), create("vm.b"), create("vm.c"), create("vm.d")}, Options{OnError: always(onErrorContinue)}, do)
	require.Equal(t, []string{"vm.a failed: vm.a: panic: boom", "vm.b failed: vm.b: panic: unexpected EOF", "vm.c failed: vm.c: ended without an answer", "vm.d done"}, outcomes(got))
	var p *panicError
	require.ErrorAs(t, got[0].Err, &p)
	require.Contains(t, string(p.Stack), "TestPanicsAreErrors")
	require.ErrorIs(t, got[1].Err, io.ErrUnexpectedEOF)
	require.NoError(t, errors.Unwrap(got[0].Err))
}

// A node that is not ready yet is not a failure: the step is skipped with what depends on it, and nothing is rolled back.
func TestAStepThatIsNotBegunYet(t *testing.T) {
	steps := []plan.Step{create("vm.a"), create("vm.b"), create("vm.c", "vm.b"), create("vm.d")}
	got := Run(t.Context(), steps, Options{Width: 1, OnError: always(onErrorRollback)}, func(_ context.Context, s plan.Step) error {
		if s.Address.Name == "b" {
			return &NotYetError{Err: errors.New("it needs vm.x, which starts")}
		}
		return nil
	})
	require.Equal(t, []string{"vm.a done", "vm.b skipped: it needs vm.x, which starts", "vm.c skipped: it depends on vm.b, which was not done", "vm.d done"}, outcomes(got))
	require.True(t, got[1].Started.IsZero())
}

type busyError struct{ error }

func (busyError) Temporary() bool { return true }

// The result of a step has every task: of each try, and of the rollback.
func TestResultsNameTheTasksOfTheHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		do := func(ctx context.Context, s plan.Step) error {
			n++
			model.RecordTask(ctx, fmt.Sprintf("%s %s %d", s.Action, s.Address.Name, n))
			<-time.After(time.Second)
			switch {
			case n == 1:
				return busyError{errors.New("locked")}
			case s.Address.Name == "b":
				return errors.New("no")
			default:
				return nil
			}
		}
		steps := []plan.Step{
			{Address: model.Address{Kind: "vm", Name: "a"}, Action: plan.Create, Manifest: "web"},
			{Address: model.Address{Kind: "vm", Name: "b"}, Action: plan.Create, Manifest: "web"},
			{Address: model.Address{Kind: "vm", Name: "c"}, Action: plan.Create, Manifest: "web"},
		}
		told := map[string][]string{}
		results := Run(t.Context(), steps, Options{
			Width: 1, OnError: func(string) string { return onErrorRollback },
			Notify: func(e Event) {
				if e.What == Finished {
					told[e.Step.Address.Name] = append(told[e.Step.Address.Name], e.Result.Tasks...)
				}
			},
		}, Backoff{}.Retry(do))
		require.Equal(t, []string{"create a 1", "create a 2", "delete a 5"}, results[0].Tasks)
		require.Equal(t, RolledBack, results[0].Status)
		require.Equal(t, []string{"create b 3", "delete b 4"}, results[1].Tasks)
		require.Empty(t, results[2].Tasks, "it was not begun")
		require.Equal(t, results[0].Tasks, told["a"])
	})
}
