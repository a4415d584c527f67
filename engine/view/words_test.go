package view_test

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/view"
)

// Who listens everywhere is reached here.
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
