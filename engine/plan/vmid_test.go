package plan_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

func lab(from, to int) []model.VMIDRange { return []model.VMIDRange{{Name: "lab", From: from, To: to}} }

func drawing(name string, ranges []model.VMIDRange) *model.Resource {
	r := guest(name, 0, &VM{})
	r.Guest.Choose = ranges
	return r
}

func TestVMIDs(t *testing.T) {
	two := []model.VMIDRange{{Name: "a", From: 200, To: 200}, {Name: "b", From: 300, To: 301}}
	for name, c := range map[string]struct {
		want, have model.State
		set        func(*plan.Input)
		vmids      map[string]int
		steps      []string
		findings   []string
	}{
		"lowest free, by address": {
			want:  state(drawing("vm.w-10", lab(200, 299)), drawing("vm.w-2", lab(200, 299)), drawing("ct.z", lab(200, 299))),
			set:   func(in *plan.Input) { in.Have.Taken = map[int]string{201: "vm other", 202: ""} },
			vmids: map[string]int{"ct.z": 200, "vm.w-2": 203, "vm.w-10": 204},
		},
		"no range": {want: state(guest("vm.a", 0, &VM{}), guest("vm.b", 0, &VM{})), vmids: map[string]int{"vm.a": 100, "vm.b": 101}},
		"range beyond what PVE allows": {
			want:     state(drawing("vm.a", lab(1, 101)), drawing("vm.b", lab(999_999_999, 2_000_000_000)), drawing("vm.c", lab(999_999_999, 2_000_000_000))),
			vmids:    map[string]int{"vm.a": 100, "vm.b": 999_999_999},
			findings: []string{`error (site) vm.c is not created: no VMID is free in range "lab" (999999999–2000000000)`},
		},
		"who exists keeps his": {
			want: state(drawing("vm.a", lab(200, 299)), drawing("vm.b", lab(200, 299))), have: state(guest("vm.b", 4711, &VM{Cores: 2})),
			vmids: map[string]int{"vm.a": 200, "vm.b": 4711},
		},
		"ranges in order, then full": {
			want:     state(drawing("vm.a", two), drawing("vm.b", two), drawing("vm.c", two), drawing("vm.d", two)),
			vmids:    map[string]int{"vm.a": 200, "vm.b": 300, "vm.c": 301},
			findings: []string{`error (site) vm.d is not created: no VMID is free in range "a" (200–200), range "b" (300–301)`},
		},
		"declared ones are never drawn": {
			want:  state(drawing("vm.a", lab(200, 299)), guest("vm.b", 200, &VM{})),
			vmids: map[string]int{"vm.a": 201, "vm.b": 200},
		},
		"what an earlier pass could not have": {
			want:  state(drawing("vm.a", lab(200, 299)), guest("vm.b", 202, &VM{})),
			set:   func(in *plan.Input) { in.Avoid = []int{200, 202} },
			vmids: map[string]int{"vm.a": 201, "vm.b": 202},
		},
		"what an earlier pass could not have, where nothing else is left": {
			want:     state(drawing("vm.a", lab(200, 201)), drawing("vm.b", lab(200, 201)), drawing("vm.c", lab(200, 201))),
			set:      func(in *plan.Input) { in.Avoid = []int{9000, 200} },
			vmids:    map[string]int{"vm.a": 201, "vm.b": 200},
			findings: []string{`error (site) vm.c is not created: no VMID is free in range "lab" (200–201)`},
		},
		"too many for a range are told once": {
			want:  state(drawing("vm.a", lab(200, 200)), drawing("vm.b", lab(200, 200)), drawing("vm.c", lab(200, 200)), drawing("vm.d", lab(200, 200)), drawing("vm.e", lab(200, 200))),
			vmids: map[string]int{"vm.a": 200}, steps: []string{"create vm.a"},
			findings: []string{`error (site) vm.b, vm.c and 2 more are not created: no VMID is free in range "lab" (200–200)`},
		},
		"unseen and unmanaged guests have theirs": {
			want: state(drawing("vm.a", lab(200, 299))),
			set: func(in *plan.Input) {
				in.Have.Unmanaged = []model.Unmanaged{{VMID: 200}}
				in.Have.Unknown = []model.Unknown{{Scope: "vm 201", VMID: 201, Name: "x"}}
			},
			vmids: map[string]int{"vm.a": 202},
		},
		"freed ones wait for the next plan": {
			want: state(drawing("vm.a", lab(200, 299))), have: state(guest("vm.b", 200, &VM{})),
			vmids: map[string]int{"vm.a": 201, "vm.b": 200}, steps: []string{"create vm.a", "delete vm.b"},
		},
		"a declared one waits for the deletion that frees it": {
			want: state(guest("vm.a", 200, &VM{})), have: state(guest("vm.b", 200, &VM{})),
			vmids: map[string]int{"vm.a": 200, "vm.b": 200}, steps: []string{"delete vm.b", "create vm.a after vm.b"},
		},
		"a declared one waits for the guest that moves off it": {
			want: state(guest("vm.a", 200, &VM{}), guest("vm.b", 201, &VM{})), have: state(guest("vm.b", 200, &VM{})),
			vmids: map[string]int{"vm.a": 200, "vm.b": 201}, steps: []string{"replace vm.b", "create vm.a after vm.b"},
		},
		"another one than it has": {
			want: state(guest("vm.a", 201, &VM{})), have: state(guest("vm.a", 200, &VM{})),
			vmids: map[string]int{"vm.a": 201}, steps: []string{"replace vm.a"},
		},
		"two guests swap": {
			want:  state(guest("vm.a", 201, &VM{}), guest("vm.b", 200, &VM{}), guest("vm.c", 0, &VM{}, "vm.b")),
			have:  state(guest("vm.a", 200, &VM{}), guest("vm.b", 201, &VM{})),
			steps: []string{},
			findings: []string{
				"error (guard) vm.a is not replaced: vm.a, vm.b depend on each other in a cycle",
				"error (guard) vm.b is not replaced: vm.a, vm.b depend on each other in a cycle",
				"warning (guard) vm.c is not created: it needs vm.b, which is not replaced",
			},
		},
		"taken by something else": {
			want: state(guest("vm.a", 999, &VM{}), guest("vm.b", 998, &VM{})),
			set: func(in *plan.Input) {
				in.Have.Taken = map[int]string{999: "vm scratch"}
				in.Have.Unmanaged = []model.Unmanaged{{VMID: 998, Kind: "ct", Name: "cache"}}
			},
			findings: []string{
				"error (guard) vm.a is not created: VMID 999 is taken by vm scratch", "error (guard) vm.b is not created: VMID 998 is taken by ct cache",
			},
		},
		"taken by one of ours that stays": {
			want: state(guest("vm.a", 0, &VM{}), guest("vm.b", 200, &VM{})), have: state(guest("vm.a", 200, &VM{})),
			findings: []string{"error (guard) vm.b is not created: VMID 200 is that of vm.a, which stays"},
		},
		"taken by one of ours that cannot go": {
			want: state(guest("vm.b", 200, &VM{}), guest("vm.x", 0, &VM{Cores: 2})), have: state(guest("vm.a", 200, &VM{}), guest("vm.x", 201, &VM{}, "vm.a")),
			set: func(in *plan.Input) { in.Want.State[addr("vm.x")].Missing = []string{"secret.auth.x"} },
			findings: []string{
				"warning (guard) vm.a is not deleted: vm.x still needs it", "error (guard) vm.b is not created: VMID 200 is still that of vm.a",
				"error (site) vm.x is not changed: the value of secret.auth.x is not known here",
			},
		},
		"declared twice": {
			want:     state(guest("vm.a", 200, &VM{}), guest("vm.b", 200, &VM{})),
			vmids:    map[string]int{"vm.a": 200},
			findings: []string{"error (guard) vm.b is not created: VMID 200 is declared for vm.a as well"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(c.want, c.have)
			if c.set != nil {
				c.set(&in)
			}
			p := plan.Make(in)
			got := map[string]int{}
			for _, s := range p.Steps {
				got[s.Address.String()] = s.VMID
				if s.Want != nil {
					require.Equal(t, s.VMID, s.Want.Guest.VMID)
				}
			}
			require.Equal(t, append([]string{}, c.findings...), findings(p))
			if c.steps != nil {
				require.Equal(t, c.steps, steps(p))
			}
			if c.vmids != nil {
				require.Equal(t, c.vmids, got)
			}
			apply(t, p, in)
		})
	}
}

func TestAnotherVMIDCostsTheData(t *testing.T) {
	p := plan.Make(input(state(guest("vm.a", 201, &VM{Cores: 2})), state(guest("vm.a", 200, &VM{}))))
	require.Equal(t, []string{"vmid 200 → 201 (data-loss)", "cores 0 → 2 (pending)"}, changes(p.Steps[0]))
	require.Equal(t, model.ClassDataLoss, p.Steps[0].Class)
	require.Equal(t, "vmid differs from the site and cannot be changed in place", p.Steps[0].Reason)
}

// A limited plan chooses as a full one would, so that neither surprises the other.
func TestLimitsDoNotChangeVMIDs(t *testing.T) {
	want := state(guest("vm.a", 0, &VM{}), guest("vm.b", 0, &VM{}), guest("vm.c", 0, &VM{}))
	in := input(want, nil)
	in.Targets = addrs("vm.c")
	require.Equal(t, 102, plan.Make(in).Steps[0].VMID)
}
