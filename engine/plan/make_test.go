package plan

import (
	"flag"
	"fmt"
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
)

// A target that does not exist is a mistake of who typed it, not something that a guard refuses.
func TestN16UnknownTarget(t *testing.T) {
	want, have := model.State{addr("vm.web-1"): {}}, model.State{addr("image.old"): {}}
	require.NoError(t, UnknownTarget(addrs("vm.web-1", "image.old"), want, have))
	require.EqualError(t, UnknownTarget(addrs("vm.web-1", "vm.web-2"), want, have), `target vm.web-2 is neither declared nor on the host: did you mean "vm.web-1"?`)
	require.EqualError(t, UnknownTarget(addrs("pool.x"), want, have), `target pool.x is neither declared nor on the host: known: image.old, vm.web-1`)
}

func TestDiff(t *testing.T) {
	two := 2
	for name, c := range map[string]struct {
		want, have VM
		stopped    bool
		sensitive  []string
		changes    []string
		action     Action
		class      model.Class
		reason     string
	}{
		"nothing": {want: VM{Cores: 1, Tags: []string{}}, have: VM{Cores: 1}},
		"what the host invented is no difference": {have: VM{MAC: "BC:24:11:00:00:01"}},
		"what is never compared":                  {want: VM{Preset: "a"}, have: VM{Preset: "b"}},
		"hot": {
			want: VM{Memory: 4096}, have: VM{Memory: 2048},
			changes: []string{"memory 2048 → 4096 (hot)"}, action: Update, class: model.ClassHot, reason: "memory differs from the site",
		},
		"the worst class counts": {
			want: VM{Memory: 2, Cores: 2, Description: "x"}, have: VM{Memory: 1, Cores: 1},
			changes: []string{"cores 1 → 2 (pending)", "memory 1 → 2 (hot)", `description "" → x (none)`},
			action:  Update, class: model.ClassPending, reason: "cores, memory and description differ from the site",
		},
		"a kind refines the class": {
			want: VM{Cores: 2}, have: VM{Cores: 1}, stopped: true,
			changes: []string{"cores 1 → 2 (none)"}, action: Update, class: model.ClassNone, reason: "cores differs from the site",
		},
		"only wanted": {
			want: VM{Balloon: &two, Disks: []Disk{{Name: "a", Size: 1}, {Name: "data", Size: 5}}, Options: map[string]string{"b": "1"}}, have: VM{Disks: []Disk{{Name: "a", Size: 1}}},
			changes: []string{"balloon none → 2 (hot)", "options.b none → 1 (none)", "disk.data.size none → 5 (hot)"},
			action:  Update, class: model.ClassHot, reason: "balloon, options.b and disk.data.size differ from the site",
		},
		"only there": {
			want: VM{Disks: []Disk{{Name: "b", Size: 1}}}, have: VM{Balloon: &two, Disks: []Disk{{Name: "b", Size: 1}, {Name: "a", Size: 5}}, Options: map[string]string{"b": "1", "c": "2"}},
			changes: []string{"balloon 2 → none (hot)", "options.b 1 → none (none)", "options.c 2 → none (none)", "disk.a.size 5 → none (hot)"},
			action:  Update, class: model.ClassHot, reason: "4 attributes differ from the site",
		},
		"lists": {
			want: VM{Tags: []string{"a", "c"}}, have: VM{Tags: []string{"b", "a"}},
			changes: []string{"tags +c -b (none)"}, action: Update, class: model.ClassNone, reason: "tags differs from the site",
		},
		"another order is another list": {
			want: VM{Tags: []string{"a", "b"}}, have: VM{Tags: []string{"b", "a"}},
			changes: []string{"tags [b a] → [a b] (none)"}, action: Update, class: model.ClassNone, reason: "tags differs from the site",
		},
		"secrets": { // a mark on the whole map covers its entries, one on an element the list
			sensitive: []string{"description", "options", "tags.1"},
			want:      VM{Password: "new", Description: "made of a secret", Options: map[string]string{"k": "secret"}, Tags: []string{"a", "b"}}, have: VM{Password: "old", Description: "x"},
			changes: []string{"tags (sensitive) → (sensitive) (none)", "description (sensitive) → (sensitive) (none)", "password (sensitive) → (sensitive) (pending)", "options.k none → (sensitive) (none)"},
			action:  Update, class: model.ClassPending, reason: "4 attributes differ from the site",
		},
		"replaced": {
			want: VM{Machine: "q35", Cores: 2}, have: VM{Machine: "pc", Cores: 1},
			changes: []string{"machine pc → q35 (replace)", "cores 1 → 2 (pending)"},
			action:  Replace, class: model.ClassReplace, reason: "machine differs from the site and cannot be changed in place",
		},
		"replaced with its data": {
			want: VM{Machine: "q35", Image: "new"}, have: VM{Machine: "pc", Image: "old"},
			changes: []string{"image old → new (data-loss)", "machine pc → q35 (replace)"},
			action:  Replace, class: model.ClassDataLoss, reason: "image and machine differ from the site and cannot be changed in place",
		},
	} {
		t.Run(name, func(t *testing.T) {
			want, have := guest("vm.a", 0, &c.want), guest("vm.a", 100, &c.have)
			want.Sensitive = c.sensitive
			want.At = at(7)
			have.Guest.Running = !c.stopped
			before := model.Clone(have.Spec)
			p := Make(input(state(want), state(have)))
			require.Equal(t, before, have.Spec, "the observed state is only read")
			require.Zero(t, want.Guest.VMID, "the wanted state is only read")
			require.Empty(t, p.Findings)
			if c.changes == nil {
				require.True(t, p.InSync())
				require.Equal(t, Summary{Unchanged: 1}, p.Summary)
				return
			}
			require.Len(t, p.Steps, 1)
			s := p.Steps[0]
			require.Equal(t, c.changes, changes(s))
			require.Equal(t, []any{c.action, c.class, c.reason}, []any{s.Action, s.Class, s.Reason})
			require.Equal(t, []any{"a", "web", 100, at(7)}, []any{s.Node, s.Manifest, s.VMID, s.At})
			require.Same(t, have, s.Have)
			require.Equal(t, 100, s.Want.Guest.VMID)
		})
	}
}

func TestCreationSaysAllThatIsMade(t *testing.T) {
	want := guest("vm.a", 0, &VM{Preset: "vm-small", Image: "debian-12", Cores: 2, Password: "pw", Disks: []Disk{{Name: "root", Size: 10}}})
	p := Make(input(state(want), nil))
	s := p.Steps[0]
	require.Equal(t, Create, s.Action)
	require.Equal(t, model.ClassNone, s.Class)
	require.Equal(t, "vm-small, debian-12", s.Brief)
	require.Equal(t, 100, s.VMID)
	require.Nil(t, s.Have)
	require.Contains(t, changes(s), "cores none → 2 (none)")
	require.Contains(t, changes(s), "disk.root.size none → 10 (none)")
	require.Contains(t, changes(s), "password none → (sensitive) (none)")
	for _, c := range s.Changes {
		require.NotEqual(t, "balloon", c.Path, "what is not declared is not made")
	}
}

func TestRemovedFromTheSite(t *testing.T) {
	have := state(
		guest("vm.a", 100, &VM{}), object("image.old", &Image{}), object("image.kept", &Image{}),
		guest("vm.suspended", 101, &VM{}), guest("vm.moved", 102, &VM{}),
	)
	have[addr("vm.suspended")].Manifest, have[addr("vm.moved")].Manifest = "off", "off"
	in := input(state(guest("vm.moved", 0, &VM{Cores: 1})), have)
	in.Want.Suspended["off"] = true
	in.Want.Declared[addr("image.kept")] = true
	p := Make(in)
	require.Equal(t, []string{"delete image.old", "delete vm.a", "update vm.moved"}, steps(p), "declared and suspended things stay")
	require.Equal(t, model.ClassNone, p.Steps[0].Class)
	require.Equal(t, []any{model.ClassDataLoss, "left the site", 100, "web"}, []any{p.Steps[1].Class, p.Steps[1].Reason, p.Steps[1].VMID, p.Steps[1].Manifest})
	require.NotNil(t, p.Steps[1].Changes)
	in.Want.Elsewhere = map[model.Address]string{addr("vm.a"): "declared on host mother now"}
	require.Equal(t, "declared on host mother now", Make(in).Steps[1].Reason)
	require.Equal(t, Summary{Delete: 2, Update: 1}, p.Summary)
}

func TestPendingIsNotAStep(t *testing.T) {
	want, have := guest("vm.a", 0, &VM{Cores: 4, Memory: 2, Password: "new"}), guest("vm.a", 100, &VM{Cores: 2, Memory: 1, Password: "old"})
	in := input(state(want), state(have))
	waits := []model.Pending{
		{Address: addr("vm.a"), Path: "password", Before: "old", After: "new", Why: "set"},
		{Address: addr("vm.a"), Path: "memory", Before: 1, After: 3, Why: "set"},
		{Address: addr("vm.a"), Path: "cores", Before: 2, After: 4, Why: "set"}, // an int of another size than the attribute's
	}
	hold(&in, waits)
	p := Make(in)
	require.Equal(t, []string{"memory 1 → 2 (hot)"}, changes(p.Steps[0]), "only what is not on its way already")
	require.Equal(t, []model.Pending{
		{Address: addr("vm.a"), Path: "cores", Before: 2, After: 4, Why: "set"},
		{Address: addr("vm.a"), Path: "memory", Before: 1, After: 3, Why: "set"},
		{Address: addr("vm.a"), Path: "password", Before: "(sensitive)", After: "(sensitive)", Why: "set"},
	}, p.Pending)
	require.Equal(t, "old", waits[0].Before, "the input is only read")
}

func TestARemovalWaitsForNoRestart(t *testing.T) {
	stays := guest("vm.b", 101, &VM{Cores: 2})
	in := input(state(stays), state(guest("vm.a", 100, &VM{Cores: 2}), stays))
	hold(&in, []model.Pending{
		{Address: addr("vm.a"), Path: "cores", Before: 2, After: 4, Why: "set"},
		{Address: addr("vm.b"), Path: "cores", Before: 2, After: 4, Why: "set"},
	})
	p := Make(in)
	require.Equal(t, []string{"vm.b"}, []string{p.Pending[0].Address.String()})
	require.Len(t, p.Pending, 1)
	require.Equal(t, Delete, p.Steps[0].Action)
}

// TestAllThatIsDestroyedIsInTheReason of every step that destroys, and of no other.
func TestAllThatIsDestroyedIsInTheReason(t *testing.T) {
	const with = "after a final backup to local"
	gone, anew, changed := guest("vm.a", 100, &VM{}), guest("vm.b", 101, &VM{Machine: "old"}), guest("vm.c", 102, &VM{Memory: 1})
	for _, r := range []*model.Resource{gone, anew, changed} {
		r.Guest.RemovalNote = with
	}
	p := Make(input(state(guest("vm.b", 0, &VM{Machine: "new"}), guest("vm.c", 0, &VM{Memory: 2})), state(gone, anew, changed)))
	reasons := map[string]string{}
	for _, s := range p.Steps {
		reasons[s.Address.String()] = s.Reason
	}
	require.Equal(t, map[string]string{
		"vm.a": "left the site; " + with,
		"vm.b": "machine differs from the site and cannot be changed in place; " + with,
		"vm.c": "memory differs from the site",
	}, reasons)
}

func TestDriftThatIsOnlyReported(t *testing.T) {
	want := guest("vm.a", 0, &VM{Cores: 4, Password: "new"})
	want.At = at(3)
	in := input(state(want, guest("vm.b", 0, &VM{})), state(guest("vm.a", 100, &VM{Cores: 2, Password: "old"})))
	in.Want.Nodes = map[model.Address]*model.Node{addr("vm.a"): {Drift: "report"}, addr("vm.b"): {Drift: "report"}}
	p := Make(in)
	require.Equal(t, []string{"create vm.b"}, steps(p))
	require.Equal(t, []string{"warning (guard) drift: vm.a: cores 2 → 4, password (sensitive) → (sensitive) is left as it is (drift = report)"}, findings(p))
	require.Equal(t, at(3), p.Findings[0].At)
	require.Equal(t, "vm.a", p.Findings[0].Address)
	require.Equal(t, Summary{Create: 1}, p.Summary, "it is not unchanged either")
	delete(in.Want.State, addr("vm.b"))
	require.False(t, Make(in).InSync(), "what is left as it is is not in sync")
}

func TestMissingSecrets(t *testing.T) {
	poor := func(name string, spec *VM, needs ...string) *model.Resource {
		r := guest(name, 0, spec, needs...)
		r.Missing = []string{"secret.passwords.root", "secret.ssh_keys.ops"}
		return r
	}
	p := Make(input(
		state(poor("vm.new", &VM{}), poor("vm.old", &VM{Cores: 2}), poor("vm.same", &VM{}), guest("vm.child", 0, &VM{}, "vm.new"), guest("vm.other", 0, &VM{}, "vm.old")),
		state(guest("vm.old", 100, &VM{}), guest("vm.same", 101, &VM{})),
	))
	require.Equal(t, []string{"create vm.other"}, steps(p), "what exists can be built on, changed or not")
	require.Equal(t, []string{
		"warning (guard) vm.child is not created: it needs vm.new, which is not created",
		"error (site) vm.new is not created: the value of secret.passwords.root, secret.ssh_keys.ops is not known here",
		"error (site) vm.old is not changed: the value of secret.passwords.root, secret.ssh_keys.ops is not known here",
	}, findings(p))
	require.Equal(t, 1, p.Summary.Unchanged)

	atFirst := guest("vm.old", 0, &VM{Cores: 2})
	atFirst.MissingToCreate = []string{"secret.passwords.root"}
	p = Make(input(state(atFirst), state(guest("vm.old", 100, &VM{}))))
	require.Equal(t, []string{"update vm.old"}, steps(p), "it was needed when the guest was made")
	p = Make(input(state(atFirst), state()))
	require.Equal(t, []string{"error (site) vm.old is not created: the value of secret.passwords.root is not known here"}, findings(p))
}

// two manifests on one host, with objects of their own and shared ones.
func tenants() Input {
	of := func(manifest string, r *model.Resource) *model.Resource {
		r.Manifest = manifest
		return r
	}
	return input(state(
		of("web", guest("vm.web-1", 0, &VM{Cores: 2}, "image.shared", "pool.web")), of("web", guest("vm.web-2", 0, &VM{}, "vm.web-1")),
		of("db", guest("vm.db-1", 0, &VM{}, "image.shared", "pool.db")),
		object("image.shared", &Image{Checksum: "new"}), object("pool.web", &Pool{Comment: "new"}), object("pool.db", &Pool{Comment: "new"}),
	), state(
		of("web", guest("vm.web-1", 100, &VM{Cores: 1}, "pool.web")), of("web", guest("vm.web-9", 101, &VM{}, "vm.web-1")),
		of("db", guest("vm.db-9", 102, &VM{})), object("image.shared", &Image{Checksum: "old"}), object("image.old", &Image{}), object("pool.web", &Pool{Comment: "old"}),
	))
}

func TestLimits(t *testing.T) {
	for name, c := range map[string]struct {
		limit    func(*Input)
		steps    []string
		findings []string
	}{
		"whole host": {
			limit: func(*Input) {},
			steps: []string{
				"delete image.old", "replace image.shared", "create pool.db", "update pool.web", "delete vm.db-9", "delete vm.web-9",
				"create vm.db-1 after image.shared, pool.db", "update vm.web-1 after image.shared, pool.web", "create vm.web-2 after vm.web-1",
			},
		},
		"manifest": {
			limit: func(in *Input) { in.Manifest = "web" },
			steps: []string{"update pool.web", "delete vm.web-9", "update vm.web-1 after pool.web", "create vm.web-2 after vm.web-1"},
			findings: []string{
				"warning (guard) image.shared is not replaced: a plan for manifest web replaces nothing outside of it",
			},
		},
		"target with what it needs": {
			limit: func(in *Input) { in.Targets = addrs("vm.db-1") },
			steps: []string{"replace image.shared", "create pool.db", "create vm.db-1 after image.shared, pool.db"},
		},
		"target that goes": {
			limit: func(in *Input) { in.Targets = addrs("vm.web-9", "pool.web") },
			steps: []string{"update pool.web", "delete vm.web-9"},
		},
		"target misspelt": {
			limit: func(in *Input) { in.Targets = addrs("vm.web-8", "image.old") },
			steps: []string{"delete image.old"}, // see UnknownTarget
		},
		"target of another manifest": {
			limit: func(in *Input) { in.Manifest, in.Targets = "db", addrs("vm.web-1") },
			steps: []string{},
			findings: []string{
				"warning (guard) image.shared is not replaced: a plan for manifest db replaces nothing outside of it",
			},
		},
		"manifest misspelt": {
			limit:    func(in *Input) { in.Manifest = "wbe" },
			steps:    []string{},
			findings: []string{`warning (guard) manifest "wbe" has nothing on host father`},
		},
		"manifest suspended": {
			limit: func(in *Input) { in.Manifest, in.Want.Suspended = "mail", map[string]bool{"mail": true} },
			steps: []string{},
		},
		"destroy what was destroyed before": {
			limit: func(in *Input) { in.Manifest, in.Destroy = "mail", true },
			steps: []string{},
		},
		"destroy": {
			limit: func(in *Input) { in.Destroy, in.Manifest = true, "web" },
			steps: []string{"delete vm.web-9", "delete vm.web-1 after vm.web-9"},
		},
		"destroy what is suspended": {
			limit: func(in *Input) {
				in.Destroy, in.Manifest, in.Want.Suspended = true, "db", map[string]bool{"db": true}
			},
			steps: []string{"delete vm.db-9"},
		},
		"destroy one of them": {
			limit: func(in *Input) { in.Destroy, in.Manifest, in.Targets = true, "web", addrs("vm.web-9") },
			steps: []string{"delete vm.web-9"},
		},
		"destroy one that is needed": {
			limit:    func(in *Input) { in.Destroy, in.Manifest, in.Targets = true, "web", addrs("vm.web-1") },
			steps:    []string{},
			findings: []string{"error (guard) vm.web-1 is not deleted: vm.web-9 still needs it"},
		},
		"destroy nothing in particular": {
			limit:    func(in *Input) { in.Destroy = true },
			steps:    []string{},
			findings: []string{"error (guard) destroy needs the name of a manifest"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := tenants()
			c.limit(&in)
			p := Make(in)
			require.Equal(t, c.steps, steps(p))
			require.Equal(t, append([]string{}, c.findings...), findings(p))
			for _, s := range p.Steps {
				if in.Destroy {
					require.Equal(t, "manifest "+in.Manifest+" is destroyed", s.Reason)
				}
			}
		})
	}
}

func TestTheManifestOfTheSiteOverridesTheTag(t *testing.T) {
	want, have := guest("vm.a", 0, &VM{Cores: 2}), guest("vm.a", 100, &VM{})
	want.Manifest, have.Manifest = "new", "old"
	for manifest, expect := range map[string][]string{"new": {"delete vm.a"}, "old": {}} {
		in := input(state(want), state(have))
		in.Manifest, in.Destroy = manifest, true
		require.Equal(t, expect, steps(Make(in)), "a renamed manifest takes its guests along")
	}
}

// A resource that is needed does not go with the one that needs it.
func TestDestroyingATarget(t *testing.T) {
	in := input(state(guest("vm.a", 0, &VM{}), guest("vm.b", 0, &VM{}, "vm.a")), state(guest("vm.a", 100, &VM{}), guest("vm.b", 101, &VM{}, "vm.a")))
	in.Manifest, in.Destroy, in.Targets = "web", true, addrs("vm.b")
	require.Equal(t, []string{"delete vm.b"}, steps(Make(in)))
}

// A need for what the site does not declare is no reason to touch it.
func TestNeedOfWhatIsNotWanted(t *testing.T) {
	in := input(state(guest("vm.a", 0, &VM{}, "pool.old")), state(object("pool.old", &Pool{})))
	in.Manifest = "web"
	require.Equal(t, []string{"create vm.a"}, steps(Make(in)))
}

// A host that the site does not know wants nothing, which must not remove it all.
func TestHostThatTheSiteDoesNotKnow(t *testing.T) {
	have := state(guest("vm.a", 100, &VM{}))
	lost, nothing := input(nil, have), input(nil, have)
	lost.Want, _ = (&model.Site{Manifests: map[string]*model.Manifest{}}).Want("father")
	nothing.Want = nil
	for _, in := range []Input{lost, nothing} {
		p := Make(in)
		require.Empty(t, p.Steps)
		require.Equal(t, []string{`error (site) host "father" is not declared in the site, so nothing is planned`}, findings(p))
	}
}

func TestDocumentHeader(t *testing.T) {
	in := input(nil, nil)
	in.Have.Findings = diag.List{{Severity: diag.Warning, Summary: "slow"}}
	in.Want.Deferred = []model.Deferred{{Address: "vm.x", Why: "y"}}
	in.Have.Unmanaged = []model.Unmanaged{{VMID: 9}, {VMID: 8}}
	p := Make(in)
	require.Equal(t, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), p.ObservedAt)
	require.Equal(t, []any{"1.0", "home", "3f2c1a9d00c0ffee", "father"}, []any{p.FormatVersion, p.Site, p.Commit, p.Host})
	require.Equal(t, []model.Unmanaged{{VMID: 8}, {VMID: 9}}, p.Unmanaged)
	require.Equal(t, 9, in.Have.Unmanaged[0].VMID, "the input is only read")
	require.Equal(t, Summary{Unmanaged: 2}, p.Summary)
	require.Len(t, p.Findings, 1)
	require.Len(t, p.Deferred, 1)
}

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
func input(want, have model.State) Input {
	taken := map[int]string{}
	for a, r := range have {
		if r.Guest != nil {
			taken[r.Guest.VMID] = a.String()
		}
	}
	return Input{
		Site: "home", Commit: "3f2c1a9d00c0ffee", Host: "father", Kinds: kinds(),
		Want: &model.Want{
			Host: &model.Host{Name: "father"}, State: want,
			Suspended: map[string]bool{}, Declared: map[model.Address]bool{}, Nodes: map[model.Address]*model.Node{},
		},
		Have: model.Observed{At: time.Date(2026, 1, 2, 4, 4, 5, 678, time.FixedZone("CET", 3600)), State: have, Taken: taken},
	}
}

// hold lets the kinds report pending changes.
func hold(in *Input, pending []model.Pending) {
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
func steps(p *Plan) []string {
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

func findings(p *Plan) []string {
	out := []string{}
	for _, f := range p.Findings {
		if !strings.HasSuffix(f.Summary, "look like one guest") { // most guests of these tests do; see TestRenames
			out = append(out, string(f.Severity)+" ("+string(f.Source)+") "+f.Summary)
		}
	}
	return out
}

func unknown(p *Plan) []string {
	out := []string{}
	for _, u := range p.Unknown {
		out = append(out, u.Scope+": "+u.Why)
	}
	return out
}

func changes(s Step) []string {
	out := []string{}
	for _, c := range s.Changes {
		out = append(out, c.String()+" ("+string(c.Class)+")")
	}
	return out
}

func text(p *Plan, o TextOptions) string {
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
func apply(t require.TestingT, p *Plan, in Input) model.State {
	world := model.State{}
	maps.Copy(world, in.Have.State)
	dangling := broken(world)
	done := map[model.Address]bool{}
	for _, s := range p.Steps {
		for _, a := range s.After {
			require.True(t, done[a], "%s comes before %s", s.Address, a)
		}
		if s.Action != Create {
			require.Contains(t, world, s.Address)
		} else {
			require.NotContains(t, world, s.Address)
		}
		if s.Action == Delete {
			delete(world, s.Address)
		} else {
			world[s.Address] = s.Want
			if vm, ok := s.Want.Spec.(*VM); ok && vm.MAC == "" && s.Action == Update { // it keeps its own
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

func TestOrder(t *testing.T) {
	for name, c := range map[string]struct {
		want, have model.State
		set        func(*Input)
		steps      []string
		findings   []string
	}{
		"peers by address, numbers as numbers": {
			want:  state(guest("vm.w-10", 0, &VM{}), guest("vm.w-9", 0, &VM{}), guest("ct.x", 0, &VM{}), object("image.a", &Image{})),
			steps: []string{"create ct.x", "create image.a", "create vm.w-9", "create vm.w-10"},
		},
		"parents first on the way up": {
			want:  state(guest("vm.a", 0, &VM{}, "vm.b"), guest("vm.b", 0, &VM{Cores: 2}, "vm.c", "vm.c"), object("pool.p", &Pool{}), guest("vm.c", 0, &VM{}, "pool.p", "vm.c")),
			have:  state(guest("vm.b", 100, &VM{})),
			steps: []string{"create pool.p", "create vm.c after pool.p", "update vm.b after vm.c", "create vm.a after vm.b"},
		},
		"children first on the way down": {
			have:  state(guest("vm.a", 100, &VM{}, "vm.b"), guest("vm.b", 101, &VM{}, "pool.p", "vm.gone"), object("pool.p", &Pool{})),
			steps: []string{"delete vm.a", "delete vm.b after vm.a", "delete pool.p after vm.b"},
		},
		"who lets go comes before what goes": {
			want:  state(guest("vm.a", 0, &VM{Cores: 2}, "image.new"), object("image.new", &Image{})),
			have:  state(guest("vm.a", 100, &VM{}, "image.old"), object("image.old", &Image{})),
			steps: []string{"create image.new", "update vm.a after image.new", "delete image.old after vm.a"},
		},
		"who is rebuilt on something else lets go as well": {
			want:  state(guest("vm.a", 0, &VM{Image: "new"}, "image.new"), object("image.new", &Image{})),
			have:  state(guest("vm.a", 100, &VM{Image: "old"}, "image.old"), object("image.old", &Image{})),
			steps: []string{"create image.new", "replace vm.a after image.new", "delete image.old after vm.a"},
		},
		"guests are replaced one after the other": {
			want:  state(guest("vm.a-10", 0, &VM{Image: "new"}), guest("vm.a-9", 0, &VM{Image: "new"}), guest("vm.c", 0, &VM{Cores: 2}), guest("ct.d", 0, &VM{Image: "new"})),
			have:  state(guest("vm.a-10", 100, &VM{}), guest("vm.a-9", 101, &VM{}), guest("vm.c", 102, &VM{}), guest("ct.d", 103, &VM{})),
			steps: []string{"replace ct.d", "update vm.c", "replace vm.a-9 after ct.d", "replace vm.a-10 after vm.a-9"},
		},
		"and those that others need first": {
			want:  state(guest("vm.a", 0, &VM{Image: "new"}, "vm.z"), guest("vm.b", 0, &VM{Image: "new"}), guest("vm.z", 0, &VM{Image: "new"})),
			have:  state(guest("vm.a", 100, &VM{}), guest("vm.b", 101, &VM{}), guest("vm.z", 102, &VM{})),
			steps: []string{"replace vm.b", "replace vm.z after vm.b", "replace vm.a after vm.z"},
		},
		"and after those that are created": {
			want:  state(guest("vm.a", 0, &VM{Image: "new"}), guest("vm.b", 0, &VM{Image: "new"}), guest("vm.n", 0, &VM{}), guest("vm.o", 0, &VM{}, "vm.b")),
			have:  state(guest("vm.a", 100, &VM{}), guest("vm.b", 101, &VM{})),
			steps: []string{"create vm.n", "replace vm.a after vm.n", "replace vm.b after vm.a", "create vm.o after vm.b"},
		},
		"also those that take an address from each other": {
			want:  state(guest("vm.a", 0, &VM{Image: "new", MAC: "m2"}), guest("vm.b", 0, &VM{Image: "new", MAC: "m1"})),
			have:  state(guest("vm.a", 100, &VM{MAC: "m1"}), guest("vm.b", 101, &VM{MAC: "m2"})),
			steps: []string{"replace vm.a", "replace vm.b after vm.a"},

			findings: []string{"warning (guard) vm.a gets the MAC address while vm.b (VMID 101) still has it"},
		},
		"nothing waits for what has no step": {
			want:  state(guest("vm.a", 0, &VM{}, "vm.b"), guest("vm.b", 0, &VM{}, "pool.p"), object("pool.p", &Pool{Comment: "new"})),
			have:  state(guest("vm.b", 100, &VM{}), object("pool.p", &Pool{Comment: "old"})),
			steps: []string{"update pool.p", "create vm.a"},
		},
		"marks in a circle": {
			have: state(
				guest("vm.a", 100, &VM{}, "vm.c"), guest("vm.b", 101, &VM{}, "vm.a"), guest("vm.c", 102, &VM{}, "vm.b"),
				guest("vm.child", 103, &VM{}, "vm.b"), object("pool.p", &Pool{}, "vm.self"), guest("vm.self", 104, &VM{}, "vm.self"),
			),
			steps:    []string{"delete pool.p", "delete vm.a", "delete vm.child", "delete vm.b after vm.child", "delete vm.c after vm.a", "delete vm.self after pool.p"},
			findings: []string{"warning (guard) vm.a, vm.b, vm.c need each other by their ownership tags"},
		},
		"two circles of marks": {
			have: state(
				guest("vm.a", 100, &VM{}, "vm.b"), guest("vm.b", 101, &VM{}, "vm.a"),
				guest("vm.x", 102, &VM{}, "vm.y"), guest("vm.y", 103, &VM{}, "vm.x", "vm.a"),
			),
			steps: []string{"delete vm.x", "delete vm.y after vm.x", "delete vm.a after vm.y", "delete vm.b after vm.a"},
			findings: []string{
				"warning (guard) vm.a, vm.b need each other by their ownership tags", "warning (guard) vm.x, vm.y need each other by their ownership tags",
			},
		},
		"a wanted circle": {
			want:  state(guest("vm.a", 0, &VM{}, "vm.b"), guest("vm.b", 0, &VM{}, "vm.a"), guest("vm.c", 0, &VM{}, "vm.b"), guest("vm.d", 0, &VM{})),
			steps: []string{"create vm.d"},
			findings: []string{
				"error (guard) vm.a is not created: vm.a, vm.b depend on each other in a cycle",
				"error (guard) vm.b is not created: vm.a, vm.b depend on each other in a cycle",
				"warning (guard) vm.c is not created: it needs vm.b, which is not created",
			},
		},
		// vm.a lets vm.x go when it can live on vm.b, which wants the VMID of vm.x.
		"a circle through a VMID": {
			want:  state(guest("vm.a", 0, &VM{Cores: 2}, "vm.b"), guest("vm.b", 200, &VM{})),
			have:  state(guest("vm.a", 100, &VM{}, "vm.x"), guest("vm.x", 200, &VM{})),
			steps: []string{},
			findings: []string{
				"error (guard) vm.a is not changed: vm.a, vm.b, vm.x depend on each other in a cycle",
				"error (guard) vm.b is not created: vm.a, vm.b, vm.x depend on each other in a cycle",
				"warning (guard) vm.x is not deleted: vm.a still needs it",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(c.want, c.have)
			p := Make(in)
			require.Equal(t, c.steps, steps(p))
			require.Equal(t, append([]string{}, c.findings...), findings(p))
		})
	}
}

// However the marks were edited, planning ends, and deletes each guest once.
func TestManyTagsInACircle(t *testing.T) {
	const n = 400
	have := model.State{}
	for i := range n {
		r := guest(fmt.Sprintf("vm.g-%d", i), 100+i, &VM{})
		for j := range n {
			r.Needs = append(r.Needs, addr(fmt.Sprintf("vm.g-%d", j)))
		}
		have[r.Addr] = r
	}
	p := Make(input(nil, have))
	require.Equal(t, Summary{Delete: n}, p.Summary)
	require.Len(t, p.Findings, 1)
}

func TestLongChain(t *testing.T) {
	const n = 5_000
	want := model.State{}
	for i := range n {
		r := guest(fmt.Sprintf("vm.g-%d", n-i), 0, &VM{})
		if i > 0 {
			r.Needs = addrs(fmt.Sprintf("vm.g-%d", n-i+1))
		}
		want[r.Addr] = r
	}
	p := Make(input(want, nil))
	require.Len(t, p.Steps, n)
	require.Equal(t, "vm.g-5000", p.Steps[0].Address.String())
	require.Equal(t, addrs("vm.g-2"), p.Steps[n-1].After)
}

func lab(from, to int) []model.VMIDRange { return []model.VMIDRange{{Name: "lab", From: from, To: to}} }

func drawing(name string, ranges []model.VMIDRange) *model.Resource {
	r := guest(name, 0, &VM{})
	r.Guest.Choose = ranges
	return r
}

func TestVMIDs(t *testing.T) {
	two := []model.VMIDRange{{Name: "a", From: 200, To: 200}, {Name: "b", From: 300, To: 301}}
	for name, c := range map[string]struct {
		want, have model.State
		set        func(*Input)
		vmids      map[string]int
		steps      []string
		findings   []string
	}{
		"lowest free, by address": {
			want:  state(drawing("vm.w-10", lab(200, 299)), drawing("vm.w-2", lab(200, 299)), drawing("ct.z", lab(200, 299))),
			set:   func(in *Input) { in.Have.Taken = map[int]string{201: "vm other", 202: ""} },
			vmids: map[string]int{"ct.z": 200, "vm.w-2": 203, "vm.w-10": 204},
		},
		"no range": {want: state(guest("vm.a", 0, &VM{}), guest("vm.b", 0, &VM{})), vmids: map[string]int{"vm.a": 100, "vm.b": 101}},
		"range beyond what PVE allows": {
			want:     state(drawing("vm.a", lab(1, 101)), drawing("vm.b", lab(999_999_999, 2_000_000_000)), drawing("vm.c", lab(999_999_999, 2_000_000_000))),
			vmids:    map[string]int{"vm.a": 100, "vm.b": 999_999_999},
			findings: []string{`error (site) vm.c is not created: no VMID is free in range "lab" (999999999–2000000000)`},
		},
		"who exists keeps his": {
			want: state(drawing("vm.a", lab(200, 299)), drawing("vm.b", lab(200, 299))), have: state(guest("vm.b", 4711, &VM{Cores: 2})),
			vmids: map[string]int{"vm.a": 200, "vm.b": 4711},
		},
		"ranges in order, then full": {
			want:     state(drawing("vm.a", two), drawing("vm.b", two), drawing("vm.c", two), drawing("vm.d", two)),
			vmids:    map[string]int{"vm.a": 200, "vm.b": 300, "vm.c": 301},
			findings: []string{`error (site) vm.d is not created: no VMID is free in range "a" (200–200), range "b" (300–301)`},
		},
		"declared ones are never drawn": {
			want:  state(drawing("vm.a", lab(200, 299)), guest("vm.b", 200, &VM{})),
			vmids: map[string]int{"vm.a": 201, "vm.b": 200},
		},
		"what an earlier pass could not have": {
			want:  state(drawing("vm.a", lab(200, 299)), guest("vm.b", 202, &VM{})),
			set:   func(in *Input) { in.Avoid = []int{200, 202} },
			vmids: map[string]int{"vm.a": 201, "vm.b": 202},
		},
		"what an earlier pass could not have, where nothing else is left": {
			want:     state(drawing("vm.a", lab(200, 201)), drawing("vm.b", lab(200, 201)), drawing("vm.c", lab(200, 201))),
			set:      func(in *Input) { in.Avoid = []int{9000, 200} },
			vmids:    map[string]int{"vm.a": 201, "vm.b": 200},
			findings: []string{`error (site) vm.c is not created: no VMID is free in range "lab" (200–201)`},
		},
		"too many for a range are told once": {
			want:  state(drawing("vm.a", lab(200, 200)), drawing("vm.b", lab(200, 200)), drawing("vm.c", lab(200, 200)), drawing("vm.d", lab(200, 200)), drawing("vm.e", lab(200, 200))),
			vmids: map[string]int{"vm.a": 200}, steps: []string{"create vm.a"},
			findings: []string{`error (site) vm.b, vm.c and 2 more are not created: no VMID is free in range "lab" (200–200)`},
		},
		"unseen and unmanaged guests have theirs": {
			want: state(drawing("vm.a", lab(200, 299))),
			set: func(in *Input) {
				in.Have.Unmanaged = []model.Unmanaged{{VMID: 200}}
				in.Have.Unknown = []model.Unknown{{Scope: "vm 201", VMID: 201, Name: "x"}}
			},
			vmids: map[string]int{"vm.a": 202},
		},
		"freed ones wait for the next plan": {
			want: state(drawing("vm.a", lab(200, 299))), have: state(guest("vm.b", 200, &VM{})),
			vmids: map[string]int{"vm.a": 201, "vm.b": 200}, steps: []string{"create vm.a", "delete vm.b"},
		},
		"a declared one waits for the deletion that frees it": {
			want: state(guest("vm.a", 200, &VM{})), have: state(guest("vm.b", 200, &VM{})),
			vmids: map[string]int{"vm.a": 200, "vm.b": 200}, steps: []string{"delete vm.b", "create vm.a after vm.b"},
		},
		"a declared one waits for the guest that moves off it": {
			want: state(guest("vm.a", 200, &VM{}), guest("vm.b", 201, &VM{})), have: state(guest("vm.b", 200, &VM{})),
			vmids: map[string]int{"vm.a": 200, "vm.b": 201}, steps: []string{"replace vm.b", "create vm.a after vm.b"},
		},
		"another one than it has": {
			want: state(guest("vm.a", 201, &VM{})), have: state(guest("vm.a", 200, &VM{})),
			vmids: map[string]int{"vm.a": 201}, steps: []string{"replace vm.a"},
		},
		"two guests swap": {
			want:  state(guest("vm.a", 201, &VM{}), guest("vm.b", 200, &VM{}), guest("vm.c", 0, &VM{}, "vm.b")),
			have:  state(guest("vm.a", 200, &VM{}), guest("vm.b", 201, &VM{})),
			steps: []string{},
			findings: []string{
				"error (guard) vm.a is not replaced: vm.a, vm.b depend on each other in a cycle",
				"error (guard) vm.b is not replaced: vm.a, vm.b depend on each other in a cycle",
				"warning (guard) vm.c is not created: it needs vm.b, which is not replaced",
			},
		},
		"taken by something else": {
			want: state(guest("vm.a", 999, &VM{}), guest("vm.b", 998, &VM{})),
			set: func(in *Input) {
				in.Have.Taken = map[int]string{999: "vm scratch"}
				in.Have.Unmanaged = []model.Unmanaged{{VMID: 998, Kind: "ct", Name: "cache"}}
			},
			findings: []string{
				"error (guard) vm.a is not created: VMID 999 is taken by vm scratch", "error (guard) vm.b is not created: VMID 998 is taken by ct cache",
			},
		},
		"taken by a managed guest that stays": {
			want: state(guest("vm.a", 0, &VM{}), guest("vm.b", 200, &VM{})), have: state(guest("vm.a", 200, &VM{})),
			findings: []string{"error (guard) vm.b is not created: VMID 200 is that of vm.a, which stays"},
		},
		"taken by a managed guest that cannot go": {
			want: state(guest("vm.b", 200, &VM{}), guest("vm.x", 0, &VM{Cores: 2})), have: state(guest("vm.a", 200, &VM{}), guest("vm.x", 201, &VM{}, "vm.a")),
			set: func(in *Input) { in.Want.State[addr("vm.x")].Missing = []string{"secret.auth.x"} },
			findings: []string{
				"warning (guard) vm.a is not deleted: vm.x still needs it", "error (guard) vm.b is not created: VMID 200 is still that of vm.a",
				"error (site) vm.x is not changed: the value of secret.auth.x is not known here",
			},
		},
		"declared twice": {
			want:     state(guest("vm.a", 200, &VM{}), guest("vm.b", 200, &VM{})),
			vmids:    map[string]int{"vm.a": 200},
			findings: []string{"error (guard) vm.b is not created: VMID 200 is declared for vm.a as well"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(c.want, c.have)
			if c.set != nil {
				c.set(&in)
			}
			p := Make(in)
			got := map[string]int{}
			for _, s := range p.Steps {
				got[s.Address.String()] = s.VMID
				if s.Want != nil {
					require.Equal(t, s.VMID, s.Want.Guest.VMID)
				}
			}
			require.Equal(t, append([]string{}, c.findings...), findings(p))
			if c.steps != nil {
				require.Equal(t, c.steps, steps(p))
			}
			if c.vmids != nil {
				require.Equal(t, c.vmids, got)
			}
			apply(t, p, in)
		})
	}
}

func TestAnotherVMIDCostsTheData(t *testing.T) {
	p := Make(input(state(guest("vm.a", 201, &VM{Cores: 2})), state(guest("vm.a", 200, &VM{}))))
	require.Equal(t, []string{"vmid 200 → 201 (data-loss)", "cores 0 → 2 (pending)"}, changes(p.Steps[0]))
	require.Equal(t, model.ClassDataLoss, p.Steps[0].Class)
	require.Equal(t, "vmid differs from the site and cannot be changed in place", p.Steps[0].Reason)
}

// A limited plan chooses as a full one would, so that neither surprises the other.
func TestLimitsDoNotChangeVMIDs(t *testing.T) {
	want := state(guest("vm.a", 0, &VM{}), guest("vm.b", 0, &VM{}), guest("vm.c", 0, &VM{}))
	in := input(want, nil)
	in.Targets = addrs("vm.c")
	require.Equal(t, 102, Make(in).Steps[0].VMID)
}

// A value of one guest, such as a MAC address, goes to another one when it is given up.
func TestTakingOver(t *testing.T) {
	const x, y, z = "BC:24:11:00:00:0A", "BC:24:11:00:00:0B", "BC:24:11:00:00:0C"
	card := func(mac string) *VM { return &VM{MAC: mac} }
	stopped := "stopped"
	suspended := func(in *Input) {
		in.Want.Suspended["db"] = true
		for _, r := range in.Have.State {
			r.Manifest = "db"
		}
	}
	const stays = "the MAC address is that of vm.old (VMID 100), which stays and runs"
	const aside = "warning (guard) vm.new: the MAC address is that of vm.old (VMID 100) as well, which stays"
	for name, c := range map[string]struct {
		want, have model.State
		set        func(*Input)
		steps      []string
		findings   []string
		unknown    []string
	}{
		"a rename": {
			want:  state(guest("vm.new", 0, card("bc:24:11:00:00:0a")), guest("vm.other", 0, card(y))),
			have:  state(guest("vm.old", 100, card(x))),
			steps: []string{"delete vm.old", "create vm.other", "create vm.new after vm.old"},
		},
		"from who is changed, and from who is recreated": {
			want:  state(guest("vm.a", 0, card(x)), guest("vm.b", 0, card(z)), guest("vm.c", 0, card(y)), guest("vm.d", 0, &VM{Machine: "q35"})),
			have:  state(guest("vm.a", 100, card("")), guest("vm.b", 101, card(x)), guest("vm.d", 102, &VM{MAC: y, Machine: "pc"})),
			steps: []string{"update vm.b", "replace vm.d", "update vm.a after vm.b", "create vm.c after vm.d"},
		},
		"a guest that keeps it waits for no other": {
			want:  state(guest("vm.a", 0, &VM{MAC: x, Cores: 2})),
			have:  state(guest("vm.a", 100, card(x)), guest("vm.b", 101, card(y))),
			steps: []string{"update vm.a", "delete vm.b"},
		},
		// vm.y stays, and can let vm.old go only when it has vm.new to live on.
		"something that stays needs the old one": {
			want:     state(guest("vm.new", 0, card(x)), guest("vm.y", 0, &VM{Cores: 2}, "vm.new"), guest("vm.z", 0, card(y))),
			have:     state(guest("vm.old", 100, card(x)), guest("vm.y", 101, &VM{}, "vm.old"), guest("vm.w", 102, card(y))),
			steps:    []string{"create vm.new", "delete vm.w", "update vm.y after vm.new", "create vm.z after vm.w", "delete vm.old after vm.y"},
			findings: []string{"warning (guard) vm.new gets the MAC address while vm.old (VMID 100) still has it"},
		},
		"two exchange theirs": {
			want:  state(guest("vm.a", 0, card(y)), guest("vm.b", 0, card(x))),
			have:  state(guest("vm.a", 100, card(x)), guest("vm.b", 101, card(y))),
			steps: []string{"update vm.a", "update vm.b"},
			findings: []string{
				"warning (guard) vm.a gets the MAC address while vm.b (VMID 101) still has it",
				"warning (guard) vm.b gets the MAC address while vm.a (VMID 100) still has it",
			},
		},
		"circles that are there without it are told as ever": {
			want:  state(guest("vm.new", 0, card(x), "vm.b"), guest("vm.b", 0, &VM{}, "vm.new")),
			have:  state(guest("vm.old", 100, card(x))),
			steps: []string{"delete vm.old"},
			findings: []string{
				"error (guard) vm.b is not created: vm.b, vm.new depend on each other in a cycle",
				"error (guard) vm.new is not created: vm.b, vm.new depend on each other in a cycle",
			},
		},
		"who has it stays": {
			want: state(guest("vm.new", 0, card(x)), guest("vm.on", 0, &VM{}, "vm.new")), have: state(guest("vm.old", 100, card(x))), set: suspended,
			steps: []string{},
			findings: []string{
				"error (guard) vm.new is not created: " + stays, "warning (guard) vm.on is not created: it needs vm.new, which is not created",
			},
		},
		"who has it is not deleted after all": {
			want:     state(guest("vm.new", 0, card(x))),
			have:     state(guest("vm.old", 100, card(x)), guest("vm.mid", 101, &VM{}, "vm.old"), guest("vm.kept", 102, &VM{}, "vm.mid")),
			set:      func(in *Input) { in.Want.Declared[addr("vm.kept")] = true },
			steps:    []string{},
			findings: []string{"warning (guard) vm.mid is not deleted: vm.kept still needs it", "error (guard) vm.new is not created: " + stays, "warning (guard) vm.old is not deleted: vm.mid still needs it"},
		},
		"who has it is changed, and keeps what was made up": {
			want:     state(guest("vm.new", 0, card(x)), guest("vm.old", 0, &VM{Cores: 2})),
			have:     state(guest("vm.old", 100, card(x))),
			steps:    []string{"update vm.old"},
			findings: []string{"error (guard) vm.new is not created: " + stays},
		},
		"a plan of one manifest": {
			want: state(guest("vm.new", 0, card(x))), have: state(guest("vm.old", 100, card(x))),
			set:      func(in *Input) { in.Manifest, in.Have.State[addr("vm.old")].Manifest = "web", "db" },
			steps:    []string{},
			findings: []string{"error (guard) vm.new is not created: " + stays},
		},
		"it cannot be seen whether it may go": {
			want: state(guest("vm.new", 0, card(x))),
			have: state(guest("vm.old", 100, card(x)), guest("ct.x", 101, &VM{}, "vm.old")),
			set: func(in *Input) {
				in.Have.Unknown = []model.Unknown{{Scope: "containers", Why: "no answer", Kind: "ct"}}
			},
			steps:   []string{},
			unknown: []string{"containers: no answer", "ct.x: not deleted: containers cannot be read (no answer)", "vm.new: not created: vm.old (VMID 100) has the MAC address", "vm.old: not deleted: ct.x still needs it"},
		},
		"who has it stays, and is stopped": {
			want: state(guest("vm.new", 0, card(x))), have: state(guest("vm.old", 100, card(x))),
			set:   func(in *Input) { suspended(in); in.Have.State[addr("vm.old")].Guest.Running = false },
			steps: []string{"create vm.new"}, findings: []string{aside},
		},
		"it shall not run": {
			want: state(guest("vm.new", 0, &VM{MAC: x, Power: &stopped})), have: state(guest("vm.old", 100, card(x))), set: suspended,
			steps: []string{"create vm.new"}, findings: []string{aside},
		},
		"they are on two networks": {
			want: state(guest("vm.new", 0, &VM{MAC: x, Bridge: "vmbr1"})), have: state(guest("vm.old", 100, &VM{MAC: x, Bridge: "vmbr0"})), set: suspended,
			steps: []string{"create vm.new"}, findings: []string{aside},
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(c.want, c.have)
			if c.set != nil {
				c.set(&in)
			}
			p := Make(in)
			require.Equal(t, c.steps, steps(p))
			require.Equal(t, append([]string{}, c.findings...), findings(p))
			require.Equal(t, append([]string{}, c.unknown...), unknown(p))
		})
	}
}

// However many take over from each other, and however they hang together: planning ends.
func TestManyTakeOver(t *testing.T) {
	const n = 300
	want, have := model.State{}, model.State{}
	for i := range n {
		old := guest(fmt.Sprintf("vm.old-%d", i), 1000+i, &VM{MAC: fmt.Sprint(i)})
		anew := guest(fmt.Sprintf("vm.new-%d", i), 0, &VM{MAC: fmt.Sprint(i)})
		turned := guest(fmt.Sprintf("vm.turned-%d", i), 3000+i, &VM{MAC: fmt.Sprint("t", i)})
		next := guest(fmt.Sprintf("vm.turned-%d", i), 0, &VM{MAC: fmt.Sprint("t", (i+1)%n)})
		for j := range i {
			old.Needs = append(old.Needs, addr(fmt.Sprintf("vm.old-%d", j)))
			anew.Needs = append(anew.Needs, addr(fmt.Sprintf("vm.new-%d", j)))
			next.Needs = append(next.Needs, addr(fmt.Sprintf("vm.turned-%d", j)))
		}
		have[old.Addr], want[anew.Addr], have[turned.Addr], want[next.Addr] = old, anew, turned, next
	}
	p := Make(input(want, have))
	require.Equal(t, Summary{Create: n, Delete: n, Update: n}, p.Summary)
	waits := map[model.Address][]model.Address{}
	for _, s := range p.Steps {
		waits[s.Address] = s.After
	}
	require.Contains(t, waits[addr("vm.new-0")], addr("vm.old-0"))
	require.Contains(t, waits[addr("vm.new-299")], addr("vm.old-299"))
}

// A guest that is withheld for one change lists its other changes.
func TestStepsThatARefusedChangeDefers(t *testing.T) {
	disk := func(gib int) []Disk { return []Disk{{Name: "root", Size: gib}} }
	const shrinks = "error (guard) vm.a is not changed: a disk does not shrink"
	for name, c := range map[string]struct {
		want, have VM
		obstacle   *model.PreflightProblem
		finding    string
	}{
		"nothing else":    {want: VM{Disks: disk(5)}, have: VM{Disks: disk(9)}, finding: shrinks},
		"one":             {want: VM{Disks: disk(5), Memory: 4096}, have: VM{Disks: disk(9), Memory: 2048}, finding: shrinks + "; and with it: memory 2048 → 4096"},
		"a secret":        {want: VM{Disks: disk(5), Password: "new"}, have: VM{Disks: disk(9), Password: "old"}, finding: shrinks + "; and with it: password (sensitive) → (sensitive)"},
		"many":            {want: VM{Disks: disk(5), Memory: 2, Cores: 2, Image: "b", Description: "x", Tags: []string{"a"}}, have: VM{Disks: disk(9), Memory: 1, Cores: 1, Image: "b"}, finding: shrinks + `; and with it: cores 1 → 2, memory 1 → 2, tags +a, description "" → x`},
		"too many":        {want: VM{Disks: disk(5), Memory: 2, Cores: 2, Password: "x", Description: "x", Tags: []string{"a"}}, have: VM{Disks: disk(9), Memory: 1, Cores: 1}, finding: shrinks + "; and with it: cores 1 → 2, memory 1 → 2, tags +a, 2 more"},
		"recreated":       {want: VM{Disks: disk(5), Machine: "q35", Memory: 2}, have: VM{Disks: disk(9), Machine: "pc", Memory: 1}, finding: "error (guard) vm.a is not replaced: a disk does not shrink"},
		"for an obstacle": {want: VM{Description: "x", Cores: 2}, have: VM{Cores: 1}, obstacle: &model.PreflightProblem{Path: "description", Severity: diag.Error, Summary: "no room for it"}, finding: "error (guard) vm.a is not changed: no room for it; and with it: cores 1 → 2"},
		"a warning":       {want: VM{Description: "x", Cores: 2}, have: VM{Cores: 1}, obstacle: &model.PreflightProblem{Path: "description", Severity: diag.Warning, Summary: "no room for it"}, finding: "warning (guard) vm.a: no room for it"},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(state(guest("vm.a", 0, &c.want)), state(guest("vm.a", 100, &c.have)))
			if c.obstacle != nil {
				c.obstacle.Address = addr("vm.a")
				in.Have.Preflight = []model.PreflightProblem{*c.obstacle}
			}
			require.Equal(t, []string{c.finding}, findings(Make(in)))
		})
	}
}

// fleet makes n guests that need an image and a pool, in one of changed different
// from what is wanted.
func fleet(n, changed int) (want, have model.State) {
	want, have = model.State{}, model.State{}
	spec := func(memory int) *VM {
		return &VM{
			Preset: "vm-small", Image: "debian-12", Machine: "q35", Cores: 2, Memory: memory, Tags: []string{"homestak", "web"},
			Description: "One of many guests of this site.", Password: "hunter2", Options: map[string]string{"cpu": "host", "bios": "ovmf"},
			Disks: []Disk{{Name: "root", Size: 10}, {Name: "data", Size: 32}}, MAC: "BC:24:11:00:00:01",
		}
	}
	for _, s := range []model.State{want, have} {
		for _, r := range []*model.Resource{object("image.debian-12", &Image{Checksum: "sha256:00"}), object("pool.lab", &Pool{Comment: "ours"})} {
			s[r.Addr] = r
		}
	}
	for i := range n {
		name := fmt.Sprintf("vm.web-%d", i)
		w := guest(name, 0, spec(2048), "image.debian-12", "pool.lab")
		h := guest(name, 1000+i, spec(2048), "image.debian-12", "pool.lab")
		if changed > 0 && i%changed == 0 {
			h.Spec.(*VM).Memory = 1024
		}
		want[w.Addr], have[h.Addr] = w, h
	}
	return want, have
}

func BenchmarkMake(b *testing.B) {
	for _, n := range []int{500, 1000, 10_000} {
		for name, mk := range map[string]func() (model.State, model.State){
			"same":   func() (model.State, model.State) { return fleet(n, 0) },
			"update": func() (model.State, model.State) { return fleet(n, 1) },
			"create": func() (model.State, model.State) { want, _ := fleet(n, 0); return want, nil },
			"delete": func() (model.State, model.State) { _, have := fleet(n, 0); return nil, have },
		} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				in := input(mk())
				b.ReportAllocs()
				for b.Loop() {
					Make(in)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/resource")
			})
		}
	}
}

// An agent plans each minute what is nearly always the same. It may not list the
// attributes of a guest for that more than once, nor into a list of its own.
func TestAGuestThatIsTheSameCostsLittle(t *testing.T) {
	const guests = 200
	want, have := fleet(guests, 0)
	for _, r := range have { // as a driver hands them out, with what it alone knows
		if v, ok := r.Spec.(*VM); ok {
			v.seen = map[string]string{"digest": "x"}
			slices.Reverse(v.Disks)
		}
	}
	in := input(want, have)
	each := testing.AllocsPerRun(5, func() { Make(in) }) / guests
	require.LessOrEqual(t, each, 45.0, "allocations for each guest")
}
