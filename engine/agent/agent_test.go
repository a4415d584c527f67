package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

func TestAPushIsAllThatIsNeeded(t *testing.T) {
	live(t, func(w *world) {
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		s := w.start().Status()
		require.Equal(t, Idle, s.State)
		require.Equal(t, "a=1", w.holds())
		require.Equal(t, "in sync at c1", s.Summary)
		require.True(t, s.Healthy)
		require.Equal(t, CommitStatus{ID: "c1", Subject: "about c1", Author: "Ada", Since: s.Started}, *s.Head)
		require.Equal(t, s.Head, s.InForce)
		require.Equal(t, s.Head, s.Converged)
		require.Nil(t, s.Refused)
		require.Nil(t, s.Running)
		require.Equal(t, engine.Done, s.Last.Outcome)
		require.False(t, s.Last.Drift)
		require.Equal(t, 2, s.Last.Summary.Create)

		w.repo.push("c2", boxes(map[string]int{"a": 1, "b": 2}))
		s = w.pass(67 * time.Second)
		require.Equal(t, "a=1 b=2", w.holds())
		require.Equal(t, "c2", s.Converged.ID)
		require.Equal(t, []string{"c2"}, w.repo.kept)

		list := w.receipts()
		require.Len(t, list, 2)
		require.Equal(t, "c2", list[0].Commit)
		require.Equal(t, "agent", list[0].Verb)
		require.Equal(t, "father", list[0].By)
		require.Equal(t, "about c2", list[0].Subject)
		require.Equal(t, "create", list[0].Steps[0].Action)
	})
}

func TestABadCommitLeavesTheLastGoodOneInForce(t *testing.T) {
	live(t, func(w *world) {
		bad := diag.List{diag.Errorf(diag.Range{File: "a.hcl", Start: diag.Pos{Line: 7, Column: 3}}, "no such thing", "")}
		w.repo.push("good", boxes(map[string]int{"a": 1}))
		w.start()
		w.repo.push("bad", engine.Desired{Findings: bad})
		s := w.pass(67 * time.Second)
		require.Equal(t, "bad", s.Head.ID)
		require.Equal(t, "good", s.InForce.ID)
		require.Equal(t, engine.Invalid, s.Refused.Outcome)
		require.Equal(t, bad, s.Refused.Findings)
		require.False(t, s.Healthy)
		require.Equal(t, "commit bad refused: a.hcl:7:3: no such thing; good stays in force", s.Summary)

		w.byHand(func(h model.State) { delete(h, enginetest.Addr("box", "a")) })
		s = w.pass(6 * time.Minute)
		require.Equal(t, "a=1", w.holds(), "drift is reverted all the same")
		require.Equal(t, "good", s.Last.Commit)
		require.Equal(t, 1, strings.Count(w.log.String(), "commit refused"), "once, and not at every check")

		w.repo.push("mended", boxes(map[string]int{"a": 3}))
		s = w.pass(67 * time.Second)
		require.Equal(t, "a=3", w.holds())
		require.Nil(t, s.Refused)
		require.True(t, s.Healthy)
	})
}

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
		require.Equal(t, Stopping, w.agent.Status().State)
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
		w.options = func(o *Options) { o.Identity = "fahter" }
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		r := w.once()
		require.Equal(t, engine.Invalid, r.Outcome)
		require.ErrorIs(t, r.Err, ErrUnknownIdentity)
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
	_, err := New(Options{Identity: "father"})
	require.ErrorContains(t, err, "must be set")
}

// denied is a commit whose rules say no as long as shut says so.
func denied(sizes map[string]int, source diag.Source, shut func() bool) engine.Desired {
	d := boxes(sizes)
	d.PolicyCheck = func(context.Context, engine.Question) diag.List {
		if shut() {
			return diag.List{{Severity: diag.Error, Source: source, Summary: "the window is shut"}}
		}
		return nil
	}
	return d
}

func TestADeniedCommitIsCheckedAgain(t *testing.T) {
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

// Denials of a whole commit are reported before those that withhold single steps.
func TestDenialsComeFirst(t *testing.T) {
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

func TestWithoutAGoodCommitABadOneConvergesNothing(t *testing.T) {
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
		"evaluated": func(_ *world, d *engine.Desired) {
			d.PolicyCheck = func(context.Context, engine.Question) diag.List { panic("nil map") }
		},
		"opened": func(_ *world, d *engine.Desired) { d.Site.Hosts["father"].API = "panic" },
		"made":   func(_ *world, d *engine.Desired) { d.Site.Manifests = map[string]*model.Manifest{"web": nil} },
	} {
		t.Run(what, func(t *testing.T) {
			live(t, func(w *world) {
				w.options = func(o *Options) {
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
func TestAPanicOfAnObservationIsAnUnknownHost(t *testing.T) {
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

// A listener for the commit in force gets it at the start, before the repository answers, and each time that it changes; never a
// refused one.
func TestInForce(t *testing.T) {
	live(t, func(w *world) {
		var seen []string
		var converged string
		w.options = func(o *Options) {
			o.InForce = func(_ context.Context, d engine.Desired, host HostState) {
				require.False(t, d.Findings.HasErrors())
				require.NotNil(t, d.Site)
				seen, converged = append(seen, d.Commit), host.Converged
			}
		}
		w.repo.push("a", boxes(map[string]int{"one": 1}))
		w.start()
		require.Equal(t, []string{"a"}, slices.Compact(slices.Clone(seen)))
		require.Equal(t, "a", converged, "that is known as soon as the pass has ended")
		w.look()
		require.Equal(t, []string{"a"}, slices.Compact(slices.Clone(seen)), "each pass says it again, since secrets may change")

		w.repo.push("b", engine.Desired{Findings: diag.List{diag.Errorf(diag.Range{}, "nonsense", "")}})
		require.Equal(t, "b", w.look().Refused.Commit)
		require.Equal(t, []string{"a"}, slices.Compact(slices.Clone(seen)))

		w.repo.push("c", boxes(map[string]int{"one": 2}))
		w.look()
		require.Equal(t, []string{"a", "c"}, slices.Compact(slices.Clone(seen)))

		// An accepted commit is in force, and a completely converged one is the last good one.
		w.set(func() { w.host.Fail = map[string]error{"box.one": errors.New("no")} })
		w.repo.push("d", boxes(map[string]int{"one": 3}))
		w.look()
		require.Equal(t, []string{"a", "c", "d"}, slices.Compact(slices.Clone(seen)))
		require.Equal(t, "c", converged)
		w.set(func() { w.host.Fail = nil })
		w.look()
		require.Equal(t, "d", converged)

		// The next start shows the last good one at once, while the repository does not answer.
		w.end()
		seen = nil
		asked := make(chan struct{})
		w.repo.before = func(ctx context.Context, call string) {
			if call == "head" {
				select {
				case <-asked:
				case <-ctx.Done():
				}
			}
		}
		w.start()
		require.Equal(t, []string{"d"}, seen)
		require.Equal(t, "d", converged)
		close(asked)
		w.pass(time.Second)
	})
}

// A repository that does not answer three polls in a row makes the agent unhealthy, and one answer makes it healthy again.
func TestN4ARepositoryThatDoesNotAnswer(t *testing.T) {
	live(t, func(w *world) {
		w.options = func(o *Options) { o.Poll = time.Minute }
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		w.start()
		require.True(t, w.pass(time.Second).Healthy)
		w.repo.fault(errors.New("no route to host"))
		asked := w.repo.asked()
		for w.repo.asked() < asked+2 {
			require.True(t, w.pass(time.Second).Healthy, "one or two polls without an answer happen")
		}
		require.Empty(t, w.agent.Status().Repository.Condition)
		for w.repo.asked() < asked+3 {
			w.pass(time.Second)
		}
		s := w.agent.Status()
		require.False(t, s.Healthy)
		require.Equal(t, NotAnswering, s.Repository.Condition)
		require.Equal(t, "c1", s.InForce.ID, "the last good commit stays in force")
		w.repo.fault(nil)
		s = w.look()
		require.True(t, s.Healthy)
		require.Empty(t, s.Repository.Condition)
	})
}

// A branch that is gone is no repository without a commit, and not healthy; what was in force stays so.
func TestN4ABranchThatIsGone(t *testing.T) {
	for _, kind := range []error{model.ErrNoBranch, model.ErrNoCommit} {
		live(t, func(w *world) {
			w.repo.fault(fmt.Errorf("https://git.example/site.git: %w; push a first commit", kind))
			w.start()
			s := w.pass(time.Second)
			require.NotEqual(t, BranchMissing, s.Repository.Condition, "it was never there")
			require.NotContains(t, s.Summary, "is gone")

			w.repo.fault(nil)
			w.repo.push("c1", boxes(map[string]int{"a": 1}))
			require.True(t, w.pass(time.Hour).Healthy)
			w.repo.fault(fmt.Errorf("https://git.example/site.git: %w; push a first commit", kind))
			s = w.look()
			require.False(t, s.Healthy)
			require.Equal(t, BranchMissing, s.Repository.Condition)
			require.Contains(t, s.Summary, "branch main is gone: it was deleted or renamed there. Push it again, or name the new one in agent.hcl")
			require.Contains(t, s.Summary, "c1 stays in force")
			require.Equal(t, "a=1", w.holds())
		})
	}
}

// A rewritten branch is accepted, and shown until the next commit on top of it.
func TestN4ARewrittenHistory(t *testing.T) {
	live(t, func(w *world) {
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		w.start()
		w.repo.push("c2", boxes(map[string]int{"a": 2}))
		require.Empty(t, w.pass(time.Hour).Repository.Rewritten)

		w.repo.rewrite("x1", boxes(map[string]int{"a": 3}))
		s := w.pass(time.Hour)
		require.Equal(t, HistoryRewritten, s.Repository.Condition)
		require.Equal(t, "history of main was rewritten: c2 is not an ancestor of x1", s.Repository.Rewritten)
		require.Contains(t, s.Summary, s.Repository.Rewritten)
		require.True(t, s.Healthy)
		require.Equal(t, "a=3", w.holds())

		w.repo.push("x2", boxes(map[string]int{"a": 4}))
		s = w.pass(time.Hour)
		require.Empty(t, s.Repository.Rewritten)
		require.Empty(t, s.Repository.Condition)
	})
}

// A commit that is pushed while a pass waits for a slow guest is in force within one poll: the pass starts nothing new, and work
// inside of a guest ends before its next part.
func TestR4ASlowGuestDelaysNoCommit(t *testing.T) {
	live(t, func(w *world) {
		w.repo.push("c1", boxes(map[string]int{"a": 1, "b": 1}))
		w.start()
		require.Equal(t, "a=1 b=1", w.holds())

		begun := make(chan string, 10)
		w.set(func() {
			w.host.During = func(ctx context.Context, s plan.Step) error {
				begun <- s.Address.Name
				select {
				case <-apply.Stopping(ctx):
					return &apply.NotYetError{Err: errors.New("stopped before the next part")}
				case <-time.After(8 * time.Minute):
					return nil
				}
			}
		})
		w.options = func(o *Options) { o.Width = 1 }
		w.end()
		w.start()
		w.repo.push("c2", boxes(map[string]int{"a": 2, "b": 2}))
		w.pass(67 * time.Second)
		require.Equal(t, "c2", w.agent.Status().Running.Commit)
		w.repo.push("c3", boxes(map[string]int{"a": 3, "b": 1}))
		w.set(func() { w.host.During = func(context.Context, plan.Step) error { return nil } })
		s := w.pass(67 * time.Second)
		require.Equal(t, "c3", s.Converged.ID)
		require.Equal(t, "a=3 b=1", w.holds())
		require.Equal(t, "a", <-begun)
		require.Empty(t, begun, "nothing new was started")
		require.Equal(t, 1, strings.Count(w.log.String(), "the running pass starts no new steps"))
	})
}

// Continuous pushes do not keep passes from changing something: one that has begun nothing continues.
func TestR4PushesDoNotStarveAPass(t *testing.T) {
	live(t, func(w *world) {
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		w.set(func() { w.host.look = func(context.Context) { <-time.After(5 * time.Minute) } })
		w.start()
		for _, id := range []string{"c2", "c3", "c4"} {
			w.repo.push(id, boxes(map[string]int{"a": 1, "b": 2}))
			w.pass(90 * time.Second)
		}
		w.pass(40 * time.Second)
		require.Equal(t, "a=1", w.holds())
		require.Equal(t, "done", w.receipts()[0].Outcome)
		w.set(func() { w.host.look = nil })
		s := w.pass(10 * time.Minute)
		require.Equal(t, engine.Done, s.Last.Outcome)
		require.Equal(t, "c4", s.Converged.ID)
	})
}

// An answer or a failure of the repository during a pass changes only the state of the repository.
func TestR4TheRepositoryFailsBesideAPass(t *testing.T) {
	live(t, func(w *world) {
		w.set(func() { w.host.During = slow(6 * time.Minute) })
		first := boxes(map[string]int{"a": 1})
		first.Site.Objects = model.State{}
		for _, n := range first.Site.Manifests["web"].Nodes {
			n.Resource.Needs = nil
		}
		w.repo.push("c1", first)
		w.start()
		w.repo.fault(errors.New("no route to host"))
		w.pass(3 * time.Minute)
		w.repo.fault(nil)
		w.set(func() {
			w.repo.before = func(_ context.Context, call string) {
				if call == "head" && w.agent.Status().Running != nil {
					panic("a defect of the source")
				}
			}
		})
		s := w.pass(4 * time.Minute)
		require.Equal(t, "done", w.receipts()[0].Outcome)
		require.Equal(t, "c1", s.Converged.ID)
		require.Zero(t, strings.Count(w.log.String(), "starts no new steps"))
	})
}

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
		require.False(t, s.Healthy, "the newest commit is unknown")

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

func TestRetriesOfAFailingHostBackOff(t *testing.T) {
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
		require.Nil(t, s.InForce, "no plan was made, so it is not known to be good")
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
func TestFailuresAreRetriedWhileHeadIsRefused(t *testing.T) {
	live(t, func(w *world) {
		w.repo.push("good", boxes(map[string]int{"a": 1}))
		w.start()
		w.repo.push("bad", engine.Desired{Findings: enginetest.Denial("error", "site")})
		w.set(func() { w.host.ObserveErr = errors.New("connection refused") })
		s := w.look()
		require.Equal(t, "commit bad refused: not on a Friday; good stays in force; host could not be seen: connection refused", s.Summary)
		w.set(func() { w.host.ObserveErr = nil })
		require.Equal(t, engine.Done, w.pass(12*time.Second).Last.Outcome)
	})
}

func TestUnreadableObjectsAreReadSoon(t *testing.T) {
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
		w.repo.push("bad", engine.Desired{Findings: enginetest.Denial("error", "site")})
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

// TestAnAgentDoesNotInsist: a host that never says how a step ended is tried a few times in
// each pass, and passes come as seldom as after any other failure.
func TestAnAgentDoesNotInsist(t *testing.T) {
	live(t, func(w *world) {
		var tries atomic.Int64
		w.set(func() {
			w.host.During = func(_ context.Context, s plan.Step) error {
				if s.Address.String() != "box.a" {
					return nil
				}
				tries.Add(1)
				return enginetest.LostError("596")
			}
		})
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		w.start()
		w.pass(8 * time.Second)
		require.EqualValues(t, 4, tries.Load(), "the first pass")
		require.Equal(t, 3, strings.Count(w.log.String(), "the outcome is unknown; checking"), "each further try is logged")
		require.Equal(t, 4, w.looks())
		w.pass(time.Hour)
		// 10 s, 20 s, … 5 min, then every 5 min: some 16 passes.
		require.Less(t, tries.Load(), int64(4*20))
		require.Less(t, w.looks(), 4*20)
		require.Zero(t, w.agent.Stuck())
	})
}

// TestReadsOfAStepKeepItsDeadline: a step that looked at the host again still has all of its
// own time, and not that of a look, before the agent counts as stuck.
func TestReadsOfAStepKeepItsDeadline(t *testing.T) {
	live(t, func(w *world) {
		gate := make(chan struct{})
		var first atomic.Bool
		first.Store(true)
		w.set(func() {
			w.host.During = func(_ context.Context, s plan.Step) error {
				if s.Address.String() != "disk.base" {
					return nil
				}
				if first.Swap(false) {
					return enginetest.LostError("596")
				}
				<-gate
				return nil
			}
		})
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		w.start()
		w.pass(50 * time.Minute) // of the hour that an object beside the manifests has
		require.False(t, first.Load())
		require.Zero(t, w.agent.Stuck())
		close(gate)
	})
}

// A check that left the files is not reported any more.
func TestAnAgentForgetsChecksThatLeftTheFiles(t *testing.T) {
	live(t, func(w *world) {
		i := enginetest.NewInn()
		w.options = func(o *Options) {
			o.Open = func(engine.Desired, *model.Host) (engine.Driver, error) { return i, nil }
		}
		i.Set("lone", true)
		w.repo.push("c1", engine.Desired{Site: enginetest.CheckedSite("continue")})
		w.start()
		s := w.pass(65 * time.Second)
		require.Equal(t, "box.db:true box.lone:false box.web:true", ready(s))
		require.Equal(t, []string{"box.lone"}, w.state().Failing)

		without := enginetest.CheckedSite("continue")
		for _, n := range without.Manifests["web"].Nodes {
			n.Checks = nil
		}
		w.repo.push("c2", engine.Desired{Site: without})
		s = w.pass(10 * time.Minute)
		require.Equal(t, "box.db:true box.lone:true box.web:true", ready(s))
		require.Empty(t, w.state().Failing)
		require.Zero(t, strings.Count(w.log.String(), "checks hold again"), "no check was run")
	})
}

// An agent remembers a guest whose check fails: it retries until the check passes, also after a restart, and then runs no check.
func TestTheAgentRemembersFailingChecks(t *testing.T) {
	live(t, func(w *world) {
		i := enginetest.NewInn()
		w.options = func(o *Options) {
			o.Open = func(engine.Desired, *model.Host) (engine.Driver, error) { return i, nil }
		}
		i.Set("lone", true)
		w.repo.push("c1", engine.Desired{Site: enginetest.CheckedSite("continue")})
		w.start()
		s := w.pass(15 * time.Second)
		require.Equal(t, "waiting for check up of box.lone: lone does not answer (10 s of 1m)", s.Running.Now[0].Waits)
		s = w.pass(50 * time.Second)
		require.Nil(t, s.Converged)
		require.Equal(t, "box.db:true box.lone:false box.web:true", ready(s))
		require.Contains(t, s.Nodes[1].Error, "check up (lone.hcl:7:3) failed: lone does not answer")

		w.end()
		w.start()
		s = w.pass(10 * time.Minute)
		require.Equal(t, "box.db:true box.lone:false box.web:true", ready(s))
		require.Equal(t, engine.Partly, s.Last.Outcome)

		i.Set("lone", false)
		s = w.pass(10 * time.Minute)
		require.Equal(t, engine.Done, s.Last.Outcome)
		require.Equal(t, "c1", s.Converged.ID)
		require.Equal(t, "box.db:true box.lone:true box.web:true", ready(s))
		require.Equal(t, 1, strings.Count(w.log.String(), "checks hold again"))

		before := i.Times("lone")
		w.pass(time.Hour)
		require.Equal(t, before, i.Times("lone"))
		require.Len(t, w.receipts(), 1, "to look is no change")
	})
}

func ready(s Status) string {
	var out []string
	for _, n := range s.Nodes {
		out = append(out, fmt.Sprintf("%s:%v", n.Address, n.Ready))
	}
	return strings.Join(out, " ")
}

// A VMID under which something is left is tried once; the next pass draws another, also
// one of an agent that was restarted.
func TestAnAgentTriesAVMIDWithSomethingLeftOnce(t *testing.T) {
	live(t, func(w *world) {
		var tried []int
		w.host.During = func(_ context.Context, s plan.Step) error {
			if s.Address.Kind != "box" {
				return nil
			}
			tried = append(tried, s.VMID)
			if s.VMID == 100 || s.VMID == 101 {
				return &model.UnusableVMIDError{VMID: s.VMID, Err: errors.New("a volume is left")}
			}
			return nil
		}
		w.repo.push("c1", boxes(map[string]int{"web": 1}))
		w.start()
		w.pass(time.Second)
		require.Equal(t, []int{100}, w.state().UnusableVMIDs)
		w.end()
		w.start()
		w.pass(time.Hour)
		require.Equal(t, []int{100, 101, 102}, tried)
		require.Equal(t, "web=1", w.holds())
		require.Equal(t, []int{100, 101}, w.state().UnusableVMIDs)
	})
}

// What a look leaves to be remembered is told to the next one, also after a restart and
// after looks that saw nothing.
func TestAPassKnowsWhatTheLastOneLeft(t *testing.T) {
	live(t, func(w *world) {
		var told [][]string
		leaves := []string{"seeds father local"}
		w.options = func(o *Options) {
			o.Open = func(engine.Desired, *model.Host) (engine.Driver, error) {
				return recalling{w.host, &told, &leaves}, nil
			}
		}
		w.repo.push("c1", boxes(map[string]int{"web": 1}))
		w.start()
		w.pass(time.Second)
		w.set(func() { w.host.ObserveErr = errors.New("dark") })
		w.look()
		w.end()
		w.set(func() { w.host.ObserveErr = nil })
		w.start()
		w.pass(time.Second)
		leaves = nil
		w.look()
		w.look()
		kept := []string{"seeds father local"}
		require.Equal(t, [][]string{nil, kept, kept, kept, nil}, told)
		require.Empty(t, w.state().SweepHints)

		told, leaves = nil, []string{}
		w.look()
		w.look()
		w.end()
		w.start()
		w.pass(time.Second)
		require.Equal(t, [][]string{nil, {}, nil}, told, "that nothing was left is known until the next start")
	})
}

// recalling is a host that leaves something to be remembered.
type recalling struct {
	*eye
	told   *[][]string
	leaves *[]string
}

func (r recalling) Observe(ctx context.Context, want *model.Want) (model.Observed, error) {
	*r.told = append(*r.told, want.SweepHints)
	have, err := r.eye.Observe(ctx, want)
	have.SweepHints = *r.leaves
	return have, err
}

// A commit whose evaluation had to be ended is refused for good: neither the next pass nor the next start
// tries it again. The last good one stays in force, and the agent is not healthy.
func TestS2ACommitThatTakesTooMuchIsTriedOnce(t *testing.T) {
	live(t, func(w *world) {
		w.repo.push("good", boxes(map[string]int{"a": 1}))
		w.start()
		why := diag.Errorf(diag.Range{File: "bomb.hcl", Start: diag.Pos{Line: 3, Column: 7}}, "the site takes too much to evaluate: it did not finish within 5s of processor time", "")
		w.repo.push("bomb", engine.Desired{Findings: diag.List{why}, Harmful: true})
		s := w.pass(67 * time.Second)
		require.Equal(t, "bomb", s.Refused.Commit)
		require.Equal(t, "good", s.InForce.ID)
		require.Equal(t, "a=1", w.holds())
		require.Contains(t, s.Summary, "bomb.hcl:3:7")

		w.end()
		w.set(func() { w.repo.sites["bomb"] = boxes(map[string]int{"a": 2}) }) // an evaluation would be seen
		w.start()
		s = w.pass(10 * time.Minute)
		require.Equal(t, "bomb", s.Refused.Commit)
		require.Contains(t, s.Summary, "bomb.hcl:3:7")
		require.Equal(t, "a=1", w.holds(), "it was not evaluated again")

		w.repo.push("better", boxes(map[string]int{"a": 3}))
		s = w.pass(67 * time.Second)
		require.Nil(t, s.Refused)
		require.Equal(t, "better", s.InForce.ID)
		require.Equal(t, "a=3", w.holds())

		w.end()
		w.options = func(o *Options) { o.Program = "1.1" }
		w.set(func() { w.repo.head = "bomb" })
		w.start()
		w.pass(time.Minute)
		require.Equal(t, "a=2", w.holds(), "another version of the program may need less")
	})
}

func TestAReceiptListsWhatWasDone(t *testing.T) {
	h := &enginetest.Host{Fail: map[string]error{"box.b": errors.New("storage is full")}, During: func(ctx context.Context, s plan.Step) error {
		model.RecordTask(ctx, "UPID:"+s.Address.Name)
		return nil
	}}
	s := enginetest.Site(map[string]int{"a": 1, "b": 2})
	s.Manifests["web"].OnError = "continue"
	p := h.Pass(s)
	p.Commit = &model.Commit{ID: "c0ffee", Subject: "more boxes", Author: model.Person{Name: "Ada", Email: "ada@example.org"}}
	r := p.Run(t.Context())
	got, ok := Receipt(&r, "cli:ops@pve", true)
	require.True(t, ok)
	require.Equal(t, "partly", got.Outcome)
	for i := range got.Steps {
		require.False(t, got.Steps[i].Began.IsZero())
		got.Steps[i].Began, got.Steps[i].Seconds = r.Results[i].Started, 0
	}
	size := func(n int64) []ledger.Change {
		return []ledger.Change{{Path: "size", After: n}, {Path: "ip", After: enginetest.IPOf("a")}, {Path: "image", After: ""}, {Path: "recreate", After: ""}}
	}
	require.ElementsMatch(t, size(1), got.Steps[1].Changes)
	for i := range got.Steps {
		got.Steps[i].Changes, got.Steps[i].Began = nil, got.Began
	}
	require.Len(t, got.Digest, 64)
	got.Digest = ""
	require.Equal(t, ledger.Receipt{
		Verb: "apply", By: "cli:ops@pve", Host: "father", Site: "home", Commit: "c0ffee", Subject: "more boxes", Author: "Ada",
		Plan: r.Plan.ID, Began: got.Began, Seconds: r.Seconds, Outcome: "partly", Drift: true, Findings: diag.List{},
		Steps: []ledger.Step{
			{Address: "disk.base", Action: "create", Class: "none", Reason: "declared, and does not exist yet", Tasks: []string{"UPID:base"}, Status: "done", Began: got.Began},
			{Address: "box.a", VMID: 100, Action: "create", Class: "none", Reason: "declared, and does not exist yet", Tasks: []string{"UPID:a"}, Status: "done", Began: got.Began},
			{Address: "box.b", VMID: 101, Action: "create", Class: "none", Reason: "declared, and does not exist yet", Tasks: []string{"UPID:b"}, Status: "failed", Error: "storage is full", Began: got.Began},
		},
	}, got)

	r = (&enginetest.Host{}).Pass(s).Run(t.Context())
	_, ok = Receipt(&r, "x", false)
	require.True(t, ok)
	r = engine.Failure("apply", "c0ffee", nil)
	_, ok = Receipt(&r, "x", false)
	require.False(t, ok, "nothing was begun")
}

// A receipt is kept for years: secrets, unmanaged guests and the lines of
// the files have no place in it.
func TestAReceiptHoldsNoSecret(t *testing.T) {
	const secret = "correct horse"
	h := &enginetest.Host{Unmanaged: []model.Unmanaged{{VMID: 500, Name: "not ours", Kind: "vm", Why: "no ownership tag"}}}
	s := enginetest.Site(map[string]int{"a": 1})
	a := s.Manifests["web"].Nodes[0].Resource
	a.Spec.(*enginetest.Box).IP, a.Sensitive = secret, []string{"ip"}
	p := h.Pass(s)
	p.Load = func(context.Context) engine.Desired {
		return engine.Desired{Site: s, Findings: diag.List{{Severity: diag.Warning, Summary: "a plain password", Code: "ip = " + secret}}}
	}
	r := p.Run(t.Context())
	require.Equal(t, engine.Done, r.Outcome)
	got, ok := Receipt(&r, "father", false)
	require.True(t, ok)
	b, err := json.Marshal(got)
	require.NoError(t, err)
	require.NotContains(t, string(b), secret)
	require.NotContains(t, string(b), "not ours")
	require.Contains(t, got.Steps[1].Changes, ledger.Change{Path: "ip", Sensitive: true})
	require.Equal(t, "a plain password", got.Findings[0].Summary)
	require.Contains(t, r.Findings[0].Code, secret, "the report itself is as it was")
}

// An agent whose program was replaced ends, and finishes the pass that is at work first.
func TestAReplacedProgramEndsTheAgentBetweenPasses(t *testing.T) {
	live(t, func(w *world) {
		var replaced atomic.Bool
		w.options = func(o *Options) { o.Replaced = replaced.Load }
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		w.start()
		require.Equal(t, "a=1", w.holds())
		w.repo.push("c2", boxes(map[string]int{"a": 1, "b": 2}))
		w.repo.before = func(_ context.Context, call string) {
			if call == "load" {
				replaced.Store(true) // in the middle of the pass
			}
		}
		w.agent.CheckNow()
		require.NoError(t, <-w.ended)
		require.Equal(t, "a=1 b=2", w.holds())
		require.Equal(t, "c2", w.state().Converged.ID)
		w.halt = nil
	})
}
