package api_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
)

// One value is read as it is where all of the text is taken apart.
func TestOneValueOfAProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.StringMatching(`([ab]?=?[ab= ]?,?){0,6}`).Draw(t, "property string")
		key := rapid.SampledFrom([]string{"a", "b", ""}).Draw(t, "key")
		whole := api.ParseProperty(s)
		require.Equal(t, whole.Values[key], api.PropertyValue(s, key))
		require.Equal(t, whole.First(key), api.PropertyFirst(s, key))
	})
	const disk = "local-lvm:vm-100-disk-0,size=32G,iothread=1"
	require.Zero(t, testing.AllocsPerRun(10, func() { api.PropertyValue(disk, "size") }))
	require.Zero(t, testing.AllocsPerRun(10, func() { api.PropertyFirst(disk, "file") }))
}

func TestProperties(t *testing.T) {
	for text, want := range map[string]int{"32G": 32, "1T": 1024, "2252M": 2, "1M": 0, "1073741824": 1, "": 0, "x": 0, "4.5G": 4} {
		require.Equal(t, want, api.ParseGiB(text), text)
	}
}

func TestKeysGoAndComeBack(t *testing.T) {
	keys := []string{"ssh-ed25519 AAAA+/= ops@site", "ssh-rsa BBBB"}
	enc := api.EncodeSSHKeys(keys)
	require.NotContains(t, enc, "+")
	require.NotContains(t, enc, " ")
	require.Equal(t, keys, api.DecodeSSHKeys(enc))
	require.Equal(t, keys, api.DecodeSSHKeys(enc+"%0A"))
	require.Equal(t, []string{}, api.DecodeSSHKeys(""))
}

func TestMembersAreReplaced(t *testing.T) {
	p := api.ParseProperty("ip6=auto,gw=192.0.2.1,ip=dhcp")
	require.Equal(t, "ip=192.0.2.9/24,gw=192.0.2.1,ip6=auto", p.With(map[string]string{"ip": "192.0.2.9/24"}, ""))
	require.Equal(t, "ip=dhcp,ip6=auto", p.With(map[string]string{"gw": ""}, ""), "the set itself stays")
	require.Equal(t, "2048", api.ParseProperty("").With(map[string]string{"current": "2048"}, "current"))
}

func TestFlags(t *testing.T) {
	require.Equal(t, []string{"mount=nfs", "nesting"}, api.PropertyFlags("nesting=1,fuse=0,mount=nfs"))
	require.Equal(t, "fuse=1,nesting=1", api.EncodeFlags([]string{"fuse", "nesting"}))
}

func TestTrunksHaveOneForm(t *testing.T) {
	require.Equal(t, []string{"10", "20-31"}, api.ParseTrunks("30-31;10;20-25;24-29;10"), "ranges that touch are one")
	require.Equal(t, []string{"2", "3"}, api.ParseTrunks("3;2;3"), "a container has no ranges")
	require.Equal(t, []string{"2", "all"}, api.ParseTrunks("2;all"), "what cannot be read stays")
	require.Empty(t, api.ParseTrunks(""))
}
