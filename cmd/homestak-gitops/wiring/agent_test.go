package wiring_test

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/wiring"
	"github.com/homestak/homestak-gitops/drivers/config"
	"github.com/homestak/homestak-gitops/drivers/proxmox/simhost"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/service"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
	"github.com/homestak/homestak-gitops/engine/view"
)

// An agent opens its host by the network that it was made on.
func TestAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		repo := sourcetest.New(t)
		repo.Commit(map[string]string{"site.hcl": enginetest.TwoNodes}, "Two nodes")
		cfg := &service.Config{AgentFile: model.AgentFile{Identity: "father", DataDir: filepath.Join(t.TempDir(), "agent"), DriftEvery: time.Minute, Concurrency: 4}}
		cfg.Repository = &model.AgentRepository{URL: repo.Dir, Branch: "main", Poll: time.Minute, Auth: &model.AgentAuth{}}
		hosts := simhost.Hosts{}
		n := wiring.Network{Transport: hosts.Transport, Reaches: hosts.Reaches}
		s, err := n.Agent(service.Options{Config: cfg, Program: "v1", Log: slog.New(slog.DiscardHandler)}, config.Config{})
		require.NoError(t, err)
		r := s.Once(t.Context(), make(chan struct{}), &view.PassProgress{Term: view.Terminal{W: &strings.Builder{}}})
		require.Equal(t, engine.Done, r.Outcome, r.Err)
		require.Len(t, hosts["father"].Snapshot().Guests, 2)
	})
}
