package property_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/homestak/homestak-gitops/drivers/proxmox/property"
)

// One value is read as it is where all of the text is taken apart.
func TestOneValueOfAProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.StringMatching(`([ab]?=?[ab= ]?,?){0,6}`).Draw(t, "property string")
		key := rapid.SampledFrom([]string{"a", "b", ""}).Draw(t, "key")
		whole := property.Parse(s)
		require.Equal(t, whole.Values[key], property.Value(s, key))
		require.Equal(t, whole.First(key), property.First(s, key))
	})
	const disk = "local-lvm:vm-100-disk-0,size=32G,iothread=1"
	require.Zero(t, testing.AllocsPerRun(10, func() { property.Value(disk, "size") }))
	require.Zero(t, testing.AllocsPerRun(10, func() { property.First(disk, "file") }))
}

func TestProperties(t *testing.T) {
	for text, want := range map[string]int{"32G": 32, "1T": 1024, "2252M": 2, "1M": 0, "1073741824": 1, "": 0, "x": 0, "4.5G": 4} {
		require.Equal(t, want, property.GiB(text), text)
	}
}

func TestKeysGoAndComeBack(t *testing.T) {
	keys := []string{"ssh-ed25519 AAAA+/= ops@site", "ssh-rsa BBBB"}
	enc := property.EncodeKeys(keys)
	require.NotContains(t, enc, "+")
	require.NotContains(t, enc, " ")
	require.Equal(t, keys, property.DecodeKeys(enc))
	require.Equal(t, keys, property.DecodeKeys(enc+"%0A"))
	require.Equal(t, []string{}, property.DecodeKeys(""))
}

func TestMembersAreReplaced(t *testing.T) {
	p := property.Parse("ip6=auto,gw=192.0.2.1,ip=dhcp")
	require.Equal(t, "ip=192.0.2.9/24,gw=192.0.2.1,ip6=auto", p.With(map[string]string{"ip": "192.0.2.9/24"}, ""))
	require.Equal(t, "ip=dhcp,ip6=auto", p.With(map[string]string{"gw": ""}, ""), "the set itself stays")
	require.Equal(t, "2048", property.Parse("").With(map[string]string{"current": "2048"}, "current"))
}

func TestFlags(t *testing.T) {
	require.Equal(t, []string{"mount=nfs", "nesting"}, property.Flags("nesting=1,fuse=0,mount=nfs"))
	require.Equal(t, "fuse=1,nesting=1", property.EncodeFlags([]string{"fuse", "nesting"}))
}

func TestTrunksHaveOneForm(t *testing.T) {
	require.Equal(t, []string{"10", "20-31"}, property.Trunks("30-31;10;20-25;24-29;10"), "ranges that touch are one")
	require.Equal(t, []string{"2", "3"}, property.Trunks("3;2;3"), "a container has no ranges")
	require.Equal(t, []string{"2", "all"}, property.Trunks("2;all"), "what cannot be read stays")
	require.Empty(t, property.Trunks(""))
}
