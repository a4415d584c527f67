package plan_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// What one guest has, such as a MAC address, another one gets when it is given up.
func TestTakingOver(t *testing.T) {
	const x, y, z = "BC:24:11:00:00:0A", "BC:24:11:00:00:0B", "BC:24:11:00:00:0C"
	card := func(mac string) *VM { return &VM{MAC: mac} }
	stopped := "stopped"
	suspended := func(in *plan.Input) {
		in.Want.Suspended["db"] = true
		for _, r := range in.Have.State {
			r.Manifest = "db"
		}
	}
	const stays = "the MAC address is that of vm.old (VMID 100), which stays and runs"
	const aside = "warning (guard) vm.new: the MAC address is that of vm.old (VMID 100) as well, which stays"
	for name, c := range map[string]struct {
		want, have model.State
		set        func(*plan.Input)
		steps      []string
		findings   []string
		unknown    []string
	}{
		"a rename": {
			want:  state(guest("vm.new", 0, card("bc:24:11:00:00:0a")), guest("vm.other", 0, card(y))),
			have:  state(guest("vm.old", 100, card(x))),
			steps: []string{"delete vm.old", "create vm.other", "create vm.new after vm.old"},
		},
		"from who is changed, and from who is recreated": {
			want:  state(guest("vm.a", 0, card(x)), guest("vm.b", 0, card(z)), guest("vm.c", 0, card(y)), guest("vm.d", 0, &VM{Machine: "q35"})),
			have:  state(guest("vm.a", 100, card("")), guest("vm.b", 101, card(x)), guest("vm.d", 102, &VM{MAC: y, Machine: "pc"})),
			steps: []string{"update vm.b", "replace vm.d", "update vm.a after vm.b", "create vm.c after vm.d"},
		},
		"who keeps it waits for nobody": {
			want:  state(guest("vm.a", 0, &VM{MAC: x, Cores: 2})),
			have:  state(guest("vm.a", 100, card(x)), guest("vm.b", 101, card(y))),
			steps: []string{"update vm.a", "delete vm.b"},
		},
		// vm.y stays, and can let vm.old go only when it has vm.new to live on.
		"something that stays needs the old one": {
			want:     state(guest("vm.new", 0, card(x)), guest("vm.y", 0, &VM{Cores: 2}, "vm.new"), guest("vm.z", 0, card(y))),
			have:     state(guest("vm.old", 100, card(x)), guest("vm.y", 101, &VM{}, "vm.old"), guest("vm.w", 102, card(y))),
			steps:    []string{"create vm.new", "delete vm.w", "update vm.y after vm.new", "create vm.z after vm.w", "delete vm.old after vm.y"},
			findings: []string{"warning (guard) vm.new gets the MAC address while vm.old (VMID 100) still has it"},
		},
		"two exchange theirs": {
			want:  state(guest("vm.a", 0, card(y)), guest("vm.b", 0, card(x))),
			have:  state(guest("vm.a", 100, card(x)), guest("vm.b", 101, card(y))),
			steps: []string{"update vm.a", "update vm.b"},
			findings: []string{
				"warning (guard) vm.a gets the MAC address while vm.b (VMID 101) still has it",
				"warning (guard) vm.b gets the MAC address while vm.a (VMID 100) still has it",
			},
		},
		"circles that are there without it are told as ever": {
			want:  state(guest("vm.new", 0, card(x), "vm.b"), guest("vm.b", 0, &VM{}, "vm.new")),
			have:  state(guest("vm.old", 100, card(x))),
			steps: []string{"delete vm.old"},
			findings: []string{
				"error (guard) vm.b is not created: vm.b, vm.new depend on each other in a cycle",
				"error (guard) vm.new is not created: vm.b, vm.new depend on each other in a cycle",
			},
		},
		"who has it stays": {
			want: state(guest("vm.new", 0, card(x)), guest("vm.on", 0, &VM{}, "vm.new")), have: state(guest("vm.old", 100, card(x))), set: suspended,
			steps: []string{},
			findings: []string{
				"error (guard) vm.new is not created: " + stays, "warning (guard) vm.on is not created: it needs vm.new, which is not created",
			},
		},
		"who has it is not deleted after all": {
			want:     state(guest("vm.new", 0, card(x))),
			have:     state(guest("vm.old", 100, card(x)), guest("vm.mid", 101, &VM{}, "vm.old"), guest("vm.kept", 102, &VM{}, "vm.mid")),
			set:      func(in *plan.Input) { in.Want.Declared[addr("vm.kept")] = true },
			steps:    []string{},
			findings: []string{"warning (guard) vm.mid is not deleted: vm.kept still needs it", "error (guard) vm.new is not created: " + stays, "warning (guard) vm.old is not deleted: vm.mid still needs it"},
		},
		"who has it is changed, and keeps what was made up": {
			want:     state(guest("vm.new", 0, card(x)), guest("vm.old", 0, &VM{Cores: 2})),
			have:     state(guest("vm.old", 100, card(x))),
			steps:    []string{"update vm.old"},
			findings: []string{"error (guard) vm.new is not created: " + stays},
		},
		"a plan of one manifest": {
			want: state(guest("vm.new", 0, card(x))), have: state(guest("vm.old", 100, card(x))),
			set:      func(in *plan.Input) { in.Manifest, in.Have.State[addr("vm.old")].Manifest = "web", "db" },
			steps:    []string{},
			findings: []string{"error (guard) vm.new is not created: " + stays},
		},
		"it cannot be seen whether it may go": {
			want: state(guest("vm.new", 0, card(x))),
			have: state(guest("vm.old", 100, card(x)), guest("ct.x", 101, &VM{}, "vm.old")),
			set: func(in *plan.Input) {
				in.Have.Unknown = []model.Unknown{{Scope: "containers", Why: "no answer", Kind: "ct"}}
			},
			steps:   []string{},
			unknown: []string{"containers: no answer", "ct.x: not deleted: containers cannot be seen (no answer)", "vm.new: not created: vm.old (VMID 100) has the MAC address", "vm.old: not deleted: ct.x still needs it"},
		},
		"who has it stays, and is stopped": {
			want: state(guest("vm.new", 0, card(x))), have: state(guest("vm.old", 100, card(x))),
			set:   func(in *plan.Input) { suspended(in); in.Have.State[addr("vm.old")].Guest.Running = false },
			steps: []string{"create vm.new"}, findings: []string{aside},
		},
		"it shall not run": {
			want: state(guest("vm.new", 0, &VM{MAC: x, Power: &stopped})), have: state(guest("vm.old", 100, card(x))), set: suspended,
			steps: []string{"create vm.new"}, findings: []string{aside},
		},
		"they are on two networks": {
			want: state(guest("vm.new", 0, &VM{MAC: x, Bridge: "vmbr1"})), have: state(guest("vm.old", 100, &VM{MAC: x, Bridge: "vmbr0"})), set: suspended,
			steps: []string{"create vm.new"}, findings: []string{aside},
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
		})
	}
}

// However many take over from each other, and however they hang together: planning ends.
func TestManyTakeOver(t *testing.T) {
	const n = 300
	want, have := model.State{}, model.State{}
	for i := range n {
		old := guest(fmt.Sprintf("vm.old-%d", i), 1000+i, &VM{MAC: fmt.Sprint(i)})
		anew := guest(fmt.Sprintf("vm.new-%d", i), 0, &VM{MAC: fmt.Sprint(i)})
		turned := guest(fmt.Sprintf("vm.turned-%d", i), 3000+i, &VM{MAC: fmt.Sprint("t", i)})
		next := guest(fmt.Sprintf("vm.turned-%d", i), 0, &VM{MAC: fmt.Sprint("t", (i+1)%n)})
		for j := range i {
			old.Needs = append(old.Needs, addr(fmt.Sprintf("vm.old-%d", j)))
			anew.Needs = append(anew.Needs, addr(fmt.Sprintf("vm.new-%d", j)))
			next.Needs = append(next.Needs, addr(fmt.Sprintf("vm.turned-%d", j)))
		}
		have[old.Addr], want[anew.Addr], have[turned.Addr], want[next.Addr] = old, anew, turned, next
	}
	p := plan.Make(input(want, have))
	require.Equal(t, plan.Summary{Create: n, Delete: n, Update: n}, p.Summary)
	waits := map[model.Address][]model.Address{}
	for _, s := range p.Steps {
		waits[s.Address] = s.After
	}
	require.Contains(t, waits[addr("vm.new-0")], addr("vm.old-0"))
	require.Contains(t, waits[addr("vm.new-299")], addr("vm.old-299"))
}
