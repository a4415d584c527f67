package integration_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/test/nspawn"
)

// beginAddress gives the Debian an interface eth0 with the address 192.0.2.50, by ifupdown, and lets
// connections come from the other end of it.
func beginAddress(t *testing.T) *pushed {
	t.Helper()
	p := beginPush(t)
	p.debian.Run("sh", "-c", strings.Join([]string{
		"echo 'nameserver 127.0.0.1' >/etc/resolv.conf", "ip addr del 192.0.2.50/32 dev lo", "ip netns add lan", "ip link add eth0 type veth peer name lan0 netns lan", "ip -n lan link set lan0 up",
		"ip -n lan addr add 192.0.2.1/24 dev lan0",
		`printf 'auto eth0\niface eth0 inet static\n\taddress 192.0.2.50/24\n\tgateway 192.0.2.1\n' >/etc/network/interfaces`, "ifup eth0",
	}, " && "))
	from := p.debian.DialFrom("lan")
	p.from = func(ctx context.Context, network, address string) (net.Conn, error) {
		return from(ctx, network, address)
	}
	return p
}

const addressSpec = `spec "base" {
  network {
    ip      = "192.0.2.50/24"
    gateway = "192.0.2.1"
  }
  access {
    via = "ssh"
  }
  config {
    file "/etc/motd" {
      content = "managed\n"
    }
  }
}
`

// The address of a guest changes while we are connected to it at the old one. The next pass finds it at the
// new one, with the same host key.
func TestST02PushMovesTheAddress(t *testing.T) {
	p := beginAddress(t)
	p.write("specs.hcl", addressSpec)
	p.deploy("web", vm("web-1", `agent = false`, `spec = spec.base`))
	r := p.pass("apply")
	require.Equal(t, engine.Done, r.Outcome, describe(r))
	p.converged("at the address of its first boot")
	known, err := os.ReadFile(p.hosts.Path)
	require.NoError(t, err)

	p.edit("specs.hcl", "192.0.2.50/24", "192.0.2.51/24")
	r = p.pass("plan")
	require.Equal(t, []string{"update vm.web-1", "update guest.web-1"}, actions(r.Plan))
	require.Equal(t, "network.ip 192.0.2.50/24 → 192.0.2.51/24", r.Plan.Steps[1].Changes[0].String())
	r = p.pass("apply")
	require.Equal(t, engine.Done, r.Outcome, describe(r))
	require.Contains(t, p.debian.Run("ip", "-4", "addr", "show", "dev", "eth0"), "192.0.2.51/24")
	p.converged("at the new address")
	now, err := os.ReadFile(p.hosts.Path)
	require.NoError(t, err)
	require.Equal(t, strings.ReplaceAll(string(known), "192.0.2.50", "192.0.2.51"), string(now))

	// A pass that died between the two steps: the host says the new address already, and the guest has the old one.
	p.call("PUT", fmt.Sprintf("/nodes/father/qemu/%d/config", p.vmidOf("web-1")), map[string]string{"ipconfig0": "ip=192.0.2.52/24,gw=192.0.2.1"})
	p.edit("specs.hcl", "192.0.2.51/24", "192.0.2.52/24")
	r = p.pass("apply")
	require.Equal(t, engine.Done, r.Outcome, describe(r))
	require.Equal(t, []string{"update guest.web-1"}, actions(r.Plan))
	p.converged("at the address after it")
}

// An address at which we do not reach the guest is taken back by the guest alone, and the next pass enters
// it where it was.
func TestST02PushOfAnAddressThatLocksUsOut(t *testing.T) {
	p := beginAddress(t)
	p.write("specs.hcl", addressSpec)
	p.deploy("web", vm("web-1", `agent = false`, `spec = spec.base`))
	require.Equal(t, engine.Done, p.pass("apply").Outcome)
	p.edit("specs.hcl", `ip      = "192.0.2.50/24"
    gateway = "192.0.2.1"`, `ip      = "198.51.100.5/24"
    gateway = "198.51.100.1"`)
	p.confirm = 10 * time.Second
	r := p.pass("apply")
	require.NotEqual(t, engine.Done, r.Outcome, describe(r))
	require.Contains(t, r.Nodes[0].Error, "no connection was possible afterwards, so the ")
	nspawn.Await(t, "the guest has its old address", func() bool {
		return strings.Contains(p.debian.Run("ip", "-4", "addr", "show", "dev", "eth0"), "192.0.2.50/24")
	})
	p.confirm = 0
	p.edit("specs.hcl", "198.51.100.5/24", "192.0.2.50/24")
	p.edit("specs.hcl", "198.51.100.1", "192.0.2.1")
	r = p.pass("apply")
	require.Equal(t, engine.Done, r.Outcome, describe(r))
	p.converged("where it was")
}
