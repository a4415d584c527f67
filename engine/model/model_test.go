package model_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
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
	require.Equal(t, []model.Attr{
		{"cores", int64(2), model.ClassRestart, false},
		{"rate", 0.0, model.ClassNone, false},
		{"wait", "1m0s", model.ClassNone, false},
		{"on", nil, model.ClassNone, false},
		{"tags", []string{}, model.ClassNone, false},
		{"box.b2.size", int64(3), model.ClassHot, false},
		{"box.b10.size", int64(1), model.ClassHot, false},
		{"lid.colour", "red", model.ClassNone, false},
		{"options.a", "2", model.ClassRestart, false},
		{"options.z", "1", model.ClassRestart, false},
		{"keys", []string{"k"}, model.ClassNone, true},
	}, model.Attrs(s))
	require.Empty(t, model.HostOf(s))
	s.Host = "father"
	require.Equal(t, "father", model.HostOf(s))
}

func TestTagsThatMakeNoSenseAreNoticed(t *testing.T) {
	require.Panics(t, func() {
		model.Attrs(&struct {
			A int `hcl:"a" cost:"free"`
		}{})
	})
	require.Panics(t, func() {
		model.Attrs(&struct {
			A []lid `hcl:"lid,block"`
		}{A: []lid{{}}})
	}, "a list of blocks without label has no keys")
}

func TestCloneSharesNothing(t *testing.T) {
	on := true
	a := &thing{On: &on, Tags: []string{"x"}, Boxes: []box{{"b", 1}}, Opts: map[string]string{"a": "1"}, Lid: &lid{}}
	b := model.Clone(a).(*thing)
	require.Equal(t, a, b)
	*b.On, b.Tags[0], b.Boxes[0].Size, b.Opts["a"], b.Lid.Colour = false, "y", 2, "2", new(string)
	require.Equal(t, &thing{On: &on, Tags: []string{"x"}, Boxes: []box{{"b", 1}}, Opts: map[string]string{"a": "1"}, Lid: &lid{}}, a)
	require.True(t, on)
}

func TestNamesCountNumbersAsNumbers(t *testing.T) {
	require.Negative(t, model.CompareNames("worker-2", "worker-10"))
	require.Positive(t, model.CompareNames("worker-b", "worker-10"))
	require.Zero(t, model.CompareNames("a", "a"))
	name := rapid.StringMatching(`[a-c0-3]{0,5}(-[0-9]{1,3})?`)
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := name.Draw(t, "a"), name.Draw(t, "b"), name.Draw(t, "c")
		require.Equal(t, model.CompareNames(a, b), -model.CompareNames(b, a))
		require.Equal(t, a == b, model.CompareNames(a, b) == 0)
		if model.CompareNames(a, b) <= 0 && model.CompareNames(b, c) <= 0 {
			require.LessOrEqual(t, model.CompareNames(a, c), 0)
		}
	})
}

func TestAddressesAreText(t *testing.T) {
	a, err := model.ParseAddress("vm.web-1")
	require.NoError(t, err)
	require.Equal(t, model.Address{Kind: "vm", Name: "web-1"}, a)
	for _, bad := range []string{"", "vm", ".x", "vm.", "x"} {
		_, err := model.ParseAddress(bad)
		require.Error(t, err, bad)
	}
}

func TestPlaceFallsBackOutwards(t *testing.T) {
	at := func(line int) diag.Range { return diag.Range{File: "a.hcl", Start: diag.Pos{Line: line}} }
	r := &model.Resource{At: at(1), Ranges: []model.AttrRange{{"disk.data", at(2)}, {"disk.data.size", at(3)}}}
	require.Equal(t, at(3), r.RangeOf("disk.data.size"))
	require.Equal(t, at(2), r.RangeOf("disk.data.storage"))
	require.Equal(t, at(1), r.RangeOf("cores"))
}

// site has a deployed manifest on a, one suspended, one on b; an image needed on a
// only; a pool on each.
func site() *model.Site {
	kinds := model.Kinds{
		{Name: "vm", Block: "node", Guest: true, New: func() any { return &thing{} }},
		{Name: "pve", Block: "node", Guest: true, New: func() any { return &thing{} }},
		{Name: "image", Block: "image", Everywhere: true, New: func() any { return &lid{} }},
		{Name: "pool", Block: "pool", New: func() any { return &thing{} }, Resolve: func(r *model.Resource, in model.Scope) []model.Problem {
			r.Spec.(*thing).Cores = 7
			return []model.Problem{{Path: "cores", Severity: diag.Warning, Summary: "resolved for " + in.Host.Name}}
		}},
	}
	s := &model.Site{
		Name: "home", Kinds: kinds, Hosts: map[string]*model.Host{"a": {Name: "a", Pool: "pa"}, "b": {Name: "b", Nodes: []string{"n1", "n2"}}},
		Manifests: map[string]*model.Manifest{}, Objects: model.State{},
	}
	for name, on := range map[string]string{"image.used": "", "image.idle": "", "pool.pa": "a", "pool.pb": "b"} {
		addr, _ := model.ParseAddress(name)
		s.Objects[addr] = &model.Resource{Addr: addr, Spec: map[string]any{"image": &lid{}, "pool": &thing{Host: on}}[addr.Kind]}
	}
	node := func(m *model.Manifest, kind, name, parent string, needs ...string) {
		r := &model.Resource{Addr: model.Address{Kind: kind, Name: name}, Spec: &thing{}, Manifest: m.Name, Node: name, Guest: &model.Guest{}}
		for _, n := range needs {
			a, _ := model.ParseAddress(n)
			r.Needs = append(r.Needs, a)
		}
		m.Nodes = append(m.Nodes, &model.Node{Name: name, Type: kind, Spec: "base", Parent: parent, Resource: r, Manifest: m})
	}
	for _, m := range []*model.Manifest{{Name: "web", Host: "a"}, {Name: "rest", Host: "a", Suspend: true}, {Name: "far", Host: "b"}, {Name: "recipe"}} {
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

func names(s model.State) []string {
	var out []string
	for _, a := range s.Addresses() {
		out = append(out, a.String())
	}
	return out
}

func TestWantIsWhatOneHostShallHold(t *testing.T) {
	s := site()
	w, found := s.Want("a")
	require.Equal(t, []string{"image.used", "pool.pa", "pve.inner", "vm.w"}, names(w.State))
	require.Equal(t, []model.Address{{Kind: "image", Name: "used"}, {Kind: "pool", Name: "pa"}}, w.State[model.Address{Kind: "vm", Name: "w"}].Needs, "what is nowhere is needed by nobody")
	require.Equal(t, map[string]bool{"rest": true}, w.Suspended)
	require.True(t, w.Declared[model.Address{Kind: "image", Name: "idle"}])
	require.Len(t, w.Deferred, 3)
	require.Contains(t, w.Deferred, model.Deferred{Address: "pve.inner", Why: "1 node below it (child): left to its own agent"})
	require.Equal(t, "declared on host b now, without its data", w.Elsewhere[model.Address{Kind: "vm", Name: "f"}])
	require.Equal(t, "declared on node inner now, without its data", w.Elsewhere[model.Address{Kind: "vm", Name: "child"}])
	require.NotContains(t, w.Elsewhere, model.Address{Kind: "vm", Name: "r"}, "a recipe is nowhere")
	require.Equal(t, "resolved for a", found[0].Summary)
	require.Equal(t, "pool.pa", found[0].Address)
	require.Zero(t, s.Objects[model.Address{Kind: "pool", Name: "pa"}].Spec.(*thing).Cores, "the site stays as it was")

	w, _ = s.Want("b")
	require.Equal(t, []string{"pool.pb", "vm.f"}, names(w.State))
	require.Equal(t, &model.Guest{Node: "n1", Nodes: []string{"n1", "n2"}}, w.State[model.Address{Kind: "vm", Name: "f"}].Guest)

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
	require.True(t, model.ClassDataLoss.Worse(model.ClassReplace))
	require.True(t, model.ClassHot.Worse(model.ClassNone))
	require.False(t, model.ClassPending.Worse(model.ClassRestart))
}
