package plan

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// foreign is a guest that exists, has no owner, and is to be adopted.
func foreign(a string, vmid int, spec *VM) *model.Resource {
	r := guest(a, vmid, spec)
	r.Guest.Adoptable = true
	return r
}

// adopting is the input for the node vm.web, which adopts.
func adopting(want *VM, have model.State) Input {
	w := guest("vm.web", 104, want)
	w.At = at(3)
	w.Ranges = []model.AttrRange{{Path: "cores", At: at(5)}, {Path: "disk.data", At: at(8)}, {Path: "adopt", At: at(4)}}
	in := input(state(w), have)
	in.Want.Nodes = map[model.Address]*model.Node{addr("vm.web"): {Name: "web", VMID: 104, Adopt: "1bae9530-15f1-4d8a-8b09-1412c51fdb8d"}}
	return in
}

func TestAdoption(t *testing.T) {
	tagged := []string{"a", model.GuestTag}
	for name, c := range map[string]struct {
		want, have VM
		set        func(*Input)
		text       string
		findings   []string
		lines      []int
	}{
		"as declared": {
			want: VM{Cores: 2, Tags: tagged}, have: VM{Cores: 2, Tags: []string{"a"}},
			text: "    = vm web (104)    ownership tag, tags +homestak    adopt\n",
		},
		"with drift only reported": {
			want: VM{Cores: 2, Tags: tagged}, have: VM{Cores: 2, Tags: []string{"a"}},
			set:  func(in *Input) { in.Want.Nodes[addr("vm.web")].Drift = "report" },
			text: "    = vm web (104)    ownership tag, tags +homestak    adopt\n",
		},
		"with another size and tag": {
			want: VM{Cores: 2, Tags: []string{"b", model.GuestTag}}, have: VM{Cores: 4, Tags: []string{"a"}},
			findings: []string{
				"error (guard) vm.web is not adopted: tags is [a], and the files say [b homestak]",
				"error (guard) vm.web is not adopted: cores is 4, and the files say 2",
			}, lines: []int{3, 5},
		},
		"with a disk more, and one less": {
			want:     VM{Disks: []Disk{{Name: "data", Size: 5}}},
			have:     VM{Disks: []Disk{{Name: "scsi1", Size: 7}}},
			findings: []string{"error (guard) vm.web is not adopted: it has disk.scsi1 (size 7), which no file declares", "error (guard) vm.web is not adopted: it has no disk.data (size 5)"},
			lines:    []int{3, 8},
		},
		"pending": {
			want: VM{Cores: 2}, have: VM{Cores: 2},
			set: func(in *Input) {
				k := *in.Kinds.Get("vm")
				k.Remarks = func(*model.Host, *model.Resource, *model.Resource) model.Remarks {
					return model.Remarks{Pending: []model.Pending{{Address: addr("vm.web"), Path: "cores", Before: 1, After: 2, Why: model.PendingRestart}}}
				}
				in.Kinds = model.Kinds{&k}
			},
			findings: []string{"error (guard) vm.web is not adopted: pending until its next restart: cores 1 → 2"}, lines: []int{5},
		},
		"locked": {
			set:      func(in *Input) { in.Have.State[addr("vm.web")].Guest.Locked = "a backup runs" },
			findings: []string{"error (guard) vm.web is not adopted: a backup runs"}, lines: []int{3},
		},
		"another guest": {
			set: func(in *Input) {
				in.Have.State = model.State{}
				in.Have.Unmanaged = []model.Unmanaged{{VMID: 104, Kind: "vm", Claims: addr("vm.web"), Refused: true, Why: "the UUID of VM 104 is A, and adopt says B", Fix: "correct it"}}
			},
			findings: []string{"error (guard) vm.web is not adopted: the UUID of VM 104 is A, and adopt says B"}, lines: []int{4},
		},
		"no guest": {
			set: func(in *Input) {
				in.Have.State = model.State{}
				in.Want.State[addr("vm.web")].Guest.NoOrigin = true
			},
			findings: []string{"error (guard) vm.web is not adopted: there is no guest with VMID 104 on this host"}, lines: []int{4},
		},
		"of a node that was renamed": {
			set: func(in *Input) {
				in.Have.State = state(guest("vm.old", 104, &VM{}))
			},
			findings: []string{"error (guard) vm.web is not adopted: VMID 104 is that of vm.old, which stays"}, lines: []int{4},
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := adopting(&c.want, state(foreign("vm.web", 104, &c.have)))
			if c.set != nil {
				c.set(&in)
			}
			p := Make(in)
			require.Equal(t, append([]string{}, c.findings...), findings(p))
			for i, f := range p.Findings {
				require.Equal(t, at(c.lines[i]), f.At, f.Summary)
			}
			if c.text == "" {
				require.Empty(t, p.Steps)
				return
			}
			require.Equal(t, Summary{Adopt: 1}, p.Summary)
			require.Contains(t, text(p, TextOptions{}), c.text)
			require.Contains(t, text(p, TextOptions{}), "plan: 1 adopt, 0 add, 0 change, 0 destroy")
			require.Equal(t, model.ClassNone, p.Steps[0].Class)
			require.False(t, p.InSync())
		})
	}
}

// An existing node stays managed when a guest that it needs is not adopted. What
// is to be created waits for it.
func TestARefusedAdoptionHoldsUpCreationsAlone(t *testing.T) {
	for name, set := range map[string]func(*Input){
		"locked":  func(in *Input) { in.Have.State[addr("vm.web")].Guest.Locked = "a backup runs" },
		"differs": func(in *Input) { in.Want.State[addr("vm.web")].Spec.(*VM).Cores = 4 },
		"copied": func(in *Input) {
			delete(in.Have.State, addr("vm.web"))
			in.Have.Unmanaged = []model.Unmanaged{{VMID: 104, Kind: "vm", Claims: addr("vm.web"), Refused: true, Why: "VM 105 has the same identity"}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := adopting(&VM{Cores: 2}, state(foreign("vm.web", 104, &VM{Cores: 2}), guest("vm.db", 106, &VM{Cores: 1}), foreign("vm.old", 107, &VM{})))
			for _, w := range []*model.Resource{guest("vm.db", 106, &VM{Cores: 2}), guest("vm.new", 0, &VM{}), guest("vm.old", 107, &VM{})} {
				w.Needs = append(w.Needs, addr("vm.web"))
				in.Want.State[w.Addr] = w
			}
			set(&in)
			p := Make(in)
			require.Equal(t, []string{"update vm.db", "adopt vm.old"}, steps(p))
			require.Contains(t, findings(p), "warning (guard) vm.new is not created: it needs vm.web, which is not adopted")
		})
	}
}

// A guest that is still unmanaged is not destroyed with its manifest.
func TestAdoptableGuestIsNotDestroyed(t *testing.T) {
	in := adopting(&VM{}, state(foreign("vm.web", 104, &VM{})))
	in.Destroy, in.Manifest = true, "web"
	require.Empty(t, Make(in).Steps)
}

// A guest that was made elsewhere is not replaced.
func TestAdoptedGuestIsNotReplaced(t *testing.T) {
	in := adopting(&VM{Machine: "q35"}, state(guest("vm.web", 104, &VM{Machine: "pc"})))
	in.Want.State[addr("vm.web")].Guest.NoOrigin = true
	p := Make(in)
	require.Empty(t, p.Steps)
	require.Equal(t, []string{"error (guard) vm.web is not replaced: it cannot be created again from these files"}, findings(p))
}

func TestForget(t *testing.T) {
	in := input(nil, state(guest("vm.web", 104, &VM{})))
	in.Want.Removed = model.Removals{addr("vm.web"): {}, addr("vm.gone"): {}}
	p := Make(in)
	require.Equal(t, Summary{Forget: 1}, p.Summary)
	require.Contains(t, text(p, TextOptions{}), "    . vm web (104)    given up: only its ownership tag is removed    forget\n")
	require.Contains(t, text(p, TextOptions{}), "plan: 0 add, 0 change, 0 destroy, 1 give up")
}

func TestRenames(t *testing.T) {
	for name, c := range map[string]struct {
		want  []*model.Resource
		warns string
	}{
		"by its VMID":       {[]*model.Resource{guest("vm.new", 100, &VM{Cores: 9})}, "vm.new"},
		"by its attributes": {[]*model.Resource{guest("vm.new", 0, &VM{Cores: 2}), guest("vm.other", 0, &VM{Cores: 3})}, "vm.new"},
		"two are like it":   {[]*model.Resource{guest("vm.new", 0, &VM{Cores: 2}), guest("vm.other", 0, &VM{Cores: 2})}, ""},
		"none is like it":   {[]*model.Resource{guest("vm.new", 0, &VM{Cores: 3})}, ""},
	} {
		p := Make(input(state(c.want...), state(guest("vm.old", 100, &VM{Cores: 2}))))
		if c.warns == "" {
			require.Empty(t, p.Findings, name)
			continue
		}
		require.Len(t, p.Findings, 1, name)
		require.Equal(t, "vm.old is destroyed and "+c.warns+" created, and they look like one guest", p.Findings[0].Summary)
		require.Equal(t, diag.FromSite, p.Findings[0].Source, "a finding of a guard would keep the new node from being ready")
		require.Contains(t, p.Findings[0].Detail, "moved {\n  from = node.old\n  to   = node.new\n}")
	}
}

// adopted is a guest that was adopted.
func adopted(r *model.Resource) *model.Resource {
	r.Guest.Adopted = true
	return r
}

// A guest that was adopted goes only by the block that orders it, and none goes that a block is likely to mean.
func TestGuestIsNotRemoved(t *testing.T) {
	const blocks = "to give it up:\nremoved \"%s\" { destroy = false }\nto destroy it with its data:\nremoved \"%s\" { destroy = true }"
	vm := func(a string) *model.Resource { return guest(a, 100, &VM{}) }
	type (
		removals = model.Removals
		moves    = map[model.Address]model.Address
	)
	giveUp, destroy := model.Removed{}, model.Removed{Destroy: true}
	elsewhere := func(in *Input) {
		in.Want.Elsewhere = map[model.Address]string{addr("vm.web"): "declared on host b now, without its data"}
	}
	for name, c := range map[string]struct {
		have    *model.Resource
		removed removals
		moved   moves
		set     func(*Input)
		action  Action // "": none
		says    string
		detail  string
	}{
		"adopted":                           {have: adopted(vm("vm.web")), says: "error (guard) vm.web is not deleted: it was adopted, and no node declares it", detail: fmt.Sprintf(blocks, "vm.web", "vm.web")},
		"adopted, a pve node":               {have: adopted(vm("pve.web")), says: "error (guard) pve.web is not deleted: it was adopted, and no node declares it", detail: "a block:\nto destroy it"},
		"adopted, on another host":          {have: adopted(vm("vm.web")), set: elsewhere, says: "error (guard) vm.web is not deleted: it was adopted, and is declared on host b now, without its data", detail: "no guest moves to another host"},
		"adopted, destroyed by a block":     {have: adopted(vm("vm.web")), removed: removals{addr("vm.web"): destroy}, action: Delete},
		"adopted, a block for another":      {have: adopted(vm("vm.web-old")), removed: removals{addr("vm.web"): destroy}, says: "error (guard) vm.web-old is not deleted: it was adopted, and no node declares it"},
		"adopted, destroyed by name":        {have: adopted(vm("vm.web")), set: func(in *Input) { in.Destroy, in.Manifest = true, "web" }, action: Delete},
		"created":                           {have: vm("vm.web"), action: Delete},
		"created, on another host":          {have: vm("vm.web"), set: elsewhere, action: Delete},
		"created, moved to another host":    {have: vm("vm.web"), moved: moves{addr("vm.old"): addr("vm.web")}, set: elsewhere, says: "error (guard) vm.web is not deleted: a moved block keeps it, and it is declared on host b now, without its data"},
		"an instance":                       {have: vm("vm.web-1"), removed: removals{addr("vm.web"): giveUp}, action: Forget},
		"of for_each, or another node":      {have: vm("vm.web-old"), removed: removals{addr("vm.web"): giveUp}, says: `error (guard) vm.web-old is not deleted: the block removed "vm.web" may mean it`, detail: fmt.Sprintf(blocks, "vm.web-old", "vm.web-old")},
		"of for_each, with a block":         {have: vm("vm.web-old"), removed: removals{addr("vm.web"): giveUp, addr("vm.web-old"): giveUp}, action: Forget},
		"of for_each, destroyed":            {have: vm("vm.web-old"), removed: removals{addr("vm.web"): destroy}, action: Delete},
		"an instance with a block":          {have: vm("vm.web-1"), removed: removals{addr("vm.web"): giveUp, addr("vm.web-1"): destroy}, action: Delete},
		"a name that begins alike":          {have: vm("vm.website"), removed: removals{addr("vm.web"): giveUp}, action: Delete},
		"a node of another host, not named": {have: vm("vm.web"), removed: removals{addr("vm.we"): giveUp}, set: elsewhere, action: Delete},
		"another type":                      {have: vm("ct.web"), removed: removals{addr("vm.web"): giveUp}, says: `error (guard) ct.web is not deleted: the block removed "vm.web" names another type`, detail: fmt.Sprintf(blocks, "ct.web", "ct.web")},
		"an instance of another type":       {have: vm("ct.web-1"), removed: removals{addr("vm.web"): giveUp}, says: `error (guard) ct.web-1 is not deleted: the block removed "vm.web" names another type`},
		"moved to another type":             {have: vm("ct.old"), moved: moves{addr("vm.old"): addr("vm.web")}, says: "error (guard) ct.old is not deleted: a moved block gives it to vm.web, which has another type"},
		"given up, and destroyed by name": {
			have: vm("vm.web"), removed: removals{addr("vm.web"): giveUp}, set: func(in *Input) { in.Destroy, in.Manifest = true, "web" },
			says: "warning (guard) vm.web is not deleted: a removed block gives it up",
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(state(), state(c.have))
			in.Want.Removed, in.Want.Moved = c.removed, c.moved
			if c.set != nil {
				c.set(&in)
			}
			p := Make(in)
			if c.action != "" {
				require.Empty(t, p.Findings)
				require.Len(t, p.Steps, 1)
				require.Equal(t, c.action, p.Steps[0].Action)
				return
			}
			require.Empty(t, p.Steps)
			require.Equal(t, []string{c.says}, findings(p))
			require.Contains(t, p.Findings[0].Detail, c.detail)
		})
	}
}

// A guest that the site created goes with its node. A block that gives up none and has nearly its name is likely to mean
// it, and is only a warning: a block stays after it was applied.
func TestTypoInRemovedIsAWarning(t *testing.T) {
	in := input(state(), state(guest("vm.web", 100, &VM{})))
	in.Want.Removed = model.Removals{addr("vm.wbe"): {}, addr("vm.far-away"): {}}
	p := Make(in)
	require.Equal(t, []string{"delete vm.web"}, steps(p))
	require.Equal(t, []string{`warning (site) vm.web is destroyed, and the block removed "vm.wbe" gives up no guest`}, findings(p))
	delete(in.Want.Removed, addr("vm.wbe"))
	require.Empty(t, Make(in).Findings)
}

// A guest whose VMID a node adopts stays, also if that node is outside of the scope.
func TestRenamedOutsideOfTheScope(t *testing.T) {
	in := adopting(&VM{}, state(guest("vm.old", 104, &VM{})))
	in.Want.State[addr("vm.web")].Manifest = "other"
	in.Manifest = "web"
	p := Make(in)
	require.Empty(t, p.Steps)
	require.Equal(t, []string{"error (guard) vm.old is not deleted: vm.web adopts VMID 104"}, findings(p))
	require.Contains(t, p.Findings[0].Detail, "moved {\n  from = node.old\n  to   = node.web\n}")
}

// A guest that is only watched gets its ownership tag all the same, and the name of its node after a move.
func TestReportedGuestIsMarked(t *testing.T) {
	type node struct {
		Name  string `hcl:"name,optional"`
		Cores int    `hcl:"cores,optional"`
		Mark  string `plan:"mark"`
	}
	for name, c := range map[string]struct {
		want, have node
		moved      bool
		paths      []string
	}{
		"marked":                    {node{Mark: "now"}, node{Mark: "was old"}, false, []string{"mark"}},
		"moved":                     {node{Mark: "now", Name: "one"}, node{Mark: "was old", Name: "two"}, true, []string{"mark", "name"}},
		"another name":              {node{Mark: "now", Name: "one"}, node{Mark: "was old", Name: "two"}, false, nil},
		"moved before, then named":  {node{Mark: "now", Name: "one"}, node{Mark: "now", Name: "two"}, true, nil},
		"marked, with other drifts": {node{Mark: "now", Cores: 1}, node{Mark: "was old", Cores: 2}, true, nil},
	} {
		want, have := guest("vm.web", 100, nil), guest("vm.web", 100, nil)
		want.Spec, have.Spec = &c.want, &c.have
		in := input(state(want), state(have))
		in.Kinds = nil
		in.Want.Nodes[addr("vm.web")] = &model.Node{Name: "web", Drift: "report"}
		if c.moved {
			in.Want.Moved = map[model.Address]model.Address{addr("vm.old"): addr("vm.web")}
		}
		p := Make(in)
		if c.paths == nil {
			require.Empty(t, p.Steps, name)
			require.Equal(t, []model.Address{addr("vm.web")}, p.Drift, name)
			continue
		}
		require.Empty(t, p.Findings, name)
		require.Len(t, p.Steps, 1, name)
		require.ElementsMatch(t, c.paths, p.Steps[0].paths(), name)
	}
}
