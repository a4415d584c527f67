package integration_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// ST-11: what leaves the files leaves the guest, and what leaves the site leaves the
// host: a tag, a card, a disk, an option, a key, a node, an image, a pool. What was
// never ours stays, beside it and after it.
func TestWhatLeavesTheFilesLeavesTheHost(t *testing.T) {
	s := begin(t, pve.Config{TaskTime: 10 * time.Millisecond})
	s.write("pool.hcl", "pool \"prod\" {\n  host = host.father\n}\n")
	s.edit("host.hcl", "node        =", "pool        = \"prod\"\n  node        =")
	more := []string{
		`restart = "allowed"`, `tags = ["old"]`, "onboot = true", `description = "Asks Anna first"`,
		"disk \"kept\" {\n      size = 2\n    }", "disk \"gone\" {\n      size = 3\n      remove = true\n    }",
		"nic \"lan\" {\n    }", "nic \"dmz\" {\n      vlan = 7\n    }",
		"startup {\n      order = 2\n    }", "options = {\n      cpulimit = \"1.5\"\n      localtime = \"1\"\n    }",
	}
	s.deploy("web", vm("stays", more...)+vm("goes"))
	s.apply()
	stays := s.guest("stays")
	require.Equal(t, "1.5", stays.Config["cpulimit"])
	require.NotEmpty(t, stays.Config["net1"])
	s.byHand(func(e *pve.Edit) {
		e.Set(stays.VMID, "cpuunits", "77") // of no file, ever
		e.Set(stays.VMID, "hotplug", "network,disk")
	})

	s.deploy("web", vm("stays", `restart = "allowed"`))
	s.apply()

	require.Equal(t, []string{"stays"}, s.names())
	g := s.guest("stays")
	for _, key := range []string{"net1", "startup", "cpulimit", "localtime"} {
		require.Empty(t, g.Config[key], key)
	}
	require.Equal(t, []string{"homestak", "", "77", "network,disk"}, []string{g.Config["tags"], notes(g), g.Config["cpuunits"], g.Config["hotplug"]})
	require.NotEqual(t, "1", g.Config["onboot"])
	require.Empty(t, g.Config["scsi1"])
	require.Empty(t, g.Config["scsi2"])
	require.Contains(t, g.Config["unused0"], strings.TrimPrefix(strings.Split(stays.Config["scsi1"], ",")[0], "local-lvm:"), "its data may be all there is: it is let go of, and stays")
	require.Empty(t, g.Config["unused1"], "this one the files said to remove")
	require.Contains(t, volumes(s), strings.Split(stays.Config["scsi1"], ",")[0])
	require.NotContains(t, volumes(s), strings.Split(stays.Config["scsi2"], ",")[0])
	require.Equal(t, stays.Config["smbios1"], g.Config["smbios1"])
	s.inSync()

	s.remove("manifests/web.hcl")
	s.apply()
	require.Empty(t, s.names())
	require.Contains(t, volumes(s), "homestak.home.debian-12.", "it is declared still")

	s.edit("host.hcl", "pool        = \"prod\"\n", "")
	s.remove("pool.hcl")
	_, image, _ := strings.Cut(frame, "image \"")
	s.edit("site.hcl", "image \""+image, "")
	s.apply()
	require.NotContains(t, volumes(s), "homestak.home.debian-12.")
	require.Empty(t, s.host.Snapshot().Pools)
	s.inSync()
}
