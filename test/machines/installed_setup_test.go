package machines_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
	"github.com/homestak/homestak-gitops/sim"
	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/test/nspawn"
)

// pveTools is the folder of pvesh, pveum and pvesm in the guest: this test itself, by another name.
const pveTools = "/srv/world/bin"

// programOfPVE is pvesh, pveum or pvesm, as root runs it in the guest. The API behind it is the simulator's.
func programOfPVE(name string) int {
	token, err := os.ReadFile(filepath.Join(filepath.Dir(pveTools), "token"))
	var out string
	if err == nil {
		out, err = sim.Command(&http.Transport{
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "tcp", "127.0.0.1:8006")
			},
		}, string(token), append([]string{name}, os.Args[1:]...))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 255
	}
	fmt.Fprint(os.Stdout, out)
	return 0
}

// pveNode is a guest that setup can be run in.
type pveNode struct {
	*installed
	srv string // folder of this machine that is /srv in the guest
}

// beginNode boots a guest that is a PVE node, as far as setup can see. The program is there and not installed.
func beginNode(t *testing.T, version string) *pveNode {
	t.Helper()
	nspawn.Need(t)
	t.Parallel()
	w := &pveNode{installed: &installed{t: t, host: pve.New(pve.Config{Guests: 2, Version: version, Storages: []pve.Storage{
		{Name: "local", Type: "dir", Content: []string{"iso", "vztmpl", "backup"}}, {Name: "local-lvm", Type: "lvmthin", Content: []string{"images", "rootdir"}},
	}})}}
	shared := t.TempDir()
	require.NoError(t, os.Chmod(shared, 0o755))
	w.srv, shared = shared, filepath.Join(shared, "world")
	require.NoError(t, os.Mkdir(shared, 0o755))
	w.serve(t, filepath.Join(shared, "pve.sock"))
	w.pveTools(shared)
	w.Machine = nspawn.Rootfs{ // that of test/bench: openssl and ssh-keygen, which are on every PVE node
		Packages: nspawn.Systemd + ",openssh-server,sudo,iproute2,libpam-systemd,ifupdown,python3,python3-apt,tzdata,ca-certificates",
	}.Boot(t, nspawn.Bind{From: filepath.Dir(programToInstall(t)), To: filepath.Dir(binary)}, nspawn.Bind{From: w.srv, To: "/srv", Write: true})
	t.Cleanup(func() {
		if t.Failed() {
			said, _ := w.Try("journalctl", "--output=short-monotonic", "--unit=homestak*", "--lines=60")
			t.Logf("journal:\n%s", said)
		}
	})
	w.bridge()
	return w
}

// shell runs a line with the programs of PVE in its path.
func (w *pveNode) shell(line string) string {
	w.t.Helper()
	return w.Run("sh", "-c", "PATH=$PATH:"+pveTools+"; "+line)
}

// pveTools puts the programs of PVE into the folder that becomes /srv/world in the guest.
func (w *installed) pveTools(shared string) {
	w.t.Helper()
	self, err := os.Executable()
	require.NoError(w.t, err)
	text, err := os.ReadFile(self)
	require.NoError(w.t, err)
	require.NoError(w.t, os.Mkdir(filepath.Join(shared, "bin"), 0o755))
	require.NoError(w.t, os.WriteFile(filepath.Join(shared, "bin/pve"), text, 0o755))
	for _, name := range []string{"pvesh", "pveum", "pvesm"} {
		require.NoError(w.t, os.Symlink("pve", filepath.Join(shared, "bin", name)))
	}
	require.NoError(w.t, os.WriteFile(filepath.Join(shared, "token"), []byte(w.host.Token()), 0o600))
}

// whole is everything in the guest and on the host that setup could change. Backups of accounts are not in it.
func (w *pveNode) whole() string {
	w.t.Helper()
	var b strings.Builder
	for _, path := range []string{"/access/users", "/access/roles", "/access/acl", "/nodes/" + w.host.Node() + "/storage"} {
		out, err := sim.Command(w.host, w.host.Token(), []string{"pvesh", "get", path, "--output-format", "json"})
		require.NoError(w.t, err)
		lines := strings.Split(strings.ReplaceAll(out, "},", "},\n"), "\n")
		for i, line := range lines { // PVE lists privileges and content in no order
			words := strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(`,"[]{}`, r) })
			slices.Sort(words)
			lines[i] = strings.Join(words, " ")
		}
		slices.Sort(lines)
		fmt.Fprintf(&b, "%s\n%s\n", path, strings.Join(lines, "\n"))
	}
	const places = "/etc /srv /usr/local /root /opt /home /var/lib"
	b.WriteString(w.Run("sh", "-c", "find "+places+" -xdev ! -path '/etc/*-' ! -name .pwd.lock ! -path '/var/lib/systemd/*' \\( -type f -exec sha256sum {} + -o -printf '%p %y %m %u %l\\n' \\) | sort"))
	return b.String()
}

// On a real Debian with systemd: setup, and the agent is settled with nothing to do; a push, and it is deployed; undo, and
// all is as before. A setup that is cut off anywhere is finished by the next one.
func TestInstalledSetupOnARealDebian(t *testing.T) {
	for _, version := range []string{"8.4", "9.2"} {
		t.Run(version, func(t *testing.T) {
			w := beginNode(t, version)
			const setup = binary + " setup --yes --api https://127.0.0.1:8006"
			before := w.whole()
			for _, lines := range []int{48, 66, 84, 102} { // the plan is printed first
				w.shell(fmt.Sprintf("%s | head -n %d >/dev/null", setup, lines))
				w.shell(setup)
				require.Contains(t, w.shell(setup), "nothing to do")
				w.head = strings.TrimSpace(w.Run("cat", "/srv/homestak-gitops.git/refs/heads/main"))
				w.settled()
				w.shell(fmt.Sprintf("%s setup --undo --yes | head -n %d >/dev/null", binary, lines-40))
				w.shell(binary + " setup --undo --yes")
				require.Equal(t, before, w.whole(), "cut off after line %d", lines)
			}

			w.shell(setup)
			guests := w.host.Guests()
			w.head = strings.TrimSpace(w.Run("cat", "/srv/homestak-gitops.git/refs/heads/main"))
			w.settled()
			require.Equal(t, guests, w.host.Guests())
			site := filepath.Join(t.TempDir(), "site")
			git := func(args ...string) string {
				out, err := sourcetest.Git(t.Context(), "", args...).CombinedOutput()
				require.NoError(t, err, "git %v: %s", args, out)
				return strings.TrimSpace(string(out))
			}
			git("clone", "-q", filepath.Join(w.srv, "homestak-gitops.git"), site)
			require.NoError(t, os.WriteFile(filepath.Join(site, "manifests/db.hcl"), []byte(manifestOf("db")), 0o600))
			git("-C", site, "add", "--all")
			git("-C", site, "commit", "-qm", "a database")
			git("-C", site, "push", "-q")
			w.head = git("-C", site, "rev-parse", "HEAD")
			w.Run("systemctl", "reload", service)
			w.has("db")
			w.settled()
			require.Contains(t, w.shell(binary+" setup --undo --yes"), "left as it is, since it was changed after setup")
			require.Equal(t, w.head, strings.TrimSpace(w.Run("cat", "/srv/homestak-gitops.git/refs/heads/main")))
		})
	}
}
