package machines_test

import (
	"strings"
	"testing"

	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/test/nspawn"
)

// lan is a machine with an interface eth0, at whose other end is a network namespace lan: with a
// gateway that has the addresses 10.9.0.1 and 10.8.0.1, and a DHCP server for 10.9.0.100 to 10.9.0.120.
type lan struct{ *world }

// beginLAN boots a machine whose eth0 gets what these lines of shell say. What configures it, such as
// ifupdown, is one of the packages.
func beginLAN(t *testing.T, packages string, lines ...string) lan {
	t.Helper()
	nspawn.Need(t)
	w := lan{&world{t: t}}
	w.Machine = nspawn.Boot(t, nspawn.Rootfs{
		Packages: nspawn.Systemd + ",openssh-server,sudo,iproute2," + packages + ",dnsmasq-base,iputils-ping,netplan.io", Ready: "HOMESTAK_NETWORK_ROOTFS",
	})
	w.Run0(strings.Join(append([]string{
		"ip netns add lan", "ip link add eth0 type veth peer name lan0 netns lan", "ip -n lan link set lo up", "ip -n lan link set lan0 up",
		"ip -n lan addr add 10.9.0.1/24 dev lan0", "ip -n lan addr add 10.8.0.1/24 dev lan0", "rm -f /etc/resolv.conf",
		"ip netns exec lan dnsmasq --port=0 --interface=lan0 --dhcp-range=10.9.0.100,10.9.0.120,10m --dhcp-option=option:dns-server,10.9.0.53 --dhcp-leasefile=/run/leases",
	}, lines...), " && "))
	return w
}

// ping asks from outside whether an address answers.
func (w lan) ping(address string) bool {
	_, code := w.Try("ip", "netns", "exec", "lan", "ping", "-c", "1", "-W", "1", address)
	return code == 0
}

// address gives the addresses of the interface.
func (w lan) address() string {
	return w.Run0("ip -4 -o addr show dev eth0 scope global | awk '{print $4}'")
}

// static is a spec with an address.
func static(t *testing.T, ip, gateway string, dns ...string) *spec.Spec {
	t.Helper()
	s := spec.Empty("edge")
	s.Name, s.Network = "test", &spec.Network{IP: ip, Gateway: gateway, DNS: dns}
	return s
}
