package machines_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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

// An address at which nobody answers is taken back by the machine itself, also where the connection that made
// it is cut and nobody comes back, and by a restart.
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
					return w.Run0("ls /var/lib/homestak-gitops/revert; find "+c.gone+" -name '*homestak*' 2>/dev/null; systemctl list-timers --all --no-legend | grep homestak-gitops-revert; ls /etc/systemd/system/multi-user.target.wants | grep homestak || :") == ""
				})
				require.Contains(t, changes(w.observe(locked)), "network.ip "+c.address+" → 10.7.0.5/24")
			}

			// Somebody waits for it and cannot connect: two seconds to confirm it, and two more.
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

			// What is right is still applied afterwards.
			s := static(t, "10.9.0.6/24", "10.9.0.1")
			w.apply(s)
			require.True(t, w.ping("10.9.0.6"))
			w.unchanged(s)
		})
	}
}

// What the tools refuse is not tried, and what fails is restored at once.
func TestST02AnAddressThatFails(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := beginLAN(t, withIfupdown, eniStatic)
	w.Run0("pkill dnsmasq; echo 'timeout 3;' >>/etc/dhcp/dhclient.conf")
	_, err := converge.Apply(context.Background(), way(w), static(t, spec.DHCP, ""), converge.Options{})
	require.ErrorContains(t, err, "it failed, so the old state is restored")
	require.ErrorContains(t, err, "eth0 did not get dhcp within 40 s")
	require.Equal(t, "10.9.0.5/24", w.address())
	require.Empty(t, w.Run0("ls /var/lib/homestak-gitops/revert"))

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
	const files = "cat /etc/network/interfaces /etc/resolv.conf 2>/dev/null; ls -A /etc/network /var/lib/homestak-gitops/revert"
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

	// The part that the machine runs by itself.
	w.Run0(`printf '#!/bin/sh\ncase $1 in --no-act) exec /usr/sbin/ifup "$@";; esac\nrm -f /usr/local/sbin/ifup\nkill -9 $PPID\n' >/usr/local/sbin/ifup; chmod +x /usr/local/sbin/ifup`)
	_, err := converge.Apply(context.Background(), way(w), full, converge.Options{ConfirmWithin: 2 * time.Second})
	require.ErrorContains(t, err, "the old state is restored")
	w.Until("the machine is back", func() bool { return w.ping("10.9.0.5") })
	w.apply(full)
	require.Equal(t, wanted, w.Run0(files))
}

// An interface that something else configures is left alone, and the finding says what it is.
func TestST02AnInterfaceOfSomebodyElse(t *testing.T) {
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
