package apply_test

import (
	"context"
	"errors"
	"io"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/plan"
)

func TestDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		got := apply.Run(t.Context(), []plan.Step{create("vm.a"), create("vm.b"), create("vm.c", "vm.a")}, apply.Options{
			OnError: always(apply.Continue),
			Deadline: func(s plan.Step) time.Duration {
				return map[string]time.Duration{"vm.a": 10 * time.Minute, "vm.b": 0}[s.Address.String()]
			},
		}, lasting(time.Hour))
		require.Equal(t, []string{
			"vm.a failed: gave up after 10m0s: context deadline exceeded", "vm.b done", "vm.c skipped: it depends on vm.a, which failed",
		}, told(got))
		require.ErrorIs(t, got[0].Err, context.DeadlineExceeded)
		require.Equal(t, 10*time.Minute, got[0].Duration)
		require.Equal(t, time.Hour, time.Since(begun))
	})
}

// Once: nothing new is started and what runs may finish. Twice: leave now.
func TestStopAndCancel(t *testing.T) {
	steps := []plan.Step{create("vm.a"), create("vm.b"), create("vm.c", "vm.a"), create("vm.d")}
	run := func(t *testing.T, stopAt, cancelAt time.Duration, o apply.Options, do apply.Do) ([]apply.Result, time.Duration) {
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
		got := apply.Run(ctx, steps, o, do)
		return got, time.Since(begun)
	}
	t.Run("stop", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var seen tape
			got, took := run(t, time.Minute, 0, apply.Options{Notify: seen.notify}, lasting(time.Hour))
			require.Equal(t, time.Hour, took)
			require.Equal(t, []string{"vm.a done", "vm.b done", "vm.c skipped: stopped before it started", "vm.d skipped: stopped before it started"}, told(got))
			require.Contains(t, seen, "waiting nothing new is started, 2 still running (2 running, 2 left)")
		})
	})
	t.Run("stop, then cancel", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			got, took := run(t, time.Minute, 2*time.Minute, apply.Options{}, lasting(time.Hour))
			require.Equal(t, 2*time.Minute, took)
			require.Equal(t, []string{"vm.a failed: context canceled", "vm.b failed: context canceled", "vm.c skipped: it depends on vm.a, which failed", "vm.d skipped: stopped before it started"}, told(got))
		})
	})
	t.Run("cancel", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			got, took := run(t, 0, time.Minute, apply.Options{
				OnError: always(apply.Rollback), Deadline: func(plan.Step) time.Duration { return 2 * time.Hour },
			}, lasting(time.Hour))
			require.Equal(t, time.Minute, took)
			require.Equal(t, []string{
				"vm.a failed: context canceled", "vm.b failed: context canceled",
				"vm.c skipped: it depends on vm.a, which failed", "vm.d skipped: context canceled",
			}, told(got), "and nothing is rolled back after that")
		})
	})
	t.Run("stop while rolling back", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var seen tape
			got, took := run(t, 150*time.Minute, 0, apply.Options{OnError: always(apply.Rollback), Notify: seen.notify}, func(ctx context.Context, s plan.Step) error {
				if err := lasting(time.Hour)(ctx, s); err != nil {
					return err
				}
				return failing("vm.d")(ctx, s)
			})
			require.Equal(t, 3*time.Hour, took)
			require.Equal(t, []string{"vm.a done", "vm.b done", "vm.c rolled-back", "vm.d failed: storage is full"}, told(got))
			require.Contains(t, seen, "note vm.a stays: stopped before it started (0 running, 0 left)")
		})
	})
	t.Run("before it began", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		stop := make(chan struct{})
		close(stop)
		for _, r := range append(apply.Run(ctx, steps, apply.Options{}, nil), apply.Run(t.Context(), steps, apply.Options{Stop: stop}, nil)...) {
			require.Equal(t, apply.Skipped, r.Status)
			require.Error(t, r.Err)
			require.Zero(t, r.Started)
		}
	})
}

// Run leaves nobody behind: a worker that is slow to let go is waited for.
func TestRunWaitsForItsWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		gone := false
		apply.Run(ctx, []plan.Step{create("vm.a")}, apply.Options{}, func(ctx context.Context, _ plan.Step) error {
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
	got := apply.Run(t.Context(), []plan.Step{create("vm.a"), create("vm.b"), create("vm.c"), create("vm.d")}, apply.Options{OnError: always(apply.Continue)}, do)
	require.Equal(t, []string{"vm.a failed: vm.a: panic: boom", "vm.b failed: vm.b: panic: unexpected EOF", "vm.c failed: vm.c: ended without an answer", "vm.d done"}, told(got))
	var p *apply.PanicError
	require.ErrorAs(t, got[0].Err, &p)
	require.Contains(t, string(p.Stack), "TestPanicsAreErrors")
	require.ErrorIs(t, got[1].Err, io.ErrUnexpectedEOF)
	require.NoError(t, errors.Unwrap(got[0].Err))
}

// What is not ready yet is no failure: the step is skipped with what depends on it, and nothing is rolled back.
func TestAStepThatIsNotBegunYet(t *testing.T) {
	steps := []plan.Step{create("vm.a"), create("vm.b"), create("vm.c", "vm.b"), create("vm.d")}
	got := apply.Run(t.Context(), steps, apply.Options{Width: 1, OnError: always(apply.Rollback)}, func(_ context.Context, s plan.Step) error {
		if s.Address.Name == "b" {
			return &apply.NotYetError{Err: errors.New("it needs vm.x, which starts")}
		}
		return nil
	})
	require.Equal(t, []string{"vm.a done", "vm.b skipped: it needs vm.x, which starts", "vm.c skipped: it depends on vm.b, which was not done", "vm.d done"}, told(got))
	require.True(t, got[1].Started.IsZero())
}
