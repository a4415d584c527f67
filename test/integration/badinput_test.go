package integration_test

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// Whatever stands in the files of a site: a clear finding, never a panic, and a
// host that is not even asked.
func TestFilesThatAreNoSite(t *testing.T) {
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
		{name: "unreachable", setUp: func(s *story) { s.edit("host.hcl", s.api, "https://"+closedPort(s.t)) }, code: 1, says: []string{"refused", "127.0.0.1"}},
		{name: "a name that nobody knows", setUp: func(s *story) { s.edit("host.hcl", s.api, "https://pve.invalid:8006") }, code: 1, says: []string{"pve.invalid"}},
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
		{name: "no token", setUp: func(s *story) { s.write("secrets.yaml", secretsWith("ssh_keys:\n  ops: \""+opsKey+"\"\n")) }, code: 6, says: []string{"api_tokens", "father"}},
		{name: "403 for everything", setUp: func(s *story) { s.breaks("* /** status=403") }, code: 6, says: []string{"403", "privilege"}},
		{name: "a wrong fingerprint", setUp: func(s *story) { s.edit("host.hcl", s.host.Fingerprint(), "sha256:"+strings.Repeat("ab", 32)) }, code: 1, says: []string{"fingerprint", "abab"}},
		{name: "no fingerprint", setUp: func(s *story) { s.edit("host.hcl", "fingerprint", "# fingerprint") }, code: 1, says: []string{"fingerprint"}},
		{name: "a fingerprint that is none", setUp: func(s *story) { s.edit("host.hcl", s.host.Fingerprint(), "it is fine") }, code: 3, says: []string{"fingerprint"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := begin(t, pve.Config{})
			s.deploy("web", vm("leaves")+vm("stays"))
			s.apply()
			before := s.ours()
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
			require.Equal(t, before, s.ours())
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

// A VMID that the files declare is somebody else's: it stays theirs, which is told,
// and the rest is made.
func TestATakenVMID(t *testing.T) {
	s := begin(t, pve.Config{})
	taken := s.strangers[0]
	s.write("site.hcl", strings.Replace(frame, "from = 10000", "from = 100", 1))
	s.deploy("web", vm("web-1", fmt.Sprintf("vmid = %d", taken.VMID))+vm("web-2"))

	plan := s.says(4, "plan")
	require.Contains(t, plan.err+plan.out, fmt.Sprint(taken.VMID))
	r := s.says(4, "apply", "--yes")
	require.Contains(t, r.err+r.out, "web-1")
	require.Contains(t, r.err+r.out, fmt.Sprint(taken.VMID))
	require.Equal(t, []string{"web-2"}, s.names())
}

// closedPort is an address of this machine where nobody listens.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
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
