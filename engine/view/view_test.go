package view_test

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/view"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

func TestTree(t *testing.T) {
	at := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	r := wire.Report{Identity: "father", Phase: wire.PhaseRun, Commit: "3f2c1a9000000000000000000000000000000000", Cut: 2, Nodes: []wire.ReportNode{
		{Name: "web-1", Type: "vm", Parent: "father", Phase: wire.PhaseRun, Ready: true},
		{Name: "web-2", Type: "vm", Parent: "father", Phase: wire.PhaseRun, Ready: true, Failing: "web: no\nroute"},
		{Name: "inner", Type: "pve", Parent: "father", Phase: wire.PhaseRun, Ready: true, Commit: "aaaaaaa000000000000000000000000000000000", Reported: at.Add(-12 * time.Second)},
		{Name: "app", Type: "vm", Parent: "inner", Phase: wire.PhaseRun, Drift: 2, Error: "cores\nmore"},
		{Name: "db", Type: "ct", Parent: "inner", Phase: wire.PhaseCreate, Stale: true, Reported: at.Add(-time.Hour), Error: "a\x1b[31m"},
		{Name: "old", Type: "pve", Parent: "father", Phase: wire.PhaseDestroy, Error: "has not reported yet"},
	}}
	require.Equal(t, `father  run  not ready  at 3f2c1a90
├── web-1  vm   run  ready
├── web-2  vm   run  failing  check web: no route
├── inner  pve  run  ready  at aaaaaaa0  reported 12 s ago
│   ├── app  vm   run  not ready  2 differ  cores
│   └── db   ct   create  stale  reported 60 min ago  a?[31m
└── old    pve  destroy  not ready  has not reported yet
and 2 nodes that did not fit into a report
`, view.Paint(false).Tree(r, at))
}

func TestStatusOfServerAndParent(t *testing.T) {
	at := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	ago := at.Add(-time.Minute)
	s := agent.Status{
		Identity: "inner", State: agent.Idle, At: at,
		Server: &agent.ServerStatus{Address: "[::]:44443", Pins: []string{"sha256:aa", "sha256:bb"}, Commit: "3f2c1a9000000000000000000000000000000000", Nodes: 1},
		Parent: &agent.ParentStatus{URL: "https://192.0.2.10:44443", Reported: &ago},
	}
	text := view.Paint(false).Status(s, at)
	require.Contains(t, text, "  server      [::]:44443  serves 1 node at 3f2c1a90\n              pin sha256:aa\n")
	require.Contains(t, text, "  parent      https://192.0.2.10:44443  last report 60 s ago\n")
	s.Server = &agent.ServerStatus{Address: ":44443", Error: "address already in use", Failing: &ago}
	s.Parent = &agent.ParentStatus{URL: "https://192.0.2.10:44443", Error: "connection refused", Failing: &ago}
	text = view.Paint(false).Status(s, at)
	require.Contains(t, text, "  server      :44443  fails to serve for 60 s: address already in use\n")
	require.Contains(t, text, "  parent      https://192.0.2.10:44443  does not accept reports for 60 s: connection refused\n")
}

// A server that listens on all addresses is reached on this machine.
func TestReachable(t *testing.T) {
	for want, at := range map[string]net.Addr{
		"127.0.0.1:8006":  &net.TCPAddr{IP: net.IPv4zero, Port: 8006},
		"127.0.0.1:8007":  &net.TCPAddr{IP: net.IPv6unspecified, Port: 8007},
		"192.0.2.10:8006": &net.TCPAddr{IP: net.IPv4(192, 0, 2, 10), Port: 8006},
		"/run/a.sock":     &net.UnixAddr{Name: "/run/a.sock", Net: "unix"},
	} {
		require.Equal(t, want, view.Reachable(at))
	}
}
