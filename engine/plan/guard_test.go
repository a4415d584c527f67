package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Every row is a host where something must not be done, with what is left to do
// and what is said about the rest.
func TestGuards(t *testing.T) {
	for name, c := range map[string]struct {
		want, have model.State
		set        func(*Input)
		steps      []string
		findings   []string
		unknown    []string
		lies       bool // a mark claims too much, so that the result seems broken afterwards
	}{
		"an unmanaged guest has the place of a declared one": {
			want: state(guest("vm.a", 0, &VM{}), guest("vm.child", 0, &VM{}, "vm.a"), guest("vm.grandchild", 0, &VM{}, "vm.child"), guest("vm.other", 0, &VM{})),
			set: func(in *Input) {
				in.Have.Unmanaged = []model.Unmanaged{
					{VMID: 105, Name: "a", Kind: "vm", Why: "its mark names another uuid", Claims: addr("vm.a"), Fix: "rename it, or adopt it"},
					{VMID: 104, Name: "a", Kind: "vm", Why: "no ownership tag", Claims: addr("vm.a"), Fix: "rename it, or adopt it"},
				}
			},
			steps: []string{"create vm.other"},
			findings: []string{
				`error (guard) vm.a is not created: vm 104 "a" exists already and is unmanaged (no ownership tag); vm 105 "a" exists already and is unmanaged (its mark names another uuid)`,
				"warning (guard) vm.child is not created: it needs vm.a, which is not created",
				"warning (guard) vm.grandchild is not created: it needs vm.child, which is not created",
			},
		},
		"an unmanaged guest beside a declared one changes nothing": {
			want: state(guest("vm.a", 0, &VM{Cores: 2})), have: state(guest("vm.a", 100, &VM{})),
			set: func(in *Input) {
				in.Have.Unmanaged = []model.Unmanaged{{VMID: 105, Name: "a", Kind: "vm", Why: "no ownership tag", Claims: addr("vm.a")}}
			},
			steps: []string{"update vm.a"},
		},
		"what is locked is left out, and what would be made on it waits": {
			want: state(guest("vm.a", 0, &VM{Cores: 2}), guest("vm.child", 0, &VM{}, "vm.a"), guest("vm.there", 0, &VM{Cores: 2}, "vm.a"), guest("vm.calm", 0, &VM{}), guest("vm.on", 0, &VM{}, "vm.calm")),
			have: state(guest("vm.a", 100, &VM{}), guest("vm.there", 101, &VM{}), guest("vm.calm", 102, &VM{}), guest("vm.leaves", 103, &VM{}, "image.b"), object("image.b", &Image{})),
			set: func(in *Input) {
				for _, name := range []string{"vm.a", "vm.calm", "vm.leaves"} {
					in.Have.State[addr(name)].Guest.Locked = name + " is locked"
				}
				in.Have.Findings = diag.List{
					{Severity: diag.Warning, Source: diag.FromGuard, Address: "vm.a", Summary: "a lock", Detail: "vm.a is locked"},
					{Severity: diag.Warning, Source: diag.FromGuard, Address: "vm.calm", Summary: "a lock", Detail: "vm.calm is locked"},
				}
			},
			steps: []string{"create vm.on", "update vm.there"},
			findings: []string{
				"warning (guard) a lock",
				"warning (guard) image.b is not deleted: vm.leaves still needs it",
				"error (guard) vm.a is not changed: vm.a is locked",
				"warning (guard) vm.child is not created: it needs vm.a, which is not changed",
				"error (guard) vm.leaves is not deleted: vm.leaves is locked",
			},
		},
		"nothing is known at all": {
			want: state(guest("vm.a", 0, &VM{})), have: state(guest("vm.b", 100, &VM{})),
			set: func(in *Input) {
				in.Have.Unknown = []model.Unknown{{Scope: "host father", Why: "no quorum", All: true}}
			},
			steps:   []string{},
			unknown: []string{"host father: no quorum"},
		},
		"a guest without a name may be any new one": {
			want:  state(guest("vm.a", 0, &VM{}), guest("vm.b", 0, &VM{Cores: 2}), guest("ct.child", 0, &VM{}, "vm.a"), object("pool.p", &Pool{})),
			have:  state(guest("vm.b", 100, &VM{})),
			set:   func(in *Input) { in.Have.Unknown = []model.Unknown{{Scope: "vm 105", Why: "403", VMID: 105}} },
			steps: []string{"create pool.p", "update vm.b"},
			unknown: []string{
				"ct.child: not created: vm 105 cannot be read (403) and may be this guest", "vm 105: 403", "vm.a: not created: vm 105 cannot be read (403) and may be this guest",
			},
		},
		"a guest with a name may only be that one, or that of its VMID": {
			want: state(guest("vm.a", 0, &VM{}), guest("vm.b", 0, &VM{}), guest("vm.c", 105, &VM{}), guest("vm.child", 0, &VM{}, "vm.b", "vm.a")),
			set: func(in *Input) {
				in.Have.Unknown = []model.Unknown{{Scope: "vm 105", Why: "403", VMID: 105, Name: "a"}}
			},
			steps: []string{"create vm.b"},
			unknown: []string{
				"vm 105: 403", "vm.a: not created: vm 105 cannot be read (403) and may be this guest", "vm.c: not created: vm 105 cannot be read (403) and may be this guest",
				"vm.child: not created: it needs vm.a, which is not created",
			},
		},
		"a guest that another user creates may be one of few, and needs what they need": {
			want: state(guest("vm.a", 0, &VM{}, "image.a"), guest("vm.b", 0, &VM{}), guest("vm.child", 0, &VM{}, "vm.a"), object("image.a", &Image{Checksum: "2"}), object("image.b", &Image{Checksum: "2"})),
			have: state(object("image.a", &Image{Checksum: "1"}), object("image.b", &Image{Checksum: "1"}), object("image.c", &Image{})),
			set: func(in *Input) {
				in.Have.Unknown = []model.Unknown{{Scope: "vm 105", Why: "is being created", VMID: 105, Only: addrs("vm.a"), Creating: true}}
			},
			steps: []string{"replace image.b", "delete image.c", "create vm.b"},
			unknown: []string{
				"image.a: not replaced: vm 105 cannot be read (is being created) and may need it", "vm 105: is being created",
				"vm.a: not created: vm 105 is being created, and may be this guest", "vm.child: not created: it needs vm.a, which is not created",
			},
		},
		"a container is no VM": {
			want: state(guest("vm.a", 0, &VM{}), guest("ct.a", 0, &VM{})),
			set: func(in *Input) {
				in.Have.Unknown = []model.Unknown{{Scope: "ct 105", Why: "403", VMID: 105, Guest: "ct"}}
			},
			steps:   []string{"create vm.a"},
			unknown: []string{"ct 105: 403", "ct.a: not created: ct 105 cannot be read (403) and may be this guest"},
		},
		"a dark node holds what is on it, or is to be": {
			want: state(guest("vm.a", 0, &VM{Cores: 2}), guest("vm.b", 0, &VM{Cores: 2}), guest("vm.new", 0, &VM{}), object("image.a", &Image{})),
			have: state(guest("vm.a", 100, &VM{}), guest("vm.b", 101, &VM{}), guest("vm.gone", 102, &VM{})),
			set: func(in *Input) {
				in.Have.Unknown = []model.Unknown{{Scope: "node two", Why: "595", Node: "two"}}
				in.Have.State[addr("vm.a")].Guest.Node, in.Have.State[addr("vm.gone")].Guest.Node, in.Want.State[addr("vm.new")].Guest.Node = "two", "two", "two"
			},
			steps: []string{"create image.a", "update vm.b"},
			unknown: []string{
				"node two: 595", "vm.a: not changed: node two: 595", "vm.gone: not deleted: node two: 595", "vm.new: not created: node two: 595",
			},
		},
		"a part of a kind cannot be seen": {
			want: state(object("image.a", &Image{}), object("image.b", &Image{})), have: state(object("image.c", &Image{})),
			set: func(in *Input) {
				in.Have.Unknown = []model.Unknown{{Scope: "storage nas", Why: "595", Kind: "image", Only: addrs("image.b")}}
			},
			steps:   []string{"create image.a", "delete image.c"},
			unknown: []string{"image.b: not created: storage nas cannot be read (595)", "storage nas: 595"},
		},
		"an unknown guest may need what would go": {
			want: state(object("image.c", &Image{Checksum: "new"})),
			have: state(object("image.a", &Image{}), object("pool.b", &Pool{}), guest("vm.a", 100, &VM{}, "image.a"), object("image.c", &Image{Checksum: "old"})),
			set: func(in *Input) {
				in.Have.Unknown = []model.Unknown{{Scope: "vm 105", Why: "596", VMID: 105, Name: "x"}}
			},
			steps: []string{"delete vm.a"},
			unknown: []string{
				"image.a: not deleted: vm 105 cannot be read (596) and may need it", "image.c: not replaced: vm 105 cannot be read (596) and may need it",
				"pool.b: not deleted: vm 105 cannot be read (596) and may need it", "vm 105: 596",
			},
		},
		"a kind cannot be seen": {
			want: state(object("image.new", &Image{}), object("image.changed", &Image{Checksum: "2"}), guest("vm.a", 0, &VM{}, "image.new"), guest("vm.b", 0, &VM{}, "image.old"), object("image.old", &Image{})),
			have: state(object("image.old", &Image{}), object("image.gone", &Image{}), object("image.changed", &Image{Checksum: "1"})),
			set: func(in *Input) {
				in.Have.Unknown = []model.Unknown{{Scope: "storage local", Why: "595", Kind: "image"}}
			},
			steps: []string{"create vm.b"},
			unknown: []string{
				"image.changed: not replaced: storage local cannot be read (595)", "image.gone: not deleted: storage local cannot be read (595)",
				"image.new: not created: storage local cannot be read (595)", "storage local: 595", "vm.a: not created: it needs image.new, which is not created",
			},
		},
		"a replacement with living dependants": {
			want:  state(object("image.a", &Image{Checksum: "2"}), guest("vm.a", 0, &VM{}, "image.a"), guest("vm.new", 0, &VM{}, "image.a"), guest("vm.b", 0, &VM{Cores: 2}, "image.a")),
			have:  state(object("image.a", &Image{Checksum: "1"}), guest("vm.a", 100, &VM{}, "image.a"), guest("vm.b", 101, &VM{}, "image.a")),
			steps: []string{"update vm.b"},
			findings: []string{
				"error (guard) image.a is not replaced: vm.a lives on it",
				"warning (guard) vm.new is not created: it needs image.a, which is not replaced",
			},
		},
		"a replacement whose dependants go or let go": {
			want:  state(object("image.a", &Image{Checksum: "2"}), guest("vm.b", 0, &VM{Cores: 2}), guest("vm.new", 0, &VM{}, "image.a")),
			have:  state(object("image.a", &Image{Checksum: "1"}), guest("vm.a", 100, &VM{}, "image.a"), guest("vm.b", 101, &VM{}, "image.a")),
			steps: []string{"delete vm.a", "update vm.b", "replace image.a after vm.a, vm.b", "create vm.new after image.a"},
		},
		"what stays keeps what it needs": {
			want: state(guest("vm.blocked", 0, &VM{Cores: 2})),
			have: state(object("image.a", &Image{}), object("image.b", &Image{}), guest("vm.off", 100, &VM{}, "image.a"), guest("vm.blocked", 101, &VM{}, "image.b")),
			set: func(in *Input) {
				in.Have.State[addr("vm.off")].Manifest = "off"
				in.Want.Suspended["off"] = true
				in.Want.State[addr("vm.blocked")].Missing = []string{"secret.auth.x"}
			},
			steps: []string{},
			findings: []string{
				"warning (guard) image.a is not deleted: vm.off still needs it",
				"warning (guard) image.b is not deleted: vm.blocked still needs it",
				"error (site) vm.blocked is not changed: the value of secret.auth.x is not known here",
			},
		},
		"what is not deleted keeps what it needs, at any depth": {
			have: state(object("pool.a", &Pool{}, "image.a"), object("image.a", &Image{}), object("image.b", &Image{})),
			set: func(in *Input) {
				in.Have.Unknown = []model.Unknown{{Scope: "pools", Why: "403", Kind: "pool"}}
			},
			steps:   []string{"delete image.b"},
			unknown: []string{"image.a: not deleted: pool.a still needs it", "pool.a: not deleted: pools cannot be read (403)", "pools: 403"},
		},
		"a mark that lies about needs does not keep things for ever": {
			want:  state(guest("vm.a", 0, &VM{})),
			have:  state(guest("vm.a", 100, &VM{}, "image.a"), object("image.a", &Image{})),
			steps: []string{"delete image.a"},
			lies:  true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(c.want, c.have)
			if c.set != nil {
				c.set(&in)
			}
			p := Make(in)
			require.Equal(t, c.steps, steps(p))
			require.Equal(t, append([]string{}, c.findings...), findings(p))
			require.Equal(t, append([]string{}, c.unknown...), unknown(p))
			require.Equal(t, len(c.findings)+len(c.unknown)+len(c.steps) == 0, p.InSync())
			if !c.lies {
				apply(t, p, in)
			}
		})
	}
}

// A kind knows what cannot be; what others need of it stands nevertheless.
func TestKindRefuses(t *testing.T) {
	want := guest("vm.a", 0, &VM{Cores: 2, Disks: []Disk{{Name: "root", Size: 10}}})
	want.At, want.Ranges = at(9), []model.AttrRange{{Path: "disk.root", At: at(12)}}
	p := Make(input(
		state(want, guest("vm.child", 0, &VM{}, "vm.a"), guest("vm.b", 0, &VM{Disks: []Disk{{Name: "root", Size: 30}}})),
		state(guest("vm.a", 100, &VM{Disks: []Disk{{Name: "root", Size: 20}}}), guest("vm.b", 101, &VM{Disks: []Disk{{Name: "root", Size: 20}}})),
	))
	require.Equal(t, []string{"update vm.b", "create vm.child"}, steps(p))
	require.Equal(t, diag.List{{
		Severity: diag.Error, Source: diag.FromGuard, Address: "vm.a", At: at(12),
		Summary: "vm.a is not changed: a disk does not shrink; and with it: cores 0 → 2", Detail: "declare its size again",
	}}, p.Findings)
}

func TestGuardPointsAtTheLineAndTheWayOn(t *testing.T) {
	want := guest("vm.a", 0, &VM{})
	want.At = at(9)
	in := input(state(want), nil)
	in.Have.Unmanaged = []model.Unmanaged{{VMID: 105, Name: "a", Kind: "vm", Why: "no ownership tag", Claims: addr("vm.a"), Fix: "rename it, or adopt it"}}
	f := Make(in).Findings[0]
	require.Equal(t, diag.Finding{
		Severity: diag.Error, Source: diag.FromGuard, Address: "vm.a", At: at(9), Detail: "rename it, or adopt it",
		Summary: `vm.a is not created: vm 105 "a" exists already and is unmanaged (no ownership tag)`,
	}, f)
}

// Each blind spot names what it holds back, directly or because something else is needed.
func TestUnknownNamesWhatItHoldsBack(t *testing.T) {
	in := input(state(guest("vm.a", 0, &VM{}), guest("vm.child", 0, &VM{}, "vm.a"), guest("ct.b", 0, &VM{}), guest("vm.free", 0, &VM{})), nil)
	in.Have.Unknown = []model.Unknown{
		{Scope: "ct 105", VMID: 105, Guest: "ct"}, {Scope: "node two", Node: "two"}, {Scope: "vm 106", VMID: 106, Only: addrs("vm.a")},
	}
	p := Make(in)
	require.Equal(t, []string{"create vm.free"}, steps(p))
	holds := map[string][]model.Address{}
	for _, u := range p.Unknown {
		holds[u.Scope] = u.Withheld
	}
	require.Equal(t, addrs("ct.b"), holds["ct 105"])
	require.Equal(t, addrs("vm.a", "vm.child"), holds["vm 106"])
	require.Empty(t, holds["node two"])
	require.Nil(t, in.Have.Unknown[0].Withheld, "the input is only read")
}

func child(name string, vmid int, orphan model.Orphan, spec *VM, needs ...string) *model.Resource {
	r := guest(name, vmid, spec, needs...)
	r.Guest.Orphan = orphan
	return r
}

// The known state of a child decides whether its guest is removed.
func TestAChildGoesWhenNothingIsLeftInIt(t *testing.T) {
	const commit, before = "b000000000000000000000000000000000000000", "a000000000000000000000000000000000000000"
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, c := range map[string]struct {
		orphan       model.Orphan
		child        model.ChildReport
		allow        []string
		replace      bool
		destroy      bool
		goes         bool
		says, reason string
	}{
		"it never reported":                          {says: `not deleted until nothing is left in it: no report of its agent is known; if nothing is in it, or nothing that counts, push a commit with the trailer "Allow-Orphans: inner", or run it with --allow-orphans inner`},
		"nodes are in it":                            {child: model.ChildReport{At: at, Commit: before, Nodes: []string{"app", "db"}}, says: "last reported 2026-01-02 03:04:05 UTC, at a0000000: of 2 nodes (app, db); if inner does not report any more, start it and check its agent"},
		"nodes are in it at this commit":             {child: model.ChildReport{At: at, Commit: commit, Nodes: []string{"app"}}, says: "of 1 node (app)"},
		"many are":                                   {child: model.ChildReport{At: at, Commit: commit, Nodes: []string{"a", "b", "c", "d", "e", "f"}}, says: "of 6 nodes (a, b, c, d, e, …)"},
		"it says nothing of any":                     {child: model.ChildReport{At: at, Commit: commit}, says: "of no node, but did not report that it is empty; homestak-gitops plan on inner lists unmanaged guests, if there are any: move or remove them, or push a commit"},
		"empty at this commit":                       {child: model.ChildReport{At: at, Commit: commit, Empty: true}, goes: true, reason: "left the site; nothing is left in it, as it reported at b0000000"},
		"empty at a commit that had it":              {child: model.ChildReport{At: at, Commit: before, Empty: true}, says: "at a0000000: empty"},
		"empty since a commit that had it no more":   {child: model.ChildReport{At: at, Commit: before, Empty: true, Gone: true}, goes: true, reason: "left the site; nothing is left in it, as it reported at a0000000"},
		"not empty at a commit that had it no more":  {child: model.ChildReport{At: at, Commit: before, Gone: true, Nodes: []string{"app"}}, says: "of 1 node (app)"},
		"nodes in it go with it":                     {orphan: "destroy", goes: true, reason: `left the site; nodes in it are removed with it (orphan = "destroy")`},
		"nodes in it go with it, but nothing is":     {orphan: "destroy", child: model.ChildReport{At: at, Commit: commit, Empty: true}, goes: true, reason: "left the site; nothing is left in it, as it reported at b0000000"},
		"it is abandoned":                            {orphan: "abandon", child: model.ChildReport{At: at, Commit: commit, Nodes: []string{"app"}}, says: `removed from the site, and stays with everything in it (orphan = "abandon")`},
		"it is abandoned, and nothing is in it":      {orphan: "abandon", child: model.ChildReport{At: at, Commit: commit, Empty: true}, goes: true, reason: "left the site; nothing is left in it, as it reported at b0000000"},
		"its removal is allowed":                     {allow: []string{"other", "inner"}, goes: true, reason: "left the site; nodes in it are removed with it, as --allow-orphans or the trailer Allow-Orphans requires"},
		"the removal of another one is allowed":      {allow: []string{"other"}, says: "no report of its agent is known"},
		"replaced with nodes in it":                  {replace: true, child: model.ChildReport{At: at, Commit: commit, Nodes: []string{"app"}}, says: "not replaced until nothing is left in it: last reported 2026-01-02 03:04:05 UTC, at b0000000: of 1 node (app); take the nodes below inner out of the site first"},
		"replaced with nodes that go with a leaving": {replace: true, orphan: "destroy", child: model.ChildReport{At: at, Commit: commit, Nodes: []string{"app"}}, says: "not replaced until"},
		"replaced, and nothing is in it":             {replace: true, child: model.ChildReport{At: at, Commit: commit, Empty: true}, goes: true, reason: "image differs from the site and cannot be changed in place; nothing is left in it, as it reported at b0000000"},
		"replaced, and nothing was in it":            {replace: true, child: model.ChildReport{At: at, Commit: before, Empty: true, Gone: true}, says: "not replaced until"},
		"destroyed by name, and nothing is in it":    {destroy: true, child: model.ChildReport{At: at, Commit: commit, Empty: true}, goes: true, reason: "manifest m is destroyed; nothing is left in it, as it reported at b0000000"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.orphan == "" {
				c.orphan = "refuse"
			}
			in := input(state(object("image.a", &Image{}), object("image.b", &Image{})), state(child("vm.inner", 100, c.orphan, &VM{Image: "a"}, "image.old"), object("image.old", &Image{}), object("image.a", &Image{}), object("image.b", &Image{})))
			in.Commit, in.AllowOrphans, in.Children = commit, c.allow, map[string]model.ChildReport{"inner": c.child}
			action := "delete"
			if c.replace {
				in.Want.State[addr("vm.inner")] = guest("vm.inner", 0, &VM{Image: "b"}, "image.b")
				action = "replace"
			}
			if c.destroy {
				in.Destroy, in.Manifest = true, "m"
				in.Have.State[addr("vm.inner")].Manifest = "m"
			}
			p := Make(in)
			i := slices.IndexFunc(p.Steps, func(s Step) bool { return s.Address == addr("vm.inner") })
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
			require.Contains(t, text(p, TextOptions{}), "\nnothing to do now: vm.inner is ")

			in.AllowOrphans = []string{"inner"}
			require.NotEqual(t, p.ID, Make(in).ID, "another plan")
		})
	}
}

// The removal of a manifest by name reports that a child is kept, and what to do: it stays in the site, so no later pass removes it.
func TestAChildIsNotDestroyedByName(t *testing.T) {
	for _, orphan := range []model.Orphan{"refuse", "destroy", "abandon"} {
		in := input(state(), state(child("vm.inner", 100, orphan, &VM{}), guest("vm.beside", 101, &VM{})))
		in.Destroy, in.Manifest = true, "m"
		for addr := range in.Have.State {
			in.Have.State[addr].Manifest = "m"
		}
		p := Make(in)
		require.Equal(t, []string{"delete vm.beside"}, steps(p), "all else goes")
		require.Len(t, p.Findings, 1)
		require.Equal(t, "vm.inner is not deleted: nodes of the site may be in it", p.Findings[0].Summary)
		require.Equal(t, "Take manifest m out of the site and push that: inner empties itself, and goes when nothing is left in it. To destroy it with all that is in it: --allow-orphans inner.", p.Findings[0].Detail)
		require.Empty(t, p.Deferred)

		in.Children = map[string]model.ChildReport{"inner": {At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Commit: "a000000000000000000000000000000000000000", Nodes: []string{"app"}}}
		require.Contains(t, Make(in).Findings[0].Summary, "nodes of the site may be in it, last reported 2026-01-02 03:04:05 UTC, at a0000000: of 1 node (app)")
		in.AllowOrphans = []string{"inner"}
		require.ElementsMatch(t, []string{"delete vm.beside", "delete vm.inner"}, steps(Make(in)))
	}
}

// The replacement of a child waits for it, without an error.
func TestTheReplacementOfAChildWaits(t *testing.T) {
	in := input(state(guest("vm.new", 100, &VM{}), guest("vm.on-it", 0, &VM{}, "vm.new"), guest("vm.beside", 0, &VM{})), state(child("vm.inner", 100, "refuse", &VM{})))
	p := Make(in)
	require.Equal(t, []string{"create vm.beside"}, steps(p))
	require.Empty(t, p.Findings)
	require.Len(t, p.Postponed(), 3)

	in.Children = map[string]model.ChildReport{"inner": {At: in.Have.At, Commit: in.Commit, Empty: true}}
	require.ElementsMatch(t, []string{"create vm.beside", "delete vm.inner", "create vm.new after vm.inner", "create vm.on-it after vm.new"}, steps(Make(in)))
}

// tree is a random site of one manifest on host "root", by the parent of each node.
type tree struct {
	parents map[string]string
	kinds   map[string]string
	orphans map[string]model.Orphan
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
	reports map[string]model.ChildReport
	vmid    int
	orphans map[string]model.Orphan
}

// pass is a pass of one agent with a commit.
func (w *agents) pass(identity, commit string, s *model.Site) *Plan {
	if s.HostFor(identity) == nil { // its parent says that it is leaving
		s = s.Leave(w.hosts[identity])
	}
	want, found := s.Want(identity)
	require.Empty(w.t, found)
	p := Make(Input{
		Site: "home", Commit: commit, Host: identity, Kinds: s.Kinds, Want: want, Children: w.reports,
		Have: model.Observed{State: w.holds[identity], At: time.Unix(0, 0)},
	})
	require.Empty(w.t, findings(p))
	for _, step := range p.Steps {
		name := step.Address.Name
		switch step.Action {
		case Create:
			r := *step.Want
			w.vmid++
			g := model.Guest{VMID: w.vmid, Node: identity}
			if step.Address.Kind == "pve" {
				g.Orphan = w.orphans[name]
				w.holds[name], w.hosts[name] = model.State{}, s.HostFor(name)
			}
			r.Guest = &g
			w.holds[identity][step.Address] = &r
		case Delete:
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
		c := model.ChildReport{At: time.Unix(1, 0), Commit: commit, Empty: len(w.holds[identity]) == 0}
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
		w := &agents{t: t, holds: map[string]model.State{"root": {}}, hosts: map[string]*model.Host{}, reports: map[string]model.ChildReport{}, vmid: 100, orphans: map[string]model.Orphan{}}
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
					w.orphans[name] = rapid.SampledFrom([]model.Orphan{"refuse", "refuse", "destroy"}).Draw(t, "orphan")
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

// within is the address of what is inside of a guest. Here a VM and a container may have one name.
func within(of model.Address) model.Address {
	return model.Address{Kind: "guest", Name: strings.TrimPrefix(of.Kind+"-"+of.Name, "vm-")}
}

// inner is what is wanted or there inside of a guest.
func inner(of, version string, wanted bool) *model.Resource {
	r := &model.Resource{Addr: within(addr(of)), Spec: &Pool{Comment: version}, Node: addr(of).Name, Manifest: "web"}
	if wanted {
		r.Needs, r.Inside = addrs(of), addr(of)
	}
	return r
}

func insideInput(want, have model.State) Input {
	in := input(want, have)
	in.Kinds = append(in.Kinds, &model.Kind{Name: "guest", New: func() any { return &Pool{} }})
	return in
}

// What is inside of a guest comes after it and before who needs it, in its place; it is recreated with its
// guest, and withheld with its guest.
func TestInsideOfAGuest(t *testing.T) {
	for name, c := range map[string]struct {
		want, have model.State
		unread     bool
		steps      []string
		vmid       int
		unchanged  int
	}{
		"created with its guest": {
			want:  state(guest("vm.a", 0, &VM{}), inner("vm.a", "1", true), guest("vm.b", 0, &VM{}, "vm.a")),
			steps: []string{"create vm.a", "create guest.a after vm.a", "create vm.b after guest.a, vm.a"}, vmid: 100,
		},
		"changed in a guest that stays": {
			want:  state(guest("vm.a", 0, &VM{}), inner("vm.a", "2", true)),
			have:  state(guest("vm.a", 107, &VM{}), inner("vm.a", "1", false)),
			steps: []string{"update guest.a"}, vmid: 107, unchanged: 1,
		},
		"changed after its guest": {
			want:  state(guest("vm.a", 0, &VM{Cores: 2}), inner("vm.a", "2", true), guest("vm.b", 0, &VM{Cores: 2}, "vm.a")),
			have:  state(guest("vm.a", 107, &VM{Cores: 1}), inner("vm.a", "1", false), guest("vm.b", 108, &VM{Cores: 1}, "vm.a")),
			steps: []string{"update vm.a", "update guest.a after vm.a", "update vm.b after guest.a, vm.a"}, vmid: 107,
		},
		"recreated with its guest, though it is as wanted": {
			want:  state(guest("vm.a", 0, &VM{Machine: "q35"}), inner("vm.a", "1", true)),
			have:  state(guest("vm.a", 107, &VM{Machine: "pc"}), inner("vm.a", "1", false)),
			steps: []string{"replace vm.a", "create guest.a after vm.a"}, vmid: 107,
		},
		"before the next guest is replaced": {
			want:  state(guest("vm.a", 0, &VM{Machine: "q35"}), inner("vm.a", "1", true), guest("vm.b", 0, &VM{Machine: "q35"})),
			have:  state(guest("vm.a", 107, &VM{Machine: "pc"}), inner("vm.a", "1", false), guest("vm.b", 108, &VM{Machine: "pc"})),
			steps: []string{"replace vm.a", "create guest.a after vm.a", "replace vm.b after guest.a, vm.a"}, vmid: 107,
		},
		"also where a pass before did not get that far": {
			want:  state(guest("vm.a", 0, &VM{Machine: "q35"}), inner("vm.a", "1", true), guest("vm.b", 0, &VM{Machine: "q35"})),
			have:  state(guest("vm.a", 107, &VM{Machine: "q35"}), guest("vm.b", 108, &VM{Machine: "pc"})),
			steps: []string{"create guest.a", "replace vm.b after guest.a"}, vmid: 107, unchanged: 1,
		},
		"withheld with its guest": {
			want: state(guest("vm.a", 0, &VM{Machine: "q35"}), inner("vm.a", "2", true)),
			have: state(guest("vm.a", 107, &VM{Machine: "pc"}), inner("vm.a", "1", false), guest("vm.b", 108, &VM{}, "vm.a")),
			// vm.b is not wanted, but its manifest is suspended: it lives on vm.a.
			steps: []string{},
		},
		"left alone where it could not be read": {
			want: state(guest("vm.a", 0, &VM{}), inner("vm.a", "2", true)), unread: true,
			have: state(guest("vm.a", 107, &VM{}), inner("vm.a", "1", false)), steps: []string{}, unchanged: 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if c.have == nil {
				c.have = model.State{}
			}
			if c.unread {
				c.have[addr("guest.a")].Unread = []string{"comment"}
			}
			in := insideInput(c.want, c.have)
			if b := c.have[addr("vm.b")]; b != nil && c.want[addr("vm.b")] == nil {
				b.Manifest = "db"
				in.Want.Suspended["db"] = true
			}
			p := Make(in)
			require.Equal(t, c.steps, steps(p))
			require.Equal(t, c.unchanged, p.Summary.Unchanged)
			for _, s := range p.Steps {
				require.Equal(t, s.Address.Kind == "guest", s.Inside != nil)
				if s.Inside != nil {
					require.Equal(t, c.vmid, s.Inside.VMID)
				}
			}
		})
	}
}

// A guest that is off, and starts in this plan, is entered as after a creation. What is inside of one that stays off is neither
// unknown nor created.
func TestN7InsideOfAGuestThatIsOff(t *testing.T) {
	type from = *Input
	stopped := "stopped"
	for name, c := range map[string]struct {
		change func(from)
		steps  []string
		after  string // the line about what is inside
	}{
		"it starts":      {func(from) {}, []string{"update vm.a", "create guest.a after vm.a"}, "entered once vm.a runs, which is off"},
		"it is replaced": {func(in from) { in.Want.State[addr("vm.a")].Spec.(*VM).Machine = "q35" }, []string{"replace vm.a", "create guest.a after vm.a"}, "guest a"},
		"it stays off":   {func(in from) { in.Want.State[addr("vm.a")].Spec.(*VM).Power = &stopped }, []string{}, "not compared, since vm.a is off"},
		"it is locked":   {func(in from) { in.Have.State[addr("vm.a")].Guest.Locked = "VM 107 is locked" }, []string{}, "not compared, since vm.a is off"},
		"drift is reported": {func(in from) {
			in.Want.Nodes[addr("vm.a")] = &model.Node{Drift: "report"}
		}, []string{}, "not compared, since vm.a is off"},
		"drift inside is reported": {func(in from) { in.Want.State[addr("guest.a")].Report = true }, []string{"update vm.a"}, "not compared, since vm.a is off"},
		"its node is hidden": {func(in from) {
			in.Have.State[addr("vm.a")].Guest.Node = "pve2"
			in.Have.Unknown = []model.Unknown{{Scope: "node pve2", Why: "offline", Node: "pve2"}}
		}, []string{}, "guest a"},
	} {
		t.Run(name, func(t *testing.T) {
			have := guest("vm.a", 107, &VM{Power: &stopped})
			have.Guest.Running = false
			running := "running"
			in := insideInput(state(guest("vm.a", 0, &VM{Power: &running}), inner("vm.a", "1", true)), state(have))
			c.change(&in)
			p := Make(in)
			require.Equal(t, c.steps, steps(p))
			require.Contains(t, text(p, TextOptions{Width: 160}), c.after)
			require.Equal(t, name == "its node is hidden", len(p.Unknown) > 0)
			for _, f := range p.Findings {
				require.NotEqual(t, "guest.a", f.Address, f.Summary)
			}
		})
	}
}

// Whatever differs, inside of a guest and around it: one plan makes all of it as wanted, in an order in
// which each guest is there when a step goes inside.
func TestApplyingGivesWhatIsWantedInside(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want, have := world(t, "want", false, false), world(t, "have", true, false)
		for _, name := range names {
			a := addr(name)
			if w := want[a]; w != nil && w.Guest != nil && rapid.Bool().Draw(t, "inside wanted") {
				r := inner(name, rapid.SampledFrom([]string{"1", "2"}).Draw(t, "version"), true)
				want[r.Addr] = r
				if have[a] != nil && rapid.Bool().Draw(t, "inside there") {
					r := inner(name, rapid.SampledFrom([]string{"1", "2"}).Draw(t, "version"), false)
					have[r.Addr] = r
				}
			}
		}
		p := Make(insideInput(want, have))
		got, done, vmids := maps.Clone(have), map[model.Address]bool{}, map[model.Address]int{}
		for a, r := range have {
			if r.Guest != nil {
				vmids[a] = r.Guest.VMID
			}
		}
		for _, s := range p.Steps {
			for _, a := range s.After {
				require.True(t, done[a], "%s comes before %s", s.Address, a)
			}
			done[s.Address] = true
			if s.Action == Delete || s.Action == Replace {
				delete(got, s.Address)
				delete(got, within(s.Address))
			}
			if s.Action == Delete {
				continue
			}
			r := *s.Want
			if s.Inside != nil {
				require.NotNil(t, got[r.Inside], "%s is not there for %s", r.Inside, s.Address)
				require.Equal(t, vmids[r.Inside], s.Inside.VMID)
				r.Needs, r.Inside = nil, model.Address{}
			} else if r.Guest != nil {
				vmids[s.Address] = s.VMID
			}
			got[s.Address] = &r
		}
		withheld := map[string]bool{}
		for _, f := range p.Findings {
			withheld[f.Address] = true
		}
		for a, w := range want {
			if w.Inside != (model.Address{}) && !withheld[a.String()] {
				require.NotNil(t, got[a], a)
				require.Equal(t, w.Spec, got[a].Spec, a)
			}
		}
		for _, s := range Make(insideInput(want, got)).Steps {
			require.True(t, withheld[s.Address.String()] || s.Address.Kind != "guest", "%s %s is planned again", s.Action, s.Address)
		}
	})
}
