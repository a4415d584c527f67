// Package guest_test runs the program as it is installed: on a real Debian with a real
// systemd, which test/nspawn boots.
//
// world_test.go is what stands around the agent in the guest: a simulated Proxmox VE, a
// repository, and somebody who pushes. The other files are stories. A story waits for what
// it can see (a state of systemd, a guest on the simulated host) and never for time to pass.
package guest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/source"
	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/test/nspawn"
	"github.com/homestak/homestak-gitops/test/released"
)

// base is what the guests are booted from.
var base = nspawn.Rootfs{Packages: nspawn.Systemd, Ready: "HOMESTAK_GUEST_ROOTFS"}

// Names in the guest.
const (
	service = "homestak-gitops.service"
	once    = "homestak-gitops-once.service"
	timer   = "homestak-gitops.timer"

	helperSocket = "homestak-gitops-host.socket"
	helperUnit   = "homestak-gitops-host.service"

	secrets   = "/etc/homestak-gitops/secrets.yaml"
	installer = "/opt/homestak/systemd/install.sh"
	binary    = "/opt/homestak/bin/homestak-gitops"
)

// world is a guest with the program installed in it, and what stands around that: a
// simulated Proxmox VE, a repository, and somebody who writes the site and pushes.
// Simulator and repository are this process's and are looked at from here.
type world struct {
	*nspawn.Machine
	t      *testing.T
	host   *pve.Host
	author *source.Author
	site   string // folder of the checkout
	head   string // the commit that was pushed last
}

// begin boots a guest, installs the program in it as people do, and pushes a site with
// one node, which nobody has looked at yet.
func begin(t *testing.T) *world {
	t.Helper()
	t.Parallel() // stories mostly wait
	nspawn.Need(t)
	w := &world{t: t, host: pve.New(pve.Config{Guests: 2})}
	shared := t.TempDir()
	require.NoError(t, os.Chmod(shared, 0o755)) // the agent is not root
	w.serve(t, filepath.Join(shared, "pve.sock"))
	w.site = filepath.Join(t.TempDir(), "site")
	var err error
	w.author, err = source.NewAuthor(filepath.Join(shared, "site.git"), w.site, fstest.MapFS{
		"site.hcl": &fstest.MapFile{Data: []byte(released.Site)},
		"host.hcl": &fstest.MapFile{Data: fmt.Appendf(nil, "host \"father\" {\n  api         = \"https://127.0.0.1:8006\"\n  fingerprint = %q\n  node        = %q\n}\n", w.host.Fingerprint(), w.host.Node())},
	})
	require.NoError(t, err)
	w.push("web.hcl", node("web-1"))

	units, err := filepath.Abs("../../systemd")
	require.NoError(t, err)
	w.Machine = nspawn.Boot(t, base,
		nspawn.Bind{From: units, To: filepath.Dir(installer)}, nspawn.Bind{From: filepath.Dir(program(t)), To: filepath.Dir(binary)},
		nspawn.Bind{From: shared, To: "/srv/world", Write: true})
	t.Cleanup(func() { // while the guest still runs
		if t.Failed() {
			said, _ := w.Try("journalctl", "--output=short-monotonic", "--unit=homestak*", "--lines=60")
			t.Logf("journal:\n%s", said)
			said, _ = w.Try("homestak-gitops", "status")
			t.Logf("status:\n%s", said)
		}
	})
	w.bridge()
	w.Run(installer, binary)
	w.Write("/etc/homestak-gitops/agent.hcl", 0o644, agentFile)
	w.Write(secrets, 0o600, released.Auth+fmt.Sprintf("api_tokens:\n  father: %q\n", w.host.Token()))
	// What a person would not wait for, a test does not either.
	w.dropIn("soon", "RestartSec=100ms")
	return w
}

const agentFile = `identity = "father"

repository {
  url  = "file:///srv/world/site.git"
  poll = "1h" # it looks when it is told to
}
`

// node is a manifest with one node.
func node(name string) string {
	return fmt.Sprintf("manifest %[1]q {\n  pattern = \"flat\"\n  host    = host.father\n  node %[1]q {\n    type   = \"vm\"\n    preset = \"vm-small\"\n    image  = \"debian-12\"\n  }\n}\n", name)
}

// bad is a manifest with a mistake in its sixth line.
var bad = strings.Replace(node("bad-1"), `"vm-small"`, `"vm-smal"`, 1)

// serve lets the simulator answer on a socket that the guest can reach as a file.
func (w *world) serve(t *testing.T, name string) {
	t.Helper()
	ln, err := net.Listen("unix", name)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- w.host.Serve(ctx, ln) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-served)
	})
}

// bridge leads from the port of the API in the guest to that socket: the guest has no
// other network than its loopback. The unit has the name that it has on a real host.
func (w *world) bridge() {
	w.t.Helper()
	w.Write("/run/systemd/system/pveproxy.socket", 0o644, "[Socket]\nListenStream=127.0.0.1:8006\n")
	w.Write("/run/systemd/system/pveproxy.service", 0o644, "[Service]\nExecStart=/lib/systemd/systemd-socket-proxyd /srv/world/pve.sock\n")
	w.Run("systemctl", "daemon-reload")
	w.Run("systemctl", "start", "pveproxy.socket", "pveproxy.service")
}

// push writes a file of the site, commits, and pushes. It gives the id of the commit.
func (w *world) push(name, text string) string {
	w.t.Helper()
	require.NoError(w.t, os.WriteFile(filepath.Join(w.site, name), []byte(text), 0o600))
	id, err := w.author.Push(context.Background(), "change "+name)
	require.NoError(w.t, err)
	w.head = id
	return id
}

// dropIn changes the agent's unit for this guest.
func (w *world) dropIn(name string, lines ...string) {
	w.t.Helper()
	w.Write("/etc/systemd/system/"+service+".d/"+name+".conf", 0o644, "[Service]\n"+strings.Join(lines, "\n")+"\n")
	w.Run("systemctl", "daemon-reload")
}

// show gives a property of a unit.
func (w *world) show(unit, property string) string {
	w.t.Helper()
	return w.Run("systemctl", "show", "--value", "--property="+property, unit)
}

// pid is the main process of the agent, 0 if there is none.
func (w *world) pid() int {
	w.t.Helper()
	n, err := strconv.Atoi(w.show(service, "MainPID"))
	require.NoError(w.t, err)
	return n
}

// has waits until the host runs a guest of this name, by what the host says.
func (w *world) has(name string) {
	w.t.Helper()
	w.Until(name+" runs on the host", func() bool {
		return slices.ContainsFunc(w.host.Snapshot().Guests, func(g pve.Guest) bool { return g.Running && g.Config["name"] == name })
	})
}

// settled waits until the agent says that the host is as the last commit says, and rests.
func (w *world) settled() {
	w.t.Helper()
	w.Until("the agent is settled at "+w.head[:7], func() bool {
		s := w.status()
		return s.Converged.ID == w.head && s.State == "idle" && s.Healthy
	})
}

// status is what the verb of that name prints, run by root.
type status struct {
	State     string
	PID       int
	Healthy   bool
	Converged struct{ ID string }
}

func (w *world) status() status {
	w.t.Helper()
	var s status
	said, err := w.Command("homestak-gitops", "status", "--json").Output()
	if len(said) > 0 { // its exit code tells of the agent's health
		require.NoError(w.t, json.Unmarshal(said, &s), "%s, %v", said, err)
	}
	return s
}

// entry is a line of the journal.
type entry struct {
	Priority string `json:"PRIORITY"`
	Message  string `json:"MESSAGE"`
	UID      string `json:"_UID"`
	PID      string `json:"_PID"`
}

// journal gives what a unit wrote, and not what systemd wrote about it.
func (w *world) journal(unit string) []entry {
	w.t.Helper()
	var all []entry
	for line := range strings.Lines(w.Run("journalctl", "--output=json", "--all", "_SYSTEMD_UNIT="+unit)) {
		var e entry
		require.NoError(w.t, json.Unmarshal([]byte(line), &e), line)
		all = append(all, e)
	}
	return all
}

// built is the program under test.
var built struct {
	once      sync.Once
	dir, path string
	err       error
}

// program is the path of the program as it is released.
func program(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "homestak-guest-"); built.err != nil {
			return
		}
		built.path, built.err = released.Path(t.Context(), built.dir)
		built.err = errors.Join(built.err, os.Chmod(built.dir, 0o755)) // the agent is not root
	})
	require.NoError(t, built.err)
	return built.path
}

func TestMain(m *testing.M) {
	if name := filepath.Base(os.Args[0]); strings.HasPrefix(name, "pve") {
		os.Exit(programOfPVE(name))
	}
	m.Run()
	_ = os.RemoveAll(built.dir)
}
