package plan

import (
	"bytes"
	"strings"
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

// A phase is the last one before which no fact is missing, for all facts.
func TestPhase(t *testing.T) {
	for bits := range 1 << 6 {
		f := LifeFacts{Exists: bits&1 > 0, Registered: bits&2 > 0, Validated: bits&4 > 0, Healthy: bits&8 > 0, Removing: bits&16 > 0, Removed: bits&32 > 0}
		want := Operating
		switch {
		case f.Removed:
			want = Decommissioned
		case f.Removing:
			want = Decommissioning
		default:
			for i, has := range []bool{f.Exists, f.Registered, f.Validated, f.Healthy} {
				if !has {
					want = Phases()[i]
					break
				}
			}
		}
		require.Equal(t, want, f.Phase(), f)
		require.Equal(t, f.Exists && !f.Removing && !f.Registered && f.Validated, f.Skipped() == Registered, f)
	}
}

func TestChangeOfAnOutput(t *testing.T) {
	for name, c := range map[string]struct{ before, after, want string }{
		"none":      {"a\nb\n", "a\nb\n", ""},
		"new":       {"", "a\nb\n", "+a +b"},
		"one more":  {"a\nc\n", "a\nb\nc\n", "+b"},
		"one less":  {"a\nb\nc\n", "a\nc\n", "-b"},
		"other":     {"a\nb\n", "a\nx\n", "-b +x"},
		"all of it": {"a\n", "", "-a"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ChangeOf("x", "to", c.before, c.after)
			if c.want == "" {
				require.Nil(t, got)
				return
			}
			require.Equal(t, c.want, strings.Join(got.Lines, " "))
		})
	}
	many := ChangeOf("x", "", "", strings.Repeat("line\n", mostOutputLines+5))
	require.Len(t, many.Lines, mostOutputLines)
}
