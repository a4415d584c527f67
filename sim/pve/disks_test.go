package pve_test

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// TestDiskGroups: pools, volume groups and folders are made of free disks, become
// storages and go again, refused where PVE refuses and where it does: in the call or in
// the task (PVE/API2/Disks/*.pm of pve-storage).
func TestDiskGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{Nodes: []string{"mother"}})
		const at = "/nodes/father/disks"
		one := func(name, disk string) form { return form{"name": name, "device": "/dev/" + disk} }
		c.steps(
			step{"POST", at + "/zfs", form{"name": "tank", "devices": "/dev/sdb", "raidlevel": "mirror"}, "500 mirror needs at least 2 disks"},
			step{"POST", at + "/zfs", form{"name": "tank", "devices": "/dev/sda", "raidlevel": "single"}, "500 device '/dev/sda' is already in use"},
			step{"POST", at + "/zfs", form{"name": "local", "devices": "/dev/sdb", "raidlevel": "single", "add_storage": "1"}, "500 Storage ID 'local' already exists on node father"},
			step{"POST", at + "/zfs", form{"name": "tank", "devices": "/dev/sdb", "raidlevel": "single", "add_storage": "1"}, "OK"},
			step{"POST", at + "/zfs", form{"name": "tank", "devices": "/dev/sdc", "raidlevel": "single"}, "500 pool 'tank' already exists on node 'father'"},
			step{"POST", "/nodes/mother/disks/zfs", form{"name": "tank", "devices": "/dev/sdb", "raidlevel": "single", "add_storage": "1"}, "OK"},
			step{"POST", "/nodes/mother/disks/lvm", form{"name": "tank", "device": "/dev/sdc", "add_storage": "1"}, "500 Storage ID 'tank' already exists on node mother"},
			step{"POST", at + "/lvm", one("pve", "sdc"), "volume group with name 'pve' already exists on node 'father'"},
			step{"POST", at + "/lvmthin", one("thin", "sdc"), "OK"},
			step{"POST", at + "/lvm", one("thin", "sdd"), "volume group with name 'thin' already exists on node 'father'"},
			step{"POST", at + "/directory", one("tank", "sdd"), "OK"}, // No pool, though of its name.
			step{"PUT", at + "/wipedisk", form{"disk": "/dev/sdd"}, "500 disk/partition '/dev/sdd' has a holder"},
		)
		require.Equal(t, "father,mother", c.object("/storage/tank")["nodes"])
		require.Regexp(t, "^/dev/disk/by-uuid/[0-9a-f-]{36}$", c.list(at + "/directory")[0]["device"])
		groups := objects(t, c.object(at + "/lvm")["children"])
		require.Equal(t, []any{"pve", "thin", 1.0}, []any{groups[0]["name"], groups[1]["name"], groups[1]["lvcount"]})
		require.Equal(t, []any{"/dev/sdc", 1.0}, []any{objects(t, groups[1]["children"])[0]["name"], objects(t, groups[1]["children"])[0]["leaf"]})

		const both = "cleanup-config"
		c.steps(
			step{"DELETE", at + "/lvm/none", nil, "no such volume group 'none'"},
			step{"DELETE", at + "/lvmthin/thin", nil, "volume-group: property is missing and it is not optional"},
			step{"DELETE", at + "/lvmthin/thin", form{"volume-group": "pve"}, "no such thin pool pve/thin"},
			step{"DELETE", at + "/zfs/none", nil, "command 'zpool destroy none' failed: exit code 1"},
			step{"DELETE", at + "/directory/none", nil, "command 'systemctl stop mnt-pve-none.mount' failed: exit code 5"},
			step{"DELETE", at + "/directory/none", form{"cleanup-disks": "1"}, "can't open '/etc/systemd/system/mnt-pve-none.mount' - No such file or directory"},
			step{"DELETE", at + "/directory/tank", form{both: "1"}, "OK"}, // The storage of that name is none of a folder.
			step{"DELETE", at + "/zfs/tank", form{both: "1", "cleanup-disks": "1"}, "OK"},
			step{"DELETE", at + "/lvmthin/thin", form{"volume-group": "thin"}, "OK"},
		)
		require.Equal(t, "mother", c.object("/storage/tank")["nodes"])
		require.Len(t, objects(t, c.object(at + "/lvm")["children"]), 2, "the volume group stays")
		require.Empty(t, c.list(at+"/zfs"))
		var used []any
		for _, d := range c.list(at + "/list") {
			used = append(used, d["used"])
		}
		require.Equal(t, []any{"LVM", nil, "LVM", "partitions"}, used)
		c.steps(
			step{"DELETE", "/nodes/mother/disks/zfs/tank", form{both: "1"}, "OK"},
			step{"GET", "/storage/tank", nil, "500 storage 'tank' does not exist"},
		)
		require.Equal(t, "thin-thin", fmt.Sprint(c.list("/nodes/father/tasks?typefilter=lvmthinremove")[0]["id"]))
	})
}
