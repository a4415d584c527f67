package integration_test

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/test/released"
)

// ST-7: a site that is right exits 0.
func TestAValidSite(t *testing.T) {
	s := begin(t, pve.Config{})
	s.deploy("web", vm("web", "count = 2"))
	s.says(0, "validate")
	v := document[verdictDoc](t, s.says(0, "validate", "--json"))
	require.True(t, *v.Valid)
	require.Empty(t, *v.Findings)
	require.Empty(t, s.requests(), "validate reaches no host")
}

// ST-7: every mistake of every file is reported in one run, each at its place. A site
// with mistakes exits 1 where it is asked for them, and 3 where it shall converge.
func TestAnInvalidSite(t *testing.T) {
	// The mistakes of a schema, of references, and of rules that several blocks
	// break together, each in a file of its own.
	mistakes := map[string]struct {
		text string
		at   string // FILE:LINE:COLUMN
		says string
	}{
		"unknown attribute":    {manifest("a1", "  node \"a1\" {\n    type = \"vm\"\n    preset = preset.vm-small\n    image = image.debian-12\n    memroy = 1\n  }\n"), "8:5", "memory"},
		"unknown block":        {"manifst \"a2\" {\n}\n", "1:1", "manifest"},
		"missing attribute":    {"preset \"a3\" {\n  cores = 2\n}\n", "1:1", "memory"},
		"wrong type":           {"preset \"a4\" {\n  cores  = \"many\"\n  memory = 2048\n}\n", "2:12", "number"},
		"unknown preset":       {manifest("a5", "  node \"a5\" {\n    type = \"vm\"\n    preset = preset.vm-smal\n    image = image.debian-12\n  }\n"), "6:14", "vm-small"},
		"unknown image":        {manifest("a6", "  node \"a6\" {\n    type = \"vm\"\n    preset = preset.vm-small\n    image = image.debian-21\n  }\n"), "7:13", "debian-12"},
		"unknown host":         {strings.Replace(manifest("a7", vm("a7")), "host.father", "host.fahter", 1), "3:13", "father"},
		"unknown spec":         {manifest("a8", vm("a8", "spec = spec.base")), "8:12", "spec"},
		"unknown local":        {"preset \"a9\" {\n  cores  = local.cores\n  memory = 2048\n}\n", "2:12", "local"},
		"duplicate node":       {manifest("b1", vm("twice")+vm("twice")), "9:3", "twice"},
		"parent that is a vm":  {manifest("b2", vm("b2-parent")+vm("b2", "parent = node.b2-parent")), "13:5", "pve"},
		"VMID out of range":    {manifest("b3", vm("b3", "vmid = 50")), "8:5", "50"},
		"shrunken address":     {manifest("b4", vm("b4", "nic \"lan\" {", "  ip = \"10.0.0.300/24\"", "}")), "9:7", "10.0.0.300"},
		"pattern against tree": {strings.Replace(manifest("b5", vm("b5")), "flat", "star", 1), "2:13", "star"},
		"node without size":    {manifest("b6", "  node \"b6\" {\n    type = \"vm\"\n    image = image.debian-12\n  }\n"), "4:3", "size"},
		"vm without image":     {manifest("b7", "  node \"b7\" {\n    type = \"vm\"\n    preset = preset.vm-small\n  }\n"), "4:3", "image"},
	}
	s := begin(t, pve.Config{})
	s.deploy("web", vm("web"))
	for name, m := range mistakes {
		s.write("mistakes/"+strings.ReplaceAll(name, " ", "-")+".hcl", m.text)
	}

	text := s.says(1, "validate")
	v := document[verdictDoc](t, s.says(1, "validate", "--json"))
	require.False(t, *v.Valid)
	for name, m := range mistakes {
		file := "mistakes/" + strings.ReplaceAll(name, " ", "-") + ".hcl"
		t.Run(name, func(t *testing.T) {
			named := strings.Contains(text.err, file+":"+m.at+": error: ")
			require.True(t, named, "the text does not name %s:%s", file, m.at)
			require.True(t, slices.ContainsFunc(*v.Findings, func(f findingDoc) bool {
				return f.At.File == file && fmt.Sprintf("%d:%d", f.At.Line, f.At.Column) == m.at &&
					strings.Contains(*f.Summary+*f.Detail, m.says)
			}), "no finding with %q at %s:%s", m.says, file, m.at)
		})
	}
	for _, f := range *v.Findings {
		require.NotNil(t, f.At, "%s has no place", *f.Summary)
		require.NotZero(t, f.At.Line, *f.Summary)
		require.NotZero(t, f.At.Column, *f.Summary)
	}

	s.says(3, "plan")
	s.says(3, "apply", "--yes")
	s.says(3, "destroy", "-M", "web", "--yes")
	require.Empty(t, s.requests(), "an invalid site reached the host")
}

// ST-7: a file that cannot be parsed hides no mistake of another file but one: what
// it may declare is not called unknown.
func TestAFileThatCannotBeParsed(t *testing.T) {
	s := begin(t, pve.Config{})
	s.write("broken.hcl", "preset \"large\" {\n  cores = = 2\n}\n")
	s.deploy("web", vm("web-1", "memroy = 1")+vm("web-2", "vmid = 50"))
	r := s.says(1, "validate")
	require.Contains(t, r.err, "broken.hcl:2:11: error: ")
	require.Contains(t, r.err, "manifests/web.hcl:8:5: error: ")
	require.Contains(t, r.err, "manifests/web.hcl:14:5: error: ")
}

// manifest is the text of a manifest of the host; its nodes begin in line 4.
func manifest(name, nodes string) string {
	return fmt.Sprintf("manifest %q {\n  pattern = \"flat\"\n  host    = host.father\n%s}\n", name, nodes)
}

// Whatever is in the files of a site: a clear finding, never a panic, and a
// host that is not even asked.
func TestFilesThatAreNotASite(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, text string
		says       string
	}{
		{"no HCL at all", "Dear diary,\ntoday I wrote no HCL.\n", ""},
		{"JSON", `{"site": {"home": {}}}`, ""},
		{"binary", string(bytes.Repeat([]byte{0x7f, 'E', 'L', 'F', 0, 0xff, 0xfe}, 999)), "UTF-8"},
		{"a byte order mark of UTF-16", "\xff\xfes\x00i\x00t\x00e\x00", "UTF-8"},
		{"10 MB", strings.Repeat("# nothing to see here, but a lot of it\n", 10<<20/39), "MiB"},
		{"10 MB in one line", "locals {\n  x = \"" + strings.Repeat("x", 10<<20) + "\"\n}\n", "MiB"},
		{"nested brackets", "locals {\n  x = " + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + "\n}\n", "deep"},
		{"nested blocks", strings.Repeat("locals {\n", 20_000) + strings.Repeat("}\n", 20_000), "deep"},
		{"nested templates", "locals {\n  x = " + strings.Repeat(`"${`, 20_000) + "1" + strings.Repeat(`}"`, 20_000) + "\n}\n", "deep"},
		{"a circle of values", "locals {\n  a = local.b\n  b = local.a\n}\n", "local.a"},
		{"a circle of parents", manifest("circle", "  node \"hen\" {\n    type = \"pve\"\n    preset = preset.vm-small\n    image = image.debian-12\n    parent = node.egg\n  }\n"+
			"  node \"egg\" {\n    type = \"pve\"\n    preset = preset.vm-small\n    image = image.debian-12\n    parent = node.hen\n  }\n"), "hen"},
		{"a reference to nothing", manifest("lost", vm("lost", "spec = spec.nothing")), "nothing"},
		{"more nodes than anybody has", manifest("many", vm("many", "count = 1000000000")), "count"},
		{"a secret in the files", strings.Replace("host \"mother\" {\n  api = \"https://192.0.2.1:8006\"\n  api_token = \"root@pam!t=TOKEN\"\n}\n", "TOKEN", "5ec0dcb1-1111-4222-8333-444455556666", 1), "secret"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := begin(t, pve.Config{})
			s.write("bad.hcl", c.text)
			r := s.says(1, "validate")
			require.Contains(t, r.err, "bad.hcl:", "the file is named")
			require.Contains(t, r.err, c.says)
			require.Less(t, len(r.err), 64<<10, "the finding is clear, not long")
			require.NotContains(t, r.err, "5ec0dcb1", "a secret was printed")
			require.NotContains(t, r.err, "\x00")
			s.says(3, "plan")
			require.Empty(t, s.requests())
		})
	}
}

// A thousand mistakes are a thousand findings, in one run.
func TestAThousandMistakes(t *testing.T) {
	s := begin(t, pve.Config{})
	var text strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&text, "preset \"p%d\" {\n  cores  = 1\n  memory = 512\n  speed  = 3\n}\n", i)
	}
	s.write("bad.hcl", text.String())
	v := document[verdictDoc](t, s.says(1, "validate", "--json"))
	require.Len(t, *v.Findings, 1000)
	lines := map[int]bool{}
	for _, f := range *v.Findings {
		lines[f.At.Line] = true
	}
	require.Len(t, lines, 1000)
}

// An API that is not there, not ours, or not in its right mind: a clear error, the
// exit code of the table, and nothing lost.
func TestAPIsThatMisbehave(t *testing.T) {
	t.Parallel()
	const page = "<!DOCTYPE html><html><body>It works!</body></html>"
	always := func(text string) func(string, string) string {
		return func(string, string) string { return text }
	}
	for _, c := range []struct {
		name  string
		setUp func(*story)
		lie   func(path, answer string) string
		flags []string
		code  int
		says  []string
	}{
		{name: "unreachable", setUp: func(s *story) { s.edit("host.hcl", s.api, "https://"+closedPort(s.t)) }, code: 1, says: []string{"refused", "127.0.0.2"}},
		{name: "an unknown host name", setUp: func(s *story) { s.edit("host.hcl", s.api, "https://pve.invalid:8006") }, code: 1, says: []string{"pve.invalid"}},
		{name: "no https", setUp: func(s *story) { s.edit("host.hcl", "https://", "http://") }, code: 3, says: []string{"https"}},
		{name: "slow", setUp: func(s *story) { s.stalls() }, flags: []string{"--timeout", "1s"}, code: 1, says: []string{"--timeout"}},
		{name: "null for everything, its privileges included", lie: always(`{"data":null}`), code: 6, says: []string{"incomplete"}},
		{name: "HTML for everything", lie: always(page), code: 1, says: []string{"JSON"}},
		{name: "nothing for everything", lie: always(""), code: 1, says: []string{"JSON"}},
		{name: "595 for everything", setUp: func(s *story) { s.breaks("* /** status=595") }, code: 1, says: []string{"595"}},
		{name: "a short list", lie: func(path, answer string) string {
			if path == "/cluster/resources" {
				return `{"data":[]}`
			}
			return answer
		}, code: 1, says: []string{"incomplete"}},
		{name: "another host", setUp: func(s *story) { s.edit("host.hcl", `node        = "father"`, `node        = "mother"`) }, code: 1, says: []string{"mother", "father"}},
		{name: "a wrong secret in the token", setUp: func(s *story) {
			s.edit("secrets.yaml", s.host.Token(), "root@pam!sim=00000000-0000-4000-8000-000000000000")
		}, code: 6, says: []string{"401", "token"}},
		{name: "a token that is none", setUp: func(s *story) { s.edit("secrets.yaml", s.host.Token(), "hunter2") }, code: 6, says: []string{"token", "father"}},
		{name: "no token", setUp: func(s *story) { s.write("secrets.yaml", released.Auth+"ssh_keys:\n  ops: \""+opsKey+"\"\n") }, code: 6, says: []string{"api_tokens", "father"}},
		{name: "403 for everything", setUp: func(s *story) { s.breaks("* /** status=403") }, code: 6, says: []string{"403", "privilege"}},
		{name: "a wrong fingerprint", setUp: func(s *story) { s.edit("host.hcl", s.host.Fingerprint(), "sha256:"+strings.Repeat("ab", 32)) }, code: 1, says: []string{"fingerprint", "abab"}},
		{name: "no fingerprint", setUp: func(s *story) { s.edit("host.hcl", "fingerprint", "# fingerprint") }, code: 1, says: []string{"fingerprint"}},
		{name: "a fingerprint that is none", setUp: func(s *story) { s.edit("host.hcl", s.host.Fingerprint(), "it is fine") }, code: 3, says: []string{"fingerprint"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := begin(t, pve.Config{})
			s.deploy("web", vm("leaves")+vm("stays"))
			s.apply()
			before := s.managed()
			s.deploy("web", vm("stays", "onboot = true")+vm("comes"))
			if c.lie != nil {
				s.behindAFront().lies(c.lie)
			}
			if c.setUp != nil {
				c.setUp(s)
			}
			s.quietly(func() {
				for _, verb := range [][]string{{"plan"}, {"plan", "--json", "--detailed-exitcode"}, {"apply", "--yes"}, {"destroy", "-M", "web", "--yes"}} {
					r := s.says(c.code, append(verb, c.flags...)...)
					for _, word := range c.says {
						require.Contains(t, r.err+r.out, word)
					}
					require.NotContains(t, r.err+r.out, s.host.Token())
					require.NotContains(t, r.err+r.out, "hunter2")
				}
			})
			require.Equal(t, before, s.managed())
		})
	}
}

// The storage is full: what fitted is there, what did not leaves nothing behind, and
// when there is room again the rest is made.
func TestAFullStorage(t *testing.T) {
	s := begin(t, pve.Config{})
	s.deploy("web", vm("web-1"))
	s.apply()
	s.byHand(func(e *pve.Edit) { e.Fill("local-lvm", true) })
	s.deploy("web", vm("web-1", "onboot = true")+vm("web-2"))

	r := s.says(5, "apply", "--yes")
	require.Contains(t, r.err+r.out, "web-2")
	require.Contains(t, r.err+r.out, "free space")
	require.Equal(t, "1", s.guest("web-1").Config["onboot"])

	s.byHand(func(e *pve.Edit) { e.Fill("local-lvm", false) })
	s.says(0, "apply", "--yes")
	require.Equal(t, []string{"web-1", "web-2"}, s.names())
	s.inSync()
}

// A VMID that the files declare belongs to an unmanaged guest: that stays, with a finding, and the rest is created.
func TestATakenVMID(t *testing.T) {
	s := begin(t, pve.Config{})
	taken := s.strangers[0]
	s.write("site.hcl", strings.Replace(released.Site, "from = 10000", "from = 100", 1))
	s.deploy("web", vm("web-1", fmt.Sprintf("vmid = %d", taken.VMID))+vm("web-2"))

	plan := s.says(4, "plan")
	require.Contains(t, plan.err+plan.out, fmt.Sprint(taken.VMID))
	r := s.says(4, "apply", "--yes")
	require.Contains(t, r.err+r.out, "web-1")
	require.Contains(t, r.err+r.out, fmt.Sprint(taken.VMID))
	require.Equal(t, []string{"web-2"}, s.names())
}

// closedPort is an address of this machine without a listener. Other tests take ports of 127.0.0.1.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.2:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}

// stalls lets every request wait until its client gives up.
func (s *story) stalls() {
	wait := func(r *http.Request) (int, bool) {
		select {
		case <-r.Context().Done():
		case <-s.t.Context().Done():
		}
		return -1, false
	}
	s.fault.Store(&wait)
}

// The documents of the command line. A field that is missing here would be missing
// for every script that reads them.
type (
	planDoc struct {
		FormatVersion *string            `json:"format_version"`
		Site          *string            `json:"site"`
		Commit        *string            `json:"commit"`
		Host          *string            `json:"host"`
		ObservedAt    *time.Time         `json:"observed_at"`
		ID            *string            `json:"id"`
		Steps         *[]stepDoc         `json:"steps"`
		Unmanaged     *[]unmanagedDoc    `json:"unmanaged"`
		Pending       *[]json.RawMessage `json:"pending"`
		Unknown       *[]json.RawMessage `json:"unknown"`
		Findings      *[]findingDoc      `json:"findings"`
		Summary       *summaryDoc        `json:"summary"`
	}
	stepDoc struct {
		Address  *string      `json:"address"`
		Node     *string      `json:"node"`
		Manifest *string      `json:"manifest"`
		VMID     any          `json:"vmid"`
		Action   *string      `json:"action"`
		Class    *string      `json:"class"`
		Reason   *string      `json:"reason"`
		Changes  *[]changeDoc `json:"changes"`
		After    *[]string    `json:"after"`
		At       *atDoc       `json:"at"`
	}
	changeDoc struct {
		Path      *string `json:"path"`
		Before    any     `json:"before"`
		After     any     `json:"after"`
		Sensitive *bool   `json:"sensitive"`
		Class     *string `json:"class"`
	}
	unmanagedDoc struct {
		VMID *int    `json:"vmid"`
		Name *string `json:"name"`
		Kind *string `json:"kind"`
		Why  *string `json:"why"`
	}
	atDoc struct {
		File   string `json:"file"`
		Line   int    `json:"line"`
		Column int    `json:"column"`
	}
	findingDoc struct {
		Severity *string `json:"severity"`
		Summary  *string `json:"summary"`
		Detail   *string `json:"detail"`
		Source   *string `json:"source"`
		At       *atDoc  `json:"at"`
	}
	summaryDoc struct {
		Create    *int `json:"create"`
		Update    *int `json:"update"`
		Replace   *int `json:"replace"`
		Delete    *int `json:"delete"`
		Unchanged *int `json:"unchanged"`
		Unmanaged *int `json:"unmanaged"`
	}
	reportDoc struct {
		Verb     *string       `json:"verb"`
		Success  *bool         `json:"success"`
		Commit   *string       `json:"commit"`
		Duration *float64      `json:"duration_seconds"`
		Nodes    *[]nodeDoc    `json:"nodes"`
		Findings *[]findingDoc `json:"findings"`
	}
	nodeDoc struct {
		Name     *string  `json:"name"`
		Status   *string  `json:"status"`
		VMID     any      `json:"vmid"`
		IP       *string  `json:"ip"`
		Duration *float64 `json:"duration_seconds"`
	}
	verdictDoc struct {
		Valid    *bool         `json:"valid"`
		Findings *[]findingDoc `json:"findings"`
	}
)

// A site outside of the repository, whose host is a simulator in a process of its
// own, with nothing but the binary between them.
func TestFromTheCommandLine(t *testing.T) {
	t.Parallel()
	sim := simulate(t, "--node", "father", "--guests", "3", "--task-time", "20ms")
	dir := filepath.Join(t.TempDir(), "site")
	write := func(name, text string) {
		name = filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	}
	write("site.hcl", released.Site)
	write("host.hcl", fmt.Sprintf("host \"father\" {\n  api = %q\n  fingerprint = %q\n}\n", sim.API, sim.Fingerprint))
	write("secrets.yaml", released.Auth+fmt.Sprintf("api_tokens:\n  father: %q\nssh_keys:\n  ops: %q\n", sim.Token, opsKey))
	write(".gitignore", "secrets.yaml\n")
	web := func(lines ...string) {
		write("manifests/web.hcl", "manifest \"web\" {\n  pattern = \"flat\"\n  host = host.father\n"+vm("web", append([]string{"count = 2"}, lines...)...)+"}\n")
	}
	web()
	commit := commitOf(t, dir)
	theirs := sim.guests(t)
	require.Len(t, theirs, 3)
	expect := func(code int, args ...string) ran {
		t.Helper()
		r := run(t, dir, args...)
		require.Equal(t, code, r.code, "homestak-gitops %v\n%s\n%s", args, r.out, r.err)
		require.NotContains(t, r.out+r.err, sim.Token, "a secret was printed")
		return r
	}

	// validate
	v := document[verdictDoc](t, expect(0, "validate", "--json"))
	require.True(t, *v.Valid)
	require.Empty(t, *v.Findings)

	// plan
	first := document[planDoc](t, expect(0, "plan", "--json"))
	checkPlan(t, first)
	require.Equal(t, "home", *first.Site)
	require.Equal(t, "father", *first.Host)
	require.Equal(t, commit, *first.Commit)
	require.Equal(t, []string{"create image.debian-12", "create vm.web-1", "create vm.web-2"}, stepsOf(first))
	require.Equal(t, 3, *first.Summary.Create)
	require.Equal(t, 3, *first.Summary.Unmanaged)
	step := (*first.Steps)[1]
	require.Equal(t, atDoc{"manifests/web.hcl", 4, 3}, *step.At)
	require.Equal(t, []string{"image.debian-12"}, *step.After)
	require.InDelta(t, 10000, step.VMID, 0)
	require.Nil(t, (*first.Steps)[0].VMID)
	expect(2, "plan", "--detailed-exitcode")
	require.Equal(t, theirs, sim.guests(t), "a plan changed the host")

	// apply
	r := document[reportDoc](t, expect(0, "apply", "--yes", "--json"))
	checkReport(t, r)
	require.Equal(t, "apply", *r.Verb)
	require.True(t, *r.Success)
	require.Equal(t, commit, *r.Commit)
	require.Equal(t, map[string]string{"web-1": "completed", "web-2": "completed"}, statuses(r))
	require.Equal(t, map[string]string{"web-1": "running", "web-2": "running"}, minus(sim.guests(t), theirs))

	// nothing is left to do
	none := document[planDoc](t, expect(0, "plan", "--json", "--detailed-exitcode"))
	checkPlan(t, none)
	require.Empty(t, *none.Steps)
	again := document[reportDoc](t, expect(0, "apply", "--yes", "--json"))
	require.Equal(t, map[string]string{"web-1": "completed", "web-2": "completed"}, statuses(again))

	// an edit: exactly the edited keys
	web("memory = 4096", "tags = [\"prod\"]")
	edited := document[planDoc](t, expect(2, "plan", "--json", "--detailed-exitcode"))
	checkPlan(t, edited)
	require.Equal(t, commit+"-dirty", *edited.Commit)
	require.Equal(t, []string{"update vm.web-1", "update vm.web-2"}, stepsOf(edited))
	for _, step := range *edited.Steps {
		require.Len(t, *step.Changes, 2)
		memory, tags := (*step.Changes)[0], (*step.Changes)[1]
		require.Equal(t, "memory", *memory.Path)
		require.InDelta(t, 2048, memory.Before, 0)
		require.InDelta(t, 4096, memory.After, 0)
		require.Equal(t, "pending", *memory.Class, "restart = never")
		require.Equal(t, "tags", *tags.Path)
		require.Equal(t, "none", *tags.Class)
	}
	expect(0, "apply", "--yes", "--json")
	expect(0, "plan", "--detailed-exitcode")

	// destroy, twice
	gone := document[reportDoc](t, expect(0, "destroy", "-M", "web", "--yes", "--json"))
	checkReport(t, gone)
	require.Equal(t, "destroy", *gone.Verb)
	require.True(t, *gone.Success)
	require.Equal(t, map[string]string{"web-1": "destroyed", "web-2": "destroyed"}, statuses(gone))
	require.Equal(t, theirs, sim.guests(t))
	twice := document[reportDoc](t, expect(0, "destroy", "-M", "web", "--yes", "--json"))
	checkReport(t, twice)
	require.True(t, *twice.Success)
	require.Equal(t, theirs, sim.guests(t))
}

// A plan that was kept is applied as it was shown, or not at all.
func TestAKeptPlan(t *testing.T) {
	s := begin(t, pve.Config{})
	s.deploy("web", vm("web-1")+vm("web-2"))
	s.says(0, "plan", "--out", "plan.json")
	s.says(0, "apply", "plan.json", "--yes")
	require.Equal(t, []string{"web-1", "web-2"}, s.names())

	s.edit("manifests/web.hcl", "image  = image.debian-12", "image  = image.debian-12\n    onboot = true")
	s.says(0, "plan", "--out", "plan.json")
	s.edit("manifests/web.hcl", "onboot = true", "onboot = true\n    cores = 4")
	s.quietly(func() {
		r := s.says(4, "apply", "plan.json", "--yes")
		require.Contains(t, r.err, "plan")
	})

	// The site is as it was, the host is not.
	s.edit("manifests/web.hcl", "onboot = true\n    cores = 4", "onboot = true")
	first := s.vmidOf("web-1")
	s.byHand(func(e *pve.Edit) { e.Set(first, "memory", "1024") })
	s.quietly(func() { s.says(4, "apply", "plan.json", "--yes") })
	require.Equal(t, "1024", s.guest("web-1").Config["memory"])
}

// checkPlan requires every field of the plan document.
func checkPlan(t *testing.T, p planDoc) {
	t.Helper()
	requireFields(t, p.FormatVersion, p.Site, p.Commit, p.Host, p.ObservedAt, p.ID, p.Steps, p.Unmanaged, p.Pending, p.Unknown, p.Findings, p.Summary)
	requireFields(t, p.Summary.Create, p.Summary.Update, p.Summary.Replace, p.Summary.Delete, p.Summary.Unchanged, p.Summary.Unmanaged)
	require.Equal(t, "1.0", *p.FormatVersion)
	for _, s := range *p.Steps {
		requireFields(t, s.Address, s.Node, s.Manifest, s.Action, s.Class, s.Reason, s.Changes, s.After, s.At)
		require.Contains(t, []string{"create", "update", "replace", "delete", "adopt"}, *s.Action)
		require.Contains(t, []string{"none", "hot", "pending", "restart", "migrate", "replace", "data-loss"}, *s.Class)
		for _, c := range *s.Changes {
			requireFields(t, c.Path, c.Sensitive, c.Class)
		}
	}
	for _, f := range *p.Unmanaged {
		requireFields(t, f.VMID, f.Name, f.Kind, f.Why)
	}
}

// checkReport requires every field of the document of apply and destroy.
func checkReport(t *testing.T, r reportDoc) {
	t.Helper()
	requireFields(t, r.Verb, r.Success, r.Commit, r.Duration, r.Nodes, r.Findings)
	for _, n := range *r.Nodes {
		requireFields(t, n.Name, n.Status, n.IP, n.Duration)
	}
}

// requireFields requires that none of these pointers is nil.
func requireFields(t *testing.T, fields ...any) {
	t.Helper()
	for i, f := range fields {
		require.NotNil(t, f, "field %d is missing", i)
	}
}

func stepsOf(p planDoc) []string {
	var out []string
	for _, s := range *p.Steps {
		out = append(out, *s.Action+" "+*s.Address)
	}
	return out
}

func statuses(r reportDoc) map[string]string {
	out := map[string]string{}
	for _, n := range *r.Nodes {
		out[*n.Name] = *n.Status
	}
	return out
}

// guests asks the simulator, as anybody may, which guests it has: power by name.
func (s simulator) guests(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, kind := range []string{"qemu", "lxc"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.API+"/api2/json/nodes/"+s.Node+"/"+kind, nil)
		require.NoError(t, err)
		req.Header.Set("Authorization", "PVEAPIToken="+s.Token)
		client := &http.Client{Transport: &http.Transport{
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // A simulator on this machine.
			DisableKeepAlives: true,
		}}
		res, err := client.Do(req)
		require.NoError(t, err)
		var list struct {
			Data []struct{ Name, Status string }
		}
		err = json.NewDecoder(res.Body).Decode(&list)
		require.NoError(t, res.Body.Close())
		require.NoError(t, err)
		for _, g := range list.Data {
			out[g.Name] = g.Status
		}
	}
	return out
}

func minus(all, some map[string]string) map[string]string {
	out := map[string]string{}
	for name, status := range all {
		if _, there := some[name]; !there {
			out[name] = status
		}
	}
	return out
}

// commitOf makes a folder a git checkout with all its files in one commit, and
// gives the commit's id.
func commitOf(t *testing.T, dir string) string {
	t.Helper()
	repo, err := git.PlainInit(dir, false)
	require.NoError(t, err)
	tree, err := repo.Worktree()
	require.NoError(t, err)
	require.NoError(t, tree.AddWithOptions(&git.AddOptions{All: true}))
	files, err := tree.Status()
	require.NoError(t, err)
	require.NotContains(t, files, "secrets.yaml")
	id, err := tree.Commit("The site", &git.CommitOptions{Author: &object.Signature{Name: "Anna", Email: "anna@home.example", When: time.Unix(1, 0)}})
	require.NoError(t, err)
	return id.String()
}
