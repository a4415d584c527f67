package sim_test

import (
	"log/slog"
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
)

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
