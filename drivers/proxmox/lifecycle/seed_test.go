package lifecycle_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/lifecycle"
	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
)

// FuzzSeedNames: a name that is taken for ours is written back as it was.
func FuzzSeedNames(f *testing.F) {
	for _, s := range []string{
		"local:iso/homestak-seed.home.web-1.0123456789ab.00000000-0000-0000-0000-000000000000.iso", "local:iso/homestak.home.web-1.0123456789ab.iso",
		"local:iso/homestak-seed.home.web-1.iso", "", "local:iso/../homestak-seed.a.b.0123456789ab.00000000-0000-0000-0000-000000000000.iso",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, volid string) {
		name, ok := lifecycle.ParseName(volid)
		if !ok {
			return
		}
		again := name.Volume("x")
		require.Equal(t, volid[strings.LastIndex(volid, "/")+1:], strings.TrimPrefix(again, "x:iso/"))
		_, _, _, image := objects.ParseFileName(again)
		require.False(t, image, "an image that a site declares")
	})
}
