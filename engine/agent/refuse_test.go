package agent_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/model"
)

// denied is a commit whose rules say no as long as shut says so.
func denied(sizes map[string]int, source string, shut func() bool) engine.Desired {
	d := boxes(sizes)
	d.PolicyCheck = func(context.Context, engine.Question) diag.List {
		if shut() {
			return diag.List{{Severity: diag.Error, Source: source, Summary: "the window is shut"}}
		}
		return nil
	}
	return d
}

func TestADeniedCommitIsAskedAgainAndAcceptedAtOnce(t *testing.T) {
	live(t, func(w *world) {
		w.shut.Store(true)
		w.repo.push("good", boxes(map[string]int{"a": 1}))
		w.start()
		w.repo.push("late", denied(map[string]int{"a": 2}, diag.FromGuard, w.shut.Load))
		w.byHand(func(h model.State) { h[enginetest.Addr("box", "a")].Spec.(*enginetest.Box).Size = 9 })
		s := w.pass(67 * time.Second)
		require.Equal(t, "a=1", w.holds(), "the good one is converged to in the same cycle")
		require.Equal(t, engine.Refused, s.Refused.Outcome)
		require.Equal(t, "late", s.Refused.Commit)
		require.Equal(t, "the window is shut", s.Refused.Findings[0].Summary)
		require.Equal(t, "good", s.InForce.ID)
		since := s.Refused.Since

		s = w.pass(10 * time.Minute)
		require.Equal(t, since, s.Refused.Since)
		require.Equal(t, 1, strings.Count(w.log.String(), "commit refused"))

		w.shut.Store(false)
		w.agent.CheckNow()
		s = w.pass(0)
		require.Equal(t, "a=2", w.holds())
		require.Nil(t, s.Refused)
		require.Equal(t, "late", s.InForce.ID)
		require.Equal(t, 1, strings.Count(w.log.String(), "commit is not refused any more"))
	})
}

// What denies a commit as a whole is told before what keeps single steps back.
func TestWhatDeniesACommitIsToldFirst(t *testing.T) {
	live(t, func(w *world) {
		w.repo.push("good", boxes(map[string]int{"a": 1}))
		w.start()
		w.set(func() {
			w.host.Unmanaged = []model.Unmanaged{{VMID: 100, Name: "b", Kind: "box", Why: "no ownership tag", Claims: enginetest.Addr("box", "b")}}
		})
		w.repo.push("late", denied(map[string]int{"a": 2, "b": 1}, diag.FromGuard, func() bool { return true }))
		s := w.pass(67 * time.Second)
		require.Equal(t, 2, s.Refused.Findings.Errors(), "%v", s.Refused.Findings)
		require.Equal(t, "commit late refused: the window is shut; good stays in force", s.Summary)
	})
}

func TestAFullCheckAcceptsACommitWhoseTimeHasCome(t *testing.T) {
	live(t, func(w *world) {
		opens := time.Now().Add(17 * time.Minute)
		w.repo.push("good", boxes(map[string]int{"a": 1}))
		w.start()
		w.repo.push("late", denied(map[string]int{"a": 2}, diag.FromPolicy, func() bool { return time.Now().Before(opens) }))
		require.Equal(t, engine.Invalid, w.pass(16*time.Minute).Refused.Outcome)
		require.Equal(t, "a=1", w.holds())
		require.Nil(t, w.pass(6*time.Minute).Refused)
		require.Equal(t, "a=2", w.holds())
	})
}

func TestWhereNothingIsKnownABadCommitConvergesNothing(t *testing.T) {
	live(t, func(w *world) {
		w.repo.push("bad", engine.Desired{Findings: diag.List{diag.Errorf(diag.Range{}, "no good", "")}})
		s := w.start().Status()
		require.Nil(t, s.InForce)
		require.Equal(t, "bad", s.Refused.Commit)
		require.Equal(t, "commit bad refused: no good; nothing is in force", s.Summary)
		require.Zero(t, w.looks())
		require.Equal(t, engine.Invalid, s.Last.Outcome)
	})
}

// The commit in force itself may come to be denied, by the hour or by what is on the
// host. Then nothing is changed at all.
func TestACommitInForceMayBeDeniedLater(t *testing.T) {
	live(t, func(w *world) {
		w.repo.push("only", denied(map[string]int{"a": 1}, diag.FromGuard, w.shut.Load))
		w.start()
		w.shut.Store(true)
		w.byHand(func(h model.State) { delete(h, enginetest.Addr("box", "a")) })
		s := w.pass(6 * time.Minute)
		require.Empty(t, w.holds())
		require.Equal(t, "only", s.InForce.ID)
		require.Equal(t, "commit only is refused now: the window is shut; nothing is changed", s.Summary)
		w.shut.Store(false)
		s = w.pass(6 * time.Minute)
		require.Equal(t, "a=1", w.holds())
		require.Equal(t, "in sync at only", s.Summary)
	})
}

// ST-22: a typo in agent.hcl, a host that was renamed in the site.
func TestAnIdentityThatTheSiteDoesNotKnowConvergesNothing(t *testing.T) {
	live(t, func(w *world) {
		w.repo.push("good", boxes(map[string]int{"a": 1}))
		w.start()
		looks := w.looks()
		renamed := boxes(map[string]int{"a": 2})
		renamed.Site.Hosts = map[string]*model.Host{"fathers": {Name: "fathers"}}
		w.repo.push("renamed", renamed)
		w.byHand(func(h model.State) { delete(h, enginetest.Addr("box", "a")) })
		s := w.pass(67 * time.Second)
		require.Empty(t, w.holds(), "not even the last good commit")
		require.Contains(t, s.Summary, `identity is not in the site: father is not a host of site home at commit renamed: did you mean "fathers"?`)
		require.False(t, s.Healthy)
		require.Equal(t, looks, w.looks(), "the host is not even looked at")

		// A broken commit on top of it is no reason to go back to what was before.
		w.repo.push("broken", engine.Desired{Findings: diag.List{diag.Errorf(diag.Range{}, "no good", "")}})
		s = w.pass(20 * time.Minute)
		require.Empty(t, w.holds())
		require.Equal(t, looks, w.looks())
		require.Equal(t, "broken", s.Refused.Commit)

		w.end() // nor is a restart
		w.repo.fault(errors.New("no route"))
		w.start()
		w.pass(20 * time.Minute)
		require.Empty(t, w.holds())
		w.repo.fault(nil)

		w.repo.push("healed", boxes(map[string]int{"a": 3}))
		s = w.pass(12 * time.Minute)
		require.Equal(t, "a=3", w.holds())
		require.Equal(t, "in sync at healed", s.Summary)
		require.Empty(t, w.state().Unknown.ID)
	})
}

// A panic is a defect of the program, and the commit that brings it out is refused.
func TestAPanicRefusesTheCommit(t *testing.T) {
	for what, spoil := range map[string]func(w *world, d *engine.Desired){
		"read": func(w *world, _ *engine.Desired) {
			w.repo.before = func(_ context.Context, call string) {
				if call == "load" && w.agent != nil && w.agent.Status().Head.ID == "worse" && w.agent.Status().Running.Commit == "worse" {
					panic("nil map")
				}
			}
		},
		"asked": func(_ *world, d *engine.Desired) {
			d.PolicyCheck = func(context.Context, engine.Question) diag.List { panic("nil map") }
		},
		"opened": func(_ *world, d *engine.Desired) { d.Site.Hosts["father"].API = "panic" },
		"made":   func(_ *world, d *engine.Desired) { d.Site.Manifests = map[string]*model.Manifest{"web": nil} },
	} {
		t.Run(what, func(t *testing.T) {
			live(t, func(w *world) {
				w.options = func(o *agent.Options) {
					o.Open = func(_ engine.Desired, h *model.Host) (engine.Driver, error) {
						if h.API == "panic" {
							panic("nil map")
						}
						return w.host, nil
					}
				}
				w.repo.push("good", boxes(map[string]int{"a": 1}))
				w.start()
				d := boxes(map[string]int{"a": 2})
				spoil(w, &d)
				w.repo.push("worse", d)
				s := w.pass(20 * time.Minute)
				require.Equal(t, "a=1", w.holds())
				require.Equal(t, engine.Invalid, s.Refused.Outcome)
				require.Contains(t, s.Refused.Findings[0].Summary, "the program is at fault: panic while ")
				require.Contains(t, s.Refused.Findings[0].Summary, what)
				require.Equal(t, "good", s.Last.Commit)
				require.Contains(t, w.log.String(), "goroutine ", "the stack is in the log")
				w.set(func() { w.repo.before = nil })
				w.repo.push("better", boxes(map[string]int{"a": 3}))
				require.True(t, w.pass(67*time.Second).Healthy)
				require.Equal(t, "a=3", w.holds())
			})
		})
	}
}

// A driver that panics could not see the host; no commit is to blame.
func TestAPanicOfAnObservationIsABlindHost(t *testing.T) {
	live(t, func(w *world) {
		w.repo.push("good", boxes(map[string]int{"a": 1}))
		w.set(func() { w.host.look = func(context.Context) { panic("index out of range") } })
		s := w.start().Status()
		require.Nil(t, s.Refused)
		require.Equal(t, engine.Failed, s.Last.Outcome)
		require.True(t, strings.HasPrefix(s.Summary, "host could not be seen: the program is at fault"), s.Summary)
		w.set(func() { w.host.look = nil })
		require.True(t, w.pass(12*time.Second).Healthy)
	})
}
