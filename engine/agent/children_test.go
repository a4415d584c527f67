package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
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

// parent is a world in which box inner is a child with a box below it.
func parent(w *world, reports map[string]model.ChildReport) {
	w.options = func(o *Options) {
		o.Children = func() map[string]model.ChildReport {
			w.repo.mu.Lock()
			defer w.repo.mu.Unlock()
			return maps.Clone(reports)
		}
	}
	w.repo.push("c1", boxes(map[string]int{"a": 1, "b": 1, "inner": 1}))
	w.start()
	w.byHand(func(h model.State) { h[enginetest.Addr("box", "inner")].Guest.Orphan = model.OrphanRefuse })
}

// A child that left the site goes when it has reported that it is empty at a commit that has it no more; until then
// the commit is in force, and nothing is wrong.
func TestAChildGoesAfterItsReport(t *testing.T) {
	live(t, func(w *world) {
		reports := map[string]model.ChildReport{}
		report := func(commit string, empty bool) {
			w.set(func() { reports["inner"] = model.ChildReport{At: time.Now(), Commit: commit, Empty: empty} })
		}
		var shown, forgotten []string
		parent(w, reports)
		before := w.options
		w.end()
		w.options = func(o *Options) {
			before(o)
			o.InForce = func(_ context.Context, d engine.Desired, host HostState) {
				w.set(func() { shown = append(shown, d.Commit+" without "+strings.Join(host.Removed, " ")) })
			}
			o.Forget = func(child string) { w.set(func() { forgotten = append(forgotten, child) }) }
		}
		last := func() string {
			w.repo.mu.Lock()
			defer w.repo.mu.Unlock()
			return shown[len(shown)-1]
		}
		w.start()
		require.Equal(t, "c1 without ", last())
		w.repo.push("c2", boxes(map[string]int{"a": 1, "b": 1}))
		s := w.look()
		require.Equal(t, "c2 without inner", last(), "it is published as soon as the commit is in force")
		require.Equal(t, "a=1 b=1 inner=1", w.holds())
		require.Equal(t, engine.Done, s.Last.Outcome)
		require.Empty(t, s.Last.Findings)
		require.Equal(t, "c2", w.state().Good.ID)
		require.Equal(t, "c1", w.state().Converged.ID, "it is not all done")
		require.Equal(t, map[string]string{"inner": "c2"}, w.state().Withdrawn)

		report("c1", true)
		w.look()
		require.Equal(t, "a=1 b=1 inner=1", w.holds(), "c1 has it")
		report("c2", true)
		w.end()
		w.repo.push("c3", boxes(map[string]int{"a": 2, "b": 1}))
		w.set(func() { shown = nil })
		require.Empty(t, forgotten)
		w.start()
		w.set(func() {
			require.Equal(t, "c2 without inner", shown[0], "that is remembered over a restart")
			require.Equal(t, []string{"inner"}, forgotten, "what the next one of the name reports is its own")
		})
		require.Equal(t, "a=2 b=1", w.holds(), "c2 has it no more, and is before c3")
		require.Contains(t, w.receipts()[0].Steps[0].Reason+w.receipts()[0].Steps[1].Reason, "nothing is left in it, as it reported at c2")
		require.Equal(t, "c3", w.state().Converged.ID)
		w.look()
		require.Empty(t, w.state().Withdrawn)
		require.Equal(t, "c3 without ", last())
	})
}

// While everything is suspended no child hears that it left the site: it would empty itself.
func TestAChildIsNotRemovedWhileAllIsSuspended(t *testing.T) {
	live(t, func(w *world) {
		var shown []string
		parent(w, map[string]model.ChildReport{})
		before := w.options
		w.end()
		w.options = func(o *Options) {
			before(o)
			o.InForce = func(_ context.Context, d engine.Desired, host HostState) {
				w.set(func() { shown = append(shown, d.Commit+" without "+strings.Join(host.Removed, " ")) })
			}
		}
		w.start()
		require.NoError(t, w.agent.Suspend(ledger.Suspension{}))
		w.repo.push("c2", boxes(map[string]int{"a": 1, "b": 1}))
		w.look()
		w.look()
		w.end()
		w.start()
		w.look()
		for _, text := range shown {
			require.NotContains(t, text, "inner")
		}
		_, err := w.agent.Resume("")
		require.NoError(t, err)
		w.look()
		require.Contains(t, shown, "c2 without inner")
	})
}

// A host that moved is served until the site lacks it, or a person revokes its tokens. Then its former parent revokes them.
func TestAHostThatMovedIsLetGo(t *testing.T) {
	live(t, func(w *world) {
		site := func(parent string) engine.Desired {
			d := boxes(map[string]int{"a": 1})
			if d.Site.Hosts[parent] == nil {
				d.Site.Hosts["mother"] = &model.Host{Name: "mother"}
			}
			if parent != "" {
				d.Site.Hosts["branch"] = &model.Host{Name: "branch", Parent: parent}
			}
			return d
		}
		var asked []bool
		var barred bool
		var failure error
		w.options = func(o *Options) {
			o.Revoke = func(_ string, done bool) (bool, error) {
				w.repo.mu.Lock()
				defer w.repo.mu.Unlock()
				asked = append(asked, done)
				return (barred || done) && failure == nil, failure
			}
		}
		moves := func(n int) {
			w.repo.push(fmt.Sprintf("c%d", n), site("father"))
			w.look()
			require.Equal(t, map[string]ledger.HostBelow{"branch": {}}, w.state().Hosts)
			w.repo.push(fmt.Sprintf("c%d", n+1), site("mother"))
			w.look()
			w.look()
			require.Equal(t, map[string]ledger.HostBelow{"branch": {Moved: true}}, w.state().Hosts)
			require.NotContains(t, asked, true)
		}
		w.repo.push("c0", site(""))
		w.start()
		moves(1)
		w.repo.push("c3", site(""))
		w.set(func() { failure = errors.New("the disk is full") })
		w.look()
		require.Equal(t, map[string]ledger.HostBelow{"branch": {Moved: true}}, w.state().Hosts, "it is tried again")
		w.set(func() { failure = nil })
		w.look()
		require.Empty(t, w.state().Hosts)
		require.Contains(t, asked, true)

		w.set(func() { asked = nil })
		moves(4)
		w.set(func() { barred = true })
		w.look()
		require.Empty(t, w.state().Hosts)
		require.NotContains(t, asked, true)
	})
}

// The report of a guest does not count any more as soon as it is recreated: before the first step that may fail.
func TestARecreatedChildIsForgotten(t *testing.T) {
	live(t, func(w *world) {
		var events []string
		w.options = func(o *Options) {
			o.Forget = func(node string) { w.set(func() { events = append(events, "forget "+node) }) }
		}
		w.host.During = func(_ context.Context, s plan.Step) error {
			w.set(func() { events = append(events, string(s.Action)+" "+s.Address.Name) })
			return nil
		}
		w.repo.push("c1", boxes(map[string]int{"a": 1}))
		w.start()
		w.byHand(func(h model.State) { delete(h, enginetest.Addr("box", "a")) })
		w.look()
		w.repo.push("c2", boxes(map[string]int{"a": 2}))
		w.look()
		require.Equal(t, []string{"create base", "forget a", "create a", "forget a", "create a", "update a"}, events, "the image base has no reports")
	})
}

// An unseen child is not gone: such a child is still one that leaves.
func TestAChildThatCannotBeSeenIsStillLeaving(t *testing.T) {
	live(t, func(w *world) {
		parent(w, map[string]model.ChildReport{})
		w.repo.push("c2", boxes(map[string]int{"a": 1, "b": 1}))
		w.look()
		w.byHand(func(h model.State) { delete(h, enginetest.Addr("box", "inner")) })
		w.host.Unknown = []model.Unknown{{Scope: "node far", Why: "it is off"}}
		w.look()
		require.Equal(t, map[string]string{"inner": "c2"}, w.state().Withdrawn)
		w.host.Unknown = nil
		w.look()
		require.Empty(t, w.state().Withdrawn)
	})
}

// A commit that has the child again ends what was known.
func TestAChildThatReturnsIsNotGone(t *testing.T) {
	live(t, func(w *world) {
		reports := map[string]model.ChildReport{}
		parent(w, reports)
		w.repo.push("c2", boxes(map[string]int{"a": 1, "b": 1}))
		w.look()
		w.repo.push("c3", boxes(map[string]int{"a": 1, "b": 1, "inner": 1}))
		w.look()
		require.Empty(t, w.state().Withdrawn)
		w.set(func() { reports["inner"] = model.ChildReport{At: time.Now(), Commit: "c2", Empty: true} })
		w.repo.push("c4", boxes(map[string]int{"a": 1, "b": 1}))
		w.look()
		require.Equal(t, "a=1 b=1 inner=1", w.holds(), "c3 may have filled it")
		w.set(func() { reports["inner"] = model.ChildReport{At: time.Now(), Commit: "c4", Empty: true} })
		w.look()
		require.Equal(t, "a=1 b=1", w.holds())
	})
}

// A trailer lets a child go with what is in it. It counts once, and only where it is known since when.
func TestATrailerLetsAChildGo(t *testing.T) {
	live(t, func(w *world) {
		parent(w, map[string]model.ChildReport{})
		w.repo.push("c2", boxes(map[string]int{"a": 1, "b": 1}), "Allow-Orphans: other")
		w.look()
		require.Equal(t, "a=1 b=1 inner=1", w.holds())
		w.repo.push("c3", boxes(map[string]int{"a": 1, "b": 1}), "Allow-Orphans: x, inner")
		w.look()
		require.Equal(t, "a=1 b=1", w.holds())
		require.Contains(t, w.receipts()[0].Steps[0].Reason, "Allow-Orphans")
		require.Equal(t, "Ada", w.receipts()[0].Author)
		require.Equal(t, []string{"c3", "c2"}, w.state().UsedTrailers)
	})
	// It counts once also while the commit is not converged: the child came back, and left again.
	live(t, func(w *world) {
		parent(w, map[string]model.ChildReport{})
		w.host.During = func(_ context.Context, s plan.Step) error {
			if s.Address.Name == "a" {
				return errors.New("a is stuck")
			}
			return nil
		}
		w.repo.push("c2", boxes(map[string]int{"a": 2, "b": 1}), "Allow-Orphans: inner")
		w.look()
		require.Equal(t, "a=1 b=1", w.holds())
		require.Equal(t, "c1", w.state().Converged.ID)
		w.repo.push("c3", boxes(map[string]int{"a": 2, "b": 1, "inner": 1}))
		w.look()
		w.byHand(func(h model.State) { h[enginetest.Addr("box", "inner")].Guest.Orphan = model.OrphanRefuse })
		w.repo.push("c4", boxes(map[string]int{"a": 2, "b": 1}))
		w.look()
		require.Equal(t, "a=1 b=1 inner=1", w.holds())
	})
	// Also where no commit ever converged, by the very commit: a child that cannot leave keeps all from converging.
	live(t, func(w *world) {
		parent(w, map[string]model.ChildReport{})
		w.end()
		require.NoError(t, os.Remove(filepath.Join(w.dir, "state.json")))
		w.repo.push("c2", boxes(map[string]int{"a": 1, "b": 1}))
		w.start()
		require.Equal(t, "a=1 b=1 inner=1", w.holds())
		require.Empty(t, w.state().Converged.ID)
		w.repo.push("c3", boxes(map[string]int{"a": 1, "b": 1}), "Allow-Orphans: inner")
		s := w.look()
		require.Equal(t, "a=1 b=1", w.holds())
		require.Empty(t, s.Last.Findings)
		require.Equal(t, "c3", w.state().Converged.ID)
	})
}

// All cases: one of the parts of what is known after the other is not as it must be.
func TestWhetherAnAgentLeavesTheSite(t *testing.T) {
	removed := func(change func(*membershipFacts)) membershipFacts {
		m := membershipFacts{Identity: "inner", Commit: "b", Child: true, Before: "a", WasIn: true, Order: orderAfter, Bundle: &Bundle{Removed: true, Commit: "b"}}
		change(&m)
		return m
	}
	for name, c := range map[string]struct {
		m      membershipFacts
		course course
		says   string
	}{
		"it left the site":         {removed(func(*membershipFacts) {}), courseEmpty, ""},
		"it did already":           {removed(func(m *membershipFacts) { m.Commit, m.Bundle.Commit = "c", "c" }), courseEmpty, ""},
		"a host":                   {removed(func(m *membershipFacts) { m.Child = false }), courseHold, "declare it again"},
		"the data folder was lost": {removed(func(m *membershipFacts) { m.Before, m.WasIn, m.Order = "", false, orderSame }), courseVacant, "nothing is removed"},
		"it never had this name":   {removed(func(m *membershipFacts) { m.WasIn = false }), courseVacant, "nothing is removed"},
		"lost, and its parent does not say that it left":  {removed(func(m *membershipFacts) { m.Before, m.WasIn, m.Order, m.Bundle.Removed = "", false, orderSame, false }), courseHold, "no commit is known that was in force here"},
		"lost, and its parent is behind":                  {removed(func(m *membershipFacts) { m.Before, m.WasIn, m.Order, m.Bundle.Commit = "", false, orderSame, "a" }), courseHold, "no commit is known that was in force here"},
		"lost, and its parent did not answer":             {removed(func(m *membershipFacts) { m.Before, m.WasIn, m.Order, m.Bundle = "", false, orderSame, nil }), courseHold, "no commit is known that was in force here"},
		"never this name, and its parent does not say it": {removed(func(m *membershipFacts) { m.WasIn, m.Bundle.Removed = false, false }), courseHold, "nor did a"},
		"a branch that was rewritten":                     {removed(func(m *membershipFacts) { m.Order = orderUnrelated }), courseHold, "does not come after a"},
		"a parent from an old backup":                     {removed(func(m *membershipFacts) { m.Order, m.Newer = orderUnrelated, "a" }), courseStay, "is older than a"},
		"the parent did not answer":                       {removed(func(m *membershipFacts) { m.Bundle = nil }), courseHold, "its parent did not say yet"},
		"a typo in agent.hcl":                             {removed(func(m *membershipFacts) { m.Bundle.Removed = false }), courseHold, "its parent does not say that it left"},
		"the parent is behind":                            {removed(func(m *membershipFacts) { m.Bundle.Commit = "a" }), courseHold, "but works from a"},
		"it is in the commit":                             {removed(func(m *membershipFacts) { m.In, m.Bundle.Removed = true, false }), courseConverge, ""},
		"it comes back":                                   {removed(func(m *membershipFacts) { m.In, m.Bundle.Commit = true, "a" }), courseConverge, ""},
		"the first commit": {removed(func(m *membershipFacts) {
			*m = membershipFacts{Identity: "inner", Commit: "b", Child: true, In: true, Bundle: &Bundle{Commit: "b"}}
		}), courseConverge, ""},
		"the name of another child in agent.hcl": {removed(func(m *membershipFacts) {
			*m = membershipFacts{Identity: "inner", Commit: "b", Child: true, In: true}
		}), courseStay, "no parent confirmed that this is inner"},
		"the same commit":                                {removed(func(m *membershipFacts) { m.In, m.Order, m.Bundle = true, orderSame, nil }), courseConverge, ""},
		"a rewritten branch that has it":                 {removed(func(m *membershipFacts) { m.In, m.Order, m.Bundle = true, orderUnrelated, nil }), courseConverge, ""},
		"history goes backward":                          {removed(func(m *membershipFacts) { m.In, m.Order, m.Newer, m.Bundle = true, orderUnrelated, "a", nil }), courseStay, "is older than a"},
		"history of a host goes backward":                {removed(func(m *membershipFacts) { m.In, m.Order, m.Bundle, m.Child = true, orderUnrelated, nil, false }), courseConverge, ""},
		"it is empty, and its parent came from a backup": {removed(func(m *membershipFacts) { m.In, m.Order, m.Newer, m.Commit = true, orderSame, "c", "a" }), courseStay, "is older than c"},
		"it moved": {removed(func(m *membershipFacts) { m.Moved, m.Bundle.Way = "mother", "father" }), courseEmpty, ""},
		"it moved, and its parent does not know that": {removed(func(m *membershipFacts) { m.Moved, m.Bundle.Way, m.Bundle.Removed = "mother", "father", false }), courseHold, "has inner on mother, and this is the agent of the one on father"},
		"the parent contradicts the commit":           {removed(func(m *membershipFacts) { m.In = true }), courseHold, "says of the same commit"},
	} {
		t.Run(name, func(t *testing.T) {
			course, why := c.m.Course()
			require.Equal(t, c.course, course)
			if c.says == "" {
				require.Empty(t, why)
				return
			}
			summary, next, _ := strings.Cut(why, "\n")
			require.Contains(t, why, c.says)
			require.NotEmpty(t, summary)
			require.NotEmpty(t, next, "it names the next step")
		})
	}
}

// childSite is a site in which inner is a child with boxes, or, without sizes, one that inner left.
func childSite(sizes map[string]int) engine.Desired {
	d := boxes(sizes)
	m := d.Site.Manifests["web"]
	for _, n := range m.Nodes {
		n.Parent = "inner"
	}
	if sizes != nil {
		inner := &model.Node{Name: "inner", Type: "pve", Manifest: m, Resource: &model.Resource{Addr: enginetest.Addr("pve", "inner"), Spec: &enginetest.Box{}, Guest: &model.Guest{}}}
		m.Nodes = append(m.Nodes, inner)
	}
	return d
}

// inner makes the agent one of a child. The test changes what its parent says, with set.
func (w *world) inner(first Bundle) *Bundle {
	w.options = func(o *Options) {
		o.Identity, o.Parent = "inner", func() *Bundle {
			w.repo.mu.Lock()
			defer w.repo.mu.Unlock()
			b := first
			return &b
		}
	}
	return &first
}

// A child empties itself when its parent says so, and not before; a bad commit after that brings nothing back.
func TestAChildThatLeftTheSiteEmptiesItself(t *testing.T) {
	live(t, func(w *world) {
		bundle := w.inner(Bundle{Commit: "c1"})
		w.repo.push("c1", childSite(map[string]int{"a": 1, "b": 1}))
		w.start()
		require.Equal(t, "a=1 b=1", w.holds())

		w.repo.push("c2", childSite(nil))
		s := w.look()
		require.Equal(t, "a=1 b=1", w.holds(), "it may be a mistake")
		require.Contains(t, s.Last.Error, "its parent does not say that it left the site")

		w.set(func() { *bundle = Bundle{Removed: true, Commit: "c2"} })
		s = w.look()
		require.Empty(t, w.holds())
		require.Equal(t, engine.Done, s.Last.Outcome)
		require.Equal(t, "inner left the site: all that it manages is removed", s.Last.Findings[0].Summary)
		require.Equal(t, "c2", w.state().Converged.ID, "it is empty, as c2 has it")
		require.Equal(t, "c1", w.state().Member, "that is where it was in the site last")

		w.repo.push("c3", engine.Desired{Findings: diag.List{{Severity: diag.Error, Summary: "typo"}}})
		w.look()
		require.Empty(t, w.holds(), "no older commit comes back into force")
		w.end()
		w.start()
		w.look()
		require.Empty(t, w.holds())

		w.repo.push("c4", childSite(map[string]int{"a": 2}))
		w.set(func() { *bundle = Bundle{Commit: "c4"} })
		w.look()
		require.Equal(t, "a=2", w.holds(), "it is in the site again")
	})
}

// A child that moved to another parent is made again there, so what is left of it here empties itself; its nodes are still
// in the site. What it heard before a restart does not count.
func TestAChildThatMovedEmptiesItself(t *testing.T) {
	live(t, func(w *world) {
		bundle := w.inner(Bundle{Commit: "c1", Way: "father"})
		w.repo.push("c1", childSite(map[string]int{"a": 1}))
		w.start()
		require.Equal(t, "a=1", w.holds())
		moved := childSite(map[string]int{"a": 1})
		moved.Site.Manifests["web"].Host = "mother"
		moved.Site.Hosts["mother"] = &model.Host{Name: "mother"}
		w.repo.push("c2", moved)
		s := w.look()
		require.Equal(t, "a=1", w.holds())
		require.Contains(t, s.Last.Error, "commit c2 has inner on mother, and this is the agent of the one on father, but its parent does not say that it left the site")
		w.set(func() { *bundle = Bundle{Removed: true, Commit: "c2", Way: "father"} })
		s = w.look()
		require.Empty(t, w.holds())
		require.Equal(t, engine.Done, s.Last.Outcome)
	})
}

// So does a child further down: it lives on the old way still, although its own parent is the same in both commits.
func TestAChildBelowOneThatMovedEmptiesItself(t *testing.T) {
	deep := func(host string) engine.Desired {
		d := childSite(map[string]int{"a": 1})
		m := d.Site.Manifests["web"]
		m.Host = host
		d.Site.Hosts[host] = &model.Host{Name: host}
		m.Nodes[len(m.Nodes)-1].Parent = "outer"
		m.Nodes = append(m.Nodes, &model.Node{Name: "outer", Type: "pve", Manifest: m, Resource: &model.Resource{Addr: enginetest.Addr("pve", "outer"), Spec: &enginetest.Box{}, Guest: &model.Guest{}}})
		return d
	}
	live(t, func(w *world) {
		bundle := w.inner(Bundle{Commit: "c1", Way: "father/outer"})
		w.repo.push("c1", deep("father"))
		w.start()
		require.Equal(t, "a=1", w.holds())
		w.repo.push("c2", deep("mother"))
		w.set(func() { *bundle = Bundle{Removed: true, Commit: "c2", Way: "father/outer"} })
		s := w.look()
		require.Empty(t, w.holds())
		require.Equal(t, engine.Done, s.Last.Outcome)
	})
}

// A child without a known commit, since it is new or lost its data folder, removes nothing. It is empty if there is no guest on its
// host, managed or not.
func TestAChildWithoutAPastLeaves(t *testing.T) {
	live(t, func(w *world) {
		bundle := w.inner(Bundle{Commit: "c1", Removed: true})
		empty := func(s Status, commit string) {
			t.Helper()
			require.Equal(t, engine.Done, s.Last.Outcome, s.Last.Error)
			require.Equal(t, "inner left the site: nothing is on it", s.Last.Findings[0].Summary)
			require.Equal(t, []string{commit, commit, commit}, []string{s.InForce.ID, s.Converged.ID, s.Last.Commit})
			require.Nil(t, s.Refused)
		}
		holds := func(s Status, why string) {
			t.Helper()
			require.NotEqual(t, engine.Done, s.Last.Outcome)
			require.Contains(t, s.Last.Error, "so nothing is removed")
			require.Contains(t, s.Last.Error, why)
			require.NotNil(t, s.Refused)
		}
		w.repo.push("c1", childSite(nil))
		w.start()
		empty(w.look(), "c1")
		w.end()
		w.start()
		empty(w.look(), "c1")

		w.repo.push("c2", childSite(nil))
		require.Contains(t, w.look().Last.Error, "nor did c1, which was in force here", "its parent speaks of another commit")
		w.set(func() { bundle.Commit = "c2" })
		empty(w.look(), "c2")

		w.set(func() { w.host.Unmanaged = []model.Unmanaged{{VMID: 500, Name: "else", Kind: "vm"}} })
		holds(w.look(), "it has unmanaged guests: 1")
		w.set(func() { w.host.Unmanaged, w.host.Unknown = nil, []model.Unknown{{Scope: "node inner", Why: "offline"}} })
		holds(w.look(), "node inner could not be seen: offline")
		w.set(func() { w.host.Unknown, w.host.ObserveErr = nil, errors.New("no API") })
		holds(w.look(), "no API")
		other := enginetest.Addr("disk", "other")
		w.set(func() {
			w.host.ObserveErr = nil
			w.host.Holds[other] = &model.Resource{Addr: other, Spec: &enginetest.Box{Size: 1}}
		})
		empty(w.look(), "c2")
		require.Contains(t, w.host.Holds, other, "nothing shows that this agent made it")
		w.set(func() { delete(w.host.Holds, other) })

		// It comes back, has nodes, loses its data folder, and leaves.
		w.repo.push("c3", childSite(map[string]int{"a": 1}))
		w.set(func() { *bundle = Bundle{Commit: "c3"} })
		w.look()
		require.Equal(t, "a=1", w.holds())
		w.end()
		require.NoError(t, os.RemoveAll(w.dir))
		w.repo.push("c4", childSite(nil))
		w.set(func() { *bundle = Bundle{Commit: "c4", Removed: true} })
		w.start()
		holds(w.look(), "box.a is on it")
		require.Equal(t, "a=1", w.holds())
	})
}

// A child whose commit never converged as a whole leaves by what was in force.
func TestAChildThatNeverConvergedLeaves(t *testing.T) {
	live(t, func(w *world) {
		bundle := w.inner(Bundle{Commit: "c1"})
		w.host.During = func(_ context.Context, s plan.Step) error {
			if s.Address.Name == "b" && s.Action == plan.Create {
				return errors.New("b is stuck")
			}
			return nil
		}
		w.repo.push("c1", childSite(map[string]int{"a": 1, "b": 1}))
		w.start()
		require.Equal(t, "a=1", w.holds())
		require.Empty(t, w.state().Converged.ID)
		w.repo.push("c2", childSite(nil))
		w.set(func() { *bundle = Bundle{Removed: true, Commit: "c2"} })
		w.look()
		require.Empty(t, w.holds())
	})
}

// A child does not go back to an older commit: its parent may come from a backup.
func TestAChildDoesNotGoBack(t *testing.T) {
	live(t, func(w *world) {
		w.options = func(o *Options) {
			o.Identity, o.Parent = "inner", func() *Bundle { return &Bundle{} }
		}
		w.repo.push("c1", childSite(map[string]int{"a": 1}))
		w.start()
		w.repo.push("c2", childSite(map[string]int{"a": 2, "b": 1}))
		w.look()
		require.Equal(t, "a=2 b=1", w.holds())
		w.set(func() { w.repo.head = "c1" })
		s := w.look()
		require.Equal(t, "a=2 b=1", w.holds())
		require.Contains(t, s.Refused.Findings[0].Summary, "is older than c2")
		w.set(func() { w.repo.head = "" })
		require.Nil(t, w.look().Refused)
	})
}

// A node that loses its spec is entered as the last converged commit says, until nothing of the spec is left. After that it is
// not entered.
func TestAnAgentWithdrawsALostSpec(t *testing.T) {
	live(t, func(w *world) {
		i := enginetest.NewInn()
		w.options = func(o *Options) {
			o.Open = func(engine.Desired, *model.Host) (engine.Driver, error) { return i, nil }
		}
		w.repo.push("c1", engine.Desired{Site: enginetest.InsideSite(map[string]int{"a": 1})})
		w.start()
		w.pass(10 * time.Minute)
		inner := enginetest.Addr("inner", "a")
		require.Equal(t, &enginetest.Room{Packages: []string{"nginx"}}, i.Holds[inner].Spec)

		byHand := func(change func()) {
			i.Mu.Lock()
			defer i.Mu.Unlock()
			change()
		}
		without := enginetest.InsideSite(map[string]int{"a": 1})
		without.Manifests["web"].Nodes[0].Spec = ""
		byHand(func() { i.Fail = map[string]error{"inner.a": errors.New("no route to host")} })
		w.repo.push("c2", engine.Desired{Site: without})
		w.pass(10 * time.Minute)
		require.Equal(t, &enginetest.Room{Packages: []string{"nginx"}}, i.Holds[inner].Spec)
		byHand(func() { i.Fail = nil })
		w.pass(time.Hour)
		require.Equal(t, &enginetest.Room{}, i.Holds[inner].Spec)

		byHand(func() {
			i.Applied, i.Holds[inner].Spec = nil, &enginetest.Room{Packages: []string{"by hand"}}
		})
		w.pass(time.Hour)
		require.Empty(t, i.Applied, "changes by hand inside do not concern the site any more")
	})
}

// A spec that is lost while the guest cannot be entered is withdrawn by the first pass that can enter it, whatever was committed
// meanwhile, and also after a restart of the agent.
func TestALostSpecIsWithdrawnLater(t *testing.T) {
	inner := enginetest.Addr("inner", "a")
	site := func(spec string, change func(*model.Site)) engine.Desired {
		s := enginetest.InsideSite(map[string]int{"a": 1})
		s.Manifests["web"].Nodes[0].Spec = spec
		if change != nil {
			change(s)
		}
		return engine.Desired{Site: s}
	}
	suspended := func(s *model.Site) { s.Manifests["web"].Suspend = true }
	off := func(s *model.Site) { // a guest that shall be off cannot be entered
		k := *s.Kinds.Get("inner")
		k.Inside = func(_ *model.Resource, in model.Scope) (*model.Resource, diag.List) {
			if in.Earlier != nil {
				return &model.Resource{Deferred: "the guest is declared off"}, nil
			}
			return nil, nil
		}
		for i := range s.Kinds {
			if s.Kinds[i].Name == k.Name {
				s.Kinds[i] = &k
			}
		}
	}
	for name, c := range map[string]struct {
		lose, settle func(w *world, i *enginetest.Inn)
	}{
		"the files suspend the manifest": {
			func(w *world, _ *enginetest.Inn) { w.repo.push("c2", site("", suspended)) },
			func(w *world, _ *enginetest.Inn) { w.repo.push("c4", site("", nil)) },
		},
		"the manifest is suspended by hand": {
			func(w *world, _ *enginetest.Inn) {
				require.NoError(t, w.agent.Suspend(ledger.Suspension{Manifest: "web"}))
				w.repo.push("c2", site("", nil))
			},
			func(w *world, _ *enginetest.Inn) {
				_, err := w.agent.Resume("web")
				require.NoError(t, err)
			},
		},
		"the guest is declared off": {
			func(w *world, _ *enginetest.Inn) { w.repo.push("c2", site("", off)) },
			func(w *world, _ *enginetest.Inn) { w.repo.push("c4", site("", nil)) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			live(t, func(w *world) {
				i := enginetest.NewInn()
				w.options = func(o *Options) {
					o.Open = func(engine.Desired, *model.Host) (engine.Driver, error) { return i, nil }
				}
				full := &enginetest.Room{Packages: []string{"nginx"}}
				w.repo.push("c1", site("base", nil))
				w.start()
				w.pass(10 * time.Minute)
				require.Equal(t, full, i.Holds[inner].Spec)

				c.lose(w, i)
				w.pass(10 * time.Minute)
				next := w.repo.sites["c2"].Site
				again := *next
				w.repo.push("c3", engine.Desired{Site: &again})
				w.pass(10 * time.Minute)
				require.Equal(t, "c3", w.state().Converged.ID)
				require.Equal(t, full, i.Holds[inner].Spec)
				w.end()
				w.start()
				require.Contains(t, w.repo.kept, "c1", "the commit that says how the guest is entered stays available")

				c.settle(w, i)
				w.pass(time.Hour)
				require.Equal(t, &enginetest.Room{}, i.Holds[inner].Spec)
				require.Empty(t, w.state().Specs)
			})
		})
	}
}

// A state of an older program has no commits of specs. One that is noted for a guest does not hide the commit that the host
// converged to, by which the spec of another guest was applied.
func TestALostSpecOfAGuestWithoutANote(t *testing.T) {
	a, b := enginetest.Addr("inner", "a"), enginetest.Addr("inner", "b")
	site := func(specs map[string]string) engine.Desired {
		s := enginetest.InsideSite(map[string]int{"a": 1, "b": 1})
		for _, n := range s.Manifests["web"].Nodes {
			n.Spec = specs[n.Name]
		}
		return engine.Desired{Site: s}
	}
	live(t, func(w *world) {
		i := enginetest.NewInn()
		w.options = func(o *Options) {
			o.Open = func(engine.Desired, *model.Host) (engine.Driver, error) { return i, nil }
		}
		w.repo.push("c1", site(map[string]string{"a": "base", "b": "base"}))
		w.start()
		w.pass(10 * time.Minute)
		full := &enginetest.Room{Packages: []string{"nginx"}}
		require.Equal(t, full, i.Holds[a].Spec)
		require.Equal(t, full, i.Holds[b].Spec)
		w.end()
		state := w.state()
		delete(state.Specs, enginetest.Addr("box", "b").String())
		kept, err := ledger.Open(w.dir)
		require.NoError(t, err)
		require.NoError(t, kept.SetState(state))
		w.repo.push("c2", site(map[string]string{"a": "base"}))
		w.start()
		w.pass(10 * time.Minute)
		require.Equal(t, full, i.Holds[a].Spec)
		require.Equal(t, &enginetest.Room{}, i.Holds[b].Spec)
	})
}

// A spec of a commit that the host never converged to is withdrawn as well.
func TestALostSpecOfACommitThatNeverConverged(t *testing.T) {
	live(t, func(w *world) {
		i := enginetest.NewInn()
		w.options = func(o *Options) {
			o.Open = func(engine.Desired, *model.Host) (engine.Driver, error) { return i, nil }
		}
		site := func(spec string) engine.Desired {
			s := enginetest.InsideSite(map[string]int{"a": 1, "b": 1})
			for _, n := range s.Manifests["web"].Nodes {
				if n.Name == "a" {
					n.Spec = spec
				}
			}
			return engine.Desired{Site: s}
		}
		inner := enginetest.Addr("inner", "a")
		i.Fail = map[string]error{"inner.b": errors.New("no space left on device")}
		w.repo.push("c1", site(""))
		w.start()
		w.pass(10 * time.Minute)
		w.repo.push("c2", site("base"))
		w.pass(10 * time.Minute)
		require.Equal(t, &enginetest.Room{Packages: []string{"nginx"}}, i.Holds[inner].Spec)
		require.Empty(t, w.state().Converged.ID)
		w.repo.push("c3", site(""))
		w.pass(10 * time.Minute)
		require.Equal(t, &enginetest.Room{}, i.Holds[inner].Spec)
		i.Mu.Lock()
		i.Fail = nil
		i.Mu.Unlock()
		w.pass(time.Hour)
		require.Equal(t, map[string]string{"box.b": "c3"}, w.state().Specs)
	})
}
