package sim

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/hcl"
)

// A simulator that stands for a host has whatever the site names there.
func TestConfigOf(t *testing.T) {
	site, found := hcl.Load(fstest.MapFS{"site.hcl": {Data: []byte(`
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
`)}}, hcl.Options{Kinds: proxmox.Kinds()})
	require.Zero(t, found.Errors(), "%v", found)
	c := configOf(site, site.Hosts["father"])
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
