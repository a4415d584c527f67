package machines_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/aspect"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/test/nspawn"
)

const (
	withIfupdown = "ifupdown,isc-dhcp-client,systemd-resolved"

	eniDHCP     = `printf 'auto lo\niface lo inet loopback\n\nsource /etc/network/interfaces.d/*\n' >/etc/network/interfaces && printf '# mine\nallow-hotplug eth0\niface eth0 inet dhcp\n\tup echo up >>/run/ups\n' >/etc/network/interfaces.d/eth0 && echo 'nameserver 10.9.0.53' >/etc/resolv.conf && ifup eth0`
	eniStatic   = `printf 'auto lo\niface lo inet loopback\n' >/etc/network/interfaces && printf 'auto eth0\niface eth0 inet static\n\taddress 10.9.0.5\n\tnetmask 255.255.255.0\n\tgateway 10.9.0.1\n' >>/etc/network/interfaces && ifup eth0`
	unitDHCP    = `printf '[Match]\nName=e*\n[Network]\nDHCP=yes\nLinkLocalAddressing=ipv6\n' >/etc/systemd/network/80-dhcp.network && systemctl start systemd-networkd systemd-resolved && ln -sfT /run/systemd/resolve/stub-resolv.conf /etc/resolv.conf`
	netplanOnce = `mkdir -p /etc/cloud/cloud.cfg.d && printf 'network:\n  version: 2\n  ethernets:\n    eth0:\n      addresses: [10.9.0.5/24]\n      routes: [{to: default, via: 10.9.0.1}]\n      nameservers: {addresses: [10.9.0.53]}\n' >/etc/netplan/50-cloud-init.yaml && chmod 600 /etc/netplan/50-cloud-init.yaml && netplan generate && systemctl start systemd-networkd systemd-resolved && ln -sfT /run/systemd/resolve/stub-resolv.conf /etc/resolv.conf`
)

// An address moves from DHCP to a static one, to another, and back, whatever configures it. Nothing
// happens when it is right, and withdrawing leaves the files as they were.
func TestST02TheAddressOfAMachine(t *testing.T) {
	nspawn.Need(t)
	for _, c := range []struct {
		name, packages, begin string
		files                 string // that must be as before at the end
		found                 string
	}{
		{"ifupdown with DHCP", withIfupdown, eniDHCP, "/etc/network", "dhcp"},
		{"ifupdown with a static address", withIfupdown, eniStatic, "/etc/network", "10.9.0.5/24"},
		{"systemd-networkd with DHCP", withIfupdown, unitDHCP, "/etc/systemd/network", "dhcp"},
		{"netplan with a static address", withIfupdown, netplanOnce, "/etc/systemd/network /etc/netplan /etc/cloud", "10.9.0.5/24"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := beginLAN(t, c.packages, c.begin)
			w.Until("it has an address", func() bool { return w.address() != "" })
			files := "find " + c.files + " /etc/resolv.conf /etc/dhcp -type f -exec sha256sum {} + | sort"
			before := w.Run0(files)

			s := static(t, "10.9.0.6/24", "10.9.0.1", "10.9.0.2", "10.9.0.3")
			require.Contains(t, changes(w.observe(s)), "network.ip "+c.found+" → 10.9.0.6/24")
			w.apply(s)
			require.Equal(t, "10.9.0.6/24", w.address())
			require.True(t, w.ping("10.9.0.6"))
			require.Contains(t, w.Run0("ip route show default"), "via 10.9.0.1")
			w.unchanged(s)

			s = static(t, "10.8.0.7/24", "10.8.0.1", "10.9.0.3")
			w.apply(s)
			require.Equal(t, "10.8.0.7/24", w.address())
			require.True(t, w.ping("10.8.0.7"))
			w.unchanged(s)

			s = static(t, spec.DHCP, "", "10.9.0.2")
			w.apply(s)
			require.Contains(t, w.address(), "10.9.0.1")
			w.unchanged(s)

			none := spec.Empty("edge")
			w.apply(none)
			w.Until("it has an address", func() bool { return w.address() != "" })
			require.Equal(t, before, w.Run0(files))
			w.unchanged(none)
		})
	}
}

// A new address that cannot be reached is reverted by the machine itself, also if the connection that set it is cut and none
// follows, and by a restart.
func TestST02AnAddressThatLocksUsOutIsTakenBack(t *testing.T) {
	nspawn.Need(t)
	for _, c := range []struct{ name, begin, address, gone string }{
		{"ifupdown", eniStatic, "10.9.0.5/24", "/etc/network/interfaces.d /run/none"},
		{"systemd-networkd", netplanOnce, "10.9.0.5/24", "/etc/systemd/network /etc/cloud/cloud.cfg.d"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := beginLAN(t, withIfupdown, c.begin)
			w.Until("it answers", func() bool { return w.ping("10.9.0.5") })
			locked := static(t, "10.7.0.5/24", "10.7.0.1")
			at := func(address string) func() bool {
				return func() bool { return w.address() == address }
			}
			restored := func(within time.Duration) {
				t.Helper()
				start := time.Now()
				w.Until("the machine has its old address", at(c.address))
				require.Less(t, time.Since(start), within)
				w.Until("it answers", func() bool { return w.ping("10.9.0.5") })
				w.Until("nothing is left of it", func() bool {
					return w.Run0("ls /var/lib/homestak-gitops-spec/revert; find "+c.gone+" -name '*homestak*' 2>/dev/null; systemctl list-timers --all --no-legend | grep homestak-gitops-revert; ls /etc/systemd/system/multi-user.target.wants | grep homestak || :") == ""
				})
				require.Contains(t, changes(w.observe(locked)), "network.ip "+c.address+" → 10.7.0.5/24")
			}

			// The caller waits for it and cannot connect: two seconds to confirm it, and two more.
			ctx, gone := context.WithCancel(context.Background())
			reached := 0
			_, err := converge.Apply(ctx, way(w), locked, converge.Options{ConfirmWithin: 4 * time.Second, Confirm: func(_ context.Context, _ *spec.Spec, s aspect.Step) error {
				require.Equal(t, "10.7.0.5", s.Address.String())
				require.False(t, w.ping("10.7.0.5"))
				w.Until("it is at the new address", at("10.7.0.5/24"))
				reached++
				gone() // with this process
				return errNoWayIn
			}})
			require.Error(t, err)
			require.Positive(t, reached)
			restored(20 * time.Second)

			// On the machine itself the gateway has to answer.
			_, err = converge.Apply(context.Background(), way(w), locked, converge.Options{})
			require.ErrorContains(t, err, "it does not work, so the old state is restored: the gateway 10.7.0.1 does not answer")
			restored(20 * time.Second)

			// A restart in between.
			ctx, gone = context.WithCancel(context.Background())
			_, err = converge.Apply(ctx, way(w), locked, converge.Options{Confirm: func(context.Context, *spec.Spec, aspect.Step) error {
				gone()
				return errNoWayIn
			}})
			require.Error(t, err)
			w.Until("it is at the new address", at("10.7.0.5/24"))
			require.Contains(t, changes(w.observe(locked)), "network.unconfirmed true → false")
			w.Run0("systemctl stop homestak-gitops-revert-network.timer; systemctl daemon-reload; systemctl start homestak-gitops-revert-network-boot.service")
			restored(20 * time.Second)

			// A correct change is still applied afterwards.
			s := static(t, "10.9.0.6/24", "10.9.0.1")
			w.apply(s)
			require.True(t, w.ping("10.9.0.6"))
			w.unchanged(s)
		})
	}
}

// A change that the tools refuse is not tried, and one that fails is reverted at once.
func TestST02AnAddressThatFails(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := beginLAN(t, withIfupdown, eniStatic)
	w.Run0("pkill dnsmasq; echo 'timeout 3;' >>/etc/dhcp/dhclient.conf")
	_, err := converge.Apply(context.Background(), way(w), static(t, spec.DHCP, ""), converge.Options{})
	require.ErrorContains(t, err, "it failed, so the old state is restored")
	require.ErrorContains(t, err, "eth0 did not get dhcp within 40 s")
	require.Equal(t, "10.9.0.5/24", w.address())
	require.Empty(t, w.Run0("ls /var/lib/homestak-gitops-spec/revert"))

	w.Run0("printf 'iface eth1 inet bogus\\n' >>/etc/network/interfaces")
	_, err = converge.Apply(context.Background(), way(w), static(t, "10.9.0.6/24", "10.9.0.1"), converge.Options{})
	require.ErrorContains(t, err, "ifupdown refuses the settings")
	require.Equal(t, "10.9.0.5/24", w.address())
	require.True(t, w.ping("10.9.0.5"))
}

// However it is cut off, the machine keeps an address at which it answers, and the next apply ends in the
// same state.
func TestST14KilledWhileTheAddressChanges(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := beginLAN(t, withIfupdown, eniStatic)
	full, none := static(t, "10.9.0.6/24", "10.9.0.1", "10.9.0.2"), spec.Empty("edge")
	const files = "cat /etc/network/interfaces /etc/resolv.conf 2>/dev/null; ls -A /etc/network /var/lib/homestak-gitops-spec/revert"
	w.apply(full)
	wanted := w.Run0(files)
	w.apply(none)
	empty := w.Run0(files)
	killed := 0
	for run := 2; run <= 6; run++ { // an observation, the question, the step, its outcome, the confirmation
		for _, point := range []int{run + 2, 9*run - 6} {
			name := fmt.Sprintf("run %d, command %d", run, point)
			if w.killed(full, run, point) {
				killed++
			}
			w.apply(full)
			require.Equal(t, wanted, w.Run0(files), name)
			require.True(t, w.ping("10.9.0.6"), name)
			if w.killed(none, run+1, point) {
				killed++
			}
			w.apply(none)
			require.Equal(t, empty, w.Run0(files), name)
			require.True(t, w.ping("10.9.0.5"), name)
		}
	}
	t.Logf("killed %d times", killed)
	require.Greater(t, killed, 6)

	// The part that the machine runs after the connection has ended.
	w.Run0(`printf '#!/bin/sh\ncase $1 in --no-act) exec /usr/sbin/ifup "$@";; esac\nrm -f /usr/local/sbin/ifup\nkill -9 $PPID\n' >/usr/local/sbin/ifup; chmod +x /usr/local/sbin/ifup`)
	_, err := converge.Apply(context.Background(), way(w), full, converge.Options{ConfirmWithin: 2 * time.Second})
	require.ErrorContains(t, err, "the old state is restored")
	w.Until("the machine is back", func() bool { return w.ping("10.9.0.5") })
	w.apply(full)
	require.Equal(t, wanted, w.Run0(files))
}

// An interface that something else configures is left alone, and the finding says what it is.
func TestST02AnUnmanagedInterface(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := beginLAN(t, withIfupdown, "ip link set eth0 up")
	s := static(t, "10.9.0.6/24", "10.9.0.1")
	why := func() string {
		t.Helper()
		state, err := converge.Observe(context.Background(), way(w), s)
		require.NoError(t, err)
		require.Empty(t, changes(state))
		require.Empty(t, state.Steps())
		require.Len(t, state.Unknown, 1)
		return state.Unknown[0].Why
	}
	require.Equal(t, "neither ifupdown nor systemd-networkd configures eth0: let one of them configure it, or take network out of the spec", why())
	w.Run0("ip link add eth1 type veth peer name lan1 netns lan")
	require.Contains(t, why(), "there is no default route, and which of these interfaces is meant is not known: eth0 eth1")
	w.Run0("ip link del eth1; printf 'iface eth0 inet dhcp\\n\\niface eth0 inet static\\n\\taddress 10.9.0.5/24\\n' >>/etc/network/interfaces.d/eth0")
	require.Equal(t, "eth0 has 2 IPv4 stanzas in /etc/network/interfaces.d/eth0 and /etc/network/interfaces.d/eth0: one is needed", why())
	w.Run0("printf 'iface eth0 inet dhcp\\n' >/etc/network/interfaces.d/eth0; printf '[Match]\\nName=eth0\\n[Network]\\nDHCP=yes\\n' >/etc/systemd/network/eth0.network; systemctl start systemd-networkd")
	w.Until("systemd-networkd knows it", func() bool { return strings.Contains(w.Run0("networkctl status eth0 || :"), "configured") })
	require.Equal(t, "both ifupdown (/etc/network/interfaces.d/eth0) and systemd-networkd configure eth0: leave it to one of them", why())
	w.Run0("ls /var/lib/homestak-gitops 2>/dev/null && exit 1 || :")

	w.Run0("systemctl stop systemd-networkd systemd-networkd.socket; ip link add br0 type bridge && ip link set eth0 master br0 && ip addr add 10.9.0.5/24 dev br0 && ip link set br0 up && ip route add default via 10.9.0.1 && printf 'iface br0 inet static\\n\\taddress 10.9.0.5/24\\n\\tbridge_ports eth0\\n' >/etc/network/interfaces.d/eth0")
	require.Equal(t, "br0 is a bridge of ifupdown, which takes it apart when its address changes: install ifupdown2", why())
}

// On a host of Proxmox VE the address belongs to the bridge, which keeps its ports while it changes.
func TestST02TheAddressOfABridge(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := beginLAN(t, "ifupdown2,isc-dhcp-client", `printf 'auto lo\niface lo inet loopback\n\niface eth0 inet manual\n\nauto vmbr0\niface vmbr0 inet static\n\taddress 10.9.0.5/24\n\tgateway 10.9.0.1\n\tbridge-ports eth0\n\tbridge-stp off\n\tbridge-fd 0\n\nsource /etc/network/interfaces.d/*\n' >/etc/network/interfaces`,
		"echo nameserver 10.9.0.1 >/etc/resolv.conf", "ifreload -a", "ip link add tap0 type veth peer name guest0", "ip link set tap0 master vmbr0")
	w.Until("it answers", func() bool { return w.ping("10.9.0.5") })
	before := w.Run0("cat /etc/network/interfaces /etc/resolv.conf")
	address := func() string { return w.Run0("ip -4 -o addr show dev vmbr0 | awk '{print $4}'") }
	ports := func() string { return w.Run0("ls /sys/class/net/vmbr0/brif; cat /sys/class/net/vmbr0/ifindex") }
	s := static(t, "10.9.0.6/24", "10.9.0.1", "10.9.0.53")
	state, err := converge.Observe(context.Background(), way(w), s)
	require.NoError(t, err)
	require.Contains(t, state.Unknown[0].Why, "vmbr0 is a bridge with the port tap0, which ifupdown2 does not know") // but that of Proxmox VE
	w.Run0("ip link del tap0")
	bridge := ports()
	require.Equal(t, []string{"network.ip 10.9.0.5/24 → 10.9.0.6/24", "network.dns +10.9.0.53 -10.9.0.1"}, changes(w.observe(s)))
	w.apply(s)
	require.Equal(t, "10.9.0.6/24", address())
	require.Equal(t, bridge, ports())
	require.True(t, w.ping("10.9.0.6"))
	w.unchanged(s)

	_, err = converge.Apply(context.Background(), way(w), static(t, "10.7.0.5/24", "10.7.0.1"), converge.Options{})
	require.ErrorContains(t, err, "the gateway 10.7.0.1 does not answer")
	w.Until("the old address is back", func() bool { return address() == "10.9.0.6/24" && w.ping("10.9.0.6") })
	require.Equal(t, bridge, ports())

	w.apply(spec.Empty("edge"))
	require.Equal(t, "10.9.0.5/24", address())
	require.Equal(t, bridge, ports())
	require.Equal(t, before, w.Run0("cat /etc/network/interfaces /etc/resolv.conf"))
}

const lockout = `"posture": {"ssh": {"port": "2222", "permit_root_login": "no", "password_authentication": "no"}}`

var errNoWayIn = errors.New("connection refused")

// neverConfirms cannot connect afterwards.
func neverConfirms(context.Context, *spec.Spec, aspect.Step) error { return errNoWayIn }

// listens reports whether the SSH server listens on the port.
func (w *world) listens(port string) bool {
	return w.Run0("ss -tln | grep -c ':"+port+" ' || :") != "0"
}

// listensSoon waits for it: the server reads its settings again after it was told to.
func (w *world) listensSoon(port string) {
	w.t.Helper()
	w.Until("the SSH server listens on "+port+" and nowhere else", func() bool {
		return w.listens(port) && w.Run0("ss -Htln | grep -c .") == w.Run0("ss -Htln | grep -c ':"+port+" '")
	})
}

// Settings that would lock us out are taken back at once where the way in still works.
func TestST02ALockoutIsReverted(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t)
	s := parse(t, lockout)
	_, err := converge.Apply(context.Background(), way{w}, s, converge.Options{Confirm: neverConfirms})
	require.ErrorIs(t, err, errNoWayIn)
	require.ErrorContains(t, err, "the old state is restored")
	w.listensSoon("22")
	require.Empty(t, w.Run0("ls /etc/ssh/sshd_config.d /var/lib/homestak-gitops-spec/revert | grep -v :"))
	require.Contains(t, changes(w.observe(s)), "posture.ssh.port 22 → 2222")
	w.apply(s)
	w.listensSoon("2222")
	// The same the other way round: what is restored is our own file.
	open := parse(t, `"posture": {"ssh": {"port": "22", "permit_root_login": "yes", "password_authentication": "yes"}}`)
	_, err = converge.Apply(context.Background(), way{w}, open, converge.Options{Confirm: neverConfirms})
	require.ErrorIs(t, err, errNoWayIn)
	w.listensSoon("2222")
	w.unchanged(s)
}

// They are taken back by the machine alone where the way in is closed by them, or where
// who applied them is gone: by systemd, and without it.
func TestST02AnUnconfirmedChangeIsReverted(t *testing.T) {
	nspawn.Need(t)
	for _, c := range []struct{ name, before string }{
		{name: "by systemd"}, {name: "without systemd-run", before: "chmod a-x /usr/bin/systemd-run;"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := begin(t)
			w.Run0(c.before + " :")
			s := parse(t, lockout)
			ctx, gone := context.WithCancel(context.Background())
			defer gone()
			_, err := converge.Apply(ctx, way{w}, s, converge.Options{ConfirmWithin: 2 * time.Second, Confirm: func(context.Context, *spec.Spec, aspect.Step) error {
				w.listensSoon("2222")
				require.Contains(t, changes(w.observe(s)), "posture.ssh.unconfirmed true → false") //nolint:contextcheck // an observation of its own
				gone()
				return errNoWayIn
			}})
			require.Error(t, err)
			w.Until("the machine listens where it did", func() bool { return w.listens("22") && !w.listens("2222") })
			w.Until("nothing is left of it", func() bool {
				return w.Run0("ls /etc/ssh/sshd_config.d /var/lib/homestak-gitops-spec/revert | grep -v : || :") == ""
			})
			require.Contains(t, changes(w.observe(s)), "posture.ssh.port 22 → 2222")
			w.apply(s)
			w.listensSoon("2222")
			w.unchanged(s)
		})
	}
}

// An unconfirmed state is applied again while the timer runs, and the restored state is still the one
// before all that.
func TestST02UnconfirmedIsAppliedAgain(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t)
	s := parse(t, lockout)
	for range 2 {
		ctx, gone := context.WithCancel(context.Background())
		_, err := converge.Apply(ctx, way{w}, s, converge.Options{Confirm: func(context.Context, *spec.Spec, aspect.Step) error {
			gone()
			return errNoWayIn
		}})
		require.Error(t, err)
		w.listensSoon("2222")
	}
	w.Run0("sh /var/lib/homestak-gitops-spec/revert/sshd.sh")
	w.listensSoon("22")
	w.apply(s)
	w.unchanged(s)
	require.Empty(t, w.Run0("systemctl list-timers --all --no-legend | grep homestak || :"))
}

// A restart of the machine takes them back, too: by a unit that is there only so long.
func TestST02ARestartRevertsAnUnconfirmedChange(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t)
	s := parse(t, lockout)
	ctx, gone := context.WithCancel(context.Background())
	_, err := converge.Apply(ctx, way{w}, s, converge.Options{Confirm: func(context.Context, *spec.Spec, aspect.Step) error {
		gone()
		return errNoWayIn
	}})
	require.Error(t, err)
	w.listensSoon("2222")
	w.Run0("systemctl stop homestak-gitops-revert-sshd.timer; systemctl daemon-reload") // as a restart does
	require.Contains(t, w.Run0("systemctl list-dependencies --plain multi-user.target"), "homestak-gitops-revert-sshd-boot.service")
	w.Run0("cd /var/lib/homestak-gitops-spec/revert && mv sshd.sh sshd.sh.4711") // where the restart cut off what restored
	w.Run0("systemctl start homestak-gitops-revert-sshd-boot.service")
	w.listensSoon("22")
	w.apply(s)
	w.listensSoon("2222")
	require.Empty(t, w.Run0("ls /etc/systemd/system /etc/systemd/system/multi-user.target.wants | grep homestak || :"))
}

// sshd is asked before anything is reloaded.
func TestST02SettingsThatDoNotTakeEffect(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t)
	w.Run0("echo 'Port 2200' >>/etc/ssh/sshd_config; systemctl reload ssh")
	s := parse(t, lockout)
	_, err := converge.Apply(context.Background(), way{w}, s, converge.Options{})
	require.ErrorContains(t, err, "another line adds a port")
	require.ErrorContains(t, err, "Port 2200")
	require.Empty(t, w.Run0("ls /etc/ssh/sshd_config.d /var/lib/homestak-gitops-spec/revert | grep -v : || :"))
	w.Run0("sed -i 's/^Port 2200/Prot 1/' /etc/ssh/sshd_config")
	_, err = converge.Apply(context.Background(), way{w}, s, converge.Options{})
	require.ErrorContains(t, err, "sshd refuses the settings")
	require.ErrorContains(t, err, "Prot")
	w.Run0("sed -i '/^Prot/d' /etc/ssh/sshd_config")
	w.apply(s)
	w.unchanged(s)
}

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

// proxmoxRepository makes the repository of Proxmox, also with other packages, and its public key. Nothing of it is fetched.
func proxmoxRepository(t *testing.T, more ...map[string]content) (dir string, key []byte) {
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
		packages := map[string]content{"proxmox-ve": {files: map[string]string{
			"usr/bin/pveversion": "#!/bin/sh\necho pve-manager\n", "etc/apt/sources.list.d/pve-enterprise.list": "deb https://enterprise.proxmox.com/debian/pve bookworm pve-enterprise\n",
			"DEBIAN/conffiles": "/etc/apt/sources.list.d/pve-enterprise.list\n",
		}}}
		for _, others := range more {
			maps.Copy(packages, others)
		}
		index := build(t, pool, packages)
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

	// A line that was added by hand is as good.
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

// The bridge takes over the card with its addresses, is reverted unless it is confirmed, and gives the card back.
func TestST02TheBridgeOfAHostOfProxmoxVE(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := &world{t: t}
	w.Machine = nspawn.Rootfs{Packages: nspawn.Systemd + ",iproute2,ifupdown2", Ready: "HOMESTAK_MACHINES_IFUPDOWN2_ROOTFS"}.Boot(t)
	const before = "auto lo\niface lo inet loopback\n\nallow-hotplug card\niface card inet static\n\taddress 198.51.100.7/24\n\tgateway 198.51.100.1\n\niface card inet6 static\n\taddress 2001:db8::7/64\n"
	w.Run0("ip link add card type veth peer name wire && ip link set wire up")
	w.Write("/etc/network/interfaces", 0o644, before)
	w.Run0("ifup lo; ifup card")
	addresses := func(dev string) string {
		return w.Run0("ip -o addr show dev " + dev + " scope global | awk '{print $4}' | sort | tr '\\n' ' '; ip route show default | grep -o 'dev [^ ]*' || :")
	}
	require.Equal(t, "198.51.100.7/24 2001:db8::7/64 dev card", addresses("card"))
	s := parse(t, `"config": {"pve": {"bridge": "vmbr0"}}`)

	// It is not confirmed: all is as it was.
	_, err := converge.Apply(context.Background(), way{w}, s, converge.Options{Confirm: func(context.Context, *spec.Spec, aspect.Step) error {
		if got := addresses("vmbr0"); got != "198.51.100.7/24 2001:db8::7/64 dev vmbr0" {
			t.Errorf("the bridge has %s", got)
		}
		return errNoWayIn
	}})
	require.ErrorIs(t, err, errNoWayIn)
	w.Until("the card has its addresses again", func() bool {
		return addresses("card") == "198.51.100.7/24 2001:db8::7/64 dev card" && w.Run0("ls /var/lib/homestak-gitops-spec/revert") == ""
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

	// Its removal is not confirmed: it is there again, and can still be removed.
	none := spec.Empty("edge")
	_, err = converge.Apply(context.Background(), way{w}, none, converge.Options{Confirm: neverConfirms})
	require.ErrorIs(t, err, errNoWayIn)
	w.Until("the bridge has the addresses again", func() bool {
		return addresses("vmbr0") == "198.51.100.7/24 2001:db8::7/64 dev vmbr0" && w.Run0("ls /var/lib/homestak-gitops-spec/revert") == ""
	})
	w.unchanged(s)

	// The earlier state is still stored when an attempt is cut off as it is confirmed.
	w.instead = func(c guest.Command) guest.Command {
		if bytes.Contains(c.Stdin, []byte("pvebridge.sh.confirmed")) {
			c.Stdin = bytes.Replace(c.Stdin, []byte("\ndrop /var/lib/homestak-gitops-spec/found/"), []byte("\nkill -9 0\n"), 1)
		}
		return c
	}
	_, err = converge.Apply(context.Background(), way{w}, none, converge.Options{})
	require.Error(t, err)
	w.instead = nil
	w.Run0("[ -f /var/lib/homestak-gitops-spec/found/interfaces-before-bridge ] && [ ! -e /sys/class/net/vmbr0 ]")
	w.apply(none)
	require.Empty(t, w.Run0("ls /var/lib/homestak-gitops-spec/found"))
	require.Equal(t, "198.51.100.7/24 2001:db8::7/64 dev card", addresses("card"))
	w.Run0("[ ! -e /sys/class/net/vmbr0 ]")
	require.Equal(t, strings.TrimSpace(before), w.Run0("cat /etc/network/interfaces"))
	w.unchanged(none)
}
