package agent_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// All cases: one of the parts of what is known after the other is not as it must be.
func TestWhetherAnAgentLeavesTheSite(t *testing.T) {
	removed := func(change func(*agent.Membership)) agent.Membership {
		m := agent.Membership{Identity: "inner", Commit: "b", Child: true, Before: "a", WasIn: true, Order: agent.After, Bundle: &agent.Bundle{Removed: true, Commit: "b"}}
		change(&m)
		return m
	}
	for name, c := range map[string]struct {
		m      agent.Membership
		course agent.Course
		says   string
	}{
		"it left the site":         {removed(func(*agent.Membership) {}), agent.Empty, ""},
		"it did already":           {removed(func(m *agent.Membership) { m.Commit, m.Bundle.Commit = "c", "c" }), agent.Empty, ""},
		"a host":                   {removed(func(m *agent.Membership) { m.Child = false }), agent.Hold, "declare it again"},
		"the data folder was lost": {removed(func(m *agent.Membership) { m.Before, m.WasIn, m.Order = "", false, agent.Same }), agent.Vacant, "nothing is removed"},
		"it never had this name":   {removed(func(m *agent.Membership) { m.WasIn = false }), agent.Vacant, "nothing is removed"},
		"lost, and its parent does not say that it left":  {removed(func(m *agent.Membership) { m.Before, m.WasIn, m.Order, m.Bundle.Removed = "", false, agent.Same, false }), agent.Hold, "no commit is known that was in force here"},
		"lost, and its parent is behind":                  {removed(func(m *agent.Membership) { m.Before, m.WasIn, m.Order, m.Bundle.Commit = "", false, agent.Same, "a" }), agent.Hold, "no commit is known that was in force here"},
		"lost, and its parent did not answer":             {removed(func(m *agent.Membership) { m.Before, m.WasIn, m.Order, m.Bundle = "", false, agent.Same, nil }), agent.Hold, "no commit is known that was in force here"},
		"never this name, and its parent does not say it": {removed(func(m *agent.Membership) { m.WasIn, m.Bundle.Removed = false, false }), agent.Hold, "nor did a"},
		"a branch that was rewritten":                     {removed(func(m *agent.Membership) { m.Order = agent.Unrelated }), agent.Hold, "does not come after a"},
		"a parent from an old backup":                     {removed(func(m *agent.Membership) { m.Order, m.Newer = agent.Unrelated, "a" }), agent.Stay, "is older than a"},
		"the parent did not answer":                       {removed(func(m *agent.Membership) { m.Bundle = nil }), agent.Hold, "its parent did not say yet"},
		"a typo in agent.hcl":                             {removed(func(m *agent.Membership) { m.Bundle.Removed = false }), agent.Hold, "its parent does not say that it left"},
		"the parent is behind":                            {removed(func(m *agent.Membership) { m.Bundle.Commit = "a" }), agent.Hold, "but works from a"},
		"it is in the commit":                             {removed(func(m *agent.Membership) { m.In, m.Bundle.Removed = true, false }), agent.Converge, ""},
		"it comes back":                                   {removed(func(m *agent.Membership) { m.In, m.Bundle.Commit = true, "a" }), agent.Converge, ""},
		"the first commit": {removed(func(m *agent.Membership) {
			*m = agent.Membership{Identity: "inner", Commit: "b", Child: true, In: true, Bundle: &agent.Bundle{Commit: "b"}}
		}), agent.Converge, ""},
		"the name of another child in agent.hcl": {removed(func(m *agent.Membership) {
			*m = agent.Membership{Identity: "inner", Commit: "b", Child: true, In: true}
		}), agent.Stay, "no parent confirmed that this is inner"},
		"the same commit":                                {removed(func(m *agent.Membership) { m.In, m.Order, m.Bundle = true, agent.Same, nil }), agent.Converge, ""},
		"a rewritten branch that has it":                 {removed(func(m *agent.Membership) { m.In, m.Order, m.Bundle = true, agent.Unrelated, nil }), agent.Converge, ""},
		"history goes backward":                          {removed(func(m *agent.Membership) { m.In, m.Order, m.Newer, m.Bundle = true, agent.Unrelated, "a", nil }), agent.Stay, "is older than a"},
		"history of a host goes backward":                {removed(func(m *agent.Membership) { m.In, m.Order, m.Bundle, m.Child = true, agent.Unrelated, nil, false }), agent.Converge, ""},
		"it is empty, and its parent came from a backup": {removed(func(m *agent.Membership) { m.In, m.Order, m.Newer, m.Commit = true, agent.Same, "c", "a" }), agent.Stay, "is older than c"},
		"it moved": {removed(func(m *agent.Membership) { m.Moved, m.Bundle.Way = "mother", "father" }), agent.Empty, ""},
		"it moved, and its parent does not know that": {removed(func(m *agent.Membership) { m.Moved, m.Bundle.Way, m.Bundle.Removed = "mother", "father", false }), agent.Hold, "has inner on mother, and this is the agent of the one on father"},
		"the parent contradicts the commit":           {removed(func(m *agent.Membership) { m.In = true }), agent.Hold, "says of the same commit"},
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
func (w *world) inner(first agent.Bundle) *agent.Bundle {
	w.options = func(o *agent.Options) {
		o.Identity, o.Parent = "inner", func() *agent.Bundle {
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
		bundle := w.inner(agent.Bundle{Commit: "c1"})
		w.repo.push("c1", childSite(map[string]int{"a": 1, "b": 1}))
		w.start()
		require.Equal(t, "a=1 b=1", w.holds())

		w.repo.push("c2", childSite(nil))
		s := w.look()
		require.Equal(t, "a=1 b=1", w.holds(), "it may be a mistake")
		require.Contains(t, s.Last.Error, "its parent does not say that it left the site")

		w.set(func() { *bundle = agent.Bundle{Removed: true, Commit: "c2"} })
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
		w.set(func() { *bundle = agent.Bundle{Commit: "c4"} })
		w.look()
		require.Equal(t, "a=2", w.holds(), "it is in the site again")
	})
}

// A child that moved to another parent is made again there, so what is left of it here empties itself; its nodes are still
// in the site. What it heard before a restart does not count.
func TestAChildThatMovedEmptiesItself(t *testing.T) {
	live(t, func(w *world) {
		bundle := w.inner(agent.Bundle{Commit: "c1", Way: "father"})
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
		w.set(func() { *bundle = agent.Bundle{Removed: true, Commit: "c2", Way: "father"} })
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
		bundle := w.inner(agent.Bundle{Commit: "c1", Way: "father/outer"})
		w.repo.push("c1", deep("father"))
		w.start()
		require.Equal(t, "a=1", w.holds())
		w.repo.push("c2", deep("mother"))
		w.set(func() { *bundle = agent.Bundle{Removed: true, Commit: "c2", Way: "father/outer"} })
		s := w.look()
		require.Empty(t, w.holds())
		require.Equal(t, engine.Done, s.Last.Outcome)
	})
}

// A child that no commit is known of, since it is new or lost its data folder, removes nothing. It is empty if no guest is on its host,
// whoever manages that.
func TestAChildWithoutAPastLeaves(t *testing.T) {
	live(t, func(w *world) {
		bundle := w.inner(agent.Bundle{Commit: "c1", Removed: true})
		empty := func(s agent.Status, commit string) {
			t.Helper()
			require.Equal(t, engine.Done, s.Last.Outcome, s.Last.Error)
			require.Equal(t, "inner left the site: nothing is on it", s.Last.Findings[0].Summary)
			require.Equal(t, []string{commit, commit, commit}, []string{s.InForce.ID, s.Converged.ID, s.Last.Commit})
			require.Nil(t, s.Refused)
		}
		holds := func(s agent.Status, why string) {
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
		holds(w.look(), "guests are on it that are not managed: 1")
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
		w.set(func() { *bundle = agent.Bundle{Commit: "c3"} })
		w.look()
		require.Equal(t, "a=1", w.holds())
		w.end()
		require.NoError(t, os.RemoveAll(w.dir))
		w.repo.push("c4", childSite(nil))
		w.set(func() { *bundle = agent.Bundle{Commit: "c4", Removed: true} })
		w.start()
		holds(w.look(), "box.a is on it")
		require.Equal(t, "a=1", w.holds())
	})
}

// A child whose commit never converged as a whole leaves by what was in force.
func TestAChildThatNeverConvergedLeaves(t *testing.T) {
	live(t, func(w *world) {
		bundle := w.inner(agent.Bundle{Commit: "c1"})
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
		w.set(func() { *bundle = agent.Bundle{Removed: true, Commit: "c2"} })
		w.look()
		require.Empty(t, w.holds())
	})
}

// A child does not go back to an older commit: its parent may come from a backup.
func TestAChildDoesNotGoBack(t *testing.T) {
	live(t, func(w *world) {
		w.options = func(o *agent.Options) {
			o.Identity, o.Parent = "inner", func() *agent.Bundle { return &agent.Bundle{} }
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
