package plan_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

func TestOrder(t *testing.T) {
	for name, c := range map[string]struct {
		want, have model.State
		set        func(*plan.Input)
		steps      []string
		findings   []string
	}{
		"peers by address, numbers as numbers": {
			want:  state(guest("vm.w-10", 0, &VM{}), guest("vm.w-9", 0, &VM{}), guest("ct.x", 0, &VM{}), object("image.a", &Image{})),
			steps: []string{"create ct.x", "create image.a", "create vm.w-9", "create vm.w-10"},
		},
		"parents first on the way up": {
			want:  state(guest("vm.a", 0, &VM{}, "vm.b"), guest("vm.b", 0, &VM{Cores: 2}, "vm.c", "vm.c"), object("pool.p", &Pool{}), guest("vm.c", 0, &VM{}, "pool.p", "vm.c")),
			have:  state(guest("vm.b", 100, &VM{})),
			steps: []string{"create pool.p", "create vm.c after pool.p", "update vm.b after vm.c", "create vm.a after vm.b"},
		},
		"children first on the way down": {
			have:  state(guest("vm.a", 100, &VM{}, "vm.b"), guest("vm.b", 101, &VM{}, "pool.p", "vm.gone"), object("pool.p", &Pool{})),
			steps: []string{"delete vm.a", "delete vm.b after vm.a", "delete pool.p after vm.b"},
		},
		"who lets go comes before what goes": {
			want:  state(guest("vm.a", 0, &VM{Cores: 2}, "image.new"), object("image.new", &Image{})),
			have:  state(guest("vm.a", 100, &VM{}, "image.old"), object("image.old", &Image{})),
			steps: []string{"create image.new", "update vm.a after image.new", "delete image.old after vm.a"},
		},
		"who is rebuilt on something else lets go as well": {
			want:  state(guest("vm.a", 0, &VM{Image: "new"}, "image.new"), object("image.new", &Image{})),
			have:  state(guest("vm.a", 100, &VM{Image: "old"}, "image.old"), object("image.old", &Image{})),
			steps: []string{"create image.new", "replace vm.a after image.new", "delete image.old after vm.a"},
		},
		"nothing waits for what has no step": {
			want:  state(guest("vm.a", 0, &VM{}, "vm.b"), guest("vm.b", 0, &VM{}, "pool.p"), object("pool.p", &Pool{Comment: "new"})),
			have:  state(guest("vm.b", 100, &VM{}), object("pool.p", &Pool{Comment: "old"})),
			steps: []string{"update pool.p", "create vm.a"},
		},
		"marks in a circle": {
			have: state(
				guest("vm.a", 100, &VM{}, "vm.c"), guest("vm.b", 101, &VM{}, "vm.a"), guest("vm.c", 102, &VM{}, "vm.b"),
				guest("vm.child", 103, &VM{}, "vm.b"), object("pool.p", &Pool{}, "vm.self"), guest("vm.self", 104, &VM{}, "vm.self"),
			),
			steps:    []string{"delete pool.p", "delete vm.a", "delete vm.child", "delete vm.b after vm.child", "delete vm.c after vm.a", "delete vm.self after pool.p"},
			findings: []string{"warning (guard) vm.a, vm.b, vm.c need each other by their ownership tags"},
		},
		"two circles of marks": {
			have: state(
				guest("vm.a", 100, &VM{}, "vm.b"), guest("vm.b", 101, &VM{}, "vm.a"),
				guest("vm.x", 102, &VM{}, "vm.y"), guest("vm.y", 103, &VM{}, "vm.x", "vm.a"),
			),
			steps: []string{"delete vm.x", "delete vm.y after vm.x", "delete vm.a after vm.y", "delete vm.b after vm.a"},
			findings: []string{
				"warning (guard) vm.a, vm.b need each other by their ownership tags", "warning (guard) vm.x, vm.y need each other by their ownership tags",
			},
		},
		"a wanted circle": {
			want:  state(guest("vm.a", 0, &VM{}, "vm.b"), guest("vm.b", 0, &VM{}, "vm.a"), guest("vm.c", 0, &VM{}, "vm.b"), guest("vm.d", 0, &VM{})),
			steps: []string{"create vm.d"},
			findings: []string{
				"error (guard) vm.a is not created: vm.a, vm.b depend on each other in a cycle",
				"error (guard) vm.b is not created: vm.a, vm.b depend on each other in a cycle",
				"warning (guard) vm.c is not created: it needs vm.b, which is not created",
			},
		},
		// vm.a lets vm.x go when it can live on vm.b, which wants the VMID of vm.x.
		"a circle through a VMID": {
			want:  state(guest("vm.a", 0, &VM{Cores: 2}, "vm.b"), guest("vm.b", 200, &VM{})),
			have:  state(guest("vm.a", 100, &VM{}, "vm.x"), guest("vm.x", 200, &VM{})),
			steps: []string{},
			findings: []string{
				"error (guard) vm.a is not changed: vm.a, vm.b, vm.x depend on each other in a cycle",
				"error (guard) vm.b is not created: vm.a, vm.b, vm.x depend on each other in a cycle",
				"warning (guard) vm.x is not deleted: vm.a still needs it",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(c.want, c.have)
			p := plan.Make(in)
			require.Equal(t, c.steps, steps(p))
			require.Equal(t, append([]string{}, c.findings...), findings(p))
		})
	}
}

// However the marks were edited, planning ends, and deletes each guest once.
func TestManyMarksInACircle(t *testing.T) {
	const n = 400
	have := model.State{}
	for i := range n {
		r := guest(fmt.Sprintf("vm.g-%d", i), 100+i, &VM{})
		for j := range n {
			r.Needs = append(r.Needs, addr(fmt.Sprintf("vm.g-%d", j)))
		}
		have[r.Addr] = r
	}
	p := plan.Make(input(nil, have))
	require.Equal(t, plan.Summary{Delete: n}, p.Summary)
	require.Len(t, p.Findings, 1)
}

func TestLongChain(t *testing.T) {
	const n = 5_000
	want := model.State{}
	for i := range n {
		r := guest(fmt.Sprintf("vm.g-%d", n-i), 0, &VM{})
		if i > 0 {
			r.Needs = addrs(fmt.Sprintf("vm.g-%d", n-i+1))
		}
		want[r.Addr] = r
	}
	p := plan.Make(input(want, nil))
	require.Len(t, p.Steps, n)
	require.Equal(t, "vm.g-5000", p.Steps[0].Address.String())
	require.Equal(t, addrs("vm.g-2"), p.Steps[n-1].After)
}
