package machines_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/aspect"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/test/nspawn"
)

// The check for a subscription in proxmoxlib.js, cut to the lines that matter: of
// proxmox-widget-toolkit 4 (Proxmox VE 8) and of 5, src/Utils.js, and the same comparison in
// src/node/APTRepositories.js.
const (
	webLibrary8 = `    checked_command: function(orig_cmd) {
		    let res = response.result;
		    if (res === null || res === undefined || !res || res
			.data.status.toLowerCase() !== 'active') {
			    title: gettext('No valid subscription'),
` + webRepositories
	webLibrary9 = `        checked_command: function (orig_cmd) {
                    let res = response.result;
                    if (
                        !res ||
                        res.data.status.toLowerCase() !== 'active'
                    ) {
                            title: gettext('No valid subscription'),
` + webRepositories
	webRepositories = `	    subscriptionActive = !(
                    res.data.status.toLowerCase() !== 'active'
                );
`
)

const webLibrary = "/usr/share/javascript/proxmox-widget-toolkit/proxmoxlib.js"

// The reminder is silent, also behind an upgrade, and back when the spec drops it.
func TestST02TheReminderOfProxmoxVE(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t)
	s := parse(t, `"config": {"pve": {"remove_subscription_nag": true}}`)
	w.apply(s) // before there is anything to silence
	w.unchanged(s)
	count := func() string {
		return w.Run0("grep -c \"status.toLowerCase() === 'silenced\" " + webLibrary + "; grep -c \"status.toLowerCase() !== 'active'\" " + webLibrary)
	}
	w.Run0("apt-get update && apt-get -y install proxmox-widget-toolkit")
	require.Equal(t, "1\n1", count(), "the page about repositories still knows that there is no subscription")
	w.unchanged(s)
	w.Run0("apt-get -y install --reinstall proxmox-widget-toolkit")
	require.Equal(t, "1\n1", count())
	w.Run0("dpkg -i /srv/apt/proxmox-widget-toolkit_1.0_all.deb")
	require.Equal(t, "1\n1", count(), "by dpkg alone")

	w.Write(webLibrary, 0o644, webLibrary8)
	require.Equal(t, []string{"config.pve.remove_subscription_nag false → true"}, changes(w.observe(s)))
	w.apply(s)
	require.Equal(t, "1\n1", count())
	w.Run0("rm /etc/dpkg/dpkg.cfg.d/homestak-gitops-pve")
	require.Equal(t, []string{"config.pve.remove_subscription_nag false → true"}, changes(w.observe(s)))
	w.apply(s)

	none := spec.Empty("edge")
	w.apply(none)
	require.Equal(t, strings.TrimSpace(webLibrary8), strings.TrimSpace(w.Run0("cat "+webLibrary)))
	w.Run0("apt-get -y install --reinstall proxmox-widget-toolkit && ! ls /etc/dpkg/dpkg.cfg.d/*homestak* /usr/local/lib/*homestak* 2>/dev/null")
	require.Equal(t, strings.TrimSpace(webLibrary9), strings.TrimSpace(w.Run0("cat "+webLibrary)))
	w.unchanged(none)

	w.Write(webLibrary, 0o644, "checked_command: another way\nNo valid subscription\n")
	w.refused(s, "asks for a subscription in a way that is not known here")
}

// proxmoxRepository makes the repository of Proxmox, and its public key. Nothing of it is fetched.
func proxmoxRepository(t *testing.T) (dir string, key []byte) {
	t.Helper()
	if _, err := exec.LookPath("gpg"); err != nil {
		nspawn.Without(t, "gpg is missing, to sign a repository with")
	}
	dir = t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o755))
	for _, suite := range []string{"bookworm", "trixie"} {
		top := filepath.Join(dir, "debian/pve/dists", suite)
		pool := filepath.Join(top, "pve-no-subscription/binary-amd64")
		require.NoError(t, os.MkdirAll(pool, 0o755))
		index := build(t, pool, map[string]content{"proxmox-ve": {files: map[string]string{
			"usr/bin/pveversion": "#!/bin/sh\necho pve-manager\n", "etc/apt/sources.list.d/pve-enterprise.list": "deb https://enterprise.proxmox.com/debian/pve bookworm pve-enterprise\n",
			"DEBIAN/conffiles": "/etc/apt/sources.list.d/pve-enterprise.list\n",
		}}})
		index = strings.ReplaceAll(index, "Filename: ./", "Filename: dists/"+suite+"/pve-no-subscription/binary-amd64/")
		write(t, filepath.Join(pool, "Packages"), index, 0o644)
		write(t, filepath.Join(top, "Release"), fmt.Sprintf("Origin: Proxmox\nSuite: %[1]s\nCodename: %[1]s\nArchitectures: amd64\nComponents: pve-no-subscription\nDate: Sun, 01 Nov 2026 00:00:00 UTC\nSHA256:\n %[2]x %[3]d pve-no-subscription/binary-amd64/Packages\n", suite, sha256.Sum256([]byte(index)), len(index)), 0o644)
	}
	home := t.TempDir()
	gpg := func(args ...string) []byte {
		cmd := exec.Command("gpg", append([]string{"--homedir", home, "--batch", "--quiet", "--pinentry-mode", "loopback", "--passphrase", ""}, args...)...)
		said, err := cmd.Output()
		require.NoError(t, err, "%s", said)
		return said
	}
	gpg("--quick-generate-key", "proxmox <proxmox@example.org>", "ed25519", "sign", "never")
	for _, suite := range []string{"bookworm", "trixie"} {
		top := filepath.Join(dir, "debian/pve/dists", suite)
		gpg("--clearsign", "--output", filepath.Join(top, "InRelease"), filepath.Join(top, "Release"))
		require.NoError(t, os.Chmod(filepath.Join(top, "InRelease"), 0o644))
	}
	t.Cleanup(func() { _ = exec.Command("gpgconf", "--homedir", home, "--kill", "gpg-agent").Run() })
	return dir, gpg("--export")
}

// Packages come from the repository without subscription, and apt is not stopped by those
// that need one, also by one that comes with a package of the same run. All is back when the
// spec drops it.
func TestST02TheRepositoryOfProxmoxVE(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	dir, key := proxmoxRepository(t)
	w := begin(t, nspawn.Bind{From: dir, To: "/srv/proxmox"})
	w.Run0("echo '127.0.0.1 download.proxmox.com' >>/etc/hosts; systemd-run --quiet --unit=web python3 -m http.server 80 --directory /srv/proxmox && until ss -tln | grep -q ':80 '; do :; done")
	const (
		ceph  = "/etc/apt/sources.list.d/ceph.sources"
		cephs = "Types: deb\nURIs: https://enterprise.proxmox.com/debian/ceph-squid\nSuites: trixie\nComponents: enterprise\n"
	)
	w.Write(ceph, 0o644, cephs)
	s := parse(t, `"platform": {"packages": ["proxmox-ve"]}, "config": {"pve": {"no_subscription": true}}`)

	// A key that is not the one of Proxmox is refused. Here nothing answers at its address.
	w.Run0("echo '127.0.0.1 enterprise.proxmox.com' >>/etc/hosts")
	w.refused(s, "the key of Proxmox cannot be fetched from https://enterprise.proxmox.com/debian/proxmox-")
	require.Empty(t, w.Run0("ls /etc/apt/keyrings /run/homestak-pve* /etc/apt/sources.list.d/homestak* 2>/dev/null | grep -v : || :"))

	w.Write("/usr/share/keyrings/proxmox-archive-keyring.gpg", 0o644, string(key))
	w.apply(s)
	w.unchanged(s)
	w.Run0("pveversion && apt-get update -o APT::Update::Error-Mode=any")
	require.Equal(t, "# homestak-gitops: deb https://enterprise.proxmox.com/debian/pve bookworm pve-enterprise", w.Run0("cat /etc/apt/sources.list.d/pve-enterprise.list"))
	require.Contains(t, w.Run0("cat "+ceph), "Components: enterprise\n# homestak-gitops: \nEnabled: no")

	w.Run0("sed -i 's/^Enabled: no/Enabled: yes/' " + ceph)
	require.Equal(t, []string{"config.pve.no_subscription false → true"}, changes(w.observe(s)))
	w.apply(s)
	w.unchanged(s)

	w.apply(parse(t, `"platform": {"packages": ["proxmox-ve"]}`))
	require.Equal(t, "deb https://enterprise.proxmox.com/debian/pve bookworm pve-enterprise", w.Run0("cat /etc/apt/sources.list.d/pve-enterprise.list; ls /etc/apt/sources.list.d/homestak* 2>/dev/null || :"))
	require.Equal(t, strings.TrimSpace(cephs), strings.ReplaceAll(w.Run0("cat "+ceph), "\nEnabled: yes", ""))

	// Somebody's own line for it is as good.
	w.Write("/etc/apt/sources.list.d/mine.list", 0o644, "deb [signed-by=/usr/share/keyrings/proxmox-archive-keyring.gpg] http://download.proxmox.com/debian/pve bookworm pve-no-subscription\n")
	w.apply(s)
	w.unchanged(s)
	w.Run0("[ ! -e /etc/apt/sources.list.d/homestak-pve.sources ]")
}

// The name of a host of Proxmox VE is at its address of the network.
func TestST02TheNameOfAHostOfProxmoxVE(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t)
	w.Run0("printf '127.0.0.1 localhost\\n127.0.1.1 debian\\n10.1.2.3 nas\\n' >/etc/hosts")
	s := parse(t, `"identity": {"hostname": "edge", "domain": "home.example", "routable": true}`)
	w.refused(s, "this machine has no route to a network")
	w.Run0("ip link add card type veth peer name wire && ip link set card up && ip link set wire up && ip addr add 198.51.100.7/24 dev card && ip route add default via 198.51.100.1")
	w.apply(s)
	require.Equal(t, "127.0.0.1 localhost\n198.51.100.7 edge.home.example edge\n127.0.1.1 debian\n10.1.2.3 nas", w.Run0("cat /etc/hosts"))
	w.Run0(`[ "$(hostname -f)" = edge.home.example ] && [ "$(getent hosts edge | cut -d' ' -f1)" = 198.51.100.7 ]`)
	w.unchanged(s)
	w.Run0("sed -i '1i 127.0.1.1 edge' /etc/hosts")
	require.Equal(t, []string{`identity.hosts "127.0.1.1 edge" → "(its address) edge.home.example…"`}, changes(w.observe(s)))
	w.apply(s)
	w.unchanged(s)
}

// The bridge takes over the card with its addresses, survives nobody's silence, and gives
// the card back.
func TestST02TheBridgeOfAHostOfProxmoxVE(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := &world{t: t}
	w.Machine = nspawn.Boot(t, nspawn.Rootfs{Packages: nspawn.Systemd + ",iproute2,ifupdown2", Ready: "HOMESTAK_MACHINES_IFUPDOWN2_ROOTFS"})
	const before = "auto lo\niface lo inet loopback\n\nallow-hotplug card\niface card inet static\n\taddress 198.51.100.7/24\n\tgateway 198.51.100.1\n\niface card inet6 static\n\taddress 2001:db8::7/64\n"
	w.Run0("ip link add card type veth peer name wire && ip link set wire up")
	w.Write("/etc/network/interfaces", 0o644, before)
	w.Run0("ifup lo; ifup card")
	addresses := func(dev string) string {
		return w.Run0("ip -o addr show dev " + dev + " scope global | awk '{print $4}' | sort | tr '\\n' ' '; ip route show default | grep -o 'dev [^ ]*' || :")
	}
	require.Equal(t, "198.51.100.7/24 2001:db8::7/64 dev card", addresses("card"))
	s := parse(t, `"config": {"pve": {"bridge": "vmbr0"}}`)

	// Nobody connects afterwards: all is as it was.
	_, err := converge.Apply(context.Background(), way{w}, s, converge.Options{Confirm: func(context.Context, *spec.Spec, aspect.Step) error {
		if got := addresses("vmbr0"); got != "198.51.100.7/24 2001:db8::7/64 dev vmbr0" {
			t.Errorf("the bridge has %s", got)
		}
		return errNoWayIn
	}})
	require.ErrorIs(t, err, errNoWayIn)
	w.Until("the card has its addresses again", func() bool {
		return addresses("card") == "198.51.100.7/24 2001:db8::7/64 dev card" && w.Run0("ls /var/lib/homestak-gitops/revert") == ""
	})
	require.Equal(t, strings.TrimSpace(before), w.Run0("cat /etc/network/interfaces"))
	require.Equal(t, []string{`config.pve.bridge "" → vmbr0`}, changes(w.observe(s)))

	w.apply(s)
	require.Equal(t, "198.51.100.7/24 2001:db8::7/64 dev vmbr0", addresses("vmbr0"))
	require.Equal(t, "card", w.Run0("ls /sys/class/net/vmbr0/brif"))
	require.Equal(t, "auto lo\niface lo inet loopback\n\niface card inet manual\n\nauto vmbr0\niface vmbr0 inet static\n\tbridge-ports card\n\tbridge-stp off\n\tbridge-fd 0\n\taddress 198.51.100.7/24\n\tgateway 198.51.100.1\n\niface vmbr0 inet6 static\n\taddress 2001:db8::7/64", w.Run0("cat /etc/network/interfaces"))
	w.unchanged(s)
	w.Run0("ip link delete vmbr0")
	require.Equal(t, []string{`config.pve.bridge "vmbr0 (down)" → vmbr0`}, changes(w.observe(s)))
	w.apply(s)
	require.Equal(t, "198.51.100.7/24 2001:db8::7/64 dev vmbr0", addresses("vmbr0"))

	// A guest is on it.
	w.Run0("ip link add tap100i0 type veth peer name guest && ip link set tap100i0 master vmbr0")
	w.refused(spec.Empty("edge"), "bridge vmbr0 has the cards of guests as ports: tap100i0")
	w.Run0("ip link delete tap100i0")

	// Nobody connects after it was removed: it is there again, and can still be removed.
	none := spec.Empty("edge")
	_, err = converge.Apply(context.Background(), way{w}, none, converge.Options{Confirm: nobody})
	require.ErrorIs(t, err, errNoWayIn)
	w.Until("the bridge has the addresses again", func() bool {
		return addresses("vmbr0") == "198.51.100.7/24 2001:db8::7/64 dev vmbr0" && w.Run0("ls /var/lib/homestak-gitops/revert") == ""
	})
	w.unchanged(s)

	// What was there before is still kept when an attempt is cut off as it is confirmed.
	w.instead = func(c guest.Command) guest.Command {
		if bytes.Contains(c.Stdin, []byte("pvebridge.sh.confirmed")) {
			c.Stdin = bytes.Replace(c.Stdin, []byte("\ndrop /var/lib/homestak-gitops/found/"), []byte("\nkill -9 0\n"), 1)
		}
		return c
	}
	_, err = converge.Apply(context.Background(), way{w}, none, converge.Options{})
	require.Error(t, err)
	w.instead = nil
	w.Run0("[ -f /var/lib/homestak-gitops/found/interfaces-before-bridge ] && [ ! -e /sys/class/net/vmbr0 ]")
	w.apply(none)
	require.Empty(t, w.Run0("ls /var/lib/homestak-gitops/found"))
	require.Equal(t, "198.51.100.7/24 2001:db8::7/64 dev card", addresses("card"))
	w.Run0("[ ! -e /sys/class/net/vmbr0 ]")
	require.Equal(t, strings.TrimSpace(before), w.Run0("cat /etc/network/interfaces"))
	w.unchanged(none)
}
