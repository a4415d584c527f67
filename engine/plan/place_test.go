package plan

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// sized makes the kind of VMs tell its size; options are sizes of its disks in GiB, by storage.
func sized(in Input) Input {
	for _, k := range in.Kinds {
		if k.Name != "vm" {
			continue
		}
		k.Size = func(r *model.Resource) model.Size {
			vm := r.Spec.(*VM)
			out := model.Size{Memory: vm.Memory, Cores: vm.Cores, Disks: map[string]int{}}
			for storage, gib := range vm.Options {
				out.Disks[storage], _ = strconv.Atoi(gib)
			}
			return out
		}
	}
	return in
}

// host is a PVE node with so many GiB, of which others have some.
func host(name string, total, others int) model.Place {
	return model.Place{Name: name, Memory: total << 10, Cores: 8, Others: model.Size{Memory: others << 10}, Rooms: map[string]model.Room{"local": {Free: 100}, "nas": {Free: 50, Shared: true}}}
}

// vm is a guest with so many GiB that may live on the nodes.
func vm(name string, gib int, nodes ...string) *model.Resource {
	r := guest("vm."+name, 0, &VM{Memory: gib << 10, Cores: 1})
	r.Guest.Node, r.Guest.Nodes, r.At = nodes[0], nodes, at(7)
	return r
}

// on is such a guest that exists on the first of the nodes.
func on(name string, vmid, gib int, nodes ...string) *model.Resource {
	r := vm(name, gib, nodes...)
	r.Guest.VMID, r.Guest.Nodes = vmid, nil
	return r
}

func TestPlaceText(t *testing.T) {
	three := []string{"n1", "n2", "n3"}
	places := func() []model.Place { return []model.Place{host("n2", 64, 23), host("n1", 64, 56), host("n3", 32, 0)} }
	offline := model.Unknown{Scope: "node n3", Why: "offline", Node: "n3"}
	for name, c := range map[string]struct {
		want, have []*model.Resource
		edit       func(*Input)
		reasons    []string // of the steps, after what all have
		findings   []string
	}{
		"most free memory": {
			want:    []*model.Resource{vm("a", 4, three...)},
			reasons: []string{"vm.a on n2: 41 of 64 GiB free; n1: 8; n3: 32"},
		},
		"no room": {
			want: []*model.Resource{vm("a", 16, three...)}, edit: func(in *Input) { in.Have.Unknown = []model.Unknown{offline} },
			reasons: []string{"vm.a on n2: 41 of 64 GiB free; n1: 8 of 64 GiB free, 16 needed; n3: offline"},
		},
		"the largest first, then by name": {
			want:    []*model.Resource{vm("a", 1, three...), vm("b", 16, three...), vm("c", 16, three...), vm("d", 16, three...)},
			reasons: []string{"vm.a on n3: 16 of 32 GiB free; n1: 8; n2: 9", "vm.b on n2: 41 of 64 GiB free; n1: 8 of 64 GiB free, 16 needed; n3: 32", "vm.c on n3: 32 of 32 GiB free; n1: 8 of 64 GiB free, 16 needed; n2: 25", "vm.d on n2: 25 of 64 GiB free; n1: 8 of 64 GiB free, 16 needed; n3: 16"},
		},
		"it stays": {
			want: []*model.Resource{vm("a", 4, three...), vm("b", 4, three...)}, have: []*model.Resource{on("a", 100, 4, "n1")},
			reasons: []string{"vm.b on n2: 41 of 64 GiB free; n1: 4; n3: 32"},
		},
		"a set of one": {want: []*model.Resource{vm("a", 4, "n1")}, reasons: []string{"vm.a"}},
		"not on that one": {
			want:     []*model.Resource{vm("a", 9, "n1"), guest("vm.b", 0, &VM{}, "vm.a"), vm("c", 1, three...)},
			reasons:  []string{"vm.c on n2: 41 of 64 GiB free; n1: 8; n3: 32"},
			findings: []string{"error: vm.a is not created: no PVE node can take it: n1: 8 of 64 GiB free, 9 needed", "warning: vm.b is not created: it needs vm.a, which is not created"},
		},
		"no figures": {
			want: []*model.Resource{vm("a", 4, three...)},
			edit: func(in *Input) { in.Have.Places = []model.Place{{Name: "n1"}, {Name: "n2"}, {Name: "n3"}} }, reasons: []string{"vm.a on n1: free memory not known; n2: free memory not known; n3: free memory not known"},
		},
		"nothing looked at": {want: []*model.Resource{vm("a", 4, three...)}, edit: func(in *Input) { in.Have.Places = nil }, reasons: []string{"vm.a"}},
		"disks and cores": {
			want: []*model.Resource{vm("a", 1, three...), vm("b", 1, three...)},
			edit: func(in *Input) {
				in.Have.Places[0].Rooms["local"] = model.Room{Free: 30}
				in.Have.Places[2].Others.Cores = 32
				in.Want.State[addr("vm.a")].Spec.(*VM).Options = map[string]string{"local": "31", "nas": "30"}
				in.Want.State[addr("vm.b")].Spec.(*VM).Options = map[string]string{"nas": "30"}
			},
			reasons:  []string{"vm.a on n1: 8 of 64 GiB free; n2: 30 GiB free on local, 31 needed; n3: 0 of 32 cores free, 1 needed"},
			findings: []string{"error: vm.b is not created: no PVE node can take it: n1: 20 GiB free on nas, 30 needed; n2: 20 GiB free on nas, 30 needed; n3: 0 of 32 cores free, 1 needed"},
		},
		"more cores than the node has": {
			want: []*model.Resource{vm("a", 1, three...)}, edit: func(in *Input) { in.Want.State[addr("vm.a")].Spec.(*VM).Cores, in.Have.Places[2].Cores = 16, 16 },
			reasons: []string{"vm.a on n3: 32 of 32 GiB free; n1: it has 8 cores, 16 needed; n2: it has 8 cores, 16 needed"},
		},
		"capacity": {
			want: []*model.Resource{vm("a", 60, three...)}, edit: func(in *Input) { in.Want.Host.Capacity = &model.Capacity{MemoryOvercommit: 2} },
			reasons: []string{"vm.a on n2: 105 of 128 GiB free; n1: 72; n3: 64"},
		},
		"capacity of a host that is one node": {
			want: []*model.Resource{vm("a", 60, "n1")}, edit: func(in *Input) {
				in.Want.Host.Capacity = &model.Capacity{}
				in.Want.State[addr("vm.a")].Guest.Nodes = nil
			},
			findings: []string{"error: vm.a is not created: no PVE node can take it: n1: 8 of 64 GiB free, 60 needed"},
		},
		"a host that is one node": {
			want: []*model.Resource{vm("a", 60, "n1")}, edit: func(in *Input) { in.Want.State[addr("vm.a")].Guest.Nodes = nil }, reasons: []string{"vm.a"},
		},
		"spread": {
			want: []*model.Resource{vm("a", 1, three...), vm("b", 1, three...), vm("c", 1, three...), vm("d", 1, three...)}, have: []*model.Resource{on("a", 100, 1, "n2")},
			edit:     words("spread", "a", "b", "c", "d"),
			reasons:  []string{"vm.b on n3: 32 of 32 GiB free; n1: 8; n2: has 1 of spread web", "vm.c on n1: 8 of 64 GiB free; n2: has 1 of spread web; n3: has 1 of spread web", "vm.d on n2: 40 of 64 GiB free; n1: 7; n3: 31"},
			findings: []string{`warning: spread "web" cannot be kept: vm.d goes to n2, which has vm.a`},
		},
		"together": {
			want: []*model.Resource{vm("a", 20, three...), vm("b", 20, three...)}, edit: words("together", "a", "b"),
			reasons: []string{"vm.a on n2: 41 of 64 GiB free; n1: 8 of 64 GiB free, 40 needed; n3: 32 of 32 GiB free, 40 needed", "vm.b on n2: 41 of 64 GiB free; n1: 8 of 64 GiB free, 40 needed; n3: 32 of 32 GiB free, 40 needed"},
		},
		"together with one that exists": {
			want: []*model.Resource{vm("a", 1, three...), vm("b", 1, three...)}, have: []*model.Resource{on("a", 100, 1, "n1")}, edit: words("together", "a", "b"),
			reasons: []string{"vm.b on n1, with vm.a"},
		},
		"together where there is no room": {
			want: []*model.Resource{vm("a", 1, three...), vm("b", 8, three...)}, have: []*model.Resource{on("a", 100, 1, "n1")}, edit: words("together", "a", "b"),
			findings: []string{"error: vm.b is not created: no PVE node can take it: n1: 7 of 64 GiB free, 8 needed"},
		},
		"together, and apart": {
			want: []*model.Resource{vm("a", 1, three...), vm("b", 1, three...)}, have: []*model.Resource{on("a", 100, 1, "n1"), on("b", 101, 1, "n3")}, edit: words("together", "a", "b"),
			findings: []string{"warning: vm.b is on n3, and vm.a, with the same word in together, on n1"},
		},
		"together without a node in common": {
			want: []*model.Resource{vm("a", 1, "n2", "n3"), vm("b", 1, "n2", "n3")}, have: []*model.Resource{on("a", 100, 1, "n1")}, edit: words("together", "a", "b"),
			findings: []string{"error: vm.b is not created: no PVE node can take it: none is in nodes of all guests with the same word in together"},
		},
		"barred on one": {
			want: []*model.Resource{vm("a", 1, three...)}, edit: func(in *Input) {
				in.Have.Preflight = []model.PreflightProblem{{Address: addr("vm.a"), Node: "n2", Severity: diag.Error, Summary: "there is no storage x on node n2"}}
			},
			reasons: []string{"vm.a on n3: 32 of 32 GiB free; n1: 8; n2: there is no storage x on node n2"},
		},
		"barred on all": {
			want: []*model.Resource{vm("a", 1, three...)}, edit: func(in *Input) {
				for _, n := range three {
					in.Have.Preflight = append(in.Have.Preflight, model.PreflightProblem{Address: addr("vm.a"), Node: n, Severity: diag.Error, Summary: "there is no storage x on node " + n})
				}
			},
			findings: []string{"error: vm.a is not created: there is no storage x on node n1"},
		},
		"it may be on a node that is offline": {
			want: []*model.Resource{vm("a", 16, "n1", "n3"), vm("b", 32, three...), vm("c", 32, three...)}, edit: func(in *Input) {
				words("spread", "a", "b", "c")(in)
				for i, name := range []string{"a", "b"} {
					in.Have.Unknown = append(in.Have.Unknown, model.Unknown{Scope: "vm " + name, Why: "its node n3 is offline", VMID: 103 + i, Guest: "vm", Name: name})
				}
				in.Have.Unknown = append(in.Have.Unknown, offline)
			},
			reasons: []string{"vm.c on n2: 41 of 64 GiB free; n1: 8 of 64 GiB free, 32 needed; n3: offline"},
		},
		"all of its nodes are offline": {
			want: []*model.Resource{vm("a", 1, "n3")}, edit: func(in *Input) { in.Have.Unknown = []model.Unknown{offline} },
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := sized(input(state(c.want...), state(c.have...)))
			in.Have.Places = places()
			if c.edit != nil {
				c.edit(&in)
			}
			p := Make(in)
			var reasons []string
			for _, s := range p.Steps {
				_, rest, _ := bytes.Cut([]byte(s.Reason), []byte("; "))
				reasons = append(reasons, string(bytes.TrimSpace(fmt.Appendf(nil, "%s %s", s.Address, rest))))
				require.Equal(t, s.Place != "", len(rest) > 0)
				require.True(t, s.Place == "" || s.Place == s.Want.Guest.Node && bytes.HasPrefix(rest, []byte("on "+s.Place)))
			}
			slices.Sort(reasons)
			require.Equal(t, c.reasons, reasons)
			found := append([]string{}, c.findings...)
			for i := range found {
				severity, rest, _ := strings.Cut(found[i], ": ")
				source := diag.FromGuard
				if strings.Contains(rest, " is on ") {
					source = diag.FromHost
				}
				found[i] = severity + " (" + string(source) + ") " + rest
			}
			require.Equal(t, found, findings(p))
		})
	}
}

// words gives the nodes the word web in an attribute.
func words(attr string, names ...string) func(*Input) {
	return func(in *Input) {
		for _, name := range names {
			n := &model.Node{Name: name, Spread: "web"}
			if attr == "together" {
				n = &model.Node{Name: name, Together: "web"}
			}
			in.Want.Nodes[addr("vm."+name)] = n
		}
	}
}

// The plan shows where a guest is created, and why, and what is left of the nodes.
func TestPlaceInDocument(t *testing.T) {
	in := sized(input(state(vm("a", 4, "n1", "n2"), vm("b", 1, "n1", "n2")), state(on("b", 100, 1, "n1"))))
	in.Have.Places = []model.Place{host("n1", 64, 55), host("n2", 64, 23)}
	p := Make(in)
	var text bytes.Buffer
	p.Text(&text, TextOptions{})
	require.Contains(t, text.String(), "  + vm a    ,     create\n          on n2: 41 of 64 GiB free; n1: 8\n")
	require.Contains(t, string(document(t, p)), `"place": "n2"`)
	require.Equal(t, []Place{
		{Name: "n1", Memory: Amount{65536, 57344, 8192}, Cores: Amount{8, 1, 31}, Storages: []storageRoom{{"local", false, 100}, {"nas", true, 50}}},
		{Name: "n2", Memory: Amount{65536, 27648, 37888}, Cores: Amount{8, 1, 31}, Storages: []storageRoom{{"local", false, 100}, {"nas", true, 50}}},
	}, p.Places)
}

// clusters is the number of random clusters of a test; HOMESTAK_CLUSTERS sets another.
func clusters() int {
	if n, err := strconv.Atoi(os.Getenv("HOMESTAK_CLUSTERS")); err == nil {
		return n
	}
	return 500
}

// cluster is a random one, with guests that are to be created.
func cluster(r *rand.Rand) Input {
	var names []string
	var places []model.Place
	for i := range 1 + r.IntN(6) {
		names = append(names, fmt.Sprint("n", i))
		p := host(names[i], 4<<r.IntN(4), r.IntN(8))
		p.Rooms = map[string]model.Room{"local": {Free: r.IntN(60)}, "nas": {Free: 40, Shared: true}}
		switch r.IntN(8) {
		case 0:
			p.Closed = "offline"
		case 1:
			p.Memory = 0
		}
		places = append(places, p)
	}
	want, have := model.State{}, model.State{}
	nodes := map[model.Address]*model.Node{}
	for i := range r.IntN(14) {
		may := slices.Clone(names)
		r.Shuffle(len(may), func(i, j int) { may[i], may[j] = may[j], may[i] })
		g := vm(fmt.Sprint("g", i), 1+r.IntN(8), may[:1+r.IntN(len(may))]...)
		g.Spec.(*VM).Cores = 1 + r.IntN(10)
		g.Spec.(*VM).Options = map[string]string{[]string{"local", "nas"}[r.IntN(2)]: fmt.Sprint(r.IntN(20))}
		want[g.Addr] = g
		nodes[g.Addr] = &model.Node{Spread: []string{"", "", "web"}[r.IntN(3)], Together: []string{"", "", "db"}[r.IntN(3)]}
		if r.IntN(4) == 0 {
			is := *g
			is.Guest = &model.Guest{VMID: 100 + i, Node: names[r.IntN(len(names))], Running: true}
			have[g.Addr] = &is
		}
	}
	in := sized(input(want, have))
	in.Have.Places, in.Want.Nodes = places, nodes
	if r.IntN(4) == 0 {
		in.Want.Host.Capacity = &model.Capacity{MemoryOvercommit: 1.5, CoresOvercommit: 1}
	}
	return in
}

// fits reports whether a guest fits into what a plan leaves of a PVE node.
func fits(p *Plan, node string, r *model.Resource, k *model.Kind) bool {
	size := k.Size(r)
	i := slices.IndexFunc(p.Places, func(at Place) bool { return at.Name == node })
	at := p.Places[i]
	rooms := !slices.ContainsFunc(at.Storages, func(s storageRoom) bool { return size.Disks[s.Name] > s.Free })
	memory := at.Memory.Total == 0 || size.Memory <= at.Memory.Free
	return at.Closed == "" && memory && size.Cores <= at.Cores.Free && size.Cores <= at.Cores.Total && rooms
}

// In any cluster: equal input gives an equal choice; each guest is created within its set, where there is room for all that the
// plan creates there; one that is not created would not fit anywhere; and a plan after a part of the steps moves nothing,
// nor does it create too much.
func TestPlacesOfRandomClusters(t *testing.T) {
	for seed := range clusters() {
		r := rand.New(rand.NewPCG(uint64(seed), 28)) //nolint:gosec // a reproducible test
		in := cluster(r)
		p := Make(in)
		shuffled := in
		shuffled.Have.Places = slices.Clone(in.Have.Places)
		slices.Reverse(shuffled.Have.Places)
		same := Make(shuffled)
		require.Equal(t, p.ID, same.ID, seed)
		require.Equal(t, steps(p), steps(same), seed)
		require.Equal(t, p.Places, same.Places, seed)
		checkPlaces(t, in, p, seed)

		have := maps.Clone(in.Have.State)
		created := map[model.Address]string{}
		for _, s := range p.Steps {
			if s.Action == Create && r.IntN(2) == 0 {
				is, g := *s.Want, *s.Want.Guest
				g.Running = true
				is.Guest = &g
				have[s.Address], created[s.Address] = &is, s.Want.Guest.Node
			}
		}
		next := sized(input(in.Want.State, have))
		next.Want.Nodes, next.Want.Host, next.Have.Places = in.Want.Nodes, in.Want.Host, in.Have.Places
		again := Make(next)
		checkPlaces(t, next, again, seed)
		for _, s := range again.Steps {
			require.Empty(t, created[s.Address], seed)
		}
	}
}

func checkPlaces(t *testing.T, in Input, p *Plan, seed int) {
	t.Helper()
	vms := in.Kinds.Get("vm")
	took := map[string]bool{}
	for _, s := range p.Steps {
		require.Contains(t, in.Want.State[s.Address].Guest.Nodes, s.Want.Guest.Node, seed)
		took[s.Want.Guest.Node] = true
	}
	for _, at := range p.Places {
		if !took[at.Name] {
			continue
		}
		require.Empty(t, at.Closed, seed)
		require.True(t, at.Memory.Free >= 0 && at.Cores.Free >= 0, "%d: %+v", seed, at)
		for _, room := range at.Storages {
			require.GreaterOrEqual(t, room.Free, 0, seed)
		}
	}
	for a, w := range in.Want.State {
		made := slices.ContainsFunc(p.Steps, func(s Step) bool { return s.Address == a })
		if made || in.Have.State[a] != nil || in.Want.Nodes[a].Together != "" {
			continue
		}
		for _, node := range w.Guest.Nodes {
			require.False(t, fits(p, node, w, vms), "%d: %s fits on %s and is not created", seed, a, node)
		}
	}
}
