package sim_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/sim"
	"github.com/homestak/homestak-gitops/drivers"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl"
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

// A host that its user cannot use is closed.
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

const pulling = `
spec "base" {
  platform {
    packages = ["jq"]
  }
}
manifest "edge" {
  pattern = "flat"
  host    = "father"
  node "edge" {
    type   = "vm"
    spec   = spec.base
    cores  = 1
    memory = 512
    image  = image.debian
    execution {
      mode = "pull"
    }
  }
}
`

func load(t *testing.T, text string) engine.Desired {
	t.Helper()
	site, found := hcl.Load(fstest.MapFS{"site.hcl": {Data: []byte(text)}}, hcl.Options{Kinds: drivers.Kinds()})
	require.False(t, found.HasErrors(), "%v", found)
	return engine.Desired{Site: site, Commit: "c0ffee"}
}

// A parent is there once a site has nodes in mode pull. A node inside of which nothing is simulated is taken to report.
func TestParentOfANetwork(t *testing.T) {
	w, err := sim.NewWorld(sim.WorldOptions{Hosts: simhosts.Hosts{}, Log: slog.New(slog.DiscardHandler), Version: "v1"})
	require.NoError(t, err)
	n := w.Network()
	defer n.End()

	flat := load(t, enginetest.TwoNodes)
	access := n.Access(*n.Guests)
	require.NoError(t, n.Serve(&access, flat, nil))
	require.Nil(t, access.Parent)
	_, err = n.Specs.Reported("edge")
	require.ErrorContains(t, err, "no server has its spec")

	d := load(t, enginetest.TwoNodes+pulling)
	require.Equal(t, model.ModePull, d.Site.Manifests["edge"].Nodes[0].Mode)
	require.NoError(t, n.Serve(&access, d, nil))
	require.NotNil(t, access.Parent)
	first := access.Parent
	node, err := access.Parent.Parent("edge", "base")
	require.NoError(t, err)
	require.NotEmpty(t, node.Token)
	saw, err := n.Specs.Reported("edge")
	require.NoError(t, err)
	require.Equal(t, "taken to report, since it is simulated", saw)

	require.NoError(t, n.Serve(&access, d, nil))
	require.Same(t, first, access.Parent, "one parent lasts as long as the network")
}

// Guests of the network are entered by the key of the world, and by no key of the user.
func TestWaysOfANetwork(t *testing.T) {
	w, err := sim.NewWorld(sim.WorldOptions{Hosts: simhosts.Hosts{}, Log: slog.New(slog.DiscardHandler), Version: "v1"})
	require.NoError(t, err)
	n := w.Network()
	defer n.End()
	require.Equal(t, []string{w.Key()}, n.Guests.PrivateKeys)
	require.Empty(t, n.Guests.AgentSocket)
	require.Same(t, w, n.Agents)
}
