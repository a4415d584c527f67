package plan_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// A target that does not exist is a mistake of who typed it, not something that a guard refuses.
func TestN16UnknownTarget(t *testing.T) {
	want, have := model.State{addr("vm.web-1"): {}}, model.State{addr("image.old"): {}}
	require.NoError(t, plan.UnknownTarget(addrs("vm.web-1", "image.old"), want, have))
	require.EqualError(t, plan.UnknownTarget(addrs("vm.web-1", "vm.web-2"), want, have), `target vm.web-2 is neither declared nor on the host: did you mean "vm.web-1"?`)
	require.EqualError(t, plan.UnknownTarget(addrs("pool.x"), want, have), `target pool.x is neither declared nor on the host: known: image.old, vm.web-1`)
}

func TestDiff(t *testing.T) {
	two := 2
	for name, c := range map[string]struct {
		want, have VM
		stopped    bool
		sensitive  []string
		changes    []string
		action     plan.Action
		class      model.Class
		reason     string
	}{
		"nothing": {want: VM{Cores: 1, Tags: []string{}}, have: VM{Cores: 1}},
		"what the host invented is no difference": {have: VM{MAC: "BC:24:11:00:00:01"}},
		"what is never compared":                  {want: VM{Preset: "a"}, have: VM{Preset: "b"}},
		"hot": {
			want: VM{Memory: 4096}, have: VM{Memory: 2048},
			changes: []string{"memory 2048 → 4096 (hot)"}, action: plan.Update, class: model.ClassHot, reason: "memory differs from the site",
		},
		"the worst class counts": {
			want: VM{Memory: 2, Cores: 2, Description: "x"}, have: VM{Memory: 1, Cores: 1},
			changes: []string{"cores 1 → 2 (pending)", "memory 1 → 2 (hot)", `description "" → x (none)`},
			action:  plan.Update, class: model.ClassPending, reason: "cores, memory and description differ from the site",
		},
		"a kind refines the class": {
			want: VM{Cores: 2}, have: VM{Cores: 1}, stopped: true,
			changes: []string{"cores 1 → 2 (none)"}, action: plan.Update, class: model.ClassNone, reason: "cores differs from the site",
		},
		"only wanted": {
			want: VM{Balloon: &two, Disks: []Disk{{Name: "a", Size: 1}, {Name: "data", Size: 5}}, Options: map[string]string{"b": "1"}}, have: VM{Disks: []Disk{{Name: "a", Size: 1}}},
			changes: []string{"balloon none → 2 (hot)", "options.b none → 1 (none)", "disk.data.size none → 5 (hot)"},
			action:  plan.Update, class: model.ClassHot, reason: "balloon, options.b and disk.data.size differ from the site",
		},
		"only there": {
			want: VM{Disks: []Disk{{Name: "b", Size: 1}}}, have: VM{Balloon: &two, Disks: []Disk{{Name: "b", Size: 1}, {Name: "a", Size: 5}}, Options: map[string]string{"b": "1", "c": "2"}},
			changes: []string{"balloon 2 → none (hot)", "options.b 1 → none (none)", "options.c 2 → none (none)", "disk.a.size 5 → none (hot)"},
			action:  plan.Update, class: model.ClassHot, reason: "4 attributes differ from the site",
		},
		"lists": {
			want: VM{Tags: []string{"a", "c"}}, have: VM{Tags: []string{"b", "a"}},
			changes: []string{"tags +c -b (none)"}, action: plan.Update, class: model.ClassNone, reason: "tags differs from the site",
		},
		"another order is another list": {
			want: VM{Tags: []string{"a", "b"}}, have: VM{Tags: []string{"b", "a"}},
			changes: []string{"tags [b a] → [a b] (none)"}, action: plan.Update, class: model.ClassNone, reason: "tags differs from the site",
		},
		"secrets": { // a mark on the whole map covers its entries, one on an element the list
			sensitive: []string{"description", "options", "tags.1"},
			want:      VM{Password: "new", Description: "made of a secret", Options: map[string]string{"k": "secret"}, Tags: []string{"a", "b"}}, have: VM{Password: "old", Description: "x"},
			changes: []string{"tags (sensitive) → (sensitive) (none)", "description (sensitive) → (sensitive) (none)", "password (sensitive) → (sensitive) (pending)", "options.k none → (sensitive) (none)"},
			action:  plan.Update, class: model.ClassPending, reason: "4 attributes differ from the site",
		},
		"replaced": {
			want: VM{Machine: "q35", Cores: 2}, have: VM{Machine: "pc", Cores: 1},
			changes: []string{"machine pc → q35 (replace)", "cores 1 → 2 (pending)"},
			action:  plan.Replace, class: model.ClassReplace, reason: "machine differs from the site and cannot be changed in place",
		},
		"replaced with its data": {
			want: VM{Machine: "q35", Image: "new"}, have: VM{Machine: "pc", Image: "old"},
			changes: []string{"image old → new (data-loss)", "machine pc → q35 (replace)"},
			action:  plan.Replace, class: model.ClassDataLoss, reason: "image and machine differ from the site and cannot be changed in place",
		},
	} {
		t.Run(name, func(t *testing.T) {
			want, have := guest("vm.a", 0, &c.want), guest("vm.a", 100, &c.have)
			want.Sensitive = c.sensitive
			want.At = at(7)
			have.Guest.Running = !c.stopped
			before := model.Clone(have.Spec)
			p := plan.Make(input(state(want), state(have)))
			require.Equal(t, before, have.Spec, "the observed state is only read")
			require.Zero(t, want.Guest.VMID, "the wanted state is only read")
			require.Empty(t, p.Findings)
			if c.changes == nil {
				require.True(t, p.InSync())
				require.Equal(t, plan.Summary{Unchanged: 1}, p.Summary)
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
	p := plan.Make(input(state(want), nil))
	s := p.Steps[0]
	require.Equal(t, plan.Create, s.Action)
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

func TestWhatLeavesTheSite(t *testing.T) {
	have := state(
		guest("vm.a", 100, &VM{}), object("image.old", &Image{}), object("image.kept", &Image{}),
		guest("vm.suspended", 101, &VM{}), guest("vm.moved", 102, &VM{}),
	)
	have[addr("vm.suspended")].Manifest, have[addr("vm.moved")].Manifest = "off", "off"
	in := input(state(guest("vm.moved", 0, &VM{Cores: 1})), have)
	in.Want.Suspended["off"] = true
	in.Want.Declared[addr("image.kept")] = true
	p := plan.Make(in)
	require.Equal(t, []string{"delete image.old", "delete vm.a", "update vm.moved"}, steps(p), "declared and suspended things stay")
	require.Equal(t, model.ClassNone, p.Steps[0].Class)
	require.Equal(t, []any{model.ClassDataLoss, "left the site", 100, "web"}, []any{p.Steps[1].Class, p.Steps[1].Reason, p.Steps[1].VMID, p.Steps[1].Manifest})
	require.NotNil(t, p.Steps[1].Changes)
	in.Want.Elsewhere = map[model.Address]string{addr("vm.a"): "declared on host mother now"}
	require.Equal(t, "declared on host mother now", plan.Make(in).Steps[1].Reason)
	require.Equal(t, plan.Summary{Delete: 2, Update: 1}, p.Summary)
}

func TestPendingIsNoStep(t *testing.T) {
	want, have := guest("vm.a", 0, &VM{Cores: 4, Memory: 2, Password: "new"}), guest("vm.a", 100, &VM{Cores: 2, Memory: 1, Password: "old"})
	in := input(state(want), state(have))
	waits := []model.Pending{
		{Address: addr("vm.a"), Path: "password", Before: "old", After: "new", Why: "set"},
		{Address: addr("vm.a"), Path: "memory", Before: 1, After: 3, Why: "set"},
		{Address: addr("vm.a"), Path: "cores", Before: 2, After: 4, Why: "set"}, // an int of another size than the attribute's
	}
	hold(&in, waits)
	p := plan.Make(in)
	require.Equal(t, []string{"memory 1 → 2 (hot)"}, changes(p.Steps[0]), "only what is not on its way already")
	require.Equal(t, []model.Pending{
		{Address: addr("vm.a"), Path: "cores", Before: 2, After: 4, Why: "set"},
		{Address: addr("vm.a"), Path: "memory", Before: 1, After: 3, Why: "set"},
		{Address: addr("vm.a"), Path: "password", Before: "(sensitive)", After: "(sensitive)", Why: "set"},
	}, p.Pending)
	require.Equal(t, "old", waits[0].Before, "the input is only read")
}

func TestWhatGoesWaitsForNoRestart(t *testing.T) {
	stays := guest("vm.b", 101, &VM{Cores: 2})
	in := input(state(stays), state(guest("vm.a", 100, &VM{Cores: 2}), stays))
	hold(&in, []model.Pending{
		{Address: addr("vm.a"), Path: "cores", Before: 2, After: 4, Why: "set"},
		{Address: addr("vm.b"), Path: "cores", Before: 2, After: 4, Why: "set"},
	})
	p := plan.Make(in)
	require.Equal(t, []string{"vm.b"}, []string{p.Pending[0].Address.String()})
	require.Len(t, p.Pending, 1)
	require.Equal(t, plan.Delete, p.Steps[0].Action)
}

// TestWhatGoesAlongIsInTheReason of every step that destroys, and of no other.
func TestWhatGoesAlongIsInTheReason(t *testing.T) {
	const with = "after a final backup to local"
	gone, anew, changed := guest("vm.a", 100, &VM{}), guest("vm.b", 101, &VM{Machine: "old"}), guest("vm.c", 102, &VM{Memory: 1})
	for _, r := range []*model.Resource{gone, anew, changed} {
		r.Guest.RemovalNote = with
	}
	p := plan.Make(input(state(guest("vm.b", 0, &VM{Machine: "new"}), guest("vm.c", 0, &VM{Memory: 2})), state(gone, anew, changed)))
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
	p := plan.Make(in)
	require.Equal(t, []string{"create vm.b"}, steps(p))
	require.Equal(t, []string{"warning (guard) drift: vm.a: cores 2 → 4, password (sensitive) → (sensitive) is left as it is (drift = report)"}, findings(p))
	require.Equal(t, at(3), p.Findings[0].At)
	require.Equal(t, "vm.a", p.Findings[0].Address)
	require.Equal(t, plan.Summary{Create: 1}, p.Summary, "it is not unchanged either")
	delete(in.Want.State, addr("vm.b"))
	require.False(t, plan.Make(in).InSync(), "what is left as it is is not in sync")
}

func TestMissingSecrets(t *testing.T) {
	poor := func(name string, spec *VM, needs ...string) *model.Resource {
		r := guest(name, 0, spec, needs...)
		r.Missing = []string{"secret.passwords.root", "secret.ssh_keys.ops"}
		return r
	}
	p := plan.Make(input(
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
}

// two manifests on one host, with objects of their own and shared ones.
func tenants() plan.Input {
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
		limit    func(*plan.Input)
		steps    []string
		findings []string
	}{
		"whole host": {
			limit: func(*plan.Input) {},
			steps: []string{
				"delete image.old", "replace image.shared", "create pool.db", "update pool.web", "delete vm.db-9", "delete vm.web-9",
				"create vm.db-1 after image.shared, pool.db", "update vm.web-1 after image.shared, pool.web", "create vm.web-2 after vm.web-1",
			},
		},
		"manifest": {
			limit: func(in *plan.Input) { in.Manifest = "web" },
			steps: []string{"update pool.web", "delete vm.web-9", "update vm.web-1 after pool.web", "create vm.web-2 after vm.web-1"},
			findings: []string{
				"warning (guard) image.shared is not replaced: a plan for manifest web replaces nothing outside of it",
			},
		},
		"target with what it needs": {
			limit: func(in *plan.Input) { in.Targets = addrs("vm.db-1") },
			steps: []string{"replace image.shared", "create pool.db", "create vm.db-1 after image.shared, pool.db"},
		},
		"target that goes": {
			limit: func(in *plan.Input) { in.Targets = addrs("vm.web-9", "pool.web") },
			steps: []string{"update pool.web", "delete vm.web-9"},
		},
		"target misspelt": {
			limit: func(in *plan.Input) { in.Targets = addrs("vm.web-8", "image.old") },
			steps: []string{"delete image.old"}, // see UnknownTarget
		},
		"target of another manifest": {
			limit: func(in *plan.Input) { in.Manifest, in.Targets = "db", addrs("vm.web-1") },
			steps: []string{},
			findings: []string{
				"warning (guard) image.shared is not replaced: a plan for manifest db replaces nothing outside of it",
			},
		},
		"manifest misspelt": {
			limit:    func(in *plan.Input) { in.Manifest = "wbe" },
			steps:    []string{},
			findings: []string{`warning (guard) manifest "wbe" has nothing on host father`},
		},
		"manifest suspended": {
			limit: func(in *plan.Input) { in.Manifest, in.Want.Suspended = "mail", map[string]bool{"mail": true} },
			steps: []string{},
		},
		"destroy what was destroyed before": {
			limit: func(in *plan.Input) { in.Manifest, in.Destroy = "mail", true },
			steps: []string{},
		},
		"destroy": {
			limit: func(in *plan.Input) { in.Destroy, in.Manifest = true, "web" },
			steps: []string{"delete vm.web-9", "delete vm.web-1 after vm.web-9"},
		},
		"destroy what is suspended": {
			limit: func(in *plan.Input) {
				in.Destroy, in.Manifest, in.Want.Suspended = true, "db", map[string]bool{"db": true}
			},
			steps: []string{"delete vm.db-9"},
		},
		"destroy one of them": {
			limit: func(in *plan.Input) { in.Destroy, in.Manifest, in.Targets = true, "web", addrs("vm.web-9") },
			steps: []string{"delete vm.web-9"},
		},
		"destroy one that is needed": {
			limit:    func(in *plan.Input) { in.Destroy, in.Manifest, in.Targets = true, "web", addrs("vm.web-1") },
			steps:    []string{},
			findings: []string{"error (guard) vm.web-1 is not deleted: vm.web-9 still needs it"},
		},
		"destroy nothing in particular": {
			limit:    func(in *plan.Input) { in.Destroy = true },
			steps:    []string{},
			findings: []string{"error (guard) destroy needs the name of a manifest"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := tenants()
			c.limit(&in)
			p := plan.Make(in)
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

func TestManifestOfTheSiteOutweighsTheMark(t *testing.T) {
	want, have := guest("vm.a", 0, &VM{Cores: 2}), guest("vm.a", 100, &VM{})
	want.Manifest, have.Manifest = "new", "old"
	for manifest, expect := range map[string][]string{"new": {"delete vm.a"}, "old": {}} {
		in := input(state(want), state(have))
		in.Manifest, in.Destroy = manifest, true
		require.Equal(t, expect, steps(plan.Make(in)), "a renamed manifest takes its guests along")
	}
}

// What is needed does not go with who needs it.
func TestDestroyingATarget(t *testing.T) {
	in := input(state(guest("vm.a", 0, &VM{}), guest("vm.b", 0, &VM{}, "vm.a")), state(guest("vm.a", 100, &VM{}), guest("vm.b", 101, &VM{}, "vm.a")))
	in.Manifest, in.Destroy, in.Targets = "web", true, addrs("vm.b")
	require.Equal(t, []string{"delete vm.b"}, steps(plan.Make(in)))
}

// A need for what the site does not declare is no reason to touch it.
func TestNeedOfWhatIsNotWanted(t *testing.T) {
	in := input(state(guest("vm.a", 0, &VM{}, "pool.old")), state(object("pool.old", &Pool{})))
	in.Manifest = "web"
	require.Equal(t, []string{"create vm.a"}, steps(plan.Make(in)))
}

// A host that the site does not know wants nothing, which must not remove it all.
func TestHostThatTheSiteDoesNotKnow(t *testing.T) {
	have := state(guest("vm.a", 100, &VM{}))
	lost, nothing := input(nil, have), input(nil, have)
	lost.Want, _ = (&model.Site{Manifests: map[string]*model.Manifest{}}).Want("father")
	nothing.Want = nil
	for _, in := range []plan.Input{lost, nothing} {
		p := plan.Make(in)
		require.Empty(t, p.Steps)
		require.Equal(t, []string{`error (site) host "father" is not declared in the site, so nothing is planned`}, findings(p))
	}
}

func TestDocumentHeader(t *testing.T) {
	in := input(nil, nil)
	in.Have.Findings = diag.List{{Severity: diag.Warning, Summary: "slow"}}
	in.Want.Deferred = []model.Deferred{{Address: "vm.x", Why: "y"}}
	in.Have.Unmanaged = []model.Unmanaged{{VMID: 9}, {VMID: 8}}
	p := plan.Make(in)
	require.Equal(t, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), p.ObservedAt)
	require.Equal(t, []any{"1.0", "home", "3f2c1a9d00c0ffee", "father"}, []any{p.FormatVersion, p.Site, p.Commit, p.Host})
	require.Equal(t, []model.Unmanaged{{VMID: 8}, {VMID: 9}}, p.Unmanaged)
	require.Equal(t, 9, in.Have.Unmanaged[0].VMID, "the input is only read")
	require.Equal(t, plan.Summary{Unmanaged: 2}, p.Summary)
	require.Len(t, p.Findings, 1)
	require.Len(t, p.Deferred, 1)
}
