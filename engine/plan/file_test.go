package plan_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// A plan file holds what it was limited to, and reads back as it was written.
func TestPlanFile(t *testing.T) {
	p := &plan.Plan{
		FormatVersion: plan.FormatVersion, Site: "home", Host: "father", ID: "0123456789ab", ObservedAt: time.Unix(0, 0).UTC(),
		Steps: []plan.Step{{Address: model.Address{Kind: "vm", Name: "web"}, Action: plan.Create, VMID: 10000, Changes: []plan.Change{{Path: "memory", After: int64(512)}}}},
	}
	for _, sc := range []plan.Scope{{}, {Manifest: "web", Targets: []string{"vm.web"}}} {
		file := filepath.Join(t.TempDir(), "plan")
		require.NoError(t, plan.Document{Plan: p, Scope: sc}.WriteFile(file))
		info, err := os.Stat(file)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
		got, err := plan.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, sc, got.Scope)
		require.Empty(t, got.Plan.Moved(p))
	}
	plain, err := json.Marshal(plan.Document{Plan: p})
	require.NoError(t, err)
	bare, err := json.Marshal(p)
	require.NoError(t, err)
	require.JSONEq(t, string(bare), string(plain), "a plan of everything has no further key")
}
