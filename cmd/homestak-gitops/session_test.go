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

// A simulator that stands for a host has whatever the site names there.
func TestSimOf(t *testing.T) {
	site := load(t, `
site "home" {
}
host "father" {
  api    = "https://192.0.2.10:8006"
  node   = "pve1"
  nodes  = ["pve1", "pve2"]
  bridge = "vmbr7"
  storage {
    disks  = "tank"
    images = "local"
    backups = "nas"
  }
}
image "debian" {
  url     = "https://example.org/debian.qcow2"
  storage = "images"
}
manifest "web" {
  pattern = "flat"
  host    = "father"
  node "web" {
    type   = "vm"
    cores  = 1
    memory = 512
    image  = image.debian
    disk "data" {
      size    = 5
      storage = "fast"
    }
    nic "dmz" {
      bridge = "vmbr9"
    }
  }
}
`)
	c := simOf(site, site.Hosts["father"])
	require.Equal(t, "pve1", c.Node)
	require.Equal(t, []string{"pve2"}, c.Nodes)
	require.ElementsMatch(t, []string{"vmbr0", "vmbr9"}, c.Bridges)
	content := map[string][]string{}
	for _, s := range c.Storages {
		content[s.Name] = s.Content
	}
	require.Contains(t, content["tank"], "images")
	require.Contains(t, content["fast"], "images")
	require.Contains(t, content["images"], "import")
	require.Contains(t, content["nas"], "backup")
	require.Contains(t, content, "local-lvm", "those of a fresh installation stay")
}

func TestModeOfOneRun(t *testing.T) {
	site := load(t, `
site "home" {
}
image "debian" {
  url = "https://example.org/debian.qcow2"
}
preset "small" {
  cores  = 1
  memory = 512
}
manifest "tree" {
  pattern = "tiered"
  node "inner" {
    type   = "pve"
    preset = preset.small
    image  = image.debian
  }
  node "app" {
    type   = "vm"
    parent = node.inner
    preset = preset.small
    image  = image.debian
  }
  node "edge" {
    type   = "vm"
    preset = preset.small
    image  = image.debian
  }
}
`)
	modes := func(s *model.Site) map[string]string {
		out := map[string]string{}
		for _, n := range s.Manifests["tree"].Nodes {
			out[n.Name] = n.Mode
			require.Same(t, s.Manifests["tree"], n.Manifest)
		}
		return out
	}
	pulled := withMode(site, "pull")
	require.Equal(t, map[string]string{"inner": "push", "app": "push", "edge": "pull"}, modes(pulled), "a pve node is pushed, and what is below keeps its mode")
	require.Equal(t, map[string]string{"inner": "push", "app": "push", "edge": "push"}, modes(site), "the site itself stays as it is")
	require.Same(t, site, withMode(site, ""))
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
