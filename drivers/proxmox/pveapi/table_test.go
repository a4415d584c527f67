package pveapi_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
)

func TestMethods(t *testing.T) {
	all := pveapi.Methods()
	require.Len(t, all, 434)
	paths := map[string]bool{}
	for i, m := range all {
		paths[m.Path] = true
		require.Contains(t, []string{"GET", "POST", "PUT", "DELETE"}, m.Verb)
		require.NotNil(t, m.Returns, "%s %s", m.Verb, m.Path)
		if i > 0 {
			before := all[i-1]
			require.Less(t, before.Path+" "+before.Verb, m.Path+" "+m.Verb, "sorted by path and verb")
		}
	}
	require.Len(t, paths, 296)
}

// Every method is found by its own path, with names for placeholders.
func TestLookupFindsEveryMethod(t *testing.T) {
	for _, m := range pveapi.Methods() {
		found, _, known := pveapi.Lookup(m.Verb, m.Path)
		require.True(t, known)
		require.Same(t, m, found, "%s %s", m.Verb, m.Path)
	}
}

func TestLookup(t *testing.T) {
	tests := map[string]struct {
		verb, path string
		want       string // The method's path; empty: no method.
		vars       map[string]string
		known      bool
	}{
		"no placeholder":    {"GET", "/version", "/version", map[string]string{}, true},
		"two placeholders":  {"PUT", "/nodes/pve1/qemu/100/config", "/nodes/{node}/qemu/{vmid}/config", map[string]string{"node": "pve1", "vmid": "100"}, true},
		"any text fits":     {"GET", "/nodes/pve1/qemu/abc/config", "/nodes/{node}/qemu/{vmid}/config", map[string]string{"node": "pve1", "vmid": "abc"}, true},
		"empty segments":    {"GET", "//nodes/pve1//qemu/", "/nodes/{node}/qemu", map[string]string{"node": "pve1"}, true},
		"decoded":           {"GET", "/access/users/ops%40pve", "/access/users/{userid}", map[string]string{"userid": "ops@pve"}, true},
		"volume, encoded":   {"DELETE", "/nodes/pve1/storage/local/content/local%3Aiso%2Fa.iso", "/nodes/{node}/storage/{storage}/content/{volume}", map[string]string{"node": "pve1", "storage": "local", "volume": "local:iso/a.iso"}, true},
		"volume, with /":    {"DELETE", "/nodes/pve1/storage/local/content/iso/a.iso", "/nodes/{node}/storage/{storage}/content/{volume}", map[string]string{"node": "pve1", "storage": "local", "volume": "iso/a.iso"}, true},
		"literal first":     {"GET", "/nodes/pve1/network", "/nodes/{node}/network", map[string]string{"node": "pve1"}, true},
		"unknown verb":      {"POST", "/version", "", map[string]string{}, true},
		"unknown path":      {"GET", "/nosuch", "", nil, false},
		"unknown below":     {"GET", "/nodes/pve1/nosuch", "", nil, false},
		"case counts":       {"GET", "/Version", "", nil, false},
		"root":              {"GET", "/", "", nil, false},
		"broken escape":     {"GET", "/nodes/%zz", "", nil, false},
		"a slash is one":    {"GET", "/nodes/pve1%2Fqemu", "/nodes/{node}/qemu", map[string]string{"node": "pve1"}, true},
		"no method on stem": {"GET", "/nodes/pve1/qemu/100/status/start", "", map[string]string{"node": "pve1", "vmid": "100"}, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m, vars, known := pveapi.Lookup(test.verb, test.path)
			require.Equal(t, test.known, known)
			require.Equal(t, test.vars, vars)
			if test.want == "" {
				require.Nil(t, m)
				return
			}
			require.NotNil(t, m)
			require.Equal(t, test.want, m.Path)
			require.Equal(t, test.verb, m.Verb)
		})
	}
}

func method(t *testing.T, verb, path string) *pveapi.Method {
	t.Helper()
	m, _, _ := pveapi.Lookup(verb, path)
	require.NotNil(t, m, "%s %s", verb, path)
	return m
}

func TestMethodFields(t *testing.T) {
	m := method(t, "POST", "/nodes/{node}/qemu/{vmid}/clone")
	require.True(t, m.Protected)
	require.Equal(t, "node", m.ProxyTo)
	require.False(t, m.NoToken)
	require.True(t, m.Perm.More)
	require.False(t, m.Params["newid"].Optional)
	require.True(t, m.Params["vmid"].InPath)
	require.Equal(t, "string", m.Returns.Type)

	require.True(t, method(t, "PUT", "/access/password").NoToken)
	require.Equal(t, "world", method(t, "POST", "/access/ticket").Perm.User)
}

func TestParam(t *testing.T) {
	m := method(t, "POST", "/nodes/{node}/qemu")
	for _, name := range []string{
		"name", "net0", "net31", "scsi30", "virtio15", "sata5", "ide3", "unused255", "ipconfig31", "serial3", "parallel2",
		"usb13", "hostpci15", "virtiofs9", "numa", "numa7", "efidisk0", "rng0",
	} {
		_, ok := m.Param(name)
		require.True(t, ok, name)
	}
	for _, name := range []string{
		"", "0", "nosuch", "net", "net[n]", "net32", "net00", "net01", "net-1", "scsi31", "virtio16", "sata6", "ide4", "unused256",
		"serial4", "parallel3", "usb14", "hostpci16", "virtiofs10", "numa8", "efidisk1", "mp0", "net99999999999999999999",
	} {
		_, ok := m.Param(name)
		require.False(t, ok, name)
	}
	v, _ := m.Param("net7")
	require.Equal(t, "macaddr", v.Sub["virtio"].Alias)
	require.Equal(t, "model", v.Sub["virtio"].KeyAlias)

	container := method(t, "POST", "/nodes/{node}/lxc")
	for _, name := range []string{"mp255", "dev255", "net31", "unused255", "rootfs"} {
		_, ok := container.Param(name)
		require.True(t, ok, name)
	}
}
