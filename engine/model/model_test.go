package model

import (
	"context"
	"encoding/hex"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/homestak/homestak-gitops/engine/diag"
)

type box struct {
	Name string `hcl:"name,label"`
	Size int    `hcl:"size" cost:"hot"`
}

type lid struct {
	Colour *string `hcl:"colour,optional"`
}

type thing struct {
	Ref   string            `hcl:"preset,optional" ref:"preset" plan:"-"`
	Host  string            `hcl:"host,optional" ref:"host" plan:"-"`
	Cores int               `hcl:"cores" cost:"restart"`
	Rate  float64           `hcl:"rate,optional"`
	Wait  time.Duration     `hcl:"wait,optional"`
	On    *bool             `hcl:"on,optional"`
	Tags  []string          `hcl:"tags,optional"`
	Boxes []box             `hcl:"box,block"`
	Lid   *lid              `hcl:"lid,block"`
	Opts  map[string]string `hcl:"options,optional" cost:"restart"`
	Keys  []string          `plan:"keys" secret:"true"`
	local int
}

func TestAttrsFollowTheTags(t *testing.T) {
	red := "red"
	s := &thing{
		Ref: "small", Cores: 2, Wait: time.Minute, Boxes: []box{{"b10", 1}, {"b2", 3}}, Lid: &lid{&red},
		Opts: map[string]string{"z": "1", "a": "2"}, Keys: []string{"k"}, local: 1,
	}
	require.Equal(t, []Attr{
		{"cores", int64(2), ClassRestart, false},
		{"rate", 0.0, ClassNone, false},
		{"wait", "1m0s", ClassNone, false},
		{"on", nil, ClassNone, false},
		{"tags", []string{}, ClassNone, false},
		{"box.b2.size", int64(3), ClassHot, false},
		{"box.b10.size", int64(1), ClassHot, false},
		{"lid.colour", "red", ClassNone, false},
		{"options.a", "2", ClassRestart, false},
		{"options.z", "1", ClassRestart, false},
		{"keys", []string{"k"}, ClassNone, true},
	}, Attrs(s))
	for _, a := range Attrs(s) {
		if !strings.Contains(a.Path, ".") {
			require.Equal(t, a.Value, ValueOf(s, a.Path), a.Path)
		}
	}
	for _, name := range []string{"none", "preset", "box", "lid", "options", "local"} {
		require.Nil(t, ValueOf(s, name), name)
	}
	require.Equal(t, "1m0s", TextOf(s, "wait"))
	require.Empty(t, TextOf(s, "cores"))
	require.Empty(t, HostOf(s))
	s.Host = "father"
	require.Equal(t, "father", HostOf(s))
}

func TestTagsThatMakeNoSenseAreNoticed(t *testing.T) {
	require.Panics(t, func() {
		Attrs(&struct {
			A int `hcl:"a" cost:"free"`
		}{})
	})
	require.Panics(t, func() {
		Attrs(&struct {
			A []lid `hcl:"lid,block"`
		}{A: []lid{{}}})
	}, "a list of blocks without label has no keys")
}

func TestCloneSharesNothing(t *testing.T) {
	on := true
	a := &thing{On: &on, Tags: []string{"x"}, Boxes: []box{{"b", 1}}, Opts: map[string]string{"a": "1"}, Lid: &lid{}}
	b := Clone(a).(*thing)
	require.Equal(t, a, b)
	*b.On, b.Tags[0], b.Boxes[0].Size, b.Opts["a"], b.Lid.Colour = false, "y", 2, "2", new(string)
	require.Equal(t, &thing{On: &on, Tags: []string{"x"}, Boxes: []box{{"b", 1}}, Opts: map[string]string{"a": "1"}, Lid: &lid{}}, a)
	require.True(t, on)
}

func TestNamesCountNumbersAsNumbers(t *testing.T) {
	require.Negative(t, CompareNames("worker-2", "worker-10"))
	require.Positive(t, CompareNames("worker-b", "worker-10"))
	require.Zero(t, CompareNames("a", "a"))
	name := rapid.StringMatching(`[a-c0-3]{0,5}(-[0-9]{1,3})?`)
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := name.Draw(t, "a"), name.Draw(t, "b"), name.Draw(t, "c")
		require.Equal(t, CompareNames(a, b), -CompareNames(b, a))
		require.Equal(t, a == b, CompareNames(a, b) == 0)
		if CompareNames(a, b) <= 0 && CompareNames(b, c) <= 0 {
			require.LessOrEqual(t, CompareNames(a, c), 0)
		}
	})
}

// TestFindIn: a name is that of a node, else of the only object that has it.
func TestFindIn(t *testing.T) {
	s := &Site{Manifests: map[string]*Manifest{"m": {Host: "father"}}, Objects: State{}}
	s.Manifests["m"].Nodes = []*Node{{Name: "web", Resource: &Resource{Addr: Address{"vm", "web"}}}}
	for _, a := range []Address{{"image", "web"}, {"image", "debian"}, {"template", "debian"}, {"pool", "lab"}} {
		s.Objects[a] = &Resource{Addr: a}
	}
	for text, want := range map[string]string{"web": "vm.web", "image.web": "image.web", "lab": "pool.lab", "vm.gone": "vm.gone"} {
		got, err := FindIn(s, text)
		require.NoError(t, err)
		require.Equal(t, want, got.String())
	}
	_, err := FindIn(s, "debian")
	require.EqualError(t, err, `"debian" may be image.debian or template.debian: write one of these addresses`)
	_, err = FindIn(s, "gone")
	require.EqualError(t, err, "nothing in the site is named \"gone\": known: image.debian, image.web, pool.lab, template.debian, vm.web\nwhat left the site needs its address, such as vm.gone")
	_, err = FindIn(s, "wbe")
	require.ErrorContains(t, err, `did you mean "vm.web"?`)
}

func TestAddressesAreText(t *testing.T) {
	a, err := ParseAddress("vm.web-1")
	require.NoError(t, err)
	require.Equal(t, Address{Kind: "vm", Name: "web-1"}, a)
	for _, bad := range []string{"", "vm", ".x", "vm.", "x"} {
		_, err := ParseAddress(bad)
		require.Error(t, err, bad)
	}
}

func TestPlaceFallsBackOutwards(t *testing.T) {
	at := func(line int) diag.Range { return diag.Range{File: "a.hcl", Start: diag.Pos{Line: line}} }
	r := &Resource{At: at(1), Ranges: []AttrRange{{"disk.data", at(2)}, {"disk.data.size", at(3)}}}
	require.Equal(t, at(3), r.RangeOf("disk.data.size"))
	require.Equal(t, at(2), r.RangeOf("disk.data.storage"))
	require.Equal(t, at(1), r.RangeOf("cores"))
}

// site has a deployed manifest on a, one suspended, one on b; an image needed on a
// only; a pool on each.
func site() *Site {
	kinds := Kinds{
		{Name: "vm", Block: "node", Guest: true, New: func() any { return &thing{} }},
		{Name: "pve", Block: "node", Guest: true, New: func() any { return &thing{} }},
		{Name: "image", Block: "image", Everywhere: true, New: func() any { return &lid{} }},
		{Name: "pool", Block: "pool", New: func() any { return &thing{} }, Resolve: func(r *Resource, in Scope) []Problem {
			r.Spec.(*thing).Cores = 7
			return []Problem{{Path: "cores", Severity: diag.Warning, Summary: "resolved for " + in.Host.Name}}
		}},
	}
	s := &Site{
		Name: "home", Kinds: kinds, Hosts: map[string]*Host{"a": {Name: "a", Pool: "pa"}, "b": {Name: "b", Nodes: []string{"n1", "n2"}}},
		Manifests: map[string]*Manifest{}, Objects: State{},
	}
	for name, on := range map[string]string{"image.used": "", "image.idle": "", "pool.pa": "a", "pool.pb": "b"} {
		addr, _ := ParseAddress(name)
		s.Objects[addr] = &Resource{Addr: addr, Spec: map[string]any{"image": &lid{}, "pool": &thing{Host: on}}[addr.Kind]}
	}
	node := func(m *Manifest, kind, name, parent string, needs ...string) {
		r := &Resource{Addr: Address{Kind: kind, Name: name}, Spec: &thing{}, Manifest: m.Name, Node: name, Guest: &Guest{}}
		for _, n := range needs {
			a, _ := ParseAddress(n)
			r.Needs = append(r.Needs, a)
		}
		m.Nodes = append(m.Nodes, &Node{Name: name, Type: kind, Spec: "base", Parent: parent, Resource: r, Manifest: m})
	}
	for _, m := range []*Manifest{{Name: "web", Host: "a"}, {Name: "rest", Host: "a", Suspend: true}, {Name: "far", Host: "b"}, {Name: "recipe"}} {
		s.Manifests[m.Name] = m
	}
	node(s.Manifests["web"], "vm", "w", "", "image.used", "vm.gone")
	node(s.Manifests["web"], "pve", "inner", "")
	node(s.Manifests["web"], "vm", "child", "inner", "image.used")
	s.Manifests["web"].Nodes[1].Children = []string{"child"}
	node(s.Manifests["rest"], "vm", "sleeper", "")
	node(s.Manifests["far"], "vm", "f", "")
	node(s.Manifests["recipe"], "vm", "r", "")
	return s
}

func names(s State) []string {
	var out []string
	for _, a := range s.Addresses() {
		out = append(out, a.String())
	}
	return out
}

func TestModesOfPhases(t *testing.T) {
	for _, c := range []struct {
		node         *nodeMode
		above        *execution
		config, runs string
	}{
		{nil, nil, "push", "push"},
		{nil, &execution{DefaultMode: "pull"}, "pull", "pull"},
		{nil, &execution{DefaultMode: "push", Run: "pull"}, "push", "pull"},
		{&nodeMode{Config: "push"}, &execution{DefaultMode: "pull"}, "push", "pull"},
		{&nodeMode{Mode: "pull", Run: "push"}, &execution{DefaultMode: "push"}, "pull", "push"},
		{&nodeMode{Mode: "push"}, &execution{DefaultMode: "pull", Config: "pull", Run: "pull"}, "push", "push"},
	} {
		n := &Node{Execution: c.node}
		n.SetModes(c.above)
		require.Equal(t, []string{c.config, c.runs}, []string{n.Mode, n.Commands}, "%+v", c)
		require.Equal(t, c.runs == "pull", n.TakesCommands())
	}
}

func TestWantIsWhatOneHostShallHold(t *testing.T) {
	s := site()
	w, found := s.Want("a")
	require.Equal(t, []string{"image.used", "pool.pa", "pve.inner", "vm.w"}, names(w.State))
	require.Equal(t, []Address{{Kind: "image", Name: "used"}, {Kind: "pool", Name: "pa"}}, w.State[Address{Kind: "vm", Name: "w"}].Needs, "an undeclared resource is not needed")
	require.Equal(t, map[string]bool{"rest": true}, w.Suspended)
	require.True(t, w.Declared[Address{Kind: "image", Name: "idle"}])
	require.Len(t, w.Deferred, 3)
	require.Contains(t, w.Deferred, Deferred{Address: "pve.inner", Why: "1 node below it (child): left to its own agent"})
	require.Equal(t, "declared on host b now, without its data", w.Elsewhere[Address{Kind: "vm", Name: "f"}])
	require.Equal(t, "declared on node inner now, without its data", w.Elsewhere[Address{Kind: "vm", Name: "child"}])
	require.NotContains(t, w.Elsewhere, Address{Kind: "vm", Name: "r"}, "a recipe is nowhere")
	require.Equal(t, "resolved for a", found[0].Summary)
	require.Equal(t, "pool.pa", found[0].Address)
	require.Zero(t, s.Objects[Address{Kind: "pool", Name: "pa"}].Spec.(*thing).Cores, "the site stays as it was")

	w, _ = s.Want("b")
	require.Equal(t, []string{"pool.pb", "vm.f"}, names(w.State))
	require.Equal(t, &Guest{Node: "n1", Nodes: []string{"n1", "n2"}}, w.State[Address{Kind: "vm", Name: "f"}].Guest)

	w, found = s.Want("c")
	require.Empty(t, w.State)
	require.True(t, found.HasErrors())
}

func TestBindDeploysARecipeOnACopy(t *testing.T) {
	s := site()
	b, err := s.Bind("recipe", "b")
	require.NoError(t, err)
	w, _ := b.Want("b")
	require.Equal(t, []string{"pool.pb", "vm.r"}, names(w.State))
	require.Empty(t, s.Manifests["recipe"].Host)
	_, err = s.Bind("recipee", "b")
	require.ErrorContains(t, err, `did you mean "recipe"?`)
	_, err = s.Bind("recipe", "z")
	require.Error(t, err)
}

func TestClassesAreOrdered(t *testing.T) {
	require.True(t, ClassDataLoss.Worse(ClassReplace))
	require.True(t, ClassHot.Worse(ClassNone))
	require.False(t, ClassPending.Worse(ClassRestart))
}

func TestEndpointsOfHTTP(t *testing.T) {
	for text, want := range map[string]Endpoint{
		"http://db.example:8080/health?a=b": {Host: "db.example", Port: 8080, Path: "/health?a=b"},
		"https://db.example":                {TLS: true, Host: "db.example", Port: 443, Path: "/"},
		"http://localhost/":                 {Port: 80, Path: "/"},
		"https://127.0.0.1:8443/x":          {TLS: true, Port: 8443, Path: "/x"},
		"https://:8443":                     {TLS: true, Port: 8443, Path: "/"},
		"http://[::1]:8080/":                {Port: 8080, Path: "/"},
		"http://[2001:db8::1]/":             {Host: "2001:db8::1", Port: 80, Path: "/"},
		":8080/health":                      {Port: 8080, Path: "/health"},
		":8080":                             {Port: 8080, Path: "/"},
		"/health":                           {Port: 80, Path: "/health"},
	} {
		got, err := HTTPEndpoint(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"8080", "db.example", "ftp://x/", "http://a:b@x/", "http://x/#top", "http://x:0/", "http://x:/", ":99999/", "http://%zz/"} {
		_, err := HTTPEndpoint(text)
		require.Error(t, err, text)
	}
}

func TestEndpointsOfTCP(t *testing.T) {
	for text, want := range map[string]Endpoint{
		"22":               {Port: 22},
		":22":              {Port: 22},
		"localhost:22":     {Port: 22},
		"[::]:22":          {Port: 22},
		"192.0.2.7:5432":   {Host: "192.0.2.7", Port: 5432},
		"[2001:db8::1]:22": {Host: "2001:db8::1", Port: 22},
	} {
		got, err := TCPEndpoint(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"ssh", "0", "65536", "a b:22", "db", "::1:22", "db:", "a/b:22"} {
		_, err := TCPEndpoint(text)
		require.Error(t, err, text)
	}
}

func TestExpectedStatus(t *testing.T) {
	for text, want := range map[string]int{"204": 204, "": 0, "ok": 0, "2040": 0, "999": 0, "-20": 0} {
		require.Equal(t, want, (&Check{Expect: text}).Status(), text)
	}
}

// In a random site of several hosts and trees of any depth, every deployed node has one agent, by the name
// of its parent or of the host, and no recipe has one.
func TestEveryDeployedNodeHasOneAgent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &Site{
			Name: "home", Hosts: map[string]*Host{}, Manifests: map[string]*Manifest{},
			Kinds: Kinds{
				{Name: "vm", Block: "node", Guest: true, New: func() any { return &thing{} }},
				{Name: "pve", Block: "node", Guest: true, New: func() any { return &thing{} }},
				{Name: "image", Block: "image", Everywhere: true, New: func() any { return &lid{} }},
			},
			Objects: State{},
		}
		for h := range rapid.IntRange(1, 3).Draw(t, "hosts") {
			s.Hosts[fmt.Sprintf("h%d", h)] = &Host{Name: fmt.Sprintf("h%d", h)}
		}
		for i := range 3 {
			addr := Address{Kind: "image", Name: fmt.Sprint(i)}
			s.Objects[addr] = &Resource{Addr: addr, Spec: &lid{}}
		}
		agent := map[string]string{} // node → the agent that it shall have
		depth := 0
		for k := range rapid.IntRange(1, 4).Draw(t, "manifests") {
			m := &Manifest{Name: fmt.Sprintf("m%d", k), Host: fmt.Sprintf("h%d", rapid.IntRange(0, len(s.Hosts)-1).Draw(t, "host"))}
			if rapid.IntRange(0, 4).Draw(t, "recipe") == 0 {
				m.Host = ""
			}
			s.Manifests[m.Name] = m
			var parents []*Node
			level := map[*Node]int{}
			for i := range rapid.IntRange(1, 15).Draw(t, "nodes") {
				name := fmt.Sprintf("%s-n%d", m.Name, i)
				n := &Node{Name: name, Type: rapid.SampledFrom([]string{"vm", "pve"}).Draw(t, "type"), Manifest: m}
				n.Resource = &Resource{
					Addr: Address{Kind: n.Type, Name: name}, Spec: &thing{}, Manifest: m.Name, Node: name, Guest: &Guest{},
					Needs: []Address{{Kind: "image", Name: fmt.Sprint(rapid.IntRange(0, 2).Draw(t, "image"))}},
				}
				if p := rapid.IntRange(-1, len(parents)-1).Draw(t, "parent"); p >= 0 {
					n.Parent = parents[p].Name
					parents[p].Children = append(parents[p].Children, name)
					level[n] = level[parents[p]] + 1
				}
				depth = max(depth, level[n])
				if n.Type == "pve" {
					parents = append(parents, n)
				}
				m.Nodes = append(m.Nodes, n)
				if m.Host != "" {
					agent[name] = m.Host
					if n.Parent != "" {
						agent[name] = n.Parent
					}
				}
			}
		}

		got := map[string]string{}
		for _, identity := range s.Identities() {
			w, found := s.Want(identity)
			require.False(t, found.HasErrors())
			require.Equal(t, identity, w.Host.Name)
			for addr, r := range w.State {
				if addr.Kind == "image" {
					require.True(t, slices.ContainsFunc(w.State.Addresses(), func(a Address) bool { return slices.Contains(w.State[a].Needs, addr) }), "%s needs no %s", identity, addr)
					continue
				}
				require.Empty(t, got[addr.Name], "%s has two agents", addr)
				got[addr.Name] = identity
				require.Equal(t, w.Host.PVENode(), r.Guest.Node)
				require.NotNil(t, w.State[r.Needs[0]], "what a node needs belongs to its own host")
			}
			require.Equal(t, s.Hosts[identity] == nil, w.Host.Local)
		}
		require.Equal(t, agent, got)
		for _, m := range s.Manifests {
			for _, n := range m.Nodes {
				require.Equal(t, m.Host != "" && n.Type == "pve", s.HostFor(n.Name) != nil)
			}
		}
	})
}

func TestTheHostOfAChild(t *testing.T) {
	s := site()
	inner := s.Manifests["web"].Nodes[1]
	inner.Hyper = &HyperDecl{Node: "pve", Storage: "zfs", Bridge: "vmbr1"}
	h := s.HostFor("inner")
	require.Equal(t, LocalAPI, h.API)
	require.Equal(t, "pve", h.PVENode())
	require.Equal(t, "zfs", h.Storage.Disks)
	require.Equal(t, "local", h.Storage.Images)
	require.Equal(t, "vmbr1", h.Bridge)
	require.True(t, h.Local)
	require.Empty(t, h.APIToken, "it is made on that machine")

	w, _ := s.Want("inner")
	require.Equal(t, []string{"image.used", "vm.child"}, names(w.State))
	require.Empty(t, w.Suspended)
	_, found := s.Want("iner")
	require.Contains(t, found[0].Detail, `did you mean "inner"?`)
	require.Nil(t, s.HostFor("child"), "a VM has no agent")

	c := s.Suspend("web")
	w, _ = c.Want("inner")
	require.Empty(t, names(w.State))
	require.True(t, w.Suspended["web"], "what is below a child of a suspended manifest stays as well")
	require.False(t, w.Suspended["rest"], "it has nothing on this child")

	_, err := s.Bind("recipe", "inner")
	require.ErrorContains(t, err, "inner is a node")
	s.Manifests["web"].Host = ""
	require.Nil(t, s.HostFor("inner"), "a recipe is nowhere")
}

// Hosts that have a parent and nodes of type pve are children alike: what is below a host includes what is below both.
func TestChildren(t *testing.T) {
	node := func(m *Manifest, name, kind, parent string) {
		m.Nodes = append(m.Nodes, &Node{Name: name, Type: kind, Parent: parent, Manifest: m, Resource: &Resource{Addr: Address{Kind: kind, Name: name}}})
	}
	tree, far := &Manifest{Name: "tree", Host: "hub"}, &Manifest{Name: "far", Host: "branch"}
	node(tree, "inner", PVEType, "")
	node(tree, "app", "vm", "inner")
	node(far, "web", "vm", "")
	node(far, "deep", PVEType, "")
	s := &Site{
		Hosts:     map[string]*Host{"hub": {Name: "hub"}, "branch": {Name: "branch", Parent: "hub", Local: true}, "leaf": {Name: "leaf", Parent: "inner"}, "other": {Name: "other"}},
		Manifests: map[string]*Manifest{"tree": tree, "far": far},
	}
	of := func(identity string) (names []string) {
		for _, c := range s.ChildrenOf(identity) {
			require.Equal(t, identity, c.Parent)
			require.Equal(t, c, s.Child(c.Name))
			require.Equal(t, s.Hosts[c.Name] == nil, c.Node != nil)
			names = append(names, c.Name)
		}
		return names
	}
	require.Equal(t, []string{"branch", "inner"}, of("hub"))
	require.Equal(t, []string{"leaf"}, of("inner"))
	require.Equal(t, []string{"deep"}, of("branch"))
	require.Empty(t, of("other"))
	require.Nil(t, s.Child("hub"))
	require.Nil(t, s.Child("web"))
	require.Equal(t, []string{"hub", "branch", "deep", "inner", "leaf"}, s.OwnersFrom("hub"))
	require.Equal(t, []string{"inner", "leaf"}, s.OwnersFrom("inner"))
	require.Len(t, s.Below("hub"), 4)
	require.Len(t, s.Below("branch"), 2)
	require.Same(t, s.Hosts["branch"], s.HostFor("branch"))

	// A host that moves to another parent keeps its guests.
	c := *s
	c.Hosts = map[string]*Host{"hub": s.Hosts["hub"], "other": s.Hosts["other"], "branch": {Name: "branch", Parent: "other"}}
	require.Empty(t, c.Lost(s))
}

// A node that moves with its parent is recreated there, without its data: it is lost as what left the site is.
func TestLost(t *testing.T) {
	site := func(host string, suspended ...string) *Site {
		m := &Manifest{Name: "tree", Host: host}
		add := func(name, kind, parent string) {
			m.Nodes = append(m.Nodes, &Node{Name: name, Type: kind, Parent: parent, Manifest: m, Resource: &Resource{Addr: Address{Kind: kind, Name: name}}})
		}
		add("inner", "pve", "")
		add("leaf", "pve", "inner")
		add("app", "vm", "leaf")
		add("beside", "vm", "")
		return &Site{Manifests: map[string]*Manifest{"tree": m}, Suspended: suspended}
	}
	lost := func(now, before *Site) (out []string) {
		for _, a := range now.Lost(before) {
			out = append(out, a.String())
		}
		return out
	}
	require.Equal(t, map[Address]string{{Kind: "pve", Name: "inner"}: "father", {Kind: "pve", Name: "leaf"}: "father/inner", {Kind: "vm", Name: "app"}: "father/inner/leaf", {Kind: "vm", Name: "beside"}: "father"}, site("father").Deployed())
	require.Empty(t, lost(site("father"), site("father")))
	require.Equal(t, []string{"pve.inner", "pve.leaf", "vm.app", "vm.beside"}, lost(site("mother"), site("father")))
	require.Empty(t, lost(site("mother", "tree"), site("father")), "what is suspended loses nothing")
	require.Empty(t, lost(site("father"), site("")), "a recipe had nothing")
	kept := site("father")
	kept.Manifests["tree"].Nodes = kept.Manifests["tree"].Nodes[:2]
	kept.Removed = Removals{{Kind: "vm", Name: "app"}: {}, {Kind: "vm", Name: "beside"}: {Destroy: true}}
	require.Equal(t, []string{"vm.beside"}, lost(kept, site("father")), "what is given up is not lost")
	renamed := site("father")
	renamed.Manifests["tree"].Nodes[3].Resource.Addr.Name = "front"
	require.Equal(t, []string{"vm.beside"}, lost(renamed, site("father")))
	renamed.Moved = map[Address]Address{{Kind: "vm", Name: "beside"}: {Kind: "vm", Name: "front"}}
	require.Empty(t, lost(renamed, site("father")), "what is moved is not lost")
	flat := site("father")
	for _, n := range flat.Manifests["tree"].Nodes {
		if n.Name == "leaf" {
			n.Parent = ""
		}
	}
	require.Equal(t, []string{"pve.leaf", "vm.app"}, lost(flat, site("father")))
}

// Together keeps each field of the parts.
func TestTogetherKeepsEachField(t *testing.T) {
	var part Observed
	v := reflect.ValueOf(&part).Elem()
	for _, f := range v.Fields() {
		switch f.Kind() {
		case reflect.Slice:
			f.Set(reflect.MakeSlice(f.Type(), 1, 1))
		case reflect.Map:
			f.Set(reflect.MakeMap(f.Type()))
			f.SetMapIndex(reflect.Zero(f.Type().Key()), reflect.Zero(f.Type().Elem()))
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Func:
			f.Set(reflect.MakeFunc(f.Type(), nil))
		default:
			f.Set(reflect.ValueOf(time.Unix(1, 0)))
		}
	}
	all := reflect.ValueOf(Together(part))
	for field, f := range v.Fields() {
		if f.Kind() == reflect.Func {
			// A part cannot be completed.
			require.Equal(t, field.Name == "Rest", all.FieldByIndex(field.Index).IsNil(), field.Name)
			continue
		}
		require.Equal(t, f.Interface(), all.FieldByIndex(field.Index).Interface(), field.Name)
	}
}

// The key of an owner follows from the name of the site and his own alone. The vectors are from another implementation of
// HKDF (RFC 5869), with the salt "homestak-gitops ownership 1": with other values no guest there is would be proved.
func TestS1DerivedKeys(t *testing.T) {
	key := make([]byte, 32)
	for i := range key {
		key[i] = byte(i)
	}
	for owner, want := range map[string]string{
		"father": "5dedb82deda7c09836a8d470b399933e9f6ccae7d7cbb3f5f56512814c001807",
		"inner":  "2ab6706f92230cbfb222bc91ecfc8815af657f9e480f299d45b04881d2426191",
	} {
		require.Equal(t, want, hex.EncodeToString(deriveOwnershipKey(key, "home", owner)))
	}
	require.NotEqual(t, deriveOwnershipKey(key, "home", "father"), deriveOwnershipKey(key, "other", "father"))
	require.NotEqual(t, deriveOwnershipKey(key, "a", "b"), deriveOwnershipKey(key, "ab", ""))
}

func secretsOf(auth map[string]string) *Secrets {
	return &Secrets{Values: map[string]map[string]string{"auth": auth}}
}

// With the key of the site there are the keys of all owners, two each during a rotation. With derived keys there are only those.
func TestS1KeysOfAnOwner(t *testing.T) {
	now, before := strings.Repeat("0a", 32), strings.Repeat("0b", 32)
	site := secretsOf(map[string]string{"ownership_key": now, "ownership_key_previous": before})
	keys := site.OwnershipKeys("home", "father")
	require.Len(t, keys, 2)
	current, err := ParseOwnershipKey(now)
	require.NoError(t, err)
	require.Equal(t, deriveOwnershipKey(current, "home", "father"), keys[0], "the current one comes first")
	require.False(t, site.OwnershipKeyMissing("home", "cli:ops@laptop"))

	given := secretsOf(site.DerivedOwnershipKeys("home", "father"))
	require.Equal(t, keys, given.OwnershipKeys("home", "father"))
	require.Equal(t, given.Values["auth"], given.DerivedOwnershipKeys("home", "father"), "they are passed on as they are")
	require.Empty(t, given.OwnershipKeys("home", "mother"))
	require.True(t, given.OwnershipKeyMissing("home", "mother"))

	for name, c := range map[string]struct {
		secrets      *Secrets
		has, missing bool
	}{
		"no secrets":        {nil, false, false},
		"no key":            {secretsOf(map[string]string{"site_token": "x"}), false, false},
		"a name alone":      {secretsOf(map[string]string{"ownership_key": ""}), true, true},
		"that of another":   {secretsOf(map[string]string{"ownership_keys.mother": now}), true, true},
		"its own, derived":  {secretsOf(map[string]string{"ownership_key": "", "ownership_keys.father": now}), true, false},
		"only the previous": {secretsOf(map[string]string{"ownership_key_previous": now}), true, false},
	} {
		require.Equal(t, c.has, c.secrets.HasOwnershipKey(), name)
		require.Equal(t, c.missing, c.secrets.OwnershipKeyMissing("home", "father"), name)
	}
}

// A new key is another one each time, and no error shows what was read.
func TestS1NewKey(t *testing.T) {
	a, b := NewOwnershipKey(), NewOwnershipKey()
	require.NotEqual(t, a, b)
	_, err := ParseOwnershipKey(a)
	require.NoError(t, err)
	for _, bad := range []string{"", "canary", a + "00", a[:62], "zz" + a[2:]} {
		_, err := ParseOwnershipKey(bad)
		require.Error(t, err)
		require.NotContains(t, err.Error(), "canary")
		require.NotContains(t, err.Error(), "'z'")
	}
}

func things() *rapid.Generator[*thing] {
	word := rapid.StringMatching(`[a-c]?`)
	return rapid.Custom(func(t *rapid.T) *thing {
		s := &thing{
			Ref: word.Draw(t, "ref"), Cores: rapid.IntRange(0, 1).Draw(t, "cores"), Rate: rapid.SampledFrom([]float64{0, 0.5}).Draw(t, "rate"),
			Wait: rapid.SampledFrom([]time.Duration{0, time.Second}).Draw(t, "wait"), On: rapid.Ptr(rapid.Bool(), true).Draw(t, "on"),
			Tags: rapid.SliceOfN(word, 0, 2).Draw(t, "tags"), Opts: rapid.MapOfN(word, word, 0, 2).Draw(t, "options"), local: rapid.IntRange(0, 1).Draw(t, "local"),
		}
		for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"b1", "b2"}), 0, 2, rapid.ID[string]).Draw(t, "boxes") {
			s.Boxes = append(s.Boxes, box{name, rapid.IntRange(0, 1).Draw(t, "size")})
		}
		if rapid.Bool().Draw(t, "lid") {
			s.Lid = &lid{rapid.Ptr(word, true).Draw(t, "colour")}
		}
		return s
	})
}

// What is the same has the same attributes, and the other way round; but for a block
// without any, which Attrs does not show.
func TestSameIsWhatAttrsSay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := things().Draw(t, "a"), things().Draw(t, "b")
		if rapid.Bool().Draw(t, "alike") {
			b = Clone(a).(*thing)
			b.Ref, b.local = "other", 7 // which is not compared
			slices.Reverse(b.Boxes)     // nor the order of blocks
			if rapid.Bool().Draw(t, "edited") {
				b.Cores = rapid.IntRange(0, 1).Draw(t, "edit")
			}
		}
		equal := reflect.DeepEqual(Attrs(a), Attrs(b)) && (a.Lid == nil) == (b.Lid == nil)
		require.Equal(t, equal, Same(a, b))
	})
	require.False(t, Same(&thing{}, &box{}), "of two types")
}

func TestSameMakesNoList(t *testing.T) {
	a := &thing{Tags: []string{"x"}, Boxes: []box{{"b", 1}}, Lid: &lid{new(string)}, Opts: map[string]string{"k": "v"}}
	b := Clone(a).(*thing)
	require.Zero(t, testing.AllocsPerRun(10, func() { Same(a, b) }))
}

func suspendable() *Site {
	s := &Site{Hosts: map[string]*Host{"father": {Name: "father"}, "mother": {Name: "mother"}}, Manifests: map[string]*Manifest{}}
	for name, host := range map[string]string{"web": "father", "db": "father", "mail": "mother"} {
		m := &Manifest{Name: name, Host: host}
		addr := Address{Kind: "vm", Name: name}
		m.Nodes = []*Node{{Name: name, Manifest: m, Resource: &Resource{Addr: addr, Manifest: name, Node: name}}}
		s.Manifests[name] = m
	}
	s.Resolved = map[string]*Want{"father": {}, "mother": {}}
	return s
}

func TestSuspendMakesACopy(t *testing.T) {
	s := suspendable()
	c := s.Suspend("web", "gone", "mail").Suspend("gone")
	w, found := c.Want("father")
	require.Empty(t, found)
	require.Equal(t, []Address{{Kind: "vm", Name: "db"}}, w.State.Addresses())
	require.Equal(t, map[string]bool{"web": true, "gone": true, "mail": true}, w.Suspended)
	require.Equal(t, []Deferred{
		{Address: "manifest.gone", Why: "suspended: what remains of it stays"},
		{Address: "manifest.mail", Why: "suspended: what remains of it stays"},
		{Address: "manifest.web", Why: "suspended: unchanged"},
	}, w.Deferred)
	require.Same(t, c.Manifests["web"], c.Manifests["web"].Nodes[0].Manifest)

	require.False(t, s.Manifests["web"].Suspend, "the site itself stays as it was")
	require.Empty(t, s.Suspended)
	require.Same(t, s.Manifests["web"], s.Manifests["web"].Nodes[0].Manifest)
	require.Len(t, s.Resolved, 2)
	require.Same(t, s.Manifests["db"], c.Manifests["db"], "what is not suspended is shared")

	s.Resolved = nil
	bound, err := c.Bind("web", "mother")
	require.NoError(t, err)
	w, _ = bound.Want("mother")
	require.Len(t, w.State, 1, "test runs what is suspended, too")
}

func TestTasksAreRecordedByTheWorkersOfAStep(t *testing.T) {
	RecordTask(t.Context(), "UPID:no listener")
	var tasks Tasks
	ctx, cancel := context.WithCancel(tasks.With(t.Context()))
	defer cancel()
	var workers sync.WaitGroup
	for range 10 {
		workers.Go(func() {
			RecordTask(ctx, "UPID:1")
			RecordTask(ctx, "")
		})
	}
	workers.Wait()
	RecordTask(ctx, "UPID:2")
	require.Equal(t, []string{"UPID:1", "UPID:2"}, tasks.IDs())
}

const sshKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA a@laptop"

func TestSSHKeyID(t *testing.T) {
	require.NotEmpty(t, SSHKeyID(sshKey))
	require.Equal(t, SSHKeyID(sshKey), SSHKeyID(`no-pty,command="echo hi" `+sshKey))
	for _, line := range []string{"", "# " + sshKey, "ssh-ed25519", "ssh-rsa " + SSHKeyID(sshKey), "ssh-ed25519 not-base64 x"} {
		require.Empty(t, SSHKeyID(line), line)
	}
}

func TestKeysOf(t *testing.T) {
	private := "-----BEGIN OPENSSH PRIVATE KEY-----\n"
	secrets := &Secrets{
		Values:  map[string]map[string]string{"ssh_keys": {"ops": "# two\n\n" + sshKey + "\n", "away": "", "host": private, "above": ""}},
		Private: []string{"above"},
	}
	ops, away := SSHKey{Secret: "ops", Text: secrets.Values["ssh_keys"]["ops"]}, SSHKey{Secret: "away"}
	for name, c := range map[string]struct {
		secrets *Secrets
		named   *[]string
		want    []SSHKey
	}{
		"all of the site, but those that are private": {secrets, nil, []SSHKey{away, ops}},
		"none":                               {secrets, &[]string{}, nil},
		"by name in their order, or in full": {secrets, &[]string{"ops", sshKey, "away"}, []SSHKey{ops, {Text: sshKey}, away}},
		"a private key that is named":        {secrets, &[]string{"host"}, []SSHKey{{Secret: "host", Text: private}}},
		"without secrets":                    {nil, nil, nil},
		"a name without secrets, or in full": {nil, &[]string{"ops", sshKey}, []SSHKey{{Secret: "ops"}, {Text: sshKey}}},
	} {
		require.Equal(t, c.want, c.secrets.KeysOf(c.named), name)
	}
	require.Equal(t, []string{sshKey}, ops.Lines(), "without comments and empty lines")
	require.Empty(t, away.Lines())
}
