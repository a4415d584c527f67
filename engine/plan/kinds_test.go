package plan_test

import (
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// VM is a guest as small as tests need it, with one attribute of every sort.
type VM struct {
	Preset      string            `plan:"-" hcl:"preset,optional"`
	Image       string            `hcl:"image,optional" ref:"image" cost:"data-loss"`
	Machine     string            `hcl:"machine,optional" cost:"replace"`
	Cores       int               `hcl:"cores,optional" cost:"pending"`
	Memory      int               `hcl:"memory,optional" cost:"hot"`
	Balloon     *int              `hcl:"balloon,optional" cost:"hot"`
	Tags        []string          `hcl:"tags,optional"`
	Description string            `hcl:"description,optional"`
	Password    string            `hcl:"password,optional" secret:"true" cost:"pending"`
	Options     map[string]string `hcl:"options,optional"`
	Disks       []Disk            `hcl:"disk,block"`
	MAC         string            `hcl:"mac,optional"`   // invented by the host unless wanted
	Power       *string           `hcl:"power,optional"` // running unless set
	Bridge      string            `plan:"-" hcl:"bridge,optional"`
	Mark        *string           `plan:"mark"` // a kind that writes a mark compares it, too

	seen map[string]string // what a driver remembers of its observation
}

// Disk is a keyed block.
type Disk struct {
	Name  string  `hcl:"name,label"`
	Size  int     `hcl:"size" cost:"hot"`
	Cache *string `hcl:"cache,optional"`
}

// Image is an object that can be replaced.
type Image struct {
	Checksum string  `hcl:"checksum,optional" cost:"replace"`
	Mark     *string `plan:"mark"`
}

// Pool is an object that changes in place.
type Pool struct {
	Comment string  `hcl:"comment,optional"`
	Mark    *string `plan:"mark"`
}

func kinds() model.Kinds {
	guest := func(name string) *model.Kind {
		return &model.Kind{
			Name: name, Block: "node", Guest: true, New: func() any { return &VM{} },
			Align: func(want, have *model.Resource) {
				if want.Spec.(*VM).MAC == "" {
					have.Spec.(*VM).MAC = ""
				}
			},
			Class: func(_, have *model.Resource, _ string, cost model.Class) model.Class {
				if cost == model.ClassPending && !have.Guest.Running {
					return model.ClassNone // a stopped guest takes everything at once
				}
				return cost
			},
			Refuse: func(want, have *model.Resource) []model.Problem {
				if want == nil || len(want.Spec.(*VM).Disks) == 0 || len(have.Spec.(*VM).Disks) == 0 {
					return nil
				}
				if w, h := want.Spec.(*VM).Disks[0], have.Spec.(*VM).Disks[0]; w.Size < h.Size {
					return []model.Problem{{Path: "disk." + w.Name + ".size", Summary: "a disk does not shrink", Detail: "declare its size again"}}
				}
				return nil
			},
			Claims: func(spec any) []model.Claim {
				vm := spec.(*VM)
				if vm.MAC == "" {
					return nil
				}
				return []model.Claim{{What: "MAC address", Value: vm.MAC, Path: "mac", On: vm.Bridge}}
			},
			Brief: func(r *model.Resource) string { return r.Spec.(*VM).Preset + ", " + r.Spec.(*VM).Image },
		}
	}
	return model.Kinds{
		guest("vm"), guest("ct"),
		{Name: "image", Everywhere: true, New: func() any { return &Image{} }, Brief: func(*model.Resource) string { return "downloaded" }},
		{Name: "pool", New: func() any { return &Pool{} }},
	}
}

func addr(s string) model.Address {
	a, err := model.ParseAddress(s)
	if err != nil {
		panic(err)
	}
	return a
}

func addrs(list ...string) []model.Address {
	out := make([]model.Address, len(list))
	for i, s := range list {
		out[i] = addr(s)
	}
	return out
}

// guest makes a guest of manifest web; as wanted with VMID 0 its number is chosen.
func guest(name string, vmid int, spec *VM, needs ...string) *model.Resource {
	a := addr(name)
	return &model.Resource{
		Addr: a, Spec: spec, Needs: addrs(needs...), Manifest: "web", Node: a.Name, Guest: &model.Guest{VMID: vmid, Running: true},
	}
}

func object(name string, spec any, needs ...string) *model.Resource {
	return &model.Resource{Addr: addr(name), Spec: spec, Needs: addrs(needs...)}
}

func state(list ...*model.Resource) model.State {
	s := model.State{}
	for _, r := range list {
		s[r.Addr] = r
	}
	return s
}

// input compares two states of host father; at gives each wanted one a place.
func input(want, have model.State) plan.Input {
	taken := map[int]string{}
	for a, r := range have {
		if r.Guest != nil {
			taken[r.Guest.VMID] = a.String()
		}
	}
	return plan.Input{
		Site: "home", Commit: "3f2c1a9d00c0ffee", Host: "father", Kinds: kinds(),
		Want: &model.Want{
			Host: &model.Host{Name: "father"}, State: want,
			Suspended: map[string]bool{}, Declared: map[model.Address]bool{}, Nodes: map[model.Address]*model.Node{},
		},
		Have: model.Observed{At: time.Date(2026, 1, 2, 4, 4, 5, 678, time.FixedZone("CET", 3600)), State: have, Taken: taken},
	}
}

// hold lets the kinds report pending changes.
func hold(in *plan.Input, pending []model.Pending) {
	for _, k := range in.Kinds {
		k.Remarks = func(_ *model.Host, _, have *model.Resource) model.Remarks {
			var out model.Remarks
			for _, w := range pending {
				if w.Address == have.Addr {
					out.Pending = append(out.Pending, w)
				}
			}
			return out
		}
	}
}

// steps tells a plan's steps in short: "create vm.web-1 after image.debian-12".
func steps(p *plan.Plan) []string {
	out := []string{}
	for _, s := range p.Steps {
		text := string(s.Action) + " " + s.Address.String()
		for i, a := range s.After {
			text += map[bool]string{true: " after ", false: ", "}[i == 0] + a.String()
		}
		out = append(out, text)
	}
	return out
}

func findings(p *plan.Plan) []string {
	out := []string{}
	for _, f := range p.Findings {
		out = append(out, string(f.Severity)+" ("+f.Source+") "+f.Summary)
	}
	return out
}

func unknown(p *plan.Plan) []string {
	out := []string{}
	for _, u := range p.Unknown {
		out = append(out, u.Scope+": "+u.Why)
	}
	return out
}

func changes(s plan.Step) []string {
	out := []string{}
	for _, c := range s.Changes {
		out = append(out, c.String()+" ("+string(c.Class)+")")
	}
	return out
}

func text(p *plan.Plan, o plan.TextOptions) string {
	var b strings.Builder
	p.Text(&b, o)
	return b.String()
}

var update = flag.Bool("update", false, "write the golden files anew")

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

// apply carries a plan out on a copy of the observed state, one step after the
// other, and fails the test when a step stands where it cannot be done.
func apply(t require.TestingT, p *plan.Plan, in plan.Input) model.State {
	world := model.State{}
	maps.Copy(world, in.Have.State)
	dangling := broken(world)
	done := map[model.Address]bool{}
	for _, s := range p.Steps {
		for _, a := range s.After {
			require.True(t, done[a], "%s comes before %s", s.Address, a)
		}
		if s.Action != plan.Create {
			require.Contains(t, world, s.Address)
		} else {
			require.NotContains(t, world, s.Address)
		}
		if s.Action == plan.Delete {
			delete(world, s.Address)
		} else {
			world[s.Address] = s.Want
			if vm, ok := s.Want.Spec.(*VM); ok && vm.MAC == "" && s.Action == plan.Update { // it keeps its own
				kept, c := *s.Want, *vm
				c.MAC = in.Have.State[s.Address].Spec.(*VM).MAC
				kept.Spec = &c
				world[s.Address] = &kept
			}
		}
		for _, b := range broken(world) {
			require.Contains(t, dangling, b, "after %s %s", s.Action, s.Address)
		}
		numbers := map[int]model.Address{}
		for _, a := range world.Addresses() {
			if g := world[a].Guest; g != nil {
				require.NotContains(t, numbers, g.VMID, "after %s %s", s.Action, s.Address)
				numbers[g.VMID] = a
			}
		}
		if macs := twice(world); len(macs) > 0 {
			require.True(t, slices.ContainsFunc(p.Findings, func(f diag.Finding) bool {
				return slices.Contains(macs, f.Address) && strings.Contains(f.Summary, "still has it")
			}), "after %s %s these have one MAC address: %v", s.Action, s.Address, macs)
		}
		done[s.Address] = true
	}
	return world
}

// twice lists the guests that have the MAC address of another one.
func twice(s model.State) []string {
	by := map[string][]string{}
	for _, a := range s.Addresses() {
		if vm, ok := s[a].Spec.(*VM); ok && vm.MAC != "" {
			by[vm.MAC] = append(by[vm.MAC], a.String())
		}
	}
	var out []string
	for _, who := range by {
		if len(who) > 1 {
			out = append(out, who...)
		}
	}
	return out
}

// broken lists the needs that are not met: "vm.a needs vm.b".
func broken(s model.State) []string {
	var out []string
	for _, a := range s.Addresses() {
		for _, n := range s[a].Needs {
			if s[n] == nil {
				out = append(out, a.String()+" needs "+n.String())
			}
		}
	}
	return slices.Compact(out)
}

func at(line int) diag.Range {
	return diag.Range{File: "manifests/web.hcl", Start: diag.Pos{Line: line, Column: 3}}
}
