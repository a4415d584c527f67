package main

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/service"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
)

const pullSite = `
site "home" {
}
host "father" {
  api = "https://192.0.2.10:8006"
}
image "debian-12" {
  url      = "https://example.org/debian-12.qcow2"
  checksum = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
}
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
    image  = image.debian-12
    execution {
      mode = "pull"
    }
  }
}
`

// A simulated node in mode pull reaches the server of the agent that made it, applies its spec, and reports.
func TestN8AgentSimServesPullNodes(t *testing.T) {
	repo := sourcetest.New(t)
	repo.Commit(map[string]string{"site.hcl": pullSite}, "A node in mode pull")
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0") // a port that is free
	require.NoError(t, err)
	listen := ln.Addr().String()
	require.NoError(t, ln.Close())

	cfg := &service.Config{AgentFile: model.AgentFile{Identity: "father", DataDir: filepath.Join(t.TempDir(), "agent"), Listen: listen, DriftEvery: time.Minute, Concurrency: 2}}
	cfg.Access, cfg.Parent, cfg.API, cfg.Log = &model.AgentAccess{}, &model.AgentParent{ReportEvery: time.Minute}, &model.AgentAPI{}, &model.AgentLog{Level: "info", Format: "text"}
	require.NoError(t, os.MkdirAll(cfg.DataDir, 0o700))
	cfg.Repository = &model.AgentRepository{URL: repo.Dir, Branch: "main", Poll: time.Minute, Auth: &model.AgentAuth{}}
	network, err := simulatedNetwork()
	require.NoError(t, err)
	defer network.End()
	s, err := newService(cfg, network, nil, slog.New(slog.DiscardHandler), func(string) string { return "" })
	require.NoError(t, err)

	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, control.NoSocket, nil, nil) }()
	require.Eventually(t, func() bool { return slices.ContainsFunc(s.Agent.Status().Nodes, isReady) }, 3*time.Minute, 10*time.Millisecond)
	stop()
	require.ErrorIs(t, <-ended, context.Canceled)
}

func isReady(n engine.NodeStatus) bool { return n.Node == "edge" && n.Ready }
