package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// asking is a commit that writes down what was granted to each of its passes.
func asking(sizes map[string]int, grants *[]int) engine.Desired {
	d := boxes(sizes)
	d.PolicyCheck = func(_ context.Context, q engine.Question) diag.List {
		*grants = append(*grants, q.AllowDeletes)
		if !q.Unattended {
			return diag.List{diag.Errorf(diag.Range{}, "an agent runs unattended", "")}
		}
		return nil
	}
	return d
}

// four is what these stories begin with.
func four() map[string]int { return map[string]int{"a": 1, "b": 1, "c": 1, "d": 1} }

func TestTrailersGrantRemovals(t *testing.T) {
	live(t, func(w *world) {
		var grants []int
		w.repo.push("c1", asking(four(), &grants), "Allow-Deletes: 9")
		s := w.start().Status()
		require.Equal(t, []int{0}, grants, "no commit is known to have converged")
		require.Equal(t, "trailer Allow-Deletes of commit c1 is ignored", s.Last.Findings[0].Summary)
		require.Equal(t, diag.Warning, s.Last.Findings[0].Severity)
		require.Equal(t, engine.Done, s.Last.Outcome)

		w.end()
		grants = nil
		w.repo.push("c2", asking(map[string]int{"a": 1, "b": 1}, &grants), "allow-deletes: 2")
		w.repo.push("c3", boxes(nil), "Allow-Deletes: many")
		w.repo.push("c4", boxes(nil), "Allow-Deletes: -3")
		w.repo.push("c5", asking(map[string]int{"a": 1}, &grants), "Allow-Deletes: 1")
		w.start()
		s = w.agent.Status()
		require.Equal(t, []int{3}, grants)
		require.Len(t, s.Last.Findings, 2)
		require.Contains(t, s.Last.Findings[0].Detail+s.Last.Findings[1].Detail, `"many" is not a positive number`)
		require.Equal(t, "a=1", w.holds())
		require.Zero(t, w.state().Consumed, "a commit that converged begins anew")

		w.pass(6 * time.Minute)
		require.Equal(t, []int{3, 0}, grants)
	})
}

func TestAGrantIsSpentByThePassThatUsesIt(t *testing.T) {
	live(t, func(w *world) {
		var grants []int
		w.repo.push("c1", boxes(four()))
		w.start()
		d := asking(map[string]int{"a": 1}, &grants)
		d.Site.Manifests["web"].OnError = "continue"
		w.set(func() { w.host.Fail = map[string]error{"box.d": errors.New("locked")} })
		w.repo.push("c2", d, "Allow-Deletes: 5")
		s := w.look()
		require.Equal(t, engine.Partly, s.Last.Outcome)
		require.Equal(t, 2, w.state().Consumed)
		w.end()
		w.start() // neither a restart nor another try gives it back
		require.Equal(t, []int{5, 3}, grants[:2])
		require.Equal(t, 2, w.state().Consumed)

		// A later commit adds to what is left; once it converged, all begins again.
		w.set(func() { w.host.Fail = nil })
		w.repo.push("c3", asking(nil, &grants), "Allow-Deletes: 1")
		w.look()
		require.Equal(t, 4, grants[len(grants)-1], "5 and 1, less the two that are gone")
		require.Empty(t, w.holds())
		require.Zero(t, w.state().Consumed)
	})
}

// A removal without a grant does not use up a later trailer.
func TestRemovalsWithoutAGrantSpendNothing(t *testing.T) {
	live(t, func(w *world) {
		w.repo.push("c1", boxes(four()))
		w.start()
		d := boxes(map[string]int{"a": 1})
		d.Site.Manifests["web"].OnError = "continue"
		w.set(func() { w.host.Fail = map[string]error{"box.d": errors.New("locked")} })
		w.repo.push("c2", d)
		w.look()
		require.Zero(t, w.state().Consumed)
	})
}

func TestARewrittenBranchGrantsNothing(t *testing.T) {
	live(t, func(w *world) {
		var grants []int
		w.repo.push("c1", boxes(four()))
		w.start()
		w.repo.rewrite("x1", asking(map[string]int{"a": 1}, &grants), "Allow-Deletes: 3")
		s := w.look()
		require.Equal(t, []int{0}, grants)
		require.Equal(t, "trailer Allow-Deletes of commit x1 is ignored", s.Last.Findings[0].Summary)
		require.Contains(t, s.Last.Findings[0].Detail, "not known to be an ancestor")
		w.repo.rewrite("y1", asking(map[string]int{"a": 2}, &grants))
		require.Empty(t, w.look().Last.Findings, "no grant was asked for")
	})
}

// Guests that a step replaces are removals, too.
func TestAReplacementSpendsAGrant(t *testing.T) {
	live(t, func(w *world) {
		class := func(_, _ *model.Resource, _ string, _ model.Class) model.Class { return model.ClassReplace }
		big := func(sizes map[string]int) engine.Desired {
			d := boxes(sizes)
			d.Site.Kinds[0].Class = class
			d.Site.Manifests["web"].OnError = "continue"
			return d
		}
		w.repo.push("c1", big(map[string]int{"a": 1, "b": 1}))
		w.start()
		w.set(func() { w.host.Fail = map[string]error{"box.b": errors.New("no")} })
		w.repo.push("c2", big(map[string]int{"a": 2, "b": 2}), "Allow-Deletes: 2")
		w.look()
		require.Equal(t, 1, w.state().Consumed)
	})
}

func TestDriftIsReportedAndReverted(t *testing.T) {
	live(t, func(w *world) {
		w.repo.push("c1", boxes(map[string]int{"a": 1, "b": 1}))
		w.start()
		w.byHand(func(h model.State) {
			h[enginetest.Addr("box", "a")].Spec.(*enginetest.Box).Size = 5
			delete(h, enginetest.Addr("box", "b"))
		})
		s := w.pass(6 * time.Minute)
		require.Equal(t, "a=1 b=1", w.holds())
		require.True(t, s.Last.Drift)
		list := w.receipts()
		require.True(t, list[0].Drift)
		require.False(t, list[1].Drift)
		require.Equal(t, 1, strings.Count(w.log.String(), "drift was reverted"))
		require.Equal(t, []bool{true, true}, []bool{s.Nodes[0].Ready, s.Nodes[1].Ready})

		w.repo.push("c2", boxes(map[string]int{"a": 2}))
		require.False(t, w.look().Last.Drift, "a commit asked for it")
	})
}

func TestDriftThatIsOnlyReportedIsSeen(t *testing.T) {
	live(t, func(w *world) {
		d := boxes(map[string]int{"a": 1, "b": 1})
		for _, n := range d.Site.Manifests["web"].Nodes {
			n.Drift = "report"
		}
		w.repo.push("c1", d)
		w.start()
		w.byHand(func(h model.State) { h[enginetest.Addr("box", "a")].Spec.(*enginetest.Box).Size = 5 })
		s := w.pass(6 * time.Minute)
		require.Equal(t, "a=5 b=1", w.holds())
		require.Equal(t, []int{1, 0}, []int{s.Nodes[0].Drift, s.Nodes[1].Drift})
		require.False(t, s.Nodes[0].Ready)
		require.Contains(t, s.Nodes[0].Error, "drift = report")
		since := s.Nodes[0].Since
		require.Equal(t, since, w.pass(6 * time.Minute).Nodes[0].Since, "since then it is not ready")
	})
}

func TestStatusOfNodes(t *testing.T) {
	live(t, func(w *world) {
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		w.start()
		d := boxes(map[string]int{"a": 2, "b": 1, "c": 1})
		d.Site.Manifests["web"].OnError = "continue"
		w.set(func() {
			w.host.Fail = map[string]error{"box.b": errors.New("storage is full"), "box.a": errors.New("locked")}
		})
		w.repo.push("c2", d)
		s := w.look()
		var got []string
		for _, n := range s.Nodes {
			got = append(got, fmt.Sprintf("%s %d %q %s %t %d %s", n.Node, n.VMID, n.PVENode, n.Phase, n.Ready, n.Drift, n.Error))
		}
		require.Equal(t, []string{
			`a 100 "father" run false 1 locked`,
			`b 101 "" create false 0 storage is full`,
			`c 102 "father" run true 0 `,
		}, got)
		require.Equal(t, "update box.a: locked (and 1 more)", s.Summary)

		w.set(func() { w.host.Unknown = []model.Unknown{{Scope: "host father", Why: "no quorum", All: true}} })
		require.Equal(t, s.Nodes, w.pass(6*time.Minute).Nodes, "a pass that saw nothing tells nothing new")
	})
}

// back is a forced push that takes the newest n commits off the branch; again pushes
// them again.
func (w *world) back(n int) (again func()) {
	taken := slices.Clone(w.repo.branch[len(w.repo.branch)-n:])
	w.set(func() { w.repo.branch = w.repo.branch[:len(w.repo.branch)-n] })
	return func() { w.set(func() { w.repo.branch = append(w.repo.branch, taken...) }) }
}

func TestATrailerIsUsedOnceOnABranchThatReturns(t *testing.T) {
	live(t, func(w *world) {
		var grants []int
		w.repo.push("c1", boxes(four()))
		w.start()
		w.repo.push("c2", asking(map[string]int{"a": 1}, &grants), "Allow-Deletes: 3")
		w.look()
		require.Equal(t, "a=1", w.holds())
		again := w.back(1)
		w.look()
		require.Equal(t, "a=1 b=1 c=1 d=1", w.holds())
		again()
		s := w.look()
		require.Equal(t, []int{3, 0}, grants)
		require.Equal(t, "trailer Allow-Deletes of commit c2 is ignored", s.Last.Findings[0].Summary)

		w.end() // and not after a restart either
		again = w.back(1)
		w.start()
		again()
		w.look()
		require.Equal(t, []int{3, 0, 0}, grants)
		w.repo.push("c3", asking(nil, &grants), "Allow-Deletes: 1")
		w.look()
		require.Equal(t, 1, grants[len(grants)-1], "a new commit may ask anew")
	})
}

// What a pass that broke off has used is void, too, where the host then converges to
// another branch.
func TestATrailerThatIsUsedInPartIsVoidOnAnotherBranch(t *testing.T) {
	live(t, func(w *world) {
		var grants []int
		w.repo.push("c0", boxes(four()))
		w.repo.push("c1", boxes(four()))
		w.start()
		d := asking(map[string]int{"a": 1}, &grants)
		d.Site.Manifests["web"].OnError = "continue"
		w.set(func() { w.host.Fail = map[string]error{"box.d": errors.New("locked")} })
		w.repo.push("c2", d, "Allow-Deletes: 5")
		require.Equal(t, engine.Partly, w.look().Last.Outcome)
		require.Equal(t, 2, w.state().Consumed)
		again := w.back(2)
		w.look()
		require.Equal(t, "c0", w.state().Converged.ID)
		grants = nil
		again()
		w.look()
		require.Equal(t, []int{0}, grants)
	})
}

// The first commit that a host converges to grants nothing, also not when it comes back.
func TestTheFirstCommitGrantsNothingLater(t *testing.T) {
	live(t, func(w *world) {
		var grants []int
		w.repo.push("c1", boxes(four()))
		w.repo.push("c2", asking(map[string]int{"a": 1}, &grants), "Allow-Deletes: 3")
		w.start()
		again := w.back(1)
		w.look()
		again()
		w.look()
		require.Equal(t, []int{0, 0}, grants)
	})
}

// A program that is killed between two removals has written down the first.
func TestRemovalsAreBookedOneByOne(t *testing.T) {
	live(t, func(w *world) {
		var booked []int
		w.options = func(o *Options) {
			o.Width = 1
			o.Notify = func(s Status) {
				if s.Running != nil && s.Running.Done > 0 {
					booked = append(booked, w.state().Consumed)
				}
			}
		}
		w.repo.push("c1", boxes(four()))
		w.start()
		booked = nil
		w.repo.push("c2", boxes(map[string]int{"a": 1}), "Allow-Deletes: 2")
		w.look()
		require.Subset(t, booked, []int{1, 2})
		require.NotContains(t, booked, 3, "the third was not granted by the trailer")
	})
}

func TestAFailedWriteOfStateIsRepeated(t *testing.T) {
	live(t, func(w *world) {
		state := filepath.Join(w.dir, "state.json")
		require.NoError(t, os.Mkdir(state, 0o700), "so that no file can take its place")
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		w.start()
		require.NoError(t, os.Remove(state))
		w.pass(6 * time.Minute)
		require.Equal(t, "c1", w.state().Converged.ID)
	})
}

func TestACommitThatCannotBeKeptIsReportedOnce(t *testing.T) {
	live(t, func(w *world) {
		w.repo.before = func(_ context.Context, call string) {
			if call == "keep" {
				panic("no such commit here")
			}
		}
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		w.start()
		w.pass(10 * time.Minute)
		require.Equal(t, 1, strings.Count(w.log.String(), "does not know which commits to keep"))
	})
}

func in(d time.Duration) *time.Time {
	t := time.Now().Add(d).UTC()
	return &t
}

// slow makes every step take so long.
func slow(d time.Duration) func(ctx context.Context, s plan.Step) error {
	return func(ctx context.Context, _ plan.Step) error {
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func TestASuspendedAgentReadsAndPlans(t *testing.T) {
	live(t, func(w *world) {
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		w.start()
		require.NoError(t, w.agent.Suspend(ledger.Suspension{Reason: "disk swap", By: "ops@pve", Until: in(3 * time.Hour)}))
		w.repo.push("c2", boxes(map[string]int{"a": 2, "b": 1}))
		s := w.pass(67 * time.Second)
		require.Equal(t, "a=1", w.holds())
		require.Equal(t, "c2", s.InForce.ID, "it loads, and no rule denies its plan")
		require.Equal(t, "c1", s.Converged.ID)
		require.Equal(t, engine.Planned, s.Last.Outcome)
		require.Equal(t, 1, s.Last.Summary.Update)
		until := s.Suspended[0].Until.Local().Format("15:04")
		require.Equal(t, "suspended by ops@pve until "+until+": disk swap (2 changes wait)", s.Summary)
		require.Len(t, s.Nodes, 2)
		require.Equal(t, 1, s.Nodes[0].Drift)
		require.Equal(t, "create", s.Nodes[1].Phase)

		w.end() // it outlives a restart
		w.start()
		require.Len(t, w.pass(time.Hour).Suspended, 1)
		require.Equal(t, "a=1", w.holds())

		s = w.pass(2 * time.Hour) // and ends at once without a resume
		require.Equal(t, "a=2 b=1", w.holds())
		require.Empty(t, s.Suspended)
		require.Empty(t, w.state().Suspended)
		require.Equal(t, "c2", s.Converged.ID)
		require.Len(t, w.receipts(), 2)
	})
}

func TestASuspendedManifestIsLeftAsItIs(t *testing.T) {
	live(t, func(w *world) {
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		w.start()
		require.NoError(t, w.agent.Suspend(ledger.Suspension{Manifest: "web", By: "ops", Reason: "by hand"}))
		w.byHand(func(h model.State) { h[enginetest.Addr("box", "a")].Spec.(*enginetest.Box).Size = 7 })
		s := w.pass(6 * time.Minute)
		require.Equal(t, "a=7", w.holds())
		require.Equal(t, engine.Done, s.Last.Outcome)
		require.Equal(t, "in sync at c1; manifest web suspended by ops: by hand", s.Summary)
		require.Equal(t, "run", s.Nodes[0].Phase)
		require.False(t, s.Nodes[0].Ready)
		require.Contains(t, s.Nodes[0].Error, "suspended")

		// A node that leaves the site while it is suspended stays, too.
		gone := boxes(nil)
		gone.Site.Manifests = map[string]*model.Manifest{}
		w.repo.push("gone", gone)
		w.pass(6 * time.Minute)
		require.Equal(t, "a=7", w.holds())

		w.repo.push("back", boxes(map[string]int{"a": 2}))
		s = w.pass(6 * time.Minute)
		require.Equal(t, "back", s.Converged.ID)
		ok, err := w.agent.Resume("web")
		require.NoError(t, err)
		require.True(t, ok)
		s = w.pass(0)
		require.Equal(t, "a=2", w.holds())
		require.False(t, s.Last.Drift, "it was never converged to, so this is not drift")
		ok, err = w.agent.Resume("web")
		require.NoError(t, err)
		require.False(t, ok)
	})
}

func TestASuspensionOfWhatIsNotThereIsAnError(t *testing.T) {
	live(t, func(w *world) {
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		a := w.new()
		require.NoError(t, a.Suspend(ledger.Suspension{Manifest: "wob"}), "the manifests are not known yet")
		w.start()
		require.EqualError(t, w.agent.Suspend(ledger.Suspension{Manifest: "wep"}), `unknown manifest "wep": did you mean "web"?`)
		require.ErrorContains(t, w.agent.Suspend(ledger.Suspension{Until: in(-time.Second)}), "that time has passed")
		require.Len(t, w.agent.Status().Suspended, 1)
		require.NoError(t, w.agent.Suspend(ledger.Suspension{Manifest: "web", Reason: "one"}))
		require.NoError(t, w.agent.Suspend(ledger.Suspension{Manifest: "web", Reason: "two"}))
		require.Len(t, w.agent.Status().Suspended, 2)
		require.Equal(t, "two", w.agent.Status().Suspended[1].Reason)
	})
}

// A suspension during a pass is reliable: running steps are finished, nothing new
// is begun.
func TestASuspensionStopsThePassUnderWay(t *testing.T) {
	for name, manifest := range map[string]string{"everything": "", "the manifest": "web"} {
		t.Run(name, func(t *testing.T) {
			live(t, func(w *world) {
				w.repo.push("c1", boxes(map[string]int{"a": 1, "b": 2}))
				w.set(func() { w.host.During = slow(time.Minute) })
				w.start()
				require.Equal(t, "disk.base", w.agent.Status().Running.Now[0].Address)
				require.NoError(t, w.agent.Suspend(ledger.Suspension{Manifest: manifest, By: "ops"}))
				s := w.pass(10 * time.Minute)
				require.Equal(t, []string{"create disk.base"}, w.host.Applied)
				require.Len(t, s.Suspended, 1)
				require.Len(t, w.receipts(), 1)
				require.Equal(t, "interrupted", w.receipts()[0].Outcome)
				require.Nil(t, s.Running)
				require.Equal(t, Idle, s.State)
				_, err := w.agent.Resume(manifest)
				require.NoError(t, err)
				w.pass(2 * time.Minute)
				require.Equal(t, "a=1 b=2", w.holds())
			})
		})
	}
}

// Nothing is begun after Suspend has returned, whenever it is called.
func TestASuspensionHoldsWhenItReturns(t *testing.T) {
	for at := range 40 {
		live(t, func(w *world) {
			w.repo.push("c1", boxes(map[string]int{"a": 1, "b": 2, "c": 3}))
			w.set(func() { w.host.During = slow(time.Second) })
			w.set(func() { w.host.look = func(context.Context) { <-time.After(500 * time.Millisecond) } })
			w.options = func(o *Options) { o.Width = 1 }
			w.start()
			<-time.After(time.Duration(at)*125*time.Millisecond + time.Millisecond) // never at the moment of an end
			require.NoError(t, w.agent.Suspend(ledger.Suspension{}))
			running := 0
			if r := w.agent.Status().Running; r != nil {
				running = len(r.Now)
			}
			w.host.Mu.Lock()
			done := len(w.host.Applied)
			w.host.Mu.Unlock()
			w.pass(time.Hour)
			require.LessOrEqual(t, len(w.host.Applied), done+running)
		})
	}
}

// A pass without a person never has more rights than one with a person: what a commit grants counts on the way to that commit
// alone. Drift that needs removals gets none, however often, over restarts, and whatever the commits before had.
func TestNoGrantOfACommitCountsInADriftPass(t *testing.T) {
	live(t, func(w *world) {
		var grants []int
		d := func() engine.Desired { return asking(four(), &grants) }
		w.repo.push("c1", d())
		w.start()
		w.repo.push("c2", d(), "Allow-Deletes: 9", "Allow-Orphans: a")
		require.Equal(t, engine.Done, w.look().Last.Outcome)
		require.Equal(t, 9, grants[len(grants)-1], "on the way to the commit it counts")

		drift := func() {
			grants = nil
			w.byHand(func(h model.State) { h[enginetest.Addr("box", "a")].Spec.(*enginetest.Box).Size = 5 })
			s := w.pass(6 * time.Minute)
			require.True(t, s.Last.Drift)
			require.NotEmpty(t, grants)
			for _, n := range grants {
				require.Zero(t, n)
			}
		}
		drift()
		drift()
		w.end()
		w.start()
		drift()
		require.Zero(t, w.state().Consumed)
	})
}
