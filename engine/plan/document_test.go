package plan_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

func document(t *testing.T, p *plan.Plan) []byte {
	t.Helper()
	b, err := json.MarshalIndent(p, "", "  ")
	require.NoError(t, err)
	return append(b, '\n')
}

func TestDocument(t *testing.T) {
	in := busy()
	in.Have.Unmanaged = in.Have.Unmanaged[:1]
	in.Want.State[addr("vm.hot")].At = at(12)
	golden(t, "busy.json", string(document(t, plan.Make(in))))
}

func TestDocumentOfNothing(t *testing.T) {
	empty := `{"format_version":"","site":"","commit":"","host":"","observed_at":"0001-01-01T00:00:00Z","id":"",
		"steps":[],"unmanaged":[],"undeclared":[],"pending":[],"unknown":[],"deferred":[],"findings":[],
		"summary":{"create":0,"update":0,"replace":0,"delete":0,"unchanged":0,"unmanaged":0}}`
	require.JSONEq(t, empty, string(document(t, &plan.Plan{})))
	step, err := json.Marshal(plan.Step{Address: addr("pool.p"), Action: plan.Delete})
	require.NoError(t, err)
	require.JSONEq(t, `{"address":"pool.p","node":"","manifest":"","vmid":null,"action":"delete","class":"","reason":"","changes":[],"after":[],"at":{}}`, string(step))
}

func TestReadGivesTheSameDocument(t *testing.T) {
	for _, in := range []plan.Input{busy(), picture(), input(nil, nil)} {
		p := plan.Make(in)
		written := document(t, p)
		read, err := plan.Read(bytes.NewReader(written))
		require.NoError(t, err)
		require.Equal(t, string(written), string(document(t, read)))
		require.Empty(t, read.Moved(p), "a plan that was read is the plan that was written")
		require.Empty(t, p.Moved(read))
	}
}

func TestAReadPlanIsDrawnLikeAMadeOne(t *testing.T) {
	p := plan.Make(picture())
	read, err := plan.Read(bytes.NewReader(document(t, p)))
	require.NoError(t, err)
	got := text(read, plan.TextOptions{})
	require.Contains(t, got, "    + vm web-3            image, machine, cores, memory and 4 more    create\n", "it has no brief of a creation")
	require.Contains(t, got, "    ~ vm db-1  (10002)    cores 4 → 8                                 pending (restart = never)\n")
	require.Equal(t, strings.Count(text(p, plan.TextOptions{}), "\n"), strings.Count(got, "\n"))
}

func TestReadRefuses(t *testing.T) {
	ok := `{"format_version":"1.7","host":"h","id":"i","new_field":1,"steps":[{"address":"vm.a","action":"create"},{"address":"vm.b","action":"delete","after":["vm.a"]}]}`
	p, err := plan.Read(strings.NewReader(ok))
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
		strings.Replace(ok, `["vm.a"]`, `[],"changes":[{"path":"x","before":[1,"a"]}]`, 1): `change of "x": a list holds something else than strings`,
	} {
		_, err := plan.Read(strings.NewReader(doc))
		require.ErrorContains(t, err, complaint, "%s", doc)
		require.ErrorContains(t, err, "read plan: ", "%s", doc)
	}
}

func TestReadKeepsTypes(t *testing.T) {
	const doc = `{"format_version":"1.0","host":"h","id":"i","steps":[{"address":"vm.a","action":"update","changes":[
		{"path":"a","before":9007199254740993,"after":1.5},{"path":"b","before":null,"after":["x"]},{"path":"c","before":true,"after":"4"}]}]}`
	p, err := plan.Read(strings.NewReader(doc))
	require.NoError(t, err)
	require.Equal(t, []plan.Change{
		{Path: "a", Before: int64(9007199254740993), After: 1.5}, {Path: "b", After: []string{"x"}}, {Path: "c", Before: true, After: "4"},
	}, p.Steps[0].Changes)
}

func FuzzRead(f *testing.F) {
	var b bytes.Buffer
	require.NoError(f, json.NewEncoder(&b).Encode(plan.Make(picture())))
	f.Add(b.Bytes())
	f.Add([]byte(`{"format_version":"1.0","host":"h","id":"i","steps":[{"address":"vm.a","action":"create","changes":[{"path":"x","after":[]}]}]}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		p, err := plan.Read(bytes.NewReader(doc))
		if err != nil {
			require.Nil(t, p)
			return
		}
		require.NotContains(t, text(p, plan.TextOptions{}), "\x1b")
		p.Markdown(&bytes.Buffer{})
		written, err := json.Marshal(p)
		require.NoError(t, err)
		again, err := plan.Read(bytes.NewReader(written))
		require.NoError(t, err)
		require.Empty(t, p.Moved(again))
	})
}

// What a secret is made of stands nowhere: not in the documents, not in findings.
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
	p := plan.Make(in)
	require.Equal(t, []string{"update vm.changed", "create vm.new"}, steps(p))
	var md strings.Builder
	p.Markdown(&md)
	for _, out := range []string{string(document(t, p)), text(p, plan.TextOptions{Width: 500}), md.String(), strings.Join(p.Moved(plan.Make(input(nil, nil))), "\n")} {
		require.NotContains(t, out, secret)
		require.NotEmpty(t, out)
	}
	require.Equal(t, secret, p.Steps[1].Want.Spec.(*VM).Password, "but whoever carries it out has them")
}

func TestMoved(t *testing.T) {
	shown := plan.Make(picture())
	for name, c := range map[string]struct {
		change func(*plan.Input)
		moved  []string
	}{
		"nothing":          {change: func(*plan.Input) {}},
		"time":             {change: func(in *plan.Input) { in.Have.At = in.Have.At.Add(time.Hour) }},
		"the site's names": {change: func(in *plan.Input) { in.Site, in.Host, in.Commit = "work", "mother", "" }, moved: []string{"the site is work now, was home", "the host is mother now, was father", "the commit is none now, was 3f2c1a9d00c0ffee"}},
		"the host": {
			change: func(in *plan.Input) { in.Have.State[addr("vm.db-1")].Spec.(*VM).Cores = 6 }, // shared with vm.web-3, whose wish moves along
			moved:  []string{"vm.db-1: cores is 6 now, was 4", "vm.web-3: cores becomes 6 now, was to become 4"},
		},
		"the site": {
			change: func(in *plan.Input) { in.Want.State[addr("vm.db-1")].Spec.(*VM).Cores = 16 },
			moved:  []string{"vm.db-1: cores becomes 16 now, was to become 8"},
		},
		"further changes": {
			change: func(in *plan.Input) {
				in.Want.State[addr("vm.db-1")].Spec.(*VM).Memory = 4096
				in.Want.State[addr("vm.db-1")].Spec.(*VM).Cores = 4
			},
			moved: []string{"vm.db-1: class is hot now, was pending", "vm.db-1: memory changes as well now", "vm.db-1: cores needs no change now"},
		},
		"class": {
			change: func(in *plan.Input) { in.Have.State[addr("vm.db-1")].Guest.Running = false },
			moved:  []string{"vm.db-1: class is none now, was pending", "vm.db-1: cores costs none now, was pending"},
		},
		"action": {
			change: func(in *plan.Input) { delete(in.Have.State, addr("vm.web-1")); in.Have.Taken[10001] = "" },
			moved:  []string{"vm.web-1: create now, was update", "vm.web-3: VMID is 101 now, was 100"},
		},
		"steps": {
			change: func(in *plan.Input) {
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
			change: func(in *plan.Input) { in.Have.Taken[100] = "a new one" },
			moved:  []string{"vm.web-3: VMID is 101 now, was 100"},
		},
		"surroundings": {
			change: func(in *plan.Input) {
				in.Have.Unmanaged = []model.Unmanaged{{VMID: 998, Name: "other", Kind: "ct"}}
				in.Have.Unknown = []model.Unknown{{Scope: "node pve2", Why: "offline"}}
				hold(in, []model.Pending{{Address: addr("vm.db-1"), Path: "numa", Before: 0, After: 1}})
			},
			moved: []string{
				"unmanaged ct 998 is new", "unmanaged vm 999 is gone", "unknown: node pve2 is new", "pending: vm.db-1 numa 0 → 1 is new",
			},
		},
		"what no step shows": {
			change: func(in *plan.Input) { in.Have.State[addr("vm.db-1")].Guest.Digest = "abc" },
			moved:  []string{"the site or the host changed outside the listed steps: the plan is NEW now, was OLD"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := picture()
			c.change(&in)
			now := plan.Make(in)
			read, err := plan.Read(bytes.NewReader(document(t, shown)))
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
	p := plan.Make(picture())
	edited := bytes.Replace(document(t, p), []byte(`"after": 8,`), []byte(`"after": 80,`), 1)
	read, err := plan.Read(bytes.NewReader(edited))
	require.NoError(t, err)
	require.Equal(t, []string{"vm.db-1: cores becomes 8 now, was to become 80"}, read.Moved(p))
}
