package integration_test

import (
	"context"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
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
	p.deploy("web", vm("web-1", `spec = spec.base`))
	r := p.pass("apply")
	require.Equal(t, engine.Done, r.Outcome, told(r))
	p.converged("at the address of its first boot")
	known, err := os.ReadFile(p.hosts.Path)
	require.NoError(t, err)

	p.edit("specs.hcl", "192.0.2.50/24", "192.0.2.51/24")
	r = p.pass("plan")
	require.Equal(t, engine.Planned, r.Outcome, told(r))
	for _, s := range r.Plan.Steps {
		t.Log(s.Address, s.Action, s.Class, s.Changes)
	}
	r = p.pass("apply")
	require.Equal(t, engine.Done, r.Outcome, told(r))
	require.Contains(t, p.debian.Run("ip", "-4", "addr", "show", "dev", "eth0"), "192.0.2.51/24")
	p.converged("at the new address")
	now, err := os.ReadFile(p.hosts.Path)
	require.NoError(t, err)
	require.Equal(t, strings.ReplaceAll(string(known), "192.0.2.50", "192.0.2.51"), string(now))
}
