package agent_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/model"
)

// asking is a commit that writes down what was granted to each of its passes.
func asking(sizes map[string]int, grants *[]int) engine.Desired {
	d := boxes(sizes)
	d.PolicyCheck = func(_ context.Context, q engine.Question) diag.List {
		*grants = append(*grants, q.AllowDeletes)
		if !q.Unattended {
			return diag.List{diag.Errorf(diag.Range{}, "nobody watches an agent", "")}
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

// What no trailer granted is no use of one that comes later.
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
		require.Empty(t, w.look().Last.Findings, "nobody asked")
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

func TestDriftIsToldAndPutBack(t *testing.T) {
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

func TestNodesTellWhereTheyAreAndWhatIsWrong(t *testing.T) {
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
