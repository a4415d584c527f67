package push

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/drivertest"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// hub is a fake server of a parent.
type hub struct {
	*httptest.Server
	pin     wire.Pin
	program []byte
	keys    []string // of those that joined
	waiting bool
	over    bool // the token for joining counts no more
}

func newHub(t *testing.T, program []byte) *hub {
	t.Helper()
	h := &hub{program: program}
	h.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/join/branch-7" && r.Method == http.MethodPost:
			var asked wire.Join
			if json.NewDecoder(r.Body).Decode(&asked) != nil || asked.Check() != nil || wire.Token(r.Header) != tokenFor("branch-7") {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			if h.over {
				w.WriteHeader(http.StatusUnauthorized)
				_, _ = w.Write([]byte(`{"error":{"code":"E303","message":"the token expired"}}`))
				return
			}
			h.keys = append(h.keys, asked.Key)
			sums := map[string]string{"linux-amd64": sumOf(h.program)}
			_ = json.NewEncoder(w).Encode(wire.NewJoined("branch-7", fmt.Sprintf("good-%d", len(h.keys)), []string{h.pin.String(), otherPin}, h.waiting, sums))
		case r.URL.Path == "/agent/linux-amd64" && strings.HasPrefix(wire.Token(r.Header), "good-"):
			_, _ = w.Write(h.program)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	h.pin = wire.PinOf(h.Certificate())
	t.Cleanup(h.Close)
	return h
}

func tokenFor(name string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(`{"v":1,"n":"`+name+`"}`)) + ".c2lnbmF0dXJl"
}

// joins makes a machine join, and returns what was said.
func (h *hub) joins(m *childMachine, name, program string, look bool) (said string, err error) {
	var b strings.Builder
	err = h.join(m, name, program, &b).Do(m.t.Context(), look)
	return b.String(), err
}

func (h *hub) join(m *childMachine, name, program string, said *strings.Builder) *Join {
	return &Join{
		JoinFile: wire.JoinFile{URL: h.URL, Pin: h.pin.String(), Token: tokenFor(name)},
		Machine:  m, System: "linux", Arch: "amd64", Program: programOf(program), Version: program,
		Say: func(format string, args ...any) { fmt.Fprintf(said, format+"\n", args...) },
	}
}

// A Proxmox VE machine joins: it gets the program of the parent, and all that a child has. Again, it changes no more than the token.
func TestAMachineJoins(t *testing.T) {
	m, h := begin(t), newHub(t, programOf("2"))
	said, err := h.joins(m, "branch-7", "1", true)
	require.NoError(t, err)
	require.Contains(t, said, "this machine: linux-amd64, Proxmox VE\njoin "+h.URL+" as branch-7")
	require.Empty(t, h.keys)
	require.Empty(t, m.sh("ls -A /etc/homestak-gitops 2>/dev/null || :"), "it only said what it would do")

	said, err = h.joins(m, "branch-7", "1", false)
	require.NoError(t, err, said)
	require.Contains(t, said, "fetch the program of the parent\n")
	require.Contains(t, said, "branch-7 joined")
	require.Equal(t, string(programOf("2")), m.sh("cat "+programFile))
	require.Equal(t, "good-1\n", m.sh("cat "+tokenFile))
	require.Contains(t, m.sh("cat "+settingsFile), "identity = \"branch-7\"\n\nparent {\n  url        = \""+h.URL+"\"\n")
	require.Contains(t, m.sh("cat "+settingsFile), "api.token")
	require.Equal(t, "homestak@pve!agent=canary-1\n", m.sh("cat "+apiFile))
	require.Equal(t, "600 root\n", m.sh("stat -c '%a %U' "+joinKey))
	m.sh("systemctl is-active homestak-gitops && systemctl is-enabled homestak-gitops")
	guests := m.sh("cat " + keyFile)

	h.waiting = true
	said, err = h.joins(m, "branch-7", "2", false)
	require.NoError(t, err)
	require.Contains(t, said, "branch-7 waits: no commit has a host of this name yet")
	require.NotContains(t, said, "fetch the program")
	require.Equal(t, h.keys[0], h.keys[1], "it is the same machine")
	require.Equal(t, "good-2\n", m.sh("cat "+tokenFile))
	require.Equal(t, guests, m.sh("cat "+keyFile))
	require.Equal(t, "homestak@pve!agent=canary-1\n", m.sh("cat "+apiFile))
	require.Empty(t, m.sh("ls -A /usr/local/bin | grep -v '^homestak-gitops$' || :"))
	require.NotContains(t, said, "good-")

	_, err = h.joins(m, "branch-8", "2", false)
	require.ErrorContains(t, err, "the agent of this machine is branch-7, and the token is for branch-8")
	_, err = h.joins(m, "no name", "2", false)
	require.ErrorContains(t, err, "the token is not one that token mint NAME --join prints")
	require.ErrorContains(t, (&Join{JoinFile: wire.JoinFile{URL: h.URL}}).Do(t.Context(), true), "--token is missing")
}

// A Debian machine without Proxmox VE joins, too: without an API that its agent could have a token for.
func TestADebianMachineJoins(t *testing.T) {
	m, h := begin(t), newHub(t, programOf("1"))
	m.sh("rm /usr/bin/pveum")
	said, err := h.joins(m, "branch-7", "1", false)
	require.NoError(t, err, said)
	require.Contains(t, said, "this machine: linux-amd64, no Proxmox VE\n")
	require.NotContains(t, said, "homestak@pve")
	require.NotContains(t, m.sh("cat "+settingsFile), "api")
	m.sh("systemctl is-active homestak-gitops")
	m.sh("[ ! -e " + apiFile + " ]")

	// With Proxmox VE it gets the token.
	m.put("/usr/bin/pveum", drivertest.PVEum)
	_, err = h.joins(m, "branch-7", "1", false)
	require.NoError(t, err)
	require.Contains(t, m.sh("cat "+settingsFile), "api.token")
	require.Equal(t, "homestak@pve!agent=canary-1\n", m.sh("cat "+apiFile))
}

// A first boot that was cut off after it joined is repeated, when the token counts no more: the machine keeps what it has.
func TestAFirstBootIsRepeated(t *testing.T) {
	m, h := begin(t), newHub(t, programOf("1"))
	h.over = true
	var said strings.Builder
	err := h.join(m, "branch-7", "1", &said).DoPatiently(t.Context())
	require.Equal(t, wire.CodeExpired, wire.CodeOf(err), "it never joined: %v", err)

	h.over = false
	require.NoError(t, h.join(m, "branch-7", "1", &said).DoPatiently(t.Context()))
	m.sh("systemctl disable homestak-gitops; systemctl stop homestak-gitops")
	h.over = true
	require.NoError(t, h.join(m, "branch-7", "1", &said).DoPatiently(t.Context()))
	require.Contains(t, said.String(), "joined before")
	require.Equal(t, "good-1\n", m.sh("cat "+tokenFile))
	m.sh("systemctl is-active homestak-gitops && systemctl is-enabled homestak-gitops")

	other := newHub(t, programOf("1"))
	other.over = true
	require.Error(t, other.join(m, "branch-7", "1", &said).DoPatiently(t.Context()), "that is another parent")
}
