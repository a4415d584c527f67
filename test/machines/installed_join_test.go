package machines_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/source"
	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/test/nspawn"
	"github.com/homestak/homestak-gitops/test/released"
)

// joinScript is the script of a first boot.
const joinScript = "../../examples/join.sh"

// hub is a command to the agent of the hub, whose files are all in one folder of the machine.
const (
	hub      = binary + " %s --config /srv/hub/agent.hcl --data-dir /srv/hub/data --socket /srv/hub/agent.sock"
	hubAgent = `identity     = "hub"
listen       = "127.0.0.1:44500"
secrets_file = "/srv/hub/secrets.yaml"

repository {
  url  = "file:///srv/world/site.git"
  poll = "1s"
}
`
	// machineSpec is applied to the machine that joins.
	machineSpec = `spec "machine" {
  config {
    file "/etc/motd" { content = "joined\n" }
  }
}
`
)

// beginSpoke boots a machine that has an image's packages and not the program, and beside that the agent of a hub, which is there
// at every boot. The two share nothing but the loopback.
func beginSpoke(t *testing.T, host string) *installed {
	t.Helper()
	t.Parallel()
	nspawn.Need(t)
	w := &installed{t: t, host: pve.New(pve.Config{Guests: 1})}
	shared := t.TempDir()
	require.NoError(t, os.Chmod(shared, 0o755))
	w.serve(t, filepath.Join(shared, "pve.sock"))
	w.site = filepath.Join(t.TempDir(), "site")
	var err error
	w.author, err = source.NewAuthor(filepath.Join(shared, "site.git"), w.site, fstest.MapFS{
		"site.hcl": &fstest.MapFile{Data: []byte(released.Site + machineSpec)},
		"hub.hcl":  &fstest.MapFile{Data: fmt.Appendf(nil, "host \"hub\" {\n  api         = \"https://127.0.0.1:8006\"\n  fingerprint = %q\n  node        = %q\n}\n", w.host.Fingerprint(), w.host.Node())},
	})
	require.NoError(t, err)
	w.push("branch.hcl", host)
	w.Machine = nspawn.Rootfs{Packages: nspawn.Image, Ready: "HOMESTAK_CLOUD_ROOTFS"}.BootKept(t,
		nspawn.Bind{From: filepath.Dir(programToInstall(t)), To: filepath.Dir(binary)}, nspawn.Bind{From: shared, To: "/srv/world", Write: true})
	w.pveTools(shared)
	w.Write("/etc/systemd/system/api.socket", 0o644, "[Socket]\nListenStream=127.0.0.1:8006\n[Install]\nWantedBy=sockets.target\n")
	w.Write("/etc/systemd/system/api.service", 0o644, "[Service]\nExecStart=/lib/systemd/systemd-socket-proxyd /srv/world/pve.sock\n")
	w.Write("/srv/hub/agent.hcl", 0o644, hubAgent)
	w.Write("/srv/hub/secrets.yaml", 0o600, released.Auth+fmt.Sprintf("api_tokens:\n  hub: %q\n", w.host.Token()))
	w.Write("/etc/systemd/system/hub.service", 0o644, fmt.Sprintf("[Service]\nType=notify\nExecStart="+hub+"\n[Install]\nWantedBy=multi-user.target\n", "agent"))
	w.Run("systemctl", "enable", "--now", "api.socket", "hub.service")
	w.Until("the hub has a server", func() bool {
		_, code := w.Try("test", "-e", "/srv/hub/data/server/server.pem")
		return code == 0
	})
	return w
}

// explain shows what was logged if the test failed. It is deferred: the machine of a later boot ends before what is cleaned up.
func (w *installed) explain() {
	if w.t.Failed() {
		said, _ := w.Try("journalctl", "--output=short-monotonic", "--unit=homestak*", "--unit=hub", "--unit=cloud-final", "--unit=proxmox-first-boot", "--lines=80")
		w.t.Logf("journal:\n%s", said)
		said, _ = w.Try("homestak-gitops", "status")
		w.t.Logf("status:\n%s", said)
		said, _ = w.Try("sh", "-c", fmt.Sprintf(hub, "tree"))
		w.t.Logf("tree:\n%s", said)
	}
}

// mint makes a token for joining, and returns what is printed.
func (w *installed) mint(args ...string) string {
	w.t.Helper()
	return w.Run("sh", "-c", binary+" token mint branch-7 --join --data-dir /srv/hub/data --url https://127.0.0.1:44500 "+strings.Join(args, " "))
}

// firstBoot is the script of a first boot, with a token for this machine.
func (w *installed) firstBoot() string {
	w.t.Helper()
	w.mint("--out", "/srv/hub/join.json")
	script, err := os.ReadFile(joinScript)
	require.NoError(w.t, err)
	lines := strings.Split(string(script), "\n")
	at := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, "json=") })
	require.GreaterOrEqual(w.t, at, 0)
	lines[at] = "json='" + w.Run("cat", "/srv/hub/join.json") + "'"
	return strings.Join(lines, "\n")
}

// joined waits until the hub says that the machine is ready at the last commit.
func (w *installed) joined() {
	w.t.Helper()
	w.Until("its spec is applied", func() bool { return w.Run("cat", "/etc/motd") == "joined" }) // far cheaper to ask
	w.Until("branch-7 is ready", func() bool {
		said, _ := w.Command("sh", "-c", fmt.Sprintf(hub, "status --json")).Output()
		var s struct {
			Hosts []struct {
				Name, Commit string
				Ready        bool
			}
		}
		if len(said) > 0 { // the hub may start again
			require.NoError(w.t, json.Unmarshal(said, &s), "%s", said)
		}
		return len(s.Hosts) == 1 && s.Hosts[0].Name == "branch-7" && s.Hosts[0].Ready && s.Hosts[0].Commit == w.head
	})
}

// A fresh machine joins by the command that is printed, by the script of examples as user-data of cloud-init, and by the same
// script as a first-boot hook of Proxmox VE's installer.
func TestInstalledByJoining(t *testing.T) {
	const plain = "host \"branch-7\" {\n  parent = host.hub\n  spec   = spec.machine\n}\n"
	t.Run("by hand", func(t *testing.T) {
		w := beginSpoke(t, plain)
		defer w.explain()
		command := w.mint()
		w.Run("sh", "-c", "cp "+binary+" /usr/local/bin/; "+command)
		w.Run("systemctl", "enable", "--now", helperSocket)
		w.Run("systemctl", "reload", service)
		w.joined()
		said, code := w.Try("sh", "-c", command+"x")
		require.Equal(t, 6, code, said)
	})
	t.Run("by cloud-init", func(t *testing.T) {
		w := beginSpoke(t, plain)
		defer w.explain()
		script := w.firstBoot()
		w.Write("/var/lib/cloud/seed/nocloud/user-data", 0o600, script+"systemctl enable --now "+helperSocket+"; systemctl reload "+service+"\n")
		w.Write("/var/lib/cloud/seed/nocloud/meta-data", 0o600, `{"instance-id": "homestak-test", "local-hostname": "branch"}`)
		w.Write("/etc/cloud/cloud.cfg.d/99-test.cfg", 0o644, "apt:\n  preserve_sources_list: true\nlocale: false\nnetwork:\n  config: disabled\n")
		w.PowerCycle()
		w.joined()
		require.Contains(t, w.Run("cloud-init", "status", "--wait"), "status: done")
		w.again(script)
	})
	t.Run("by the installer of Proxmox VE", func(t *testing.T) {
		w := beginSpoke(t, strings.Replace(plain, "}", "  node   = \"father\"\n}", 1))
		defer w.explain()
		w.Run("sh", "-c", "for name in pvesh pveum pvesm; do ln -s "+pveTools+"/$name /usr/bin/$name; done; mkdir -p /etc/pve")
		w.Write("/etc/pve/pve-root-ca.pem", 0o644, w.host.Authority())
		script := w.firstBoot()
		w.Write("/var/lib/proxmox-first-boot/proxmox-first-boot", 0o755, script+"systemctl enable --now "+helperSocket+"; systemctl reload "+service+"\n")
		w.Write("/var/lib/proxmox-first-boot/pending-first-boot-setup", 0o644, "")
		// What its package proxmox-first-boot has for "fully-up".
		w.Write("/etc/systemd/system/proxmox-first-boot.service", 0o644, `[Unit]
After=pveproxy.service hub.service
Wants=pveproxy.service
ConditionPathExists=/var/lib/proxmox-first-boot/pending-first-boot-setup
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/var/lib/proxmox-first-boot/proxmox-first-boot fully-up
ExecStartPost=rm /var/lib/proxmox-first-boot/pending-first-boot-setup
[Install]
WantedBy=multi-user.target
`)
		w.Run("systemctl", "enable", "proxmox-first-boot.service")
		w.PowerCycle()
		w.joined()
		require.True(t, strings.HasPrefix(w.Run("cat", "/etc/homestak-gitops/api.token"), "homestak@pve!"))
		w.again(script)
	})
}

// again runs the script of a first boot once more, after its token was used, and requires that the agent stays.
func (w *installed) again(script string) {
	w.t.Helper()
	require.Equal(w.t, "755 root", w.Run("stat", "-c", "%a %U", "/etc/homestak-gitops"))
	before := w.Run("cat", "/etc/homestak-gitops/ssh_key.pub")
	w.Write("/root/join.sh", 0o700, script)
	w.Run("/root/join.sh")
	require.Equal(w.t, before, w.Run("cat", "/etc/homestak-gitops/ssh_key.pub"))
	w.Run("sh", "-c", "[ ! -e /etc/homestak-gitops/join.json ] && systemctl is-active "+service+" && ! systemctl --failed --quiet | grep homestak")
}
