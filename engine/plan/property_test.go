package plan

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// names of all resources that may occur, in an order in which each needs only
// earlier ones, so that both states are without circles.
var names = []string{
	"pool.a", "image.a", "image.b", "vm.a", "ct.a", "vm.b", "vm.c", "ct.b", "vm.d", "vm.e", "vm.f", "ct.c", "vm.g",
}

// world draws a state: any of the names, each needing some of those before it.
// Where wild, needs may also point at what is not there, at themselves, and in circles.
func world(t *rapid.T, label string, observed, wild bool) model.State {
	s := model.State{}
	free := rapid.Permutation(numbers(100, 140)).Draw(t, label+" vmids")
	cards := rapid.Permutation(numbers(1, len(names)+1)).Draw(t, label+" cards")
	for i, name := range names {
		if !rapid.Bool().Draw(t, label+" has "+name) {
			continue
		}
		var needs []string
		for j, other := range names {
			if (wild || (j < i && s[addr(other)] != nil)) && rapid.IntRange(0, 3).Draw(t, "needs") == 0 {
				needs = append(needs, other)
			}
		}
		version := rapid.SampledFrom([]string{"1", "2"}).Draw(t, "version")
		var r *model.Resource
		mark := fmt.Sprint(needs)
		switch addr(name).Kind {
		case "pool":
			r = object(name, &Pool{version, &mark}, needs...)
		case "image":
			r = object(name, &Image{version, &mark}, needs...)
		default:
			r = guest(name, 0, &VM{
				Mark: &mark, Cores: rapid.IntRange(1, 2).Draw(t, "cores"), Description: version,
				Machine: rapid.SampledFrom([]string{"q35", "q35", "q35", "pc"}).Draw(t, "machine"),
			}, needs...)
			if rapid.Bool().Draw(t, "has a card") {
				r.Spec.(*VM).MAC = fmt.Sprint("BC:24:11:00:00:", cards[i])
			}
			r.Manifest = rapid.SampledFrom([]string{"web", "db"}).Draw(t, "manifest")
			if observed || rapid.IntRange(0, 4).Draw(t, "explicit") == 0 {
				r.Guest.VMID = free[i]
			}
			if !observed && rapid.Bool().Draw(t, "ranged") {
				r.Guest.Choose = []model.VMIDRange{{Name: "lab", From: 110, To: 118}}
			}
		}
		s[r.Addr] = r
	}
	return s
}

func numbers(from, to int) []int {
	out := make([]int, 0, to-from)
	for i := from; i < to; i++ {
		out = append(out, i)
	}
	return out
}

// sight draws all that keeps a plan from doing everything.
func sight(t *rapid.T, in *Input) {
	some := func(label string) bool { return rapid.IntRange(0, 5).Draw(t, label) == 0 }
	for _, name := range names {
		a := addr(name)
		if r := in.Want.State[a]; r != nil && some("missing") {
			r.Missing = []string{"secret.auth.x"}
		}
		if some("drift") {
			in.Want.Nodes[a] = &model.Node{Drift: "report"}
		}
		if some("declared") && in.Want.State[a] == nil {
			in.Want.Declared[a] = true
		}
		if some("unmanaged") {
			in.Have.Unmanaged = append(in.Have.Unmanaged, model.Unmanaged{VMID: rapid.IntRange(100, 140).Draw(t, "vmid"), Name: a.Name, Kind: "vm", Claims: a})
		}
	}
	in.Want.Suspended["db"] = some("suspended")
	if some("unknown guests") {
		for _, id := range []int{138, 139} {
			in.Have.Unknown = append(in.Have.Unknown, model.Unknown{
				Scope: fmt.Sprint("vm ", id), Why: "offline", VMID: id, Name: rapid.SampledFrom([]string{"", "a", "d"}).Draw(t, "name"),
			})
		}
	}
	if some("unknown kind") {
		in.Have.Unknown = append(in.Have.Unknown, model.Unknown{Scope: "storage", Kind: "image"})
	}
	if some("limit") {
		in.Manifest = "web"
		in.Destroy = rapid.Bool().Draw(t, "destroy")
	}
	if some("targets") {
		in.Targets = addrs(rapid.SampledFrom(names).Draw(t, "target"))
	}
}

// Carrying out Make(want, have) gives want; planning again gives nothing.
func TestApplyingGivesWhatIsWanted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := input(world(t, "want", false, false), world(t, "have", true, false))
		p := Make(in)
		got := apply(t, p, in)
		held := map[string]bool{}
		for _, f := range p.Findings {
			held[f.Address] = true
		}
		for a := range held {
			require.NotEmpty(t, a)
		}
		for _, name := range names {
			a := addr(name)
			want, is := in.Want.State[a], got[a]
			switch {
			case held[name]: // refused, such as a replacement under living dependants
			case want == nil:
				require.Nil(t, is, name)
			default:
				require.NotNil(t, is, name)
				spec := model.Clone(is.Spec)
				if vm, ok := spec.(*VM); ok && want.Spec.(*VM).MAC == "" {
					vm.MAC = "" // made up, or kept
				}
				require.Equal(t, want.Spec, spec, name)
				require.ElementsMatch(t, want.Needs, is.Needs, name)
			}
		}
		next := input(in.Want.State, got)
		again := Make(next)
		for _, s := range again.Steps {
			// A refused step may be possible after the rest was done, and resources that are no longer needed are gone.
			require.True(t, held[s.Address.String()], "%s %s is planned again", s.Action, s.Address)
		}
		if len(p.Findings) == 0 {
			require.Empty(t, steps(again))
			require.True(t, again.InSync())
			require.Equal(t, len(in.Want.State), again.Summary.Unchanged)
		}
	})
}

// Whatever is hidden, unmanaged or broken: each step can be done when its turn comes,
// the numbers add up, and nothing is done that must not be.
func TestPlansAreSafe(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		wild := rapid.Bool().Draw(t, "wild")
		in := input(world(t, "want", false, wild), world(t, "have", true, wild))
		sight(t, &in)
		p := Make(in)
		require.Equal(t, p.ID, Make(in).ID)

		count := map[Action]int{}
		place := map[model.Address]int{}
		for i, s := range p.Steps {
			count[s.Action]++
			require.NotContains(t, place, s.Address)
			place[s.Address] = i
			for _, a := range s.After {
				require.Contains(t, place, a, "%s waits for %s", s.Address, a)
			}
			require.True(t, slices.IsSortedFunc(s.After, model.Address.Compare))
		}
		require.Equal(t, Summary{
			Create: count[Create], Update: count[Update], Replace: count[Replace], Delete: count[Delete],
			Unchanged: p.Summary.Unchanged, Unmanaged: len(in.Have.Unmanaged),
		}, p.Summary)

		for _, s := range p.Steps {
			want, have := in.Want.State[s.Address], in.Have.State[s.Address]
			switch s.Action {
			case Create:
				require.Nil(t, have)
				require.False(t, slices.ContainsFunc(in.Have.Unmanaged, func(f model.Unmanaged) bool { return f.Claims == s.Address }), s.Address)
			case Delete:
				require.NotNil(t, have)
				require.True(t, in.Destroy || want == nil && !in.Want.Declared[s.Address] && !in.Want.Suspended[have.Manifest], s.Address)
			default:
				require.NotEmpty(t, s.Changes)
			}
			if s.Action != Delete {
				require.Empty(t, want.Missing)
			}
			if in.Manifest != "" && (s.Action == Delete || s.Action == Replace) {
				require.Equal(t, in.Manifest, s.Manifest)
			}
			for _, u := range in.Have.Unknown {
				require.False(t, u.Kind == s.Address.Kind && s.Action != Update, s.Address)
				require.False(t, u.VMID > 0 && s.VMID == 0 && (s.Action == Delete || s.Action == Replace), s.Address)
			}
		}
		if !wild {
			apply(t, p, in)
		}
	})
}

// The plan does not depend on the order of maps or lists, and says the same when
// it was written and read.
func TestPlansAreDeterministic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := input(world(t, "want", false, true), world(t, "have", true, true))
		sight(t, &in)
		p := Make(in)
		shuffled := in
		shuffled.Have.State = maps.Collect(maps.All(in.Have.State))
		want := *in.Want
		want.State = maps.Collect(maps.All(in.Want.State))
		shuffled.Want = &want
		shuffled.Have.Unmanaged = rapid.Permutation(slices.Clone(in.Have.Unmanaged)).Draw(t, "unmanaged")
		shuffled.Have.Unknown = rapid.Permutation(slices.Clone(in.Have.Unknown)).Draw(t, "unknown")
		q := Make(shuffled)
		require.Equal(t, p.ID, q.ID)
		require.Equal(t, steps(p), steps(q))
		require.Equal(t, findings(p), findings(q))
		require.Equal(t, unknown(p), unknown(q))
		require.Empty(t, p.Moved(q))
	})
}

func TestVMIDsAreUniqueStableAndInRange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := input(world(t, "want", false, false), world(t, "have", true, false))
		for _, v := range rapid.SliceOf(rapid.IntRange(100, 125)).Draw(t, "taken") {
			if in.Have.Taken[v] == "" {
				in.Have.Taken[v] = fmt.Sprint("vm x", v)
			}
		}
		p := Make(in)
		given := map[int]model.Address{}
		for _, s := range p.Steps {
			want := in.Want.State[s.Address]
			if want == nil || want.Guest == nil {
				continue
			}
			require.NotContains(t, given, s.VMID, "given to %s and %s", given[s.VMID], s.Address)
			given[s.VMID] = s.Address
			have := in.Have.State[s.Address]
			switch {
			case want.Guest.VMID != 0:
				require.Equal(t, want.Guest.VMID, s.VMID)
			case have != nil:
				require.Equal(t, have.Guest.VMID, s.VMID)
			default:
				require.NotContains(t, in.Have.Taken, s.VMID)
				for _, r := range want.Guest.Choose {
					require.GreaterOrEqual(t, s.VMID, r.From)
					require.LessOrEqual(t, s.VMID, r.To)
				}
			}
		}
		// A guest that exists keeps its VMID, whichever others come or go.
		after := apply(t, p, in)
		for _, s := range Make(input(in.Want.State, after)).Steps {
			if was := after[s.Address]; was != nil && was.Guest != nil && in.Want.State[s.Address] != nil && in.Want.State[s.Address].Guest.VMID == 0 {
				require.Equal(t, was.Guest.VMID, s.VMID)
			}
		}
	})
}

// The id tells apart whatever the plan is made from.
func TestIDFollowsTheInput(t *testing.T) {
	base := func() Input {
		want := guest("vm.a", 0, &VM{Cores: 2, Password: "new", Tags: []string{"a", "b"}})
		have := guest("vm.a", 100, &VM{Cores: 1, Password: "old"})
		return input(state(want, guest("vm.b", 0, &VM{})), state(have, guest("vm.c", 102, &VM{})))
	}
	a := addr("vm.a")
	ids := map[string]string{Make(base()).ID: "the base"}
	require.Regexp(t, "^[0-9a-f]{12}$", Make(base()).ID)
	for name, change := range map[string]func(*Input){
		"want":            func(in *Input) { in.Want.State[a].Spec.(*VM).Cores = 4 },
		"have":            func(in *Input) { in.Have.State[a].Spec.(*VM).Cores = 3 },
		"list":            func(in *Input) { in.Want.State[a].Spec.(*VM).Tags = []string{"ab"} },
		"list the same":   func(in *Input) { in.Have.State[a].Spec.(*VM).Tags = []string{"a", "b"} },
		"only observed":   func(in *Input) { in.Have.State[addr("vm.c")].Spec.(*VM).Cores = 9 },
		"needs":           func(in *Input) { in.Have.State[a].Needs = addrs("vm.x") },
		"wanted needs":    func(in *Input) { in.Want.State[a].Needs = addrs("vm.b") },
		"gone":            func(in *Input) { delete(in.Have.State, a) },
		"secret the same": func(in *Input) { in.Want.State[a].Spec.(*VM).Password = "old" },
		"vmid":            func(in *Input) { in.Have.State[a].Guest.VMID = 105 },
		"node":            func(in *Input) { in.Have.State[a].Guest.Node = "pve2" },
		"running":         func(in *Input) { in.Have.State[a].Guest.Running = false },
		"digest":          func(in *Input) { in.Have.State[a].Guest.Digest = "x" },
		"lock":            func(in *Input) { in.Have.State[a].Guest.Lock = "backup" },
		"unmanaged":       func(in *Input) { in.Have.Unmanaged = []model.Unmanaged{{VMID: 7}} },
		"unknown":         func(in *Input) { in.Have.Unknown = []model.Unknown{{Scope: "node x"}} },
		"taken":           func(in *Input) { in.Have.Taken[101] = "x"; in.Have.Taken[103] = "y" },
		"manifest":        func(in *Input) { in.Manifest = "web" },
		"destroy":         func(in *Input) { in.Manifest, in.Destroy = "web", true },
		"missing":         func(in *Input) { in.Want.State[a].Missing = []string{"x"} },
	} {
		in := base()
		change(&in)
		id := Make(in).ID
		require.NotContains(t, ids, id, "%s and %s", name, ids[id])
		ids[id] = name
	}
	for name, change := range map[string]func(*Input){
		"time":           func(in *Input) { in.Have.At = in.Have.At.AddDate(1, 0, 0) },
		"another secret": func(in *Input) { in.Want.State[a].Spec.(*VM).Password = "newer" },
		"place":          func(in *Input) { in.Want.State[a].At = at(8) },
		"unmanaged name": func(in *Input) { in.Have.Findings = diag.List{{Summary: "x"}} },
	} {
		in := base()
		change(&in)
		require.Equal(t, "the base", ids[Make(in).ID], name)
	}
}
