package site

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl"
)

func TestModeOfOneRun(t *testing.T) {
	site, found := hcl.Load(fstest.MapFS{"site.hcl": {Data: []byte(`
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
`)}}, hcl.Options{Kinds: proxmox.Kinds()})
	require.Zero(t, found.Errors(), "%v", found)
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
