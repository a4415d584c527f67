package plan_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// picture is the example of the design: one of each line.
func picture() plan.Input {
	small := VM{Preset: "vm-small", Image: "debian-12", Cores: 4, Memory: 2048}
	with := func(change func(*VM)) *VM {
		s := small
		change(&s)
		return &s
	}
	prose := strings.Repeat("What this guest is for, told at length. ", 3)
	want := state(
		guest("vm.web-1", 0, with(func(s *VM) { s.Description, s.Tags = prose, []string{"homestak", "web", "frontend", "public"} })),
		guest("vm.db-1", 0, with(func(s *VM) { s.Cores = 8 })),
		guest("vm.web-3", 0, &small),
	)
	have := state(
		guest("vm.web-1", 10001, with(func(s *VM) { s.Description, s.Tags = "by hand", []string{"homestak", "scratchpad", "experimental"} })),
		guest("vm.db-1", 10002, &small),
		guest("ct.cache", 10010, &small),
	)
	in := input(want, have)
	in.Have.Unmanaged = []model.Unmanaged{{VMID: 999, Name: "scratch", Kind: "vm", Why: "no ownership tag"}}
	return in
}

func TestPictureOfTheDesign(t *testing.T) {
	golden(t, "picture.txt", text(plan.Make(picture()), plan.TextOptions{}))
}

// The last line tells how the plan was judged, in text and in Markdown.
func TestRulesAreCounted(t *testing.T) {
	p := plan.Make(picture())
	for _, c := range []struct {
		rules plan.Rules
		want  string
	}{
		{plan.Rules{OK: 14}, "14 ok"},
		{plan.Rules{OK: 12, Warning: 1, Denied: 1}, "12 ok, 1 warning, 1 denied"},
		{plan.Rules{OK: 9}.Plus(plan.Rules{Warning: 2, Denied: 3}), "9 ok, 2 warnings, 3 denied"},
		{plan.Rules{}, "0 ok"},
	} {
		p.Rules = &c.rules
		lines := strings.Split(strings.TrimSpace(text(p, plan.TextOptions{})), "\n")
		require.Equal(t, "plan: 1 add, 2 change, 1 destroy, 1 unmanaged · policy: "+c.want, lines[len(lines)-1])
		var b strings.Builder
		p.Markdown(&b)
		require.Contains(t, b.String(), "**plan: 1 add, 2 change, 1 destroy, 1 unmanaged · policy: "+c.want+"**")
		require.Empty(t, p.Moved(plan.Make(picture())), "how it was judged is no part of what it says")
	}
}

func TestPictureInColour(t *testing.T) {
	p := plan.Make(picture())
	colour := text(p, plan.TextOptions{Color: true})
	golden(t, "colour.txt", strings.ReplaceAll(colour, "\x1b", "ESC"))
	for _, code := range []string{"0", "1", "2", "31", "32", "33"} {
		colour = strings.ReplaceAll(colour, "\x1b["+code+"m", "")
	}
	require.Equal(t, text(p, plan.TextOptions{}), colour, "colour adds nothing but colour")
}

// busy has every kind of line that the picture of the design lacks.
func busy() plan.Input {
	wide := VM{Preset: "vm-large", Image: "debian-13", Machine: "q35", Cores: 8, Memory: 8192, Password: "new", Tags: []string{"a"}, Disks: []Disk{{Name: "root", Size: 20}, {Name: "data", Size: 64}}}
	narrow := VM{Preset: "vm-small", Image: "debian-12", Machine: "i440fx", Cores: 4, Memory: 4096, Password: "old", Description: "one\ntwo\nthree", Disks: []Disk{{Name: "root", Size: 10}}}
	hot := narrow
	hot.Memory, hot.Balloon, hot.Password, hot.Description = 6144, new(int), "new", ""
	want := state(
		object("image.debian-13", &Image{Checksum: "sha256:13"}), object("pool.lab", &Pool{Comment: "all of the lab, and more than that"}),
		guest("vm.replaced-guest", 0, &wide, "image.debian-13"), guest("vm.hot", 0, &hot), guest("ct.lost", 0, &wide),
		guest("vm.new", 0, &wide, "image.debian-13", "pool.lab"),
	)
	have := state(
		object("image.debian-12", &Image{Checksum: "sha256:12"}), object("pool.lab", &Pool{Comment: "the lab"}),
		guest("vm.replaced-guest", 101, &narrow, "image.debian-12"), guest("vm.hot", 20002, &narrow, "image.debian-12"),
	)
	in := input(want, have)
	in.Want.Deferred = []model.Deferred{
		{Address: "vm.app", Why: "lives on inner: children of a pve node are not made yet"},
		{Address: "spec", Why: "of 3 nodes: checked, not applied inside the guests yet"},
	}
	hold(&in, []model.Pending{{Address: addr("vm.hot"), Path: "cores", Before: int64(2), After: int64(4), Why: "set; takes effect at the next full restart"}})
	in.Have.Unknown = []model.Unknown{{Scope: "node pve2", Why: "offline for 5 minutes"}, {Scope: "vm 105", Why: "no answer (596)", VMID: 105, Name: "lost"}}
	for i := range 512 {
		in.Have.Unmanaged = append(in.Have.Unmanaged, model.Unmanaged{VMID: 5000 + i, Name: fmt.Sprint("other-", i), Kind: "vm", Why: "no ownership tag"})
	}
	return in
}

func TestBusyPicture(t *testing.T) {
	p := plan.Make(busy())
	for _, width := range []int{0, 72, 160} {
		got := text(p, plan.TextOptions{Width: width})
		require.NotContains(t, got, "new\n", "a secret")
		golden(t, fmt.Sprintf("busy-%d.txt", width), got)
	}
}

func TestMarkdown(t *testing.T) {
	in := busy()
	in.Have.State[addr("vm.hot")].Spec.(*VM).Tags = []string{"@all", "#1", "<b>|", "[x](http://example.org)", "`*_~"}
	in.Want.State[addr("vm.new")].Missing = []string{"secret.passwords.root"}
	in.Want.State[addr("vm.new")].At = at(12)
	var b strings.Builder
	plan.Make(in).Markdown(&b)
	golden(t, "busy.md", b.String())
}

func TestInSyncIsOneLine(t *testing.T) {
	want, have := fleet(100, 0)
	p := plan.Make(input(want, have))
	require.True(t, p.InSync())
	require.Equal(t, "in sync: site home @ 3f2c1a9 on host father, 102 unchanged\n", text(p, plan.TextOptions{}))
	var b strings.Builder
	p.Markdown(&b)
	require.Equal(t, "### site home &#64; 3f2c1a9   host father   plan "+p.ID[:8]+"\n\n**in sync: site home &#64; 3f2c1a9 on host father, 102 unchanged**\n", b.String())
}

// A plan without steps is not in sync if a change is withheld, postponed or pending. Its last line names each with the reason.
func TestN6NothingToDoNow(t *testing.T) {
	hidden := []model.Unknown{{Scope: "node pve2", Why: "offline"}}
	for name, c := range map[string]struct {
		change func(*plan.Input)
		last   string
	}{
		"nothing waits": {func(*plan.Input) {}, "in sync: site home @ 3f2c1a9 on host father, 2 unchanged"},
		"what this kind of pass does not do": {func(in *plan.Input) {
			in.Want.Deferred = []model.Deferred{{Address: "spec", Why: "of 3 nodes: not applied"}}
		}, "in sync: site home @ 3f2c1a9 on host father, 2 unchanged"},
		"a child": {func(in *plan.Input) {
			r := child("vm.hv", 103, "refuse", &VM{})
			in.Have.State[r.Addr] = r
		}, "nothing to do now: vm.hv is not deleted until nothing is left in it: no report of its agent is known · 2 unchanged"},
		"restarts": {func(in *plan.Input) {
			hold(in, []model.Pending{{Address: addr("vm.a"), Path: "cores"}, {Address: addr("vm.a"), Path: "memory"}, {Address: addr("vm.b"), Path: "cores"}})
		}, "nothing to do now: vm.a has a pending restart; vm.b has a pending restart · 2 unchanged"},
		"a creation and what needs it": {func(in *plan.Input) {
			in.Want.State[addr("vm.c")], in.Want.State[addr("vm.d")] = guest("vm.c", 0, &VM{}), guest("vm.d", 0, &VM{}, "vm.c")
			in.Have.Preflight = []model.PreflightProblem{{Address: addr("vm.c"), Severity: diag.Warning, Withhold: true, Summary: "no server runs"}}
			in.Have.Unmanaged = []model.Unmanaged{{VMID: 5000, Name: "other", Kind: "vm"}}
		}, "nothing to do now: vm.c is not created: no server runs; vm.d is not created: it needs vm.c, which is not created · 2 unchanged, 1 unmanaged"},
		"more than a line holds": {func(in *plan.Input) {
			in.Have.Unknown = hidden
			for _, name := range []string{"vm.c", "vm.d", "vm.e", "vm.f"} {
				in.Want.State[addr(name)] = guest(name, 0, &VM{})
				in.Want.State[addr(name)].Missing = []string{"secret.x"}
			}
		}, "nothing to do now: vm.c is not created: the value of secret.x is not known here; vm.d is not created: the value of secret.x is not known here; " +
			"vm.e is not created: the value of secret.x is not known here; 2 more · 2 unchanged"},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(state(guest("vm.a", 0, &VM{}), guest("vm.b", 0, &VM{})), state(guest("vm.a", 100, &VM{}), guest("vm.b", 101, &VM{})))
			c.change(&in)
			p := plan.Make(in)
			require.Empty(t, steps(p))
			lines := strings.Split(strings.TrimSpace(text(p, plan.TextOptions{})), "\n")
			require.Equal(t, c.last, lines[len(lines)-1])
		})
	}
}

func TestAHundredUnchangedFitAScreen(t *testing.T) {
	want, have := fleet(101, 101)
	got := text(plan.Make(input(want, have)), plan.TextOptions{})
	require.Equal(t, 4, strings.Count(got, "\n"), got)
	require.True(t, strings.HasSuffix(got, "\nplan: 0 add, 1 change, 0 destroy\n"), got)
}

func TestTextDrivesNoTerminal(t *testing.T) {
	evil := "x\x1b[2J\r\n\u202e\xff\x00"
	want := state(guest("vm.a", 0, &VM{Description: evil, Tags: []string{evil}, Options: map[string]string{evil: evil}}), guest("vm.b", 0, &VM{Preset: evil}))
	in := input(want, state(guest("vm.a", 100, &VM{Description: "y"})))
	in.Site, in.Commit, in.Host = evil, evil, evil
	in.Have.Unmanaged = []model.Unmanaged{{VMID: 1, Name: evil, Kind: evil}}
	hold(&in, []model.Pending{{Address: addr("vm.a"), Path: evil, Before: evil, After: evil, Why: evil}})
	in.Have.Unknown = []model.Unknown{{Scope: evil, Why: evil}}
	in.Want.Deferred = []model.Deferred{{Address: evil, Why: evil}}
	p := plan.Make(in)
	var md strings.Builder
	p.Markdown(&md)
	for _, got := range []string{text(p, plan.TextOptions{}), md.String()} {
		require.NotContains(t, strings.ReplaceAll(got, "\n", ""), "\x1b")
		for _, bad := range []string{"\r", "\u202e", "\xff", "\x00"} {
			require.NotContains(t, got, bad)
		}
	}
	require.Equal(t, 10, strings.Count(text(p, plan.TextOptions{}), "\n"), "no text makes a line of its own, but the note of what is pending")
}

// TestBlocksThatComeAndGo are told as one thing each, with what the files say of them;
// of a block that stays the attributes are told.
func TestBlocksThatComeAndGo(t *testing.T) {
	step := plan.Step{Address: addr("vm.db"), VMID: 100, Action: plan.Update, Class: model.ClassHot, Changes: []plan.Change{
		{Path: "cores", Before: 1, After: 2},
		{Path: "disk.data.size", After: 5},
		{Path: "disk.data.storage", After: "tank"},
		{Path: "disk.data.remove", After: false},
		{Path: "disk.old.size", Before: 7},
		{Path: "disk.old.bus", Before: ""},
		{Path: "disk.root.size", Before: 8, After: 9},
		{Path: "disk.root.options.ro", After: "1"},
		{Path: "nic.lan.mac", Before: "", After: "x", Sensitive: true},
		{Path: "nic.new.bridge", After: "b", Sensitive: true},
	}}
	for width, want := range map[int]string{
		400: `cores 1 → 2, +disk.data (size 5, storage tank), -disk.old (size 7), disk.root.size 8 → 9, disk.root.options.ro none → 1, nic.lan.mac (sensitive) → (sensitive), +nic.new (bridge (sensitive))`,
		140: `cores 1 → 2, +disk.data, -disk.old, disk.root.size 8 → 9, disk.root.options.ro none → 1, nic.lan.mac, +nic.new`,
		100: `cores, +disk.data, -disk.old, disk.root.size and 3 more`,
	} {
		require.Contains(t, text(&plan.Plan{Steps: []plan.Step{step}}, plan.TextOptions{Width: width}), want+"    hot")
	}
}

// TestNothingIsLostToTheWidth: what a step brings with it stands below its line
// whatever the width, and All has each change with its values and its own class.
func TestNothingIsLostToTheWidth(t *testing.T) {
	long := strings.Repeat("x", 60)
	p := &plan.Plan{Steps: []plan.Step{
		{Address: addr("vm.a"), VMID: 100, Action: plan.Update, Class: model.ClassMigrate, Reason: "2 attributes differ; told at its boot", Changes: []plan.Change{
			{Path: "memory", Before: 1, After: 2, Class: model.ClassPending},
			{Path: "options.cpu", Before: "host", After: long, Class: model.ClassMigrate},
		}},
		{Address: addr("vm.b"), VMID: 101, Action: plan.Delete, Class: model.ClassDataLoss, Reason: "left the site; together with scsi5, which no file names"},
	}}
	var b strings.Builder
	require.True(t, p.Text(&b, plan.TextOptions{Width: 60}))
	require.Equal(t, []string{
		"    ~ vm a (100)    memory 1 → 2, options.cpu    migrate",
		"          told at its boot",
		"    - vm b (101)    left the site                data-loss",
		"          together with scsi5, which no file names",
	}, strings.Split(b.String(), "\n")[2:6])
	b.Reset()
	require.False(t, p.Text(&b, plan.TextOptions{Width: 60, All: true}))
	require.Contains(t, b.String(), "\n          memory 1 → 2    pending\n          options.cpu host → "+long+"    migrate\n          told at its boot\n")
	p.Pending = []model.Pending{{Address: addr("vm.a"), Path: "options.numa0", Before: long + "1", After: long + "2", Why: "set"}, {Address: addr("vm.a"), Path: "options.x", Before: "", After: long, Why: "set"}}
	b.Reset()
	p.Text(&b, plan.TextOptions{})
	require.Contains(t, b.String(), "pending restart: options.numa0 "+long+"1 → "+long+"2\n          set\n", "what is cut off is where they differ")
	require.NotContains(t, b.String(), `"" → `+long)
	p.Text(&b, plan.TextOptions{All: true})
	require.Contains(t, b.String(), `options.x "" → `+long+"\n          set\n")
	p.Steps = append(p.Steps, plan.Step{Address: addr("vm.c"), Action: plan.Create, Brief: "small", Changes: []plan.Change{
		{Path: "cores", After: 2}, {Path: "nic.lan.mac", After: ""}, {Path: "onboot", After: false}, {Path: "tags", After: []string{"a"}}, {Path: "key", After: "x", Sensitive: true},
	}})
	b.Reset()
	p.Text(&b, plan.TextOptions{All: true})
	require.Contains(t, b.String(), " create\n          cores 2\n          tags [a]\n          key (sensitive)\n", "of what is made, what is said")
	declared := *guest("vm.c", 0, &VM{})
	declared.Ranges = []model.AttrRange{{Path: "onboot"}, {Path: "nic.lan.vlan"}}
	p.Steps[len(p.Steps)-1].Want = &declared
	b.Reset()
	p.Text(&b, plan.TextOptions{All: true})
	require.Contains(t, b.String(), " create\n          cores 2\n          onboot false\n          tags [a]\n          key (sensitive)\n", "what is declared is shown, be it zero")
	p.Steps = append(p.Steps[:len(p.Steps)-1], plan.Step{Address: addr("vm.c"), Action: plan.Update, Want: &declared, Class: model.ClassHot, Changes: []plan.Change{
		{Path: "nic.lan.bridge", After: "vmbr0", Class: model.ClassHot},
		{Path: "nic.lan.ip", After: "", Class: model.ClassHot},
		{Path: "nic.lan.vlan", After: 0, Class: model.ClassHot},
		{Path: "nic.lan.mtu", After: 0, Class: model.ClassHot},
		{Path: "disk.old.size", Before: 5, Class: model.ClassHot},
		{Path: "disk.old.bus", Before: "", Class: model.ClassHot},
	}})
	b.Reset()
	p.Text(&b, plan.TextOptions{All: true})
	require.Contains(t, b.String(), "\n          nic.lan.bridge vmbr0    hot\n          nic.lan.vlan 0    hot\n          disk.old.size 5 → none    hot\n", "nothing of what is not set")
	require.NotContains(t, b.String(), "none →")
	p.Steps = p.Steps[:2]
	p.Steps[0].Changes = p.Steps[0].Changes[:1]
	require.False(t, p.Text(&b, plan.TextOptions{Width: 60}), "all of it fits")
}
