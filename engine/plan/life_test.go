package plan

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// planned makes an input with planned nodes beside the wanted ones.
func planned(want, have model.State, nodes ...*model.Resource) Input {
	in := input(want, have)
	in.Want.Planned = state(nodes...)
	for a := range in.Want.Planned {
		in.Want.Declared[a] = true
	}
	return in
}

func TestAPlannedNodeReservesAndMakesNothing(t *testing.T) {
	in := planned(state(guest("vm.a", 0, &VM{})), nil, guest("vm.c", 0, &VM{}), guest("vm.d", 105, &VM{}))
	p := Make(in)
	require.Equal(t, []string{"create vm.a"}, steps(p))
	require.Equal(t, 101, p.Steps[0].VMID, "a new guest does not take the VMID of a planned node")
	require.Len(t, p.Planned, 2)
	require.Equal(t, []any{"c", "web", 100}, []any{p.Planned[0].Node, p.Planned[0].Manifest, p.Planned[0].VMID})
	require.Equal(t, 105, p.Planned[1].VMID)
	require.Empty(t, p.Findings)
	require.Equal(t, p.ID, Make(in).ID, "the same input gives the same plan")

	alone := Make(planned(state(), state(), guest("vm.c", 0, &VM{})))
	require.True(t, alone.InSync())
	var text bytes.Buffer
	alone.Text(&text, TextOptions{})
	require.Contains(t, text.String(), "· vm c    planned: VMID 100 reserved")
	require.Contains(t, text.String(), ", 1 planned")
	text.Reset()
	alone.Markdown(&text)
	require.Contains(t, text.String(), "`vm.c` planned: VMID 100 reserved")
}

func TestConflictsOfAPlannedNode(t *testing.T) {
	for name, c := range map[string]struct {
		in   Input
		want string
	}{
		"its guest exists": {
			planned(state(), state(guest("vm.c", 100, &VM{})), guest("vm.c", 0, &VM{})),
			"vm.c is planned, and exists: it is left unchanged",
		},
		"a managed guest has its VMID": {
			planned(state(guest("vm.a", 0, &VM{})), state(guest("vm.a", 105, &VM{})), guest("vm.c", 105, &VM{})),
			"vm.c is planned, and its VMID 105 is taken by vm.a",
		},
		"an unmanaged guest has its VMID": {
			func() Input {
				in := planned(state(), state(), guest("vm.c", 105, &VM{}))
				in.Have.Unmanaged = []model.Unmanaged{{VMID: 105, Name: "scratch", Kind: "vm"}}
				return in
			}(),
			"vm.c is planned, and its VMID 105 is taken by vm scratch",
		},
		"its range is full": {
			func() Input {
				full := guest("vm.c", 0, &VM{})
				full.Guest.Choose = []model.VMIDRange{{Name: "one", From: 100, To: 100}}
				return planned(state(guest("vm.a", 0, &VM{})), state(guest("vm.a", 100, &VM{})), full)
			}(),
			`vm.c is planned, and no VMID is free in range "one" (100–100)`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := Make(c.in)
			require.Empty(t, p.Steps, "what exists stays as it is")
			require.Len(t, p.Findings, 1)
			require.Equal(t, c.want, p.Findings[0].Summary)
			require.Equal(t, []any{diag.Error, diag.FromGuard, "vm.c"}, []any{p.Findings[0].Severity, p.Findings[0].Source, p.Findings[0].Address})
			require.False(t, p.InSync())
		})
	}
}

func TestALimitedPlanShowsItsPlannedNodesOnly(t *testing.T) {
	in := planned(state(), nil, guest("vm.c", 0, &VM{}))
	in.Manifest = "web"
	p := Make(in)
	require.Len(t, p.Planned, 1)
	require.Empty(t, p.Findings, "a manifest of planned nodes has something on the host")
	in.Manifest = "other"
	require.Empty(t, Make(in).Planned)
	in.Manifest, in.Destroy = "web", true
	require.Empty(t, Make(in).Planned)
}
