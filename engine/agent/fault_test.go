package agent_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

func TestARepositoryThatDoesNotAnswerLeavesTheGoodCommitInForce(t *testing.T) {
	live(t, func(w *world) {
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		w.start()
		w.repo.fault(errors.New("no route to host\nask your network"))
		w.byHand(func(h model.State) { delete(h, enginetest.Addr("box", "a")) })
		s := w.pass(6 * time.Minute)
		require.Equal(t, "a=1", w.holds())
		require.Equal(t, "no route to host\nask your network", s.Repository.Error)
		require.Equal(t, "repository does not answer since "+s.Repository.Failing.Local().Format("15:04")+": no route to host; c1 stays in force", s.Summary)
		require.False(t, s.Healthy, "nobody knows what the newest commit says")

		asked := w.repo.asked()
		s = w.pass(10 * time.Hour)
		require.InDelta(t, 60, w.repo.asked()-asked, 8, "every ten minutes, give or take a tenth")
		require.Equal(t, 1, strings.Count(w.log.String(), "does not answer"))

		w.repo.fault(nil)
		w.repo.push("c2", boxes(map[string]int{"a": 2}))
		s = w.pass(11 * time.Minute)
		require.Equal(t, "a=2", w.holds())
		require.Empty(t, s.Repository.Error)
		require.Nil(t, s.Repository.Failing)
		require.Equal(t, 1, strings.Count(w.log.String(), "answers again"))
	})
}

// In the first minutes it is asked again soon, then more and more rarely.
func TestTheRepositoryIsAskedMoreAndMoreRarely(t *testing.T) {
	live(t, func(w *world) {
		w.repo.fault(errors.New("down"))
		w.start()
		var pauses []time.Duration
		last := time.Now()
		w.end()
		w.repo.before = func(_ context.Context, call string) {
			if call == "head" {
				pauses = append(pauses, time.Since(last))
				last = time.Now()
			}
		}
		w.start()
		w.pass(2 * time.Hour)
		for i, want := range []time.Duration{0, time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 10 * time.Minute, 10 * time.Minute} {
			require.InDelta(t, want, pauses[i], float64(want)/10+1, "%v", pauses)
		}
	})
}

func TestAHostThatFailsIsTriedAgainMoreAndMoreRarely(t *testing.T) {
	live(t, func(w *world) {
		var pauses []time.Duration
		last := time.Now()
		w.host.look = func(context.Context) {
			pauses = append(pauses, time.Since(last))
			last = time.Now()
		}
		w.set(func() { w.host.ObserveErr = errors.New("connection refused") })
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		s := w.start().Status()
		require.Nil(t, s.InForce, "no plan was made, so nobody knows whether it is good")
		require.Equal(t, "host could not be seen: connection refused", s.Summary)
		s = w.pass(time.Hour)
		for i, want := range []time.Duration{0, 10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second, 160 * time.Second, 300 * time.Second, 300 * time.Second} {
			require.InDelta(t, want, pauses[i], float64(want)/10+1, "%v", pauses)
		}
		require.Equal(t, 1, strings.Count(w.log.String(), "pass was not completed"))
		require.Less(t, time.Until(*s.NextFull), 6*time.Minute)

		w.repo.push("c2", boxes(map[string]int{"a": 1})) // a new commit is tried soon again
		w.pass(67 * time.Second)
		w.set(func() { w.host.ObserveErr = nil })
		require.Equal(t, engine.Done, w.pass(90*time.Second).Last.Outcome)
		require.Equal(t, "c2", w.agent.Status().InForce.ID)
		require.Empty(t, w.receipts()[1:])
	})
}

// That head is refused is no reason to wait longer for the good one.
func TestAFailureIsTriedAgainAlsoWhereHeadIsRefused(t *testing.T) {
	live(t, func(w *world) {
		w.repo.push("good", boxes(map[string]int{"a": 1}))
		w.start()
		w.repo.push("bad", engine.Desired{Findings: enginetest.Said("error", "site")})
		w.set(func() { w.host.ObserveErr = errors.New("connection refused") })
		s := w.look()
		require.Equal(t, "commit bad refused: not on a Friday; good stays in force; host could not be seen: connection refused", s.Summary)
		w.set(func() { w.host.ObserveErr = nil })
		require.Equal(t, engine.Done, w.pass(12*time.Second).Last.Outcome)
	})
}

func TestWhatIsOutOfSightIsLookedAtAgainSoon(t *testing.T) {
	live(t, func(w *world) {
		w.set(func() { w.host.Unknown = []model.Unknown{{Scope: "node two", Why: "offline"}} })
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		s := w.start().Status()
		require.Equal(t, engine.Partly, s.Last.Outcome)
		require.Equal(t, 1, s.Last.Unknown)
		require.Contains(t, s.Summary, "part of the host could not be inspected: node two: offline")
		require.Equal(t, "c1", s.InForce.ID)
		require.Nil(t, s.Converged)
		w.set(func() { w.host.Unknown = nil })
		require.Equal(t, "c1", w.pass(12*time.Second).Converged.ID)
	})
}

func TestAfterARestartTheStateIsKnown(t *testing.T) {
	live(t, func(w *world) {
		w.repo.push("good", boxes(map[string]int{"a": 1}))
		w.start()
		w.repo.push("bad", engine.Desired{Findings: enginetest.Said("error", "site")})
		w.pass(67 * time.Second)
		w.end()
		w.byHand(func(h model.State) { delete(h, enginetest.Addr("box", "a")) })
		s := w.start().Status()
		require.Equal(t, "a=1", w.holds(), "head is bad, and the good one is still known")
		require.Equal(t, "good", s.InForce.ID)
		require.Equal(t, "about good", s.InForce.Subject)
		require.True(t, s.Last.Drift, "it converged before")
		w.end()

		w.repo.fault(errors.New("down")) // now the repository is away as well
		w.byHand(func(h model.State) { delete(h, enginetest.Addr("box", "a")) })
		s = w.start().Status()
		require.Equal(t, "a=1", w.holds())
		require.Equal(t, "bad", s.Refused.Commit)
		w.end()

		w.repo.fetched = map[string]model.Commit{} // and the copy is lost
		s = w.start().Status()
		require.Equal(t, engine.Failed, s.Last.Outcome)
		require.Contains(t, s.Summary, "commit good is in force, and is not here any more")
		w.repo.fault(nil)
		w.repo.push("better", boxes(map[string]int{"a": 2}))
		w.pass(12 * time.Minute)
		require.Equal(t, "a=2", w.holds())
	})
}

func TestALostLedgerLosesHistoryOnly(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, dir string){
		"gone":    func(t *testing.T, dir string) { require.NoError(t, os.RemoveAll(dir)) },
		"garbage": func(t *testing.T, dir string) { garbage(t, dir, "{") },
		"newer":   func(t *testing.T, dir string) { garbage(t, dir, `{"version": 2}`) },
		"another identity": func(t *testing.T, dir string) {
			garbage(t, dir, `{"version": 1, "identity": "mother", "suspended": [{"manifest": ""}], "good": {"id": "c0"}}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			live(t, func(w *world) {
				w.repo.push("c1", boxes(map[string]int{"a": 1}))
				w.start()
				w.end()
				applied := len(w.host.Applied)
				spoil(t, w.dir)
				s := w.start().Status()
				require.Equal(t, "in sync at c1", s.Summary)
				require.Empty(t, s.Suspended)
				require.Len(t, w.host.Applied, applied, "the same guests, none doubled")
				require.Equal(t, "father", w.state().Identity)
				require.Equal(t, "c1", w.state().Good.ID)
				if name != "gone" {
					require.Equal(t, 1, strings.Count(w.log.String(), "level=WARN"))
				}
			})
		})
	}
}

func garbage(t *testing.T, dir, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "state.json"), []byte(text), 0o600))
}

// A ledger that cannot be written is no reason to leave the host alone.
func TestAFullDiskStopsNothing(t *testing.T) {
	live(t, func(w *world) {
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		w.agent = w.new()
		require.NoError(t, os.RemoveAll(w.dir))
		require.NoError(t, os.WriteFile(w.dir, nil, 0o600)) // where the folder was
		r := w.agent.Once(w.t.Context(), nil)
		require.Equal(t, engine.Done, r.Outcome)
		require.Equal(t, "a=1", w.holds())
		require.NotZero(t, strings.Count(w.log.String(), "the receipt was not saved"))
		err := w.agent.Suspend(ledger.Suspension{})
		require.ErrorContains(t, err, "only until the agent ends")
		require.Len(t, w.agent.Status().Suspended, 1)
	})
}

// A step that runs is not interrupted by a push. Commits that come while the last one runs are looked at right after it.
func TestAPassIsNotInterruptedByAPush(t *testing.T) {
	live(t, func(w *world) {
		w.set(func() { w.host.During = slow(20 * time.Minute) })
		first := boxes(map[string]int{"a": 1})
		first.Site.Manifests["web"].Settings = &model.Settings{Timeout: time.Hour}
		first.Site.Objects = model.State{}
		for _, n := range first.Site.Manifests["web"].Nodes {
			n.Resource.Needs = nil
		}
		w.repo.push("c1", first)
		w.start()
		w.repo.push("c2", boxes(map[string]int{"a": 1}))
		s := w.pass(19 * time.Minute)
		require.Equal(t, "c1", s.Running.Commit)
		s = w.pass(2 * time.Minute)
		require.Equal(t, "c2", s.Running.Commit, "right after it")
		require.Equal(t, "done", w.receipts()[0].Outcome)
		w.set(func() { w.host.During = func(context.Context, plan.Step) error { return nil } })
		w.pass(time.Hour)
	})
}
