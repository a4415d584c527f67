package fleet_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/test/bench/fleet"
)

const mark = `homestak-gitops: {"v":1,"node":"app-00001","uuid":"u-1","manifest":"fleet-001","needs":["image.debian-12"]}`

func TestATwinIsAnotherMachine(t *testing.T) {
	f := fleet.Fleet{Guests: 10, Files: 2}
	first := map[string]string{
		"name": "app-00001", "smbios1": "uuid=u-1", "memory": "2048",
		"description": "One of many.\n" + mark + "\n",
		"net0":        "virtio=BC:24:11:00:00:01,bridge=vmbr0",
		"scsi0":       "local-lvm:vm-10001-disk-0,size=10G",
	}

	twin, err := f.Twin(first, 7)
	require.NoError(t, err)
	require.Equal(t, "app-00007", twin["name"])
	require.Equal(t, "2048", twin["memory"])
	require.Equal(t, "local-lvm:vm-10007-disk-0,size=10G", twin["scsi0"])
	require.Equal(t, "virtio=BC:24:00:00:00:07,bridge=vmbr0", twin["net0"])
	notes, line, _ := strings.Cut(twin["description"], "\n")
	require.Equal(t, "One of many.", notes)
	var m map[string]any
	require.NoError(t, json.Unmarshal([]byte(strings.TrimPrefix(line, "homestak-gitops: ")), &m))
	require.Equal(t, "app-00007", m["node"])
	require.Equal(t, "fleet-002", m["manifest"])
	require.Equal(t, "uuid="+m["uuid"].(string), twin["smbios1"])
	require.Equal(t, []any{"image.debian-12"}, m["needs"])
	require.NotEqual(t, first["smbios1"], twin["smbios1"])

	_, err = f.Twin(map[string]string{"description": "no mark"}, 7)
	require.ErrorContains(t, err, "no ownership tag")
}

func TestEveryGuestIsDeclaredOnce(t *testing.T) {
	f := fleet.Fleet{Guests: 10, Files: 3, Nodes: []string{"pve1", "pve2"}}
	files := f.Site(fleet.Access{API: "https://pve.example:8006", Token: "root@pam!t=s"})
	all := ""
	manifests := 0
	for name, text := range files {
		all += text
		if strings.HasPrefix(name, "manifests/") {
			manifests++
		}
	}
	require.Equal(t, 3, manifests)
	for n := 1; n <= 10; n++ {
		require.Equal(t, 1, strings.Count(all, `node "`+f.Name(n)+`"`), f.Name(n))
		require.Contains(t, f.Nodes, f.Node(n))
	}
	require.Contains(t, f.Clones(fleet.Access{})["manifests/clones.hcl"], "count    = 10")
}
