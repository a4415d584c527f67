package plan

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// TestAReferencedGuestStays, with the place and the next step; others go.
func TestAReferencedGuestStays(t *testing.T) {
	in := input(state(), state(guest("vm.a", 100, &VM{}), guest("vm.b", 101, &VM{})))
	in.Referenced = map[model.Address]string{addr("vm.a"): "it is still referenced at /srv/registry/hosts:12 (a)"}
	p := Make(in)
	require.Equal(t, []string{"delete vm.b"}, steps(p))
	require.Equal(t, diag.FromGuard, p.Findings[0].Source)
	require.Equal(t, "vm.a is not deleted: it is still referenced at /srv/registry/hosts:12 (a)", p.Findings[0].Summary)
	require.Contains(t, p.Findings[0].Detail, "remove the reference")
}

// TestTheWordsOfAGuest are not those that another guest takes over.
func TestTheWordsOfAGuest(t *testing.T) {
	a := guest("vm.a", 100, &VM{})
	words := func(want model.State) []string {
		out := Names(a, &model.Want{State: want})
		slices.Sort(out)
		return out
	}
	require.Equal(t, []string{"100", "a"}, words(state()))
	require.Equal(t, []string{"a"}, words(state(guest("vm.b", 100, &VM{}))))
}

// TestServicesAreMigratedFirst: to a node that is there, runs, is healthy and stays.
func TestServicesAreMigratedFirst(t *testing.T) {
	for name, c := range map[string]struct {
		other func(in *Input, other *model.Resource)
		goes  bool
	}{
		"to no other node":           {func(in *Input, _ *model.Resource) { in.Want.Nodes[addr("vm.b")].Services = []string{"dns"} }, false},
		"to a node that runs":        {func(*Input, *model.Resource) {}, true},
		"to one that is off":         {func(_ *Input, other *model.Resource) { other.Guest.Running = false }, false},
		"to one that boots":          {func(_ *Input, other *model.Resource) { other.Guest.Starting = true }, false},
		"to one whose checks fail":   {func(in *Input, _ *model.Resource) { in.Failing = []model.Address{addr("vm.b")} }, false},
		"to one that does not exist": {func(in *Input, _ *model.Resource) { delete(in.Have.State, addr("vm.b")) }, false},
		"to one that goes as well":   {func(in *Input, _ *model.Resource) { delete(in.Want.State, addr("vm.b")) }, false},
		"of a node that had none":    {func(in *Input, _ *model.Resource) { in.Have.State[addr("vm.a")].Guest.Services = nil }, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := guest("vm.b", 101, &VM{})
			b.Guest.Running = true
			in := input(state(guest("vm.b", 101, &VM{})), state(guest("vm.a", 100, &VM{}), b))
			in.Have.State[addr("vm.a")].Guest.Services = []string{"mail"}
			in.Want.Nodes[addr("vm.b")] = &model.Node{Name: "b", Services: []string{"dns", "mail"}}
			c.other(&in, b)
			p := Make(in)
			require.Equal(t, c.goes, slices.Contains(steps(p), "delete vm.a"), "%v %v", steps(p), p.Findings)
			if !c.goes {
				require.True(t, slices.ContainsFunc(p.Findings, func(f diag.Finding) bool {
					return f.Severity == diag.Error && f.Source == diag.FromGuard && f.Address == "vm.a"
				}))
			}
		})
	}
}
