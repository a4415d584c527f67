package proxmox_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
)

// One value is read as it is where all of the text is taken apart.
func TestOneValueOfAProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.StringMatching(`([ab]?=?[ab= ]?,?){0,6}`).Draw(t, "property string")
		key := rapid.SampledFrom([]string{"a", "b", ""}).Draw(t, "key")
		whole := proxmox.ParseProperty(s)
		require.Equal(t, whole.Value(key), proxmox.ValueIn(s, key))
		require.Equal(t, whole.First(key), proxmox.FirstIn(s, key))
	})
	const disk = "local-lvm:vm-100-disk-0,size=32G,iothread=1"
	require.Zero(t, testing.AllocsPerRun(10, func() { proxmox.ValueIn(disk, "size") }))
	require.Zero(t, testing.AllocsPerRun(10, func() { proxmox.FirstIn(disk, "file") }))
}
