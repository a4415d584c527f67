package plan_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// Every row is a host where something must not be done, with what is left to do
// and what is said about the rest.
func TestGuards(t *testing.T) {
	for name, c := range map[string]struct {
		want, have model.State
		set        func(*plan.Input)
		steps      []string
		findings   []string
		unknown    []string
		lies       bool // a mark says more than is true, so that the world seems broken afterwards
	}{
		"an unmanaged guest stands where ours would": {
			want: state(guest("vm.a", 0, &VM{}), guest("vm.child", 0, &VM{}, "vm.a"), guest("vm.grandchild", 0, &VM{}, "vm.child"), guest("vm.other", 0, &VM{})),
			set: func(in *plan.Input) {
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
		"an unmanaged guest beside ours changes nothing": {
			want: state(guest("vm.a", 0, &VM{Cores: 2})), have: state(guest("vm.a", 100, &VM{})),
			set: func(in *plan.Input) {
				in.Have.Unmanaged = []model.Unmanaged{{VMID: 105, Name: "a", Kind: "vm", Why: "no ownership tag", Claims: addr("vm.a")}}
			},
			steps: []string{"update vm.a"},
		},
		"what is locked is left out, and what would be made on it waits": {
			want: state(guest("vm.a", 0, &VM{Cores: 2}), guest("vm.child", 0, &VM{}, "vm.a"), guest("vm.there", 0, &VM{Cores: 2}, "vm.a"), guest("vm.calm", 0, &VM{}), guest("vm.on", 0, &VM{}, "vm.calm")),
			have: state(guest("vm.a", 100, &VM{}), guest("vm.there", 101, &VM{}), guest("vm.calm", 102, &VM{}), guest("vm.leaves", 103, &VM{}, "image.b"), object("image.b", &Image{})),
			set: func(in *plan.Input) {
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
			set: func(in *plan.Input) {
				in.Have.Unknown = []model.Unknown{{Scope: "host father", Why: "no quorum", All: true}}
			},
			steps:   []string{},
			unknown: []string{"host father: no quorum"},
		},
		"a guest without a name may be any new one": {
			want:  state(guest("vm.a", 0, &VM{}), guest("vm.b", 0, &VM{Cores: 2}), guest("ct.child", 0, &VM{}, "vm.a"), object("pool.p", &Pool{})),
			have:  state(guest("vm.b", 100, &VM{})),
			set:   func(in *plan.Input) { in.Have.Unknown = []model.Unknown{{Scope: "vm 105", Why: "403", VMID: 105}} },
			steps: []string{"create pool.p", "update vm.b"},
			unknown: []string{
				"ct.child: not created: vm 105 cannot be read (403) and may be it", "vm 105: 403", "vm.a: not created: vm 105 cannot be read (403) and may be it",
			},
		},
		"a guest with a name may only be that one, or that of its VMID": {
			want: state(guest("vm.a", 0, &VM{}), guest("vm.b", 0, &VM{}), guest("vm.c", 105, &VM{}), guest("vm.child", 0, &VM{}, "vm.b", "vm.a")),
			set: func(in *plan.Input) {
				in.Have.Unknown = []model.Unknown{{Scope: "vm 105", Why: "403", VMID: 105, Name: "a"}}
			},
			steps: []string{"create vm.b"},
			unknown: []string{
				"vm 105: 403", "vm.a: not created: vm 105 cannot be read (403) and may be it", "vm.c: not created: vm 105 cannot be read (403) and may be it",
				"vm.child: not created: it needs vm.a, which is not created",
			},
		},
		"a guest that somebody creates may be one of few, and needs what they need": {
			want: state(guest("vm.a", 0, &VM{}, "image.a"), guest("vm.b", 0, &VM{}), guest("vm.child", 0, &VM{}, "vm.a"), object("image.a", &Image{Checksum: "2"}), object("image.b", &Image{Checksum: "2"})),
			have: state(object("image.a", &Image{Checksum: "1"}), object("image.b", &Image{Checksum: "1"}), object("image.c", &Image{})),
			set: func(in *plan.Input) {
				in.Have.Unknown = []model.Unknown{{Scope: "vm 105", Why: "is being created", VMID: 105, Only: addrs("vm.a"), Creating: true}}
			},
			steps: []string{"replace image.b", "delete image.c", "create vm.b"},
			unknown: []string{
				"image.a: not replaced: vm 105 cannot be read (is being created) and may need it", "vm 105: is being created",
				"vm.a: not created: vm 105 is being created, and may be it", "vm.child: not created: it needs vm.a, which is not created",
			},
		},
		"a container is no VM": {
			want: state(guest("vm.a", 0, &VM{}), guest("ct.a", 0, &VM{})),
			set: func(in *plan.Input) {
				in.Have.Unknown = []model.Unknown{{Scope: "ct 105", Why: "403", VMID: 105, Guest: "ct"}}
			},
			steps:   []string{"create vm.a"},
			unknown: []string{"ct 105: 403", "ct.a: not created: ct 105 cannot be read (403) and may be it"},
		},
		"a dark node holds what is on it, or is to be": {
			want: state(guest("vm.a", 0, &VM{Cores: 2}), guest("vm.b", 0, &VM{Cores: 2}), guest("vm.new", 0, &VM{}), object("image.a", &Image{})),
			have: state(guest("vm.a", 100, &VM{}), guest("vm.b", 101, &VM{}), guest("vm.gone", 102, &VM{})),
			set: func(in *plan.Input) {
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
			set: func(in *plan.Input) {
				in.Have.Unknown = []model.Unknown{{Scope: "storage nas", Why: "595", Kind: "image", Only: addrs("image.b")}}
			},
			steps:   []string{"create image.a", "delete image.c"},
			unknown: []string{"image.b: not created: storage nas cannot be seen (595)", "storage nas: 595"},
		},
		"an unknown guest may need what would go": {
			want: state(object("image.c", &Image{Checksum: "new"})),
			have: state(object("image.a", &Image{}), object("pool.b", &Pool{}), guest("vm.a", 100, &VM{}, "image.a"), object("image.c", &Image{Checksum: "old"})),
			set: func(in *plan.Input) {
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
			set: func(in *plan.Input) {
				in.Have.Unknown = []model.Unknown{{Scope: "storage local", Why: "595", Kind: "image"}}
			},
			steps: []string{"create vm.b"},
			unknown: []string{
				"image.changed: not replaced: storage local cannot be seen (595)", "image.gone: not deleted: storage local cannot be seen (595)",
				"image.new: not created: storage local cannot be seen (595)", "storage local: 595", "vm.a: not created: it needs image.new, which is not created",
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
			set: func(in *plan.Input) {
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
			set: func(in *plan.Input) {
				in.Have.Unknown = []model.Unknown{{Scope: "pools", Why: "403", Kind: "pool"}}
			},
			steps:   []string{"delete image.b"},
			unknown: []string{"image.a: not deleted: pool.a still needs it", "pool.a: not deleted: pools cannot be seen (403)", "pools: 403"},
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
			p := plan.Make(in)
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
	p := plan.Make(input(
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
	f := plan.Make(in).Findings[0]
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
	p := plan.Make(in)
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
