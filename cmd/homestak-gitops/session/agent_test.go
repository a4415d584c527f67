package session_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/drivers/push"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/service"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
	"github.com/homestak/homestak-gitops/engine/view"
	"github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/sim"
)

// An agent opens its host by the network that it was made on.
func TestAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		repo := sourcetest.New(t)
		repo.Commit(map[string]string{"site.hcl": enginetest.TwoNodes}, "Two nodes")
		cfg := &service.Config{AgentFile: model.AgentFile{Identity: "father", DataDir: filepath.Join(t.TempDir(), "agent"), DriftEvery: time.Minute, Concurrency: 4}}
		cfg.Repository = &model.AgentRepository{URL: repo.Dir, Branch: "main", Poll: time.Minute, Auth: &model.AgentAuth{}}
		hosts := sim.Hosts{}
		n := session.Network{Transport: hosts.Transport, Reaches: hosts.Reaches}
		s, err := n.Agent(service.Options{Config: cfg, Program: "v1", Log: slog.New(slog.DiscardHandler)}, push.Config{})
		require.NoError(t, err)
		r := s.Once(t.Context(), make(chan struct{}), &view.PassProgress{Term: view.Terminal{W: &strings.Builder{}}})
		require.Equal(t, engine.Done, r.Outcome, r.Err)
		require.Len(t, hosts["father"].Snapshot().Guests, 2)
	})
}

const child = `
site "home" {
}
host "father" {
  api = "https://192.0.2.10:8006"
}
image "pve-9" {
  url = "https://example.org/pve-9.qcow2"
}
manifest "deep" {
  pattern = "tiered"
  host    = "father"
  node "inner" {
    type   = "pve"
    cores  = 1
    memory = 512
    image  = image.pve-9
  }
}
`

// The agent of a child is installed by an agent that serves, unless the child is simulated and the server is not.
func TestWhoServesChildren(t *testing.T) {
	inMemory := service.Network{Listen: func(context.Context, string) (net.Listener, error) { return nil, errors.New("not in this test") }}
	simulated := session.Network{Guests: &push.Config{}}
	for name, c := range map[string]struct {
		network session.Network
		listen  string
		inside  service.Network
		serves  bool
	}{
		"a real one that serves":                   {listen: ":44443", serves: true},
		"a real one that does not":                 {listen: "none"},
		"a simulated one on the real network":      {network: simulated, listen: ":44443"},
		"a simulated one on the simulated network": {network: simulated, listen: ":44443", inside: inMemory, serves: true},
	} {
		cfg := &service.Config{AgentFile: model.AgentFile{Identity: "father", Listen: c.listen}}
		o := session.Join(c.network, service.Options{Config: cfg, Network: c.inside}, push.Config{}, "", nil)
		site, found := hcl.Load(fstest.MapFS{"site.hcl": {Data: []byte(child)}}, hcl.Options{Kinds: o.Kinds})
		require.False(t, found.HasErrors(), "%v", found)
		want, _ := site.Want("father")
		require.Len(t, want.Deferred, 1, "no child has all that its agent needs")
		require.Equal(t, c.serves, !strings.Contains(want.Deferred[0].Why, "only the agent of father installs it"), "%s: %s", name, want.Deferred[0].Why)
	}
}
