package plan_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

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

func insideInput(want, have model.State) plan.Input {
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
			p := plan.Make(in)
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
	type from = *plan.Input
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
			p := plan.Make(in)
			require.Equal(t, c.steps, steps(p))
			require.Contains(t, text(p, plan.TextOptions{Width: 160}), c.after)
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
		p := plan.Make(insideInput(want, have))
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
			if s.Action == plan.Delete || s.Action == plan.Replace {
				delete(got, s.Address)
				delete(got, within(s.Address))
			}
			if s.Action == plan.Delete {
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
		for _, s := range plan.Make(insideInput(want, got)).Steps {
			require.True(t, withheld[s.Address.String()] || s.Address.Kind != "guest", "%s %s is planned again", s.Action, s.Address)
		}
	})
}
