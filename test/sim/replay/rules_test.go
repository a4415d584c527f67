package replay_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// mirror answers with what was recorded, but for invented values, in which the
// hexadecimal digits are others (behind the prefix of a MAC).
type mirror struct {
	t     *testing.T
	story *story
	next  int
}

func (*mirror) sampled(*testing.T)              {}
func (*mirror) pause(*testing.T, time.Duration) {}

func (m *mirror) RoundTrip(r *http.Request) (*http.Response, error) {
	want := m.story.Exchanges[m.next]
	m.next++
	require.Equal(m.t, want.Request.Method, r.Method)
	body := []byte(want.Response.Body)
	if len(body) == 0 && want.Response.BodyRaw != nil {
		body = []byte(*want.Response.BodyRaw)
	}
	return &http.Response{
		StatusCode: want.Response.Status,
		Status:     strconv.Itoa(want.Response.Status) + " " + m.disguise(want.Response.Reason),
		Body:       io.NopCloser(bytes.NewReader([]byte(m.disguise(string(body))))),
	}, nil
}

// disguise changes the invented values that no request brought.
func (m *mirror) disguise(text string) string {
	var b strings.Builder
	last := 0
	for _, id := range identify(text) {
		b.WriteString(text[last:id.from])
		b.WriteString(m.other(text[id.from:id.to]))
		last = id.to
	}
	return b.String() + text[last:]
}

func (m *mirror) other(id string) string {
	if m.given(id) {
		return id
	}
	for _, prefix := range []string{"BC:24:11", "fe80::be24:11ff:fe", "pveupload-"} { // What is not invented of it.
		if len(id) > len(prefix) && strings.EqualFold(id[:len(prefix)], prefix) {
			return id[:len(prefix)] + strings.Map(nextDigit, id[len(prefix):])
		}
	}
	if i := strings.LastIndex(id, ":"); strings.HasPrefix(strings.ToLower(id), "fe80::") {
		return id[:i] + strings.Map(nextDigit, id[i:]) // Else it is no address of a link.
	}
	return strings.Map(nextDigit, id)
}

func nextDigit(r rune) rune {
	switch {
	case r >= '0' && r < '9', r >= 'A' && r < 'F', r >= 'a' && r < 'f':
		return r + 1
	case r == '9':
		return '0'
	case r == 'F':
		return 'A'
	case r == 'f':
		return 'a'
	default:
		return r
	}
}

// given says whether a request had the identifier before any answer.
func (m *mirror) given(id string) bool {
	for _, e := range m.story.Exchanges[:m.next] {
		sent, err := json.Marshal(e.Request)
		require.NoError(m.t, err)
		if bytes.Contains(bytes.ToLower(sent), []byte(strings.ToLower(id))) {
			return true
		}
		if bytes.Contains(bytes.ToLower(e.Response.Body), []byte(strings.ToLower(id))) {
			return false
		}
	}
	return false
}

// TestReplayOfTheRecordings: the harness finds nothing in answers that are the
// recorded ones with other invented values, in any story.
func TestReplayOfTheRecordings(t *testing.T) {
	for _, name := range storyNames(t) {
		t.Run(name, func(t *testing.T) {
			s := readStory(t, name)
			synctest.Test(t, func(t *testing.T) {
				p := newPlayer(s, &mirror{t: t, story: s})
				for i := range s.Exchanges {
					result := p.play(t, i)
					require.Empty(t, result.found, s.title(i))
					require.Empty(t, result.notes, s.title(i))
				}
			})
		})
	}
}

// TestReplayNoticesChanges: nothing recorded can change unnoticed, go missing or
// be of another type.
func TestReplayNoticesChanges(t *testing.T) {
	for _, name := range storyNames(t) {
		t.Run(name, func(t *testing.T) {
			s := readStory(t, name)
			changes, seen := 0, map[string]bool{}
			for i, e := range s.Exchanges {
				found := func(status int, reason string, body []byte) []string {
					c := &comparison{story: s, ids: newIdentifiers()}
					c.answer(e, status, reason, body)
					return c.found
				}
				want := e.Response
				body := []byte(want.Body)
				if len(body) == 0 && want.BodyRaw != nil {
					body = []byte(*want.BodyRaw)
				}
				require.Empty(t, found(want.Status, want.Reason, body), s.title(i))
				require.NotEmpty(t, found(want.Status+1, want.Reason, body), s.title(i))
				if !slices.Contains(e.Loose, "reason") {
					require.NotEmpty(t, found(want.Status, want.Reason+" not", body), s.title(i))
				}
				path, _, _ := strings.Cut(e.Request.Path, "?")
				if len(want.Body) == 0 || len(e.Loose) > 0 || strings.HasSuffix(path, "/log") {
					continue
				}
				kindOfAnswer := fmt.Sprint(want.Status)
				if m, _, _ := pveapi.Lookup(e.Request.Method, strings.TrimPrefix(path, "/api2/json")); m != nil {
					kindOfAnswer += m.Verb + m.Path
				}
				var answer any
				require.NoError(t, decodeJSON(want.Body, &answer))
				eachChange(answer, "", func(what string) {
					key := kindOfAnswer + " " + what
					if seen[key] {
						return // Once for each kind of answer is enough.
					}
					seen[key] = true
					changed, err := json.Marshal(answer)
					require.NoError(t, err)
					require.NotEmpty(t, found(want.Status, want.Reason, changed), "%s: %s", s.title(i), what)
					changes++
				})
			}
			require.Greater(t, changes, 100)
		})
	}
}

// eachChange calls noticed with the value changed in one place after the other, and
// with what was changed.
func eachChange(value any, path string, noticed func(what string)) {
	switch value := value.(type) {
	case map[string]any:
		for name, member := range value {
			delete(value, name)
			noticed("without" + path + " " + name)
			value[name] = []any{map[string]any{}, true}
			noticed("another type of" + path + " " + name)
			value[name] = member
			if slices.Contains(opaque, name) {
				continue
			}
			eachChange(member, path+" "+name, noticed)
			if slices.Contains(alwaysFree, name) || slices.Contains(freeWhileRunning, name) && value["status"] != "stopped" {
				continue
			}
			switch member := member.(type) {
			case string:
				value[name] = member + "!"
				noticed("another" + path + " " + name)
			case json.Number:
				value[name] = "1" + member
				noticed("another" + path + " " + name)
			}
			value[name] = member
		}
	case []any:
		for i, element := range value {
			value[i] = true
			noticed("another element of" + path)
			value[i] = element
			eachChange(element, path, noticed)
		}
	}
}

// TestReplayRules: what counts as another answer, and what does not.
func TestReplayRules(t *testing.T) {
	const (
		upid1 = "UPID:pve1:00001F12:000A047E:6B00E77F:qmstart:70001:root@pam!lab:"
		upid2 = "UPID:pve1:0000FFFF:000AFFFF:6B00FFFF:qmstart:70001:root@pam!lab:"
		upid3 = "UPID:pve1:0000FFFF:000AFFFF:6B00FFFF:qmstop:70001:root@pam!lab:"
		sum1  = "7d27f2552c9948a91bc437d4eee7af54e7596074"
		sum2  = "59eff60cb842101ce7993c1949dd691f2f794f19"
	)
	tests := map[string]struct {
		want, got string // JSON values, one or several in the order of time.
		found     string // Part of what is found; empty: nothing.
	}{
		"the same":                       {`{"a":1,"b":[1,"x",null]}`, `{"b":[1,"x",null],"a":1}`, ""},
		"more members":                   {`{"a":1}`, `{"a":1,"b":2}`, ""},
		"a member missing":               {`{"a":1,"b":2}`, `{"a":1}`, ".b: missing"},
		"another type":                   {`{"a":1}`, `{"a":"1"}`, `want 1, got "1"`},
		"another number":                 {`{"a":1}`, `{"a":2}`, "want 1, got 2"},
		"null is a type":                 {`{"a":null}`, `{"a":""}`, "want null"},
		"another text":                   {`{"a":"x"}`, `{"a":"y"}`, `want "x", got "y"`},
		"always free":                    {`{"pid":1,"ctime":2,"avail":3}`, `{"pid":2,"ctime":3,"avail":4}`, ""},
		"free, but of a type":            {`{"pid":1}`, `{"pid":"1"}`, `want 1, got "1"`},
		"free, but there":                {`{"pid":1}`, `{}`, ".pid: missing"},
		"free while running":             {`{"status":"running","uptime":5}`, `{"status":"running","uptime":9}`, ""},
		"not free when stopped":          {`{"status":"stopped","uptime":0}`, `{"status":"stopped","uptime":9}`, ".uptime: want 0"},
		"opaque":                         {`{"nics":{"a":1}}`, `{"nics":{}}`, ""},
		"opaque, but of a type":          {`{"nics":{"a":1}}`, `{"nics":[]}`, "want {"},
		"order of content":               {`{"content":"iso,images"}`, `{"content":"images,iso"}`, ""},
		"other content":                  {`{"content":"iso,images"}`, `{"content":"images,import"}`, ".content: want"},
		"setup in texts":                 {`"creation-qemu=10.0.2,ctime=1"`, `"creation-qemu=9.2.0,ctime=2"`, ""},
		"a machine type":                 {`"pc-i440fx-10.0+pve0"`, `"pc-i440fx-9.2+pve1"`, ""},
		"another task":                   {`"` + upid1 + `"`, `"` + upid2 + `"`, ""},
		"a task of another type":         {`"` + upid1 + `"`, `"` + upid3 + `"`, "qmstop"},
		"a digest stays":                 {`["` + sum1 + `","` + sum1 + `"]`, `["` + sum2 + `","` + sum2 + `"]`, ""},
		"a digest should stay":           {`["` + sum1 + `","` + sum1 + `"]`, `["` + sum1 + `","` + sum2 + `"]`, "should still be " + sum1},
		"a digest should change":         {`["` + sum1 + `","` + sum2 + `"]`, `["` + sum1 + `","` + sum1 + `"]`, "should have changed"},
		"MACs have no case":              {`["BC:24:11:00:00:0A","bc:24:11:00:00:0a"]`, `["BC:24:11:00:00:0B","bc:24:11:00:00:0b"]`, ""},
		"a given MAC":                    {`"virtio=02:00:00:00:00:01"`, `"virtio=02:00:00:00:00:02"`, "a request brought 02:00:00:00:00:01"},
		"lists of objects have no order": {`[{"vmid":70001,"a":1},{"vmid":70002,"a":2}]`, `[{"vmid":70002,"a":2},{"vmid":70001,"a":1}]`, ""},
		"an entry differs":               {`[{"vmid":70001,"a":1},{"vmid":70002,"a":2}]`, `[{"vmid":70002,"a":1},{"vmid":70001,"a":1}]`, "[70002].a: want 2, got 1"},
		"an entry missing":               {`[{"vmid":70001},{"vmid":70002}]`, `[{"vmid":70002}]`, "[70001]: missing"},
		"an entry too much":              {`[{"vmid":70001}]`, `[{"vmid":70001},{"vmid":70002}]`, "too much"},
		"an entry from elsewhere":        {`[{"vmid":70001}]`, `[{"vmid":100},{"vmid":70001}]`, ""},
		"files from elsewhere":           {`[]`, `[{"volid":"vmstore:iso/debian.iso"},{"storage":"other"},{"userid":"root@pam"},{"roleid":"Administrator"}]`, ""},
		"a file of the story":            {`[]`, `[{"volid":"vmstore:iso/st-debian.iso"}]`, "too much"},
		"entries by what is invented":    {`[{"upid":"` + upid1 + `","status":"OK"}]`, `[{"upid":"` + upid2 + `","status":"OK"}]`, ""},
		"more of an index":               {`[{"subdir":"a"}]`, `[{"subdir":"a"},{"subdir":"b"}]`, ""},
		"plain lists have an order":      {`["a","b"]`, `["b","a"]`, "[0]: want"},
		"plain lists have a length":      {`["a"]`, `["a","b"]`, "want [\"a\"]"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var want, got any
			require.NoError(t, decodeJSON([]byte(test.want), &want))
			require.NoError(t, decodeJSON([]byte(test.got), &got))
			s := &story{}
			s.Start.Storage, s.Start.GuestRange = "vmstore", [2]int{70000, 70999}
			c := &comparison{story: s, ids: newIdentifiers()}
			c.ids.give("net0=virtio=02:00:00:00:00:01")
			c.value("", want, got)
			if test.found == "" {
				require.Empty(t, c.found)
				return
			}
			require.Contains(t, strings.Join(c.found, "\n"), test.found)
		})
	}
}

// TestReplayLogs: of a log the last line and the first words count.
func TestReplayLogs(t *testing.T) {
	lines := func(texts ...string) []any {
		all := make([]any, len(texts))
		for i := range texts {
			all[i] = map[string]any{"n": json.Number(strconv.Itoa(i + 1)), "t": texts[i]}
		}
		return all
	}
	for _, test := range []struct {
		want, got []any
		found     int
	}{
		{lines("TASK OK"), lines("TASK OK"), 0},
		{lines("TASK OK"), lines("anything", "TASK OK"), 0},
		{lines("create full clone of x", "TASK OK"), lines("create full clone of y", "done", "TASK OK"), 0},
		{lines("create full clone of x", "TASK OK"), lines("copy x", "TASK OK"), 1},
		{lines("TASK OK"), lines("TASK ERROR: x"), 1},
		{lines("trying to acquire lock...", " OK", "purging VM 1", "TASK OK"), lines("purging VM 1", "TASK OK"), 0},
		{lines("TASK OK"), nil, 1},
		{nil, nil, 0},
	} {
		c := &comparison{story: &story{}, ids: newIdentifiers()}
		c.log(test.want, test.got)
		require.Len(t, c.found, test.found)
	}
}

// TestReplayVars: values of answers go into later requests, encoded as there.
func TestReplayVars(t *testing.T) {
	var answer any
	require.NoError(t, decodeJSON([]byte(`{"data":{"net0":"virtio=BC:24:11:00:00:02,bridge=vmbr0","a/b":5}}`), &answer))
	v := storyVar{Name: "mac", Recorded: "BC:24:11:00:00:01", At: "/data/net0", Match: "BC(:[0-9A-F]{2}){5}"}
	value, err := v.pick(answer)
	require.NoError(t, err)
	require.Equal(t, "BC:24:11:00:00:02", value)

	vars := &substitutions{}
	vars.learn(v, value)
	vars.learn(storyVar{Recorded: "BC:24:11:00:00:01!x"}, "longer")
	require.Equal(t, "a=BC:24:11:00:00:02 b=BC%3A24%3A11%3A00%3A00%3A02 longer", vars.in("a=BC:24:11:00:00:01 b=BC%3A24%3A11%3A00%3A00%3A01 BC:24:11:00:00:01!x"))
	require.Equal(t, map[string]any{"a": []any{"longer"}}, vars.deep(map[string]any{"a": []any{"BC:24:11:00:00:01!x"}}))

	for _, wrong := range []storyVar{{At: "/data/nosuch"}, {At: "/data/a~1b"}, {At: "/data/net0/x"}, {At: "/data/net0", Match: "nosuch"}} {
		_, err := wrong.pick(answer)
		require.Error(t, err, wrong.At)
	}
}

// TestReplayFindsFurtherRecordings: a folder that is named brings its own stories, which
// are replayed like the others, and none of those that are kept here.
func TestReplayFindsFurtherRecordings(t *testing.T) {
	kept, err := filepath.Glob(filepath.Join("testdata", "stories", "*.json.gz"))
	require.NoError(t, err)
	text, err := readPacked(kept[0])
	require.NoError(t, err)
	for _, under := range []string{"", "stories"} {
		folder := t.TempDir()
		require.NoError(t, os.MkdirAll(filepath.Join(folder, under), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(folder, under, "further.json"), text, 0o600))
		t.Setenv("HOMESTAK_RECORDINGS", folder)
		name := path.Join(under, "further")
		require.Equal(t, []string{name}, storyNames(t))
		s := readStory(t, name)
		for i, result := range replay(t, s, func(_ *testing.T, h *pve.Host) replayed { return inProcess{Host: h} }) {
			require.Empty(t, result.found, s.title(i))
		}
	}
}
