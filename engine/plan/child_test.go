package plan_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

func child(name string, vmid int, orphan string, spec *VM, needs ...string) *model.Resource {
	r := guest(name, vmid, spec, needs...)
	r.Guest.Orphan = orphan
	return r
}

// What is known of a child decides whether its guest goes.
func TestAChildGoesWhenNothingIsLeftInIt(t *testing.T) {
	const commit, before = "b000000000000000000000000000000000000000", "a000000000000000000000000000000000000000"
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, c := range map[string]struct {
		orphan       string
		child        model.Child
		allow        []string
		replace      bool
		destroy      bool
		goes         bool
		says, reason string
	}{
		"it never reported":                          {says: `not deleted until nothing is left in it: no report of its agent is known; if nothing is in it, or nothing that counts, push a commit with the trailer "Allow-Orphans: inner", or run it with --allow-orphans inner`},
		"nodes are in it":                            {child: model.Child{At: at, Commit: before, Nodes: []string{"app", "db"}}, says: "last reported 2026-01-02 03:04:05 UTC, at a0000000: of 2 nodes (app, db); if inner does not report any more, start it and check its agent"},
		"nodes are in it at this commit":             {child: model.Child{At: at, Commit: commit, Nodes: []string{"app"}}, says: "of 1 node (app)"},
		"many are":                                   {child: model.Child{At: at, Commit: commit, Nodes: []string{"a", "b", "c", "d", "e", "f"}}, says: "of 6 nodes (a, b, c, d, e, …)"},
		"it says nothing of any":                     {child: model.Child{At: at, Commit: commit}, says: "of no node, but did not report that it is empty; homestak-gitops plan on inner lists unmanaged guests, if there are any: move or remove them, or push a commit"},
		"empty at this commit":                       {child: model.Child{At: at, Commit: commit, Empty: true}, goes: true, reason: "left the site; nothing is left in it, as it reported at b0000000"},
		"empty at a commit that had it":              {child: model.Child{At: at, Commit: before, Empty: true}, says: "at a0000000: empty"},
		"empty since a commit that had it no more":   {child: model.Child{At: at, Commit: before, Empty: true, Gone: true}, goes: true, reason: "left the site; nothing is left in it, as it reported at a0000000"},
		"not empty at a commit that had it no more":  {child: model.Child{At: at, Commit: before, Gone: true, Nodes: []string{"app"}}, says: "of 1 node (app)"},
		"nodes in it go with it":                     {orphan: "destroy", goes: true, reason: `left the site; nodes in it are removed with it (orphan = "destroy")`},
		"nodes in it go with it, but nothing is":     {orphan: "destroy", child: model.Child{At: at, Commit: commit, Empty: true}, goes: true, reason: "left the site; nothing is left in it, as it reported at b0000000"},
		"it is abandoned":                            {orphan: "abandon", child: model.Child{At: at, Commit: commit, Nodes: []string{"app"}}, says: `removed from the site, and stays with everything in it (orphan = "abandon")`},
		"it is abandoned, and nothing is in it":      {orphan: "abandon", child: model.Child{At: at, Commit: commit, Empty: true}, goes: true, reason: "left the site; nothing is left in it, as it reported at b0000000"},
		"somebody lets it go":                        {allow: []string{"other", "inner"}, goes: true, reason: "left the site; nodes in it are removed with it, as --allow-orphans or the trailer Allow-Orphans requires"},
		"somebody lets another one go":               {allow: []string{"other"}, says: "no report of its agent is known"},
		"replaced with nodes in it":                  {replace: true, child: model.Child{At: at, Commit: commit, Nodes: []string{"app"}}, says: "not replaced until nothing is left in it: last reported 2026-01-02 03:04:05 UTC, at b0000000: of 1 node (app); take the nodes below inner out of the site first"},
		"replaced with nodes that go with a leaving": {replace: true, orphan: "destroy", child: model.Child{At: at, Commit: commit, Nodes: []string{"app"}}, says: "not replaced until"},
		"replaced, and nothing is in it":             {replace: true, child: model.Child{At: at, Commit: commit, Empty: true}, goes: true, reason: "image differs from the site and cannot be changed in place; nothing is left in it, as it reported at b0000000"},
		"replaced, and nothing was in it":            {replace: true, child: model.Child{At: at, Commit: before, Empty: true, Gone: true}, says: "not replaced until"},
		"destroyed by name, and nothing is in it":    {destroy: true, child: model.Child{At: at, Commit: commit, Empty: true}, goes: true, reason: "manifest m is destroyed; nothing is left in it, as it reported at b0000000"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.orphan == "" {
				c.orphan = "refuse"
			}
			in := input(state(object("image.a", &Image{}), object("image.b", &Image{})), state(child("vm.inner", 100, c.orphan, &VM{Image: "a"}, "image.old"), object("image.old", &Image{}), object("image.a", &Image{}), object("image.b", &Image{})))
			in.Commit, in.AllowOrphans, in.Children = commit, c.allow, map[string]model.Child{"inner": c.child}
			action := "delete"
			if c.replace {
				in.Want.State[addr("vm.inner")] = guest("vm.inner", 0, &VM{Image: "b"}, "image.b")
				action = "replace"
			}
			if c.destroy {
				in.Destroy, in.Manifest = true, "m"
				in.Have.State[addr("vm.inner")].Manifest = "m"
			}
			p := plan.Make(in)
			i := slices.IndexFunc(p.Steps, func(s plan.Step) bool { return s.Address == addr("vm.inner") })
			if c.goes {
				require.GreaterOrEqual(t, i, 0)
				require.Equal(t, action, string(p.Steps[i].Action))
				require.Equal(t, c.reason, p.Steps[i].Reason)
				require.Empty(t, p.Postponed())
				return
			}
			require.Empty(t, p.Steps, "the image that it is made from stays, too")
			require.NotEmpty(t, p.Deferred)
			require.Equal(t, "vm.inner", p.Deferred[0].Address)
			require.Contains(t, p.Deferred[0].Why, c.says)
			require.Equal(t, c.orphan == "abandon" || c.replace, len(p.Postponed()) == 0, "a later pass takes those that leave, and are not abandoned")
			require.Empty(t, p.Findings, "it is no error, and no drift")
			require.False(t, p.InSync(), "it is not as the site says")
			require.Contains(t, text(p, plan.TextOptions{}), "\nnothing to do now: vm.inner is ")

			in.AllowOrphans = []string{"inner"}
			require.NotEqual(t, p.ID, plan.Make(in).ID, "another plan")
		})
	}
}

// Who destroys a manifest by name gets a finding that a child is kept, and what to do: it stays in the site, so no pass takes it later.
func TestAChildIsNotDestroyedByName(t *testing.T) {
	for _, orphan := range []string{"refuse", "destroy", "abandon"} {
		in := input(state(), state(child("vm.inner", 100, orphan, &VM{}), guest("vm.beside", 101, &VM{})))
		in.Destroy, in.Manifest = true, "m"
		for addr := range in.Have.State {
			in.Have.State[addr].Manifest = "m"
		}
		p := plan.Make(in)
		require.Equal(t, []string{"delete vm.beside"}, steps(p), "all else goes")
		require.Len(t, p.Findings, 1)
		require.Equal(t, "vm.inner is not deleted: nodes of the site may be in it", p.Findings[0].Summary)
		require.Equal(t, "Take manifest m out of the site and push that: inner empties itself, and goes when nothing is left in it. To destroy it with all that is in it: --allow-orphans inner.", p.Findings[0].Detail)
		require.Empty(t, p.Deferred)

		in.Children = map[string]model.Child{"inner": {At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Commit: "a000000000000000000000000000000000000000", Nodes: []string{"app"}}}
		require.Contains(t, plan.Make(in).Findings[0].Summary, "nodes of the site may be in it, last reported 2026-01-02 03:04:05 UTC, at a0000000: of 1 node (app)")
		in.AllowOrphans = []string{"inner"}
		require.ElementsMatch(t, []string{"delete vm.beside", "delete vm.inner"}, steps(plan.Make(in)))
	}
}

// What takes the place of a child waits for it, without an error.
func TestWhatTakesThePlaceOfAChildWaits(t *testing.T) {
	in := input(state(guest("vm.new", 100, &VM{}), guest("vm.on-it", 0, &VM{}, "vm.new"), guest("vm.beside", 0, &VM{})), state(child("vm.inner", 100, "refuse", &VM{})))
	p := plan.Make(in)
	require.Equal(t, []string{"create vm.beside"}, steps(p))
	require.Empty(t, p.Findings)
	require.Len(t, p.Postponed(), 3)

	in.Children = map[string]model.Child{"inner": {At: in.Have.At, Commit: in.Commit, Empty: true}}
	require.ElementsMatch(t, []string{"create vm.beside", "delete vm.inner", "create vm.new after vm.inner", "create vm.on-it after vm.new"}, steps(plan.Make(in)))
}

// tree is a random site of one manifest on host "root", by the parent of each node.
type tree struct {
	parents map[string]string
	kinds   map[string]string
	orphans map[string]string
}

func (x tree) site() *model.Site {
	m := &model.Manifest{Name: "m", Host: "root"}
	for _, name := range slices.Sorted(maps.Keys(x.parents)) {
		n := &model.Node{Name: name, Type: x.kinds[name], Parent: x.parents[name], Orphan: x.orphans[name], Manifest: m}
		n.Resource = &model.Resource{Addr: model.Address{Kind: n.Type, Name: name}, Spec: &VM{}, Manifest: "m", Node: name, Guest: &model.Guest{}}
		m.Nodes = append(m.Nodes, n)
	}
	for _, n := range m.Nodes {
		if p := m.Node(n.Parent); p != nil {
			p.Children = append(p.Children, n.Name)
		}
	}
	return &model.Site{
		Name: "home", Kinds: model.Kinds{{Name: "vm", Block: "node", Guest: true, New: func() any { return &VM{} }}, {Name: "pve", Block: "node", Guest: true, New: func() any { return &VM{} }}},
		Hosts: map[string]*model.Host{"root": {Name: "root"}}, Manifests: map[string]*model.Manifest{"m": m},
	}
}

// agents is what is on every host of a tree, and what each child reported last.
type agents struct {
	t       *rapid.T
	holds   map[string]model.State // by identity
	hosts   map[string]*model.Host // of every child that was created, as its agent knows itself
	reports map[string]model.Child
	vmid    int
	orphans map[string]string
}

// pass is a pass of one agent with a commit.
func (w *agents) pass(identity, commit string, s *model.Site) *plan.Plan {
	if s.HostFor(identity) == nil { // its parent says that it is leaving
		s = s.Leave(w.hosts[identity])
	}
	want, found := s.Want(identity)
	require.Empty(w.t, found)
	p := plan.Make(plan.Input{
		Site: "home", Commit: commit, Host: identity, Kinds: s.Kinds, Want: want, Children: w.reports,
		Have: model.Observed{State: w.holds[identity], At: time.Unix(0, 0)},
	})
	require.Empty(w.t, p.Findings)
	for _, step := range p.Steps {
		name := step.Address.Name
		switch step.Action {
		case plan.Create:
			r := *step.Want
			w.vmid++
			g := model.Guest{VMID: w.vmid, Node: identity}
			if step.Address.Kind == "pve" {
				g.Orphan = w.orphans[name]
				w.holds[name], w.hosts[name] = model.State{}, s.HostFor(name)
			}
			r.Guest = &g
			w.holds[identity][step.Address] = &r
		case plan.Delete:
			if step.Address.Kind == "pve" && w.orphans[name] == "refuse" {
				require.Empty(w.t, w.holds[name], "%s goes with what is in it", name)
			}
			delete(w.holds[identity], step.Address)
			w.forget(name)
		default:
			w.t.Fatalf("%s %s", step.Action, step.Address)
		}
	}
	if identity != "root" {
		c := model.Child{At: time.Unix(1, 0), Commit: commit, Empty: len(w.holds[identity]) == 0}
		for a := range w.holds[identity] {
			c.Nodes = append(c.Nodes, a.Name)
		}
		w.reports[identity] = c
	}
	return p
}

// forget takes away what goes with a guest.
func (w *agents) forget(name string) {
	for a := range w.holds[name] {
		w.forget(a.Name)
	}
	delete(w.holds, name)
	delete(w.reports, name)
}

// Random trees, random edits, agents that pass in any order and miss commits: a child goes when nothing is left in
// it, and in the end everything is as the last commit says.
func TestTreesGoChildFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &agents{t: t, holds: map[string]model.State{"root": {}}, hosts: map[string]*model.Host{}, reports: map[string]model.Child{}, vmid: 100, orphans: map[string]string{}}
		x := tree{map[string]string{}, map[string]string{}, w.orphans}
		for commit := range rapid.IntRange(1, 4).Draw(t, "commits") {
			for range rapid.IntRange(1, 8).Draw(t, "edits") {
				names := slices.Sorted(maps.Keys(x.parents))
				if rapid.Bool().Draw(t, "add") || len(names) == 0 {
					name := fmt.Sprintf("n%d-%d", commit, len(x.parents))
					if x.kinds[name] != "" {
						continue
					}
					above := slices.DeleteFunc(names, func(n string) bool { return x.kinds[n] != "pve" })
					x.parents[name] = rapid.SampledFrom(append(above, "")).Draw(t, "parent")
					x.kinds[name] = rapid.SampledFrom([]string{"vm", "pve"}).Draw(t, "kind")
					w.orphans[name] = rapid.SampledFrom([]string{"refuse", "refuse", "destroy"}).Draw(t, "orphan")
					continue
				}
				x.remove(rapid.SampledFrom(names).Draw(t, "remove"))
			}
			site, id := x.site(), fmt.Sprintf("%040d", commit+1)
			for range rapid.IntRange(0, 12).Draw(t, "passes") {
				w.pass(rapid.SampledFrom(slices.Sorted(maps.Keys(w.holds))).Draw(t, "who"), id, site)
			}
		}
		site := x.site()
		last := fmt.Sprintf("%040d", 9)
		for range 2*len(w.hosts) + 2*len(x.parents) + 2 {
			for _, identity := range slices.Sorted(maps.Keys(w.holds)) {
				if _, there := w.holds[identity]; there {
					w.pass(identity, last, site)
				}
			}
		}
		for _, identity := range slices.Sorted(maps.Keys(w.holds)) {
			p := w.pass(identity, last, site)
			require.Empty(t, p.Steps)
			require.Empty(t, p.Postponed())
		}
		got := map[string]string{}
		for identity, holds := range w.holds {
			for a := range holds {
				got[a.Name] = identity
			}
		}
		wanted := map[string]string{}
		for name, parent := range x.parents {
			wanted[name] = parent
			if parent == "" {
				wanted[name] = "root"
			}
		}
		require.Equal(t, wanted, got)
	})
}

// remove takes a node out of the site, with all that live on it.
func (x tree) remove(name string) {
	delete(x.parents, name)
	for other, parent := range x.parents {
		if parent == name {
			x.remove(other)
		}
	}
}
