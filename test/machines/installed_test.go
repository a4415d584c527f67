// The program as it is installed: with its units, beside a simulated Proxmox VE and a repository that a test pushes to. A
// test waits for a state of systemd or of a guest on the simulated host, never for time to pass.

package machines_test

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
	upgradeTimer = "homestak-gitops-upgrade.timer"
	upgradeUnit  = "homestak-gitops-upgrade.service"

	secrets   = "/etc/homestak-gitops/secrets.yaml"
	installer = "/opt/homestak/systemd/install.sh"
	binary    = "/opt/homestak/bin/homestak-gitops"
)

// installed is a guest with the program installed in it, and its surroundings: a simulated Proxmox VE, a repository, and an author
// who writes the site and pushes. Simulator and repository are in this process.
type installed struct {
	*nspawn.Machine
	t      *testing.T
	host   *pve.Host
	author *source.Author
	site   string // folder of the checkout
	head   string // the commit that was pushed last
	key    string // of the repository of packages
}

// beginInstalled boots a guest, installs the program in it as people do, and pushes a site with
// one node, of which no agent knows yet.
func beginInstalled(t *testing.T) *installed {
	t.Helper()
	return beginInstalledIn(t, base)
}

// beginInstalledIn is beginInstalled in a guest with other packages.
func beginInstalledIn(t *testing.T, from nspawn.Rootfs, more ...nspawn.Bind) *installed {
	t.Helper()
	t.Parallel() // stories mostly wait
	nspawn.Need(t)
	w := &installed{t: t, host: pve.New(pve.Config{Guests: 2})}
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
	w.push("web.hcl", manifestOf("web-1"))

	units, err := filepath.Abs("../../systemd")
	require.NoError(t, err)
	w.Machine = from.Boot(t, append(more,
		nspawn.Bind{From: units, To: filepath.Dir(installer)}, nspawn.Bind{From: filepath.Dir(programToInstall(t)), To: filepath.Dir(binary)},
		nspawn.Bind{From: shared, To: "/srv/world", Write: true})...)
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
	// A test does not wait longer than a person would.
	w.dropIn("soon", "RestartSec=100ms")
	return w
}

const agentFile = `identity = "father"

repository {
  url  = "file:///srv/world/site.git"
  poll = "1h" # it looks when it is told to
}
`

// manifestOf is a manifest with one node.
func manifestOf(name string) string {
	return fmt.Sprintf("manifest %[1]q {\n  pattern = \"flat\"\n  host    = host.father\n  node %[1]q {\n    type   = \"vm\"\n    preset = \"vm-small\"\n    image  = \"debian-12\"\n  }\n}\n", name)
}

// bad is a manifest with a mistake in its sixth line.
var bad = strings.Replace(manifestOf("bad-1"), `"vm-small"`, `"vm-smal"`, 1)

// serve lets the simulator answer on a socket that the guest can reach as a file.
func (w *installed) serve(t *testing.T, name string) {
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
func (w *installed) bridge() {
	w.t.Helper()
	w.Write("/run/systemd/system/pveproxy.socket", 0o644, "[Socket]\nListenStream=127.0.0.1:8006\n")
	w.Write("/run/systemd/system/pveproxy.service", 0o644, "[Service]\nExecStart=/lib/systemd/systemd-socket-proxyd /srv/world/pve.sock\n")
	w.Run("systemctl", "daemon-reload")
	w.Run("systemctl", "start", "pveproxy.socket", "pveproxy.service")
}

// push writes a file of the site, commits, and pushes. It gives the id of the commit.
func (w *installed) push(name, text string) string {
	w.t.Helper()
	require.NoError(w.t, os.WriteFile(filepath.Join(w.site, name), []byte(text), 0o600))
	id, err := w.author.Push(context.Background(), "change "+name)
	require.NoError(w.t, err)
	w.head = id
	return id
}

// dropIn changes the agent's unit for this guest.
func (w *installed) dropIn(name string, lines ...string) {
	w.t.Helper()
	w.Write("/etc/systemd/system/"+service+".d/"+name+".conf", 0o644, "[Service]\n"+strings.Join(lines, "\n")+"\n")
	w.Run("systemctl", "daemon-reload")
}

// show gives a property of a unit.
func (w *installed) show(unit, property string) string {
	w.t.Helper()
	return w.Run("systemctl", "show", "--value", "--property="+property, unit)
}

// pid is the main process of the agent, 0 if there is none.
func (w *installed) pid() int {
	w.t.Helper()
	n, err := strconv.Atoi(w.show(service, "MainPID"))
	require.NoError(w.t, err)
	return n
}

// has waits until the host runs a guest of this name, by what the host says.
func (w *installed) has(name string) {
	w.t.Helper()
	w.Until(name+" runs on the host", func() bool {
		return slices.ContainsFunc(w.host.Snapshot().Guests, func(g pve.Guest) bool { return g.Running && g.Config["name"] == name })
	})
}

// settled waits until the agent says that the host is as the last commit says, and rests.
func (w *installed) settled() {
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
	Checks    []struct{ Address, State string }
}

func (w *installed) status() status {
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
func (w *installed) journal(unit string) []entry {
	w.t.Helper()
	var all []entry
	for line := range strings.Lines(w.Run("journalctl", "--output=json", "--all", "_SYSTEMD_UNIT="+unit)) {
		var e entry
		require.NoError(w.t, json.Unmarshal([]byte(line), &e), line)
		all = append(all, e)
	}
	return all
}

// installedProgram is the program under test.
var installedProgram struct {
	once      sync.Once
	dir, path string
	err       error
}

// programToInstall is the path of the program as it is released.
func programToInstall(t *testing.T) string {
	t.Helper()
	installedProgram.once.Do(func() {
		if installedProgram.dir, installedProgram.err = os.MkdirTemp("", "homestak-guest-"); installedProgram.err != nil {
			return
		}
		installedProgram.path, installedProgram.err = released.Path(t.Context(), installedProgram.dir)
		installedProgram.err = errors.Join(installedProgram.err, os.Chmod(installedProgram.dir, 0o755)) // the agent is not root
	})
	require.NoError(t, installedProgram.err)
	return installedProgram.path
}
