package plan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

func document(t *testing.T, p *Plan) []byte {
	t.Helper()
	b, err := json.MarshalIndent(p, "", "  ")
	require.NoError(t, err)
	return append(b, '\n')
}

func TestDocument(t *testing.T) {
	in := busy()
	in.Have.Unmanaged = in.Have.Unmanaged[:1]
	in.Want.State[addr("vm.hot")].At = at(12)
	golden(t, "busy.json", string(document(t, Make(in))))
}

func TestDocumentOfNothing(t *testing.T) {
	empty := `{"format_version":"","site":"","commit":"","host":"","observed_at":"0001-01-01T00:00:00Z","id":"",
		"steps":[],"unmanaged":[],"undeclared":[],"planned":[],"phases":{},"outputs":[],"places": [], "backups": [], "pending":[],"unknown":[],"deferred":[],"findings":[],
		"summary":{"create":0,"update":0,"replace":0,"delete":0,"adopt":0,"forget":0,"unchanged":0,"unmanaged":0}}`
	require.JSONEq(t, empty, string(document(t, &Plan{})))
	step, err := json.Marshal(Step{Address: addr("pool.p"), Action: Delete})
	require.NoError(t, err)
	require.JSONEq(t, `{"address":"pool.p","node":"","manifest":"","vmid":null,"action":"delete","class":"","reason":"","changes":[],"after":[],"at":{}}`, string(step))
}

func TestReadGivesTheSameDocument(t *testing.T) {
	for _, in := range []Input{busy(), picture(), input(nil, nil)} {
		p := Make(in)
		written := document(t, p)
		read, err := read(bytes.NewReader(written))
		require.NoError(t, err)
		require.Equal(t, string(written), string(document(t, read)))
		require.Empty(t, read.Moved(p), "a plan that was read is the plan that was written")
		require.Empty(t, p.Moved(read))
	}
}

func TestAReadPlanIsDrawnLikeAMadeOne(t *testing.T) {
	p := Make(picture())
	read, err := read(bytes.NewReader(document(t, p)))
	require.NoError(t, err)
	got := text(read, TextOptions{})
	require.Contains(t, got, "    + vm web-3            image, machine, cores, memory and 4 more    create\n", "it has no brief of a creation")
	require.Contains(t, got, "    ~ vm db-1  (10002)    cores 4 → 8                                 pending (restart = never)\n")
	require.Equal(t, strings.Count(text(p, TextOptions{}), "\n"), strings.Count(got, "\n"))
}

func TestReadRefuses(t *testing.T) {
	ok := `{"format_version":"1.7","host":"h","id":"i","new_field":1,"steps":[{"address":"vm.a","action":"create"},{"address":"vm.b","action":"delete","after":["vm.a"]}]}`
	p, err := read(strings.NewReader(ok))
	require.NoError(t, err, "a later minor version may say more")
	require.NotNil(t, p.Findings)
	for doc, complaint := range map[string]string{
		"":                                      "read plan: not a plan document: unexpected end of JSON input",
		"plan: 1 add":                           "read plan: not a plan document: invalid character",
		ok + ok:                                 "after top-level value",
		"[]":                                    "read plan: not a plan document: json: cannot unmarshal array",
		`{"valid":true,"findings":[]}`:          "read plan: not a plan document: it has no format_version",
		strings.Replace(ok, "1.7", "2.0", 1):    `its format_version is "2.0", this program reads 1.x: make a new plan`,
		strings.Replace(ok, `"id":"i",`, "", 1): "host or id is missing",
		strings.Replace(ok, "vm.a", "vm", 1):    `address "vm" is not of the form kind.name`,
		strings.Replace(ok, `"address":"vm.a",`, "", 1):                                    "step 1 has no address",
		strings.Replace(ok, `"address":"vm.b"`, `"address":"vm.a"`, 1):                     "step 2 is the second one of vm.a",
		strings.Replace(ok, `"create"`, `"format"`, 1):                                     `step vm.a has the unknown action "format"`,
		strings.Replace(ok, `["vm.a"]`, `["vm.c"]`, 1):                                     "step vm.b depends on vm.c, which is not an earlier step",
		strings.Replace(ok, `["vm.a"]`, `["vm.b"]`, 1):                                     "step vm.b depends on vm.b, which is not an earlier step",
		strings.Replace(ok, `["vm.a"]`, `[],"changes":[{"path":"x","after":{"a":1}}]`, 1):  `change of "x": a value is an object`,
		strings.Replace(ok, `["vm.a"]`, `[],"changes":[{"path":"x","before":[1,"a"]}]`, 1): `change of "x": a list has values other than strings`,
	} {
		_, err := read(strings.NewReader(doc))
		require.ErrorContains(t, err, complaint, "%s", doc)
		require.ErrorContains(t, err, "read plan: ", "%s", doc)
	}
}

func TestReadKeepsTypes(t *testing.T) {
	const doc = `{"format_version":"1.0","host":"h","id":"i","steps":[{"address":"vm.a","action":"update","changes":[
		{"path":"a","before":9007199254740993,"after":1.5},{"path":"b","before":null,"after":["x"]},{"path":"c","before":true,"after":"4"}]}]}`
	p, err := read(strings.NewReader(doc))
	require.NoError(t, err)
	require.Equal(t, []Change{
		{Path: "a", Before: int64(9007199254740993), After: 1.5}, {Path: "b", After: []string{"x"}}, {Path: "c", Before: true, After: "4"},
	}, p.Steps[0].Changes)
}

func FuzzRead(f *testing.F) {
	var b bytes.Buffer
	require.NoError(f, json.NewEncoder(&b).Encode(Make(picture())))
	f.Add(b.Bytes())
	f.Add([]byte(`{"format_version":"1.0","host":"h","id":"i","steps":[{"address":"vm.a","action":"create","changes":[{"path":"x","after":[]}]}]}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		p, err := read(bytes.NewReader(doc))
		if err != nil {
			require.Nil(t, p)
			return
		}
		require.NotContains(t, text(p, TextOptions{}), "\x1b")
		p.Markdown(&bytes.Buffer{})
		written, err := json.Marshal(p)
		require.NoError(t, err)
		again, err := read(bytes.NewReader(written))
		require.NoError(t, err)
		require.Empty(t, p.Moved(again))
	})
}

// The value of a secret is nowhere: not in the documents, not in findings.
func TestSecretsAreNowhere(t *testing.T) {
	const secret = "s3cr3t"
	made := func(name, salt string) *model.Resource {
		return guest(name, 0, &VM{Password: secret + salt, Description: "key " + secret + salt, Options: map[string]string{"args": secret + salt}, Tags: []string{secret + salt}})
	}
	want, have := model.State{}, model.State{}
	for i, name := range []string{"vm.new", "vm.changed", "vm.drifted", "vm.poor"} {
		r := made(name, "")
		r.Sensitive = []string{"description", "options", "tags"}
		want[r.Addr] = r
		if i > 0 {
			h := made(name, "old")
			h.Guest.VMID = 100 + i
			have[h.Addr] = h
		}
	}
	want[addr("vm.poor")].Missing = []string{"secret.passwords.root"}
	in := input(want, have)
	in.Want.Nodes[addr("vm.drifted")] = &model.Node{Drift: "report"}
	hold(&in, []model.Pending{
		{Address: addr("vm.changed"), Path: "password", Before: secret, After: secret + "x"}, {Address: addr("vm.changed"), Path: "options.args", Before: secret},
	})
	p := Make(in)
	require.Equal(t, []string{"update vm.changed", "create vm.new"}, steps(p))
	var md strings.Builder
	p.Markdown(&md)
	for _, out := range []string{string(document(t, p)), text(p, TextOptions{Width: 500}), md.String(), strings.Join(p.Moved(Make(input(nil, nil))), "\n")} {
		require.NotContains(t, out, secret)
		require.NotEmpty(t, out)
	}
	require.Equal(t, secret, p.Steps[1].Want.Spec.(*VM).Password, "but the driver gets them")
}

func TestMoved(t *testing.T) {
	shown := Make(picture())
	for name, c := range map[string]struct {
		change func(*Input)
		moved  []string
	}{
		"nothing":          {change: func(*Input) {}},
		"time":             {change: func(in *Input) { in.Have.At = in.Have.At.Add(time.Hour) }},
		"the site's names": {change: func(in *Input) { in.Site, in.Host, in.Commit = "work", "mother", "" }, moved: []string{"the site is work now, was home", "the host is mother now, was father", "the commit is none now, was 3f2c1a9d00c0ffee"}},
		"the host": {
			change: func(in *Input) { in.Have.State[addr("vm.db-1")].Spec.(*VM).Cores = 6 }, // shared with vm.web-3, whose wish moves along
			moved:  []string{"vm.db-1: cores is 6 now, was 4", "vm.web-3: cores becomes 6 now, was to become 4"},
		},
		"the site": {
			change: func(in *Input) { in.Want.State[addr("vm.db-1")].Spec.(*VM).Cores = 16 },
			moved:  []string{"vm.db-1: cores becomes 16 now, was to become 8"},
		},
		"further changes": {
			change: func(in *Input) {
				in.Want.State[addr("vm.db-1")].Spec.(*VM).Memory = 4096
				in.Want.State[addr("vm.db-1")].Spec.(*VM).Cores = 4
			},
			moved: []string{"vm.db-1: class is hot now, was pending", "vm.db-1: memory changes as well now", "vm.db-1: cores needs no change now"},
		},
		"class": {
			change: func(in *Input) { in.Have.State[addr("vm.db-1")].Guest.Running = false },
			moved:  []string{"vm.db-1: class is none now, was pending", "vm.db-1: cores costs none now, was pending"},
		},
		"action": {
			change: func(in *Input) { delete(in.Have.State, addr("vm.web-1")); in.Have.Taken[10001] = "" },
			moved:  []string{"vm.web-1: create now, was update", "vm.web-3: VMID is 101 now, was 100"},
		},
		"steps": {
			change: func(in *Input) {
				delete(in.Have.State, addr("ct.cache"))
				in.Have.State[addr("vm.extra")] = guest("vm.extra", 55, &VM{})
				in.Want.State[addr("vm.web-3")].Manifest = "other"
				in.Want.State[addr("vm.web-3")].Needs = addrs("vm.db-1")
			},
			moved: []string{
				"ct.cache: nothing to do now, was delete", "vm.extra: delete is new", "vm.web-3: manifest is other now, was web",
				"vm.web-3: depends on vm.db-1 now, was nothing",
			},
		},
		"VMID": {
			change: func(in *Input) { in.Have.Taken[100] = "a new one" },
			moved:  []string{"vm.web-3: VMID is 101 now, was 100"},
		},
		"surroundings": {
			change: func(in *Input) {
				in.Have.Unmanaged = []model.Unmanaged{{VMID: 998, Name: "other", Kind: "ct"}}
				in.Have.Unknown = []model.Unknown{{Scope: "node pve2", Why: "offline"}}
				hold(in, []model.Pending{{Address: addr("vm.db-1"), Path: "numa", Before: 0, After: 1}})
			},
			moved: []string{
				"unmanaged ct 998 is new", "unmanaged vm 999 is gone", "unknown: node pve2 is new", "pending: vm.db-1 numa 0 → 1 is new",
			},
		},
		"what no step shows": {
			change: func(in *Input) { in.Have.State[addr("vm.db-1")].Guest.Digest = "abc" },
			moved:  []string{"the site or the host changed outside the listed steps: the plan is NEW now, was OLD"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := picture()
			c.change(&in)
			now := Make(in)
			read, err := read(bytes.NewReader(document(t, shown)))
			require.NoError(t, err)
			got := read.Moved(now)
			for i := range got {
				got[i] = strings.NewReplacer(now.ID, "NEW", shown.ID, "OLD").Replace(got[i])
			}
			require.Equal(t, c.moved, got)
		})
	}
}

// An edited plan file carries the id of the true one, which helps it nothing.
func TestMovedSeesThroughAnEditedFile(t *testing.T) {
	p := Make(picture())
	edited := bytes.Replace(document(t, p), []byte(`"after": 8,`), []byte(`"after": 80,`), 1)
	read, err := read(bytes.NewReader(edited))
	require.NoError(t, err)
	require.Equal(t, []string{"vm.db-1: cores becomes 8 now, was to become 80"}, read.Moved(p))
}

// A plan file holds what it was limited to, and reads back as it was written.
func TestPlanFile(t *testing.T) {
	p := &Plan{
		FormatVersion: FormatVersion, Site: "home", Host: "father", ID: "0123456789ab", ObservedAt: time.Unix(0, 0).UTC(),
		Steps: []Step{{Address: model.Address{Kind: "vm", Name: "web"}, Action: Create, VMID: 10000, Changes: []Change{{Path: "memory", After: int64(512)}}}},
	}
	for _, sc := range []Scope{{}, {Manifest: "web", Targets: []string{"vm.web"}}} {
		file := filepath.Join(t.TempDir(), "plan")
		require.NoError(t, Document{Plan: p, Scope: sc}.WriteFile(file))
		info, err := os.Stat(file)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
		got, err := ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, sc, got.Scope)
		require.Empty(t, got.Plan.Moved(p))
	}
	plain, err := json.Marshal(Document{Plan: p})
	require.NoError(t, err)
	bare, err := json.Marshal(p)
	require.NoError(t, err)
	require.JSONEq(t, string(bare), string(plain), "a plan of everything has no further key")
}

// picture is the example of the design: one of each line.
func picture() Input {
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
	golden(t, "picture.txt", text(Make(picture()), TextOptions{}))
}

// The last line tells how the plan was judged, in text and in Markdown.
func TestRulesAreCounted(t *testing.T) {
	p := Make(picture())
	for _, c := range []struct {
		rules Rules
		want  string
	}{
		{Rules{OK: 14}, "14 ok"},
		{Rules{OK: 12, Warning: 1, Denied: 1}, "12 ok, 1 warning, 1 denied"},
		{Rules{OK: 9}.Plus(Rules{Warning: 2, Denied: 3}), "9 ok, 2 warnings, 3 denied"},
		{Rules{}, "0 ok"},
	} {
		p.Rules = &c.rules
		lines := strings.Split(strings.TrimSpace(text(p, TextOptions{})), "\n")
		require.Equal(t, "plan: 1 add, 2 change, 1 destroy, 1 unmanaged · policy: "+c.want, lines[len(lines)-1])
		var b strings.Builder
		p.Markdown(&b)
		require.Contains(t, b.String(), "**plan: 1 add, 2 change, 1 destroy, 1 unmanaged · policy: "+c.want+"**")
		require.Empty(t, p.Moved(Make(picture())), "how it was judged is no part of what it says")
	}
}

func TestPictureInColour(t *testing.T) {
	p := Make(picture())
	colour := text(p, TextOptions{Color: true})
	golden(t, "colour.txt", strings.ReplaceAll(colour, "\x1b", "ESC"))
	for _, code := range []string{"0", "1", "2", "31", "32", "33"} {
		colour = strings.ReplaceAll(colour, "\x1b["+code+"m", "")
	}
	require.Equal(t, text(p, TextOptions{}), colour, "colour adds nothing but colour")
}

// busy has every kind of line that the picture of the design lacks.
func busy() Input {
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
	p := Make(busy())
	for _, width := range []int{0, 72, 160} {
		got := text(p, TextOptions{Width: width})
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
	Make(in).Markdown(&b)
	golden(t, "busy.md", b.String())
}

func TestInSyncIsOneLine(t *testing.T) {
	want, have := fleet(100, 0)
	p := Make(input(want, have))
	require.True(t, p.InSync())
	require.Equal(t, "in sync: site home @ 3f2c1a9 on host father, 102 unchanged\n", text(p, TextOptions{}))
	var b strings.Builder
	p.Markdown(&b)
	require.Equal(t, "### site home &#64; 3f2c1a9   host father   plan "+p.ID[:8]+"\n\n**in sync: site home &#64; 3f2c1a9 on host father, 102 unchanged**\n", b.String())
}

// A plan without steps is not in sync if a change is withheld, postponed or pending. Its last line names each with the reason.
func TestN6NothingToDoNow(t *testing.T) {
	hidden := []model.Unknown{{Scope: "node pve2", Why: "offline"}}
	for name, c := range map[string]struct {
		change func(*Input)
		last   string
	}{
		"nothing waits": {func(*Input) {}, "in sync: site home @ 3f2c1a9 on host father, 2 unchanged"},
		"what this kind of pass does not do": {func(in *Input) {
			in.Want.Deferred = []model.Deferred{{Address: "spec", Why: "of 3 nodes: not applied"}}
		}, "in sync: site home @ 3f2c1a9 on host father, 2 unchanged"},
		"a child": {func(in *Input) {
			r := child("vm.hv", 103, "refuse", &VM{})
			in.Have.State[r.Addr] = r
		}, "nothing to do now: vm.hv is not deleted until nothing is left in it: no report of its agent is known · 2 unchanged"},
		"restarts": {func(in *Input) {
			hold(in, []model.Pending{{Address: addr("vm.a"), Path: "cores"}, {Address: addr("vm.a"), Path: "memory"}, {Address: addr("vm.b"), Path: "cores"}})
		}, "nothing to do now: vm.a has a pending restart; vm.b has a pending restart · 2 unchanged"},
		"a creation and what needs it": {func(in *Input) {
			in.Want.State[addr("vm.c")], in.Want.State[addr("vm.d")] = guest("vm.c", 0, &VM{}), guest("vm.d", 0, &VM{}, "vm.c")
			in.Have.Preflight = []model.PreflightProblem{{Address: addr("vm.c"), Severity: diag.Warning, Withhold: true, Summary: "no server runs"}}
			in.Have.Unmanaged = []model.Unmanaged{{VMID: 5000, Name: "other", Kind: "vm"}}
		}, "nothing to do now: vm.c is not created: no server runs; vm.d is not created: it needs vm.c, which is not created · 2 unchanged, 1 unmanaged"},
		"more than a line holds": {func(in *Input) {
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
			p := Make(in)
			require.Empty(t, steps(p))
			lines := strings.Split(strings.TrimSpace(text(p, TextOptions{})), "\n")
			require.Equal(t, c.last, lines[len(lines)-1])
		})
	}
}

func TestAHundredUnchangedFitAScreen(t *testing.T) {
	want, have := fleet(101, 101)
	got := text(Make(input(want, have)), TextOptions{})
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
	p := Make(in)
	var md strings.Builder
	p.Markdown(&md)
	for _, got := range []string{text(p, TextOptions{}), md.String()} {
		require.NotContains(t, strings.ReplaceAll(got, "\n", ""), "\x1b")
		for _, bad := range []string{"\r", "\u202e", "\xff", "\x00"} {
			require.NotContains(t, got, bad)
		}
	}
	require.Equal(t, 10, strings.Count(text(p, TextOptions{}), "\n"), "no text makes a line of its own, but the note of what is pending")
}

// TestBlocksThatComeAndGo are told as one thing each, with what the files say of them;
// of a block that stays the attributes are told.
func TestBlocksThatComeAndGo(t *testing.T) {
	step := Step{Address: addr("vm.db"), VMID: 100, Action: Update, Class: model.ClassHot, Changes: []Change{
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
		require.Contains(t, text(&Plan{Steps: []Step{step}}, TextOptions{Width: width}), want+"    hot")
	}
}

// TestNothingIsLostToTheWidth: what a step brings with it stands below its line
// whatever the width, and All has each change with its values and its own class.
func TestNothingIsLostToTheWidth(t *testing.T) {
	long := strings.Repeat("x", 60)
	p := &Plan{Steps: []Step{
		{Address: addr("vm.a"), VMID: 100, Action: Update, Class: model.ClassMigrate, Reason: "2 attributes differ; told at its boot", Changes: []Change{
			{Path: "memory", Before: 1, After: 2, Class: model.ClassPending},
			{Path: "options.cpu", Before: "host", After: long, Class: model.ClassMigrate},
		}},
		{Address: addr("vm.b"), VMID: 101, Action: Delete, Class: model.ClassDataLoss, Reason: "left the site; together with scsi5, which no file names"},
	}}
	var b strings.Builder
	require.True(t, p.Text(&b, TextOptions{Width: 60}))
	require.Equal(t, []string{
		"    ~ vm a (100)    memory 1 → 2, options.cpu    migrate",
		"          told at its boot",
		"    - vm b (101)    left the site                data-loss",
		"          together with scsi5, which no file names",
	}, strings.Split(b.String(), "\n")[2:6])
	b.Reset()
	require.False(t, p.Text(&b, TextOptions{Width: 60, All: true}))
	require.Contains(t, b.String(), "\n          memory 1 → 2    pending\n          options.cpu host → "+long+"    migrate\n          told at its boot\n")
	p.Pending = []model.Pending{{Address: addr("vm.a"), Path: "options.numa0", Before: long + "1", After: long + "2", Why: "set"}, {Address: addr("vm.a"), Path: "options.x", Before: "", After: long, Why: "set"}}
	b.Reset()
	p.Text(&b, TextOptions{})
	require.Contains(t, b.String(), "pending restart: options.numa0 "+long+"1 → "+long+"2\n          set\n", "what is cut off is where they differ")
	require.NotContains(t, b.String(), `"" → `+long)
	p.Text(&b, TextOptions{All: true})
	require.Contains(t, b.String(), `options.x "" → `+long+"\n          set\n")
	p.Steps = append(p.Steps, Step{Address: addr("vm.c"), Action: Create, Brief: "small", Changes: []Change{
		{Path: "cores", After: 2}, {Path: "nic.lan.mac", After: ""}, {Path: "onboot", After: false}, {Path: "tags", After: []string{"a"}}, {Path: "key", After: "x", Sensitive: true},
	}})
	b.Reset()
	p.Text(&b, TextOptions{All: true})
	require.Contains(t, b.String(), " create\n          cores 2\n          tags [a]\n          key (sensitive)\n", "of what is made, what is said")
	declared := *guest("vm.c", 0, &VM{})
	declared.Ranges = []model.AttrRange{{Path: "onboot"}, {Path: "nic.lan.vlan"}}
	p.Steps[len(p.Steps)-1].Want = &declared
	b.Reset()
	p.Text(&b, TextOptions{All: true})
	require.Contains(t, b.String(), " create\n          cores 2\n          onboot false\n          tags [a]\n          key (sensitive)\n", "what is declared is shown, be it zero")
	p.Steps = append(p.Steps[:len(p.Steps)-1], Step{Address: addr("vm.c"), Action: Update, Want: &declared, Class: model.ClassHot, Changes: []Change{
		{Path: "nic.lan.bridge", After: "vmbr0", Class: model.ClassHot},
		{Path: "nic.lan.ip", After: "", Class: model.ClassHot},
		{Path: "nic.lan.vlan", After: 0, Class: model.ClassHot},
		{Path: "nic.lan.mtu", After: 0, Class: model.ClassHot},
		{Path: "disk.old.size", Before: 5, Class: model.ClassHot},
		{Path: "disk.old.bus", Before: "", Class: model.ClassHot},
	}})
	b.Reset()
	p.Text(&b, TextOptions{All: true})
	require.Contains(t, b.String(), "\n          nic.lan.bridge vmbr0    hot\n          nic.lan.vlan 0    hot\n          disk.old.size 5 → none    hot\n", "nothing of what is not set")
	require.NotContains(t, b.String(), "none →")
	p.Steps = p.Steps[:2]
	p.Steps[0].Changes = p.Steps[0].Changes[:1]
	require.False(t, p.Text(&b, TextOptions{Width: 60}), "all of it fits")
}

func TestDifferencesAreThoseOfTheTags(t *testing.T) {
	type disk struct {
		Name string `hcl:"name,label"`
		Size int    `hcl:"size" cost:"hot"`
	}
	type spec struct {
		Name   string   `hcl:"name" cost:"restart"`
		Hidden string   `hcl:"hidden" plan:"-"`
		Key    string   `hcl:"key" secret:"true"`
		Tags   []string `hcl:"tags,optional"`
		Disks  []disk   `hcl:"disk,block"`
	}
	want := &spec{Name: "a", Hidden: "x", Key: "new", Disks: []disk{{"root", 8}, {"data", 1}}}
	have := &spec{Name: "b", Key: "old", Disks: []disk{{"data", 1}, {"swap", 2}}}
	require.Equal(t, []Change{
		{Path: "name", Before: "b", After: "a", Class: model.ClassRestart},
		{Path: "key", Before: "old", After: "new", Sensitive: true, Class: model.ClassNone},
		{Path: "disk.root.size", After: int64(8), Class: model.ClassHot},
		{Path: "disk.swap.size", Before: int64(2), Class: model.ClassHot},
	}, Differences(want, have))
	require.Empty(t, Differences(want, want))
}
