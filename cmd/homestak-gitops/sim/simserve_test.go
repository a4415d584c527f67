package sim_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/sim"
	simhosts "github.com/homestak/homestak-gitops/sim"
	"github.com/homestak/homestak-gitops/sim/pve"
)

func options(ready func(sim.Simulator) error) sim.ServeOptions {
	return sim.ServeOptions{
		HostOptions: simhosts.HostOptions{Node: "mother", Version: pve.Versions()[0], Speed: 1, Workers: 1},
		Listen:      "127.0.0.1:0", SSH: "127.0.0.1:0", Ready: ready,
	}
}

func refuses(t *testing.T, address string) {
	t.Helper()
	_, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
	require.Error(t, err)
}

// Both ways are served when it is ready, and not any more once it ends.
func TestRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var at sim.Simulator
	require.NoError(t, sim.Serve(ctx, options(func(s sim.Simulator) error {
		at = s
		for _, address := range []string{strings.TrimPrefix(s.API, "https://"), s.SSH} {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
			require.NoError(t, err)
			require.NoError(t, conn.Close())
		}
		cancel()
		return nil
	})))
	require.Equal(t, "mother", at.Node)
	require.NotEmpty(t, at.Token)
	refuses(t, at.SSH)
	refuses(t, strings.TrimPrefix(at.API, "https://"))

	host, port, err := net.SplitHostPort(at.SSH)
	require.NoError(t, err)
	text := at.Text()
	for _, value := range []string{at.API, at.Fingerprint, at.HostKey, at.Token, host} {
		require.Contains(t, text, `"`+value+`"`)
	}
	require.Contains(t, text, "port     = "+port+"\n")
}

// Whoever cannot use it ends it.
func TestNotReady(t *testing.T) {
	broken := errors.New("stdout is closed")
	var at sim.Simulator
	require.ErrorIs(t, sim.Serve(t.Context(), options(func(s sim.Simulator) error { at = s; return broken })), broken)
	refuses(t, at.SSH)
	refuses(t, strings.TrimPrefix(at.API, "https://"))
}

// An address that is taken is named with the flag that chooses another.
func TestTakenAddress(t *testing.T) {
	taken, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = taken.Close() }()
	never := func(sim.Simulator) error { return errors.New("it is not ready") }
	o := options(never)
	o.Listen = taken.Addr().String()
	require.ErrorContains(t, sim.Serve(t.Context(), o), "choose another address: --listen 127.0.0.1:0")
	o = options(never)
	o.SSH = taken.Addr().String()
	require.ErrorContains(t, sim.Serve(t.Context(), o), "choose another address: --ssh 127.0.0.1:0")
	o.Node = "no node"
	require.ErrorContains(t, sim.Serve(t.Context(), o), "want names of nodes")
}
