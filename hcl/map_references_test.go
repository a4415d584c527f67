package hcl_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl"
)

// TestValuesOfAMapAreReferences: what a value of a map refers to is needed as what an
// attribute names is, once; one that is not there is told.
func TestValuesOfAMapAreReferences(t *testing.T) {
	text := `
image "virtio" {
  url      = "https://images.test/virtio.iso"
  checksum = "sha256:ab"
}
manifest "web" {
  pattern = "flat"
  host    = host.father
  node "web" {
    type    = "vm"
    cores   = 1
    memory  = 512
    image   = image.debian-12
    options = { ide0 = "${image.virtio},media=cdrom", sata0 = "x,${image.virtio}", sata1 = "${image.debian-12}" }
  }
}
`
	site, found := hcl.Load(files("site.hcl", checkSite+text), hcl.Options{Kinds: testKinds()})
	require.Empty(t, summaries(found))
	r := site.Manifests["web"].Nodes[0].Resource
	require.Equal(t, []model.Address{{Kind: "image", Name: "debian-12"}, {Kind: "image", Name: "virtio"}}, r.Needs)
	require.Equal(t, "virtio,media=cdrom", r.Spec.(*guest).Options["ide0"])
}
