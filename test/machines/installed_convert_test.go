package machines_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/source"
	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/test/nspawn"
	"github.com/homestak/homestak-gitops/test/released"
)

// standIns are tiny packages with the names of Proxmox VE's. The API of the manager is that of the simulator, and the kernel is a
// name: machines of nspawn run the kernel of this one.
var standIns = map[string]content{
	"proxmox-ve": {fields: "Depends: pve-manager, proxmox-default-kernel\n"},
	"pve-manager": {fields: "Depends: proxmox-widget-toolkit\n", files: map[string]string{
		"usr/bin/pveversion":                         "#!/bin/sh\necho pve-manager\n",
		"etc/apt/sources.list.d/pve-enterprise.list": "deb https://enterprise.proxmox.com/debian/pve bookworm pve-enterprise\n",
		"lib/systemd/system/pveproxy.socket":         "[Socket]\nListenStream=127.0.0.1:8006\n[Install]\nWantedBy=sockets.target\n",
		"lib/systemd/system/pveproxy.service":        "[Service]\nExecStart=/lib/systemd/systemd-socket-proxyd /srv/world/pve.sock\n",
		"DEBIAN/postinst":                            "#!/bin/sh\nsystemctl daemon-reload\nsystemctl enable --now --quiet pveproxy.socket\n",
	}},
	"proxmox-widget-toolkit": archive["proxmox-widget-toolkit"],
	"proxmox-default-kernel": {files: map[string]string{
		"boot/vmlinuz-6.8.12-4-pve":             "a kernel\n",
		"lib/systemd/system/pve-kernel.service": "[Unit]\nDefaultDependencies=no\n[Service]\nType=oneshot\nExecStart=/bin/sh -c 'echo 6.8.12-4-pve >/run/kernel'\n[Install]\nWantedBy=sysinit.target\n",
		"DEBIAN/postinst":                       "#!/bin/sh\nsystemctl enable --quiet pve-kernel.service\n",
	}},
}

// convertedHost is the host that becomes one of Proxmox VE, and restarts in a window.
func (w *installed) convertedHost(window string) string {
	return fmt.Sprintf(`host "father" {
  api         = "https://127.0.0.1:8006"
  fingerprint = %q
  node        = %q
  spec        = spec.machine
}
spec "machine" {
  identity { hostname = "father" }
  platform { packages = ["proxmox-ve"] }
  config {
    pve {
      no_subscription         = true
      remove_subscription_nag = true
      bridge                  = "vmbr0"
      restart                 = %q
    }
  }
}
`, w.host.Fingerprint(), w.host.Node(), window)
}

// Plain Debian becomes a host of Proxmox VE by a spec, through the helper: the repository, the packages, ifupdown2 in place of ifupdown,
// the bridge, the name, and a restart for the kernel, which waits for its window and happens once. Then the agent goes on by the API.
func TestInstalledDebianBecomesAHostOfProxmoxVE(t *testing.T) {
	t.Parallel()
	nspawn.Need(t)
	proxmox, key := proxmoxRepository(t, standIns)
	w := &installed{t: t, host: pve.New(pve.Config{Guests: 1})}
	shared := t.TempDir()
	require.NoError(t, os.Chmod(shared, 0o755))
	w.serve(t, filepath.Join(shared, "pve.sock"))
	w.site = filepath.Join(t.TempDir(), "site")
	var err error
	w.author, err = source.NewAuthor(filepath.Join(shared, "site.git"), w.site, fstest.MapFS{"site.hcl": &fstest.MapFile{Data: []byte(released.Site)}})
	require.NoError(t, err)
	units, err := filepath.Abs("../../systemd")
	require.NoError(t, err)
	w.Machine = networked(withIfupdown).BootKept(t,
		nspawn.Bind{From: units, To: filepath.Dir(installer)}, nspawn.Bind{From: filepath.Dir(programToInstall(t)), To: filepath.Dir(binary)},
		nspawn.Bind{From: shared, To: "/srv/world", Write: true}, nspawn.Bind{From: proxmox, To: "/srv/proxmox"},
		nspawn.Bind{From: ofDebian(t, networked("ifupdown2,isc-dhcp-client"), "ifupdown2"), To: "/srv/debian"},
		nspawn.Bind{From: ofDebian(t, networked(withIfupdown), "ifupdown"), To: "/srv/before"})
	defer w.explain()
	now := func(in time.Duration) string {
		at, err := time.Parse("15:04", w.Run("date", "+%H:%M"))
		require.NoError(t, err)
		return at.Add(in).Format("15:04")
	}

	// The network, the repositories and the name of the kernel are there at every boot.
	w.Write("/usr/local/sbin/lan", 0o755, "#!/bin/sh\nip netns add lan; ip link add eth0 type veth peer name lan0 netns lan; ip -n lan link set lan0 up; ip -n lan addr add 10.9.0.1/24 dev lan0\n")
	w.Write("/etc/systemd/system/lan.service", 0o644, "[Unit]\nDefaultDependencies=no\nAfter=systemd-tmpfiles-setup.service\nBefore=networking.service network-pre.target\nWants=network-pre.target\n[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/usr/local/sbin/lan\n[Install]\nWantedBy=multi-user.target networking.service\n")
	w.Write("/etc/systemd/system/mirror.service", 0o644, "[Service]\nExecStart=/usr/bin/python3 -m http.server 80 --directory /srv/proxmox\n[Install]\nWantedBy=multi-user.target\n")
	w.Write("/usr/local/bin/uname", 0o755, "#!/bin/sh\nif [ \"$*\" = -r ] && [ -f /run/kernel ]; then exec cat /run/kernel; fi\nexec /usr/bin/uname \"$@\"\n")
	w.Write("/usr/share/keyrings/proxmox-archive-keyring.gpg", 0o644, string(key))
	w.Run("sh", "-c", "echo '127.0.0.1 download.proxmox.com' >>/etc/hosts; rm -rf /etc/apt/sources.list.d/*; printf 'deb [trusted=yes] file:%s ./\\n' /srv/debian /srv/before >/etc/apt/sources.list; "+
		"systemctl daemon-reload && systemctl enable --now lan mirror && systemctl enable networking && "+eniStatic)
	w.Run(installer, binary)
	w.Write("/etc/homestak-gitops/agent.hcl", 0o644, agentFile)
	w.Write(secrets, 0o600, released.Auth+fmt.Sprintf("api_tokens:\n  father: %q\n", w.host.Token()))
	w.push("web.hcl", manifestOf("web-1"))
	w.push("host.hcl", w.convertedHost(now(6*time.Hour)+"-"+now(7*time.Hour)))
	w.Run("systemctl", "enable", "--now", helperSocket, service)

	// Everything but the restart is done outside of its window, and the API, once it is there, is used at once.
	const network = "ip -4 -o addr show scope global | awk '{print $2, $4}'"
	w.Until("the machine has the packages and the bridge", func() bool {
		_, code := w.Try("sh", "-c", "command -v pveversion && [ -d /sys/class/net/vmbr0/brif/eth0 ]")
		return code == 0
	})
	w.has("web-1")
	w.settled()
	vmid := w.host.Snapshot().Guests[len(w.host.Snapshot().Guests)-1].VMID
	require.Equal(t, "vmbr0 10.9.0.5/24", w.Run("sh", "-c", network))
	w.Run("sh", "-c", "ip netns exec lan ping -c 1 -W 5 10.9.0.5 && [ \"$(getent hosts father | cut -d' ' -f1)\" = 10.9.0.5 ]")
	w.Run("sh", "-c", "dpkg-query -W ifupdown2 && ! dpkg -s ifupdown 2>/dev/null | grep -q '^Status: install ok installed' && grep -q '^# homestak-gitops: deb' /etc/apt/sources.list.d/pve-enterprise.list")
	w.Run("sh", "-c", "[ /etc/apt/sources.list.d/homestak-pve.sources -ot /var/lib/dpkg/info/proxmox-ve.list ] && [ /var/lib/dpkg/info/ifupdown2.list -ot /etc/network/interfaces ]")
	w.Run("grep", "-q", "silenced by homestak-gitops", webLibrary)
	w.Run("sh", "-c", "touch /run/first && ! systemctl is-active homestak-gitops-restart.timer && case $(uname -r) in *-pve) exit 1;; esac")

	// In the window it restarts, and goes on.
	w.push("host.hcl", w.convertedHost(now(-time.Hour)+"-"+now(3*time.Hour)))
	w.Run("systemctl", "reload", service)
	w.AwaitRestart()
	w.settled()
	require.Equal(t, "6.8.12-4-pve", w.Run("uname", "-r"))
	require.Equal(t, "6.8.12-4-pve", w.Run("cat", "/var/lib/homestak-gitops-spec/restarted-for"))
	require.Equal(t, "vmbr0 10.9.0.5/24", w.Run("sh", "-c", network))
	require.Equal(t, vmid, w.host.Snapshot().Guests[len(w.host.Snapshot().Guests)-1].VMID)
	w.Run("homestak-gitops", "reconcile")
	w.settled()

	// A boot loader that starts another kernel does not make it restart again, and is reported.
	w.Run("rm", "/run/kernel")
	w.Try("homestak-gitops", "reconcile")
	w.Until("the agent says it", func() bool {
		said, _ := w.Try("homestak-gitops", "status")
		return strings.Contains(said, "the machine was restarted for kernel 6.8.12-4-pve, and runs")
	})
	w.Run("sh", "-c", "! systemctl is-active homestak-gitops-restart.timer && [ ! -e /run/first ]")

	// Without the spec it is plain Debian again, with the network and the packages that it had.
	w.push("host.hcl", strings.Replace(w.convertedHost(""), "  spec        = spec.machine\n", "", 1))
	w.Run("systemctl", "reload", service)
	w.Until("the card has its address again", func() bool {
		said, _ := w.Try("sh", "-c", network)
		return strings.TrimSpace(said) == "eth0 10.9.0.5/24"
	})
	w.Until("ifupdown is back", func() bool {
		_, code := w.Try("sh", "-c", "dpkg -s ifupdown | grep -q '^Status: install ok installed' && ! command -v pveversion && [ ! -e /etc/apt/sources.list.d/homestak-pve.sources ]")
		return code == 0
	})
	w.Run("sh", "-c", "[ ! -e /sys/class/net/vmbr0 ] && ip netns exec lan ping -c 1 -W 5 10.9.0.5")
}
