package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/hcl"
)

func load(t *testing.T, text string) *model.Site {
	t.Helper()
	site, found := hcl.Load(fstest.MapFS{"site.hcl": {Data: []byte(text)}}, hcl.Options{Kinds: proxmox.Kinds()})
	require.Zero(t, found.Errors(), "%v", found)
	return site
}

// A plan file holds what it was limited to, and reads back as it was written.
func TestPlanFile(t *testing.T) {
	p := &plan.Plan{
		FormatVersion: plan.FormatVersion, Site: "home", Host: "father", ID: "0123456789ab", ObservedAt: time.Unix(0, 0).UTC(),
		Steps: []plan.Step{{Address: model.Address{Kind: "vm", Name: "web"}, Action: plan.Create, VMID: 10000, Changes: []plan.Change{{Path: "memory", After: int64(512)}}}},
	}
	for _, sc := range []scope{{}, {Manifest: "web", Targets: []string{"vm.web"}}} {
		file := filepath.Join(t.TempDir(), "plan")
		require.NoError(t, keepPlan(file, planDocument{p, sc}))
		info, err := os.Stat(file)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
		got, err := readPlan(file)
		require.NoError(t, err)
		require.Equal(t, sc, got.scope)
		require.Empty(t, got.plan.Moved(p))
	}
	plain, err := json.Marshal(planDocument{plan: p})
	require.NoError(t, err)
	bare, err := json.Marshal(p)
	require.NoError(t, err)
	require.JSONEq(t, string(bare), string(plain), "a plan of everything has no further key")
}
