package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
)

// once makes one cycle with an agent of its own.
func (w *world) once() engine.Report {
	w.t.Helper()
	w.agent = w.new()
	return w.agent.Once(w.t.Context(), nil)
}

func TestOnceIsOneCycle(t *testing.T) {
	live(t, func(w *world) {
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		r := w.once()
		require.Equal(t, engine.Done, r.Outcome)
		require.Equal(t, "agent", r.Verb)
		require.True(t, r.Success)
		require.Equal(t, "a:completed", enginetest.Statuses(r))
		require.Equal(t, 1, w.looks())
		require.Equal(t, 1, w.repo.asked())
		require.Equal(t, agent.Stopping, w.agent.Status().State)
		require.Zero(t, w.agent.Stuck())

		w.repo.push("bad", engine.Desired{Findings: diag.List{diag.Errorf(diag.Range{}, "no good", "")}})
		w.byHand(func(h model.State) { delete(h, enginetest.Addr("box", "a")) })
		r = w.once()
		require.Equal(t, "a=1", w.holds(), "the good one is converged to")
		require.Equal(t, engine.Invalid, r.Outcome, "and the report says what is wrong with the other")
		require.False(t, r.Success)
		require.Equal(t, "no good", r.Findings[0].Summary)
		require.Equal(t, "c1", r.Commit)
		require.Equal(t, "a:completed", enginetest.Statuses(r))

		w.repo.push("denied", denied(map[string]int{"a": 2}, diag.FromGuard, func() bool { return true }))
		r = w.once()
		require.Equal(t, engine.Refused, r.Outcome)
		require.Equal(t, "the window is shut", r.Findings[0].Summary)
	})
}

func TestOnceWithoutARepository(t *testing.T) {
	live(t, func(w *world) {
		w.repo.fault(errors.New("no route"))
		r := w.once()
		require.Equal(t, engine.Failed, r.Outcome)
		require.ErrorContains(t, r.Err, "no commit to converge to")

		w.repo.fault(nil)
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		require.Equal(t, engine.Done, w.once().Outcome)
		w.repo.fault(errors.New("no route"))
		r = w.once()
		require.Equal(t, engine.Failed, r.Outcome, "all is as the last known commit says, but who knows of newer ones")
		require.EqualError(t, r.Err, "no route")
		require.Equal(t, "repository does not answer: no route", r.Findings[0].Summary)
		w.byHand(func(h model.State) { delete(h, enginetest.Addr("box", "a")) })
		require.Equal(t, engine.Partly, w.once().Outcome)
		require.Equal(t, "a=1", w.holds())
	})
}

func TestOnceWithAnUnknownIdentity(t *testing.T) {
	live(t, func(w *world) {
		w.options = func(o *agent.Options) { o.Identity = "fahter" }
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		r := w.once()
		require.Equal(t, engine.Invalid, r.Outcome)
		require.ErrorIs(t, r.Err, agent.ErrUnknownIdentity)
		require.True(t, r.Denied)
		require.Zero(t, w.looks())
		b, err := json.Marshal(r)
		require.NoError(t, err)
		var doc struct{ Findings diag.List }
		require.NoError(t, json.Unmarshal(b, &doc))
		require.Len(t, doc.Findings, 1, "it is said once")
		require.Contains(t, doc.Findings[0].Summary, `did you mean "father"?`)
	})
}

func TestOnceWhileEverythingIsSuspendedPlansOnly(t *testing.T) {
	live(t, func(w *world) {
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		require.NoError(t, w.new().Suspend(ledger.Suspension{Reason: "moving house"}))
		r := w.once()
		require.Equal(t, engine.Planned, r.Outcome)
		require.Len(t, r.Plan.Steps, 2)
		require.Empty(t, w.holds())
	})
}

func TestOnceMayBeStopped(t *testing.T) {
	live(t, func(w *world) {
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		stop := make(chan struct{})
		w.repo.before = func(ctx context.Context, call string) {
			if call == "head" {
				close(stop)
				<-ctx.Done()
			}
		}
		w.agent = w.new()
		r := w.agent.Once(w.t.Context(), stop)
		require.Equal(t, engine.Interrupted, r.Outcome)
		require.ErrorIs(t, r.Err, engine.ErrInterrupted)
		require.Empty(t, w.holds())
	})
}

func TestAnAgentNeedsItsParts(t *testing.T) {
	_, err := agent.New(agent.Options{Identity: "father"})
	require.ErrorContains(t, err, "must be set")
}
