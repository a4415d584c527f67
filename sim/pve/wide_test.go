package pve_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// TestReplication: jobs for guests whose storage can be copied, refused for others
// (PVE/API2/ReplicationConfig.pm, get_replicatable_volumes in PVE/QemuConfig.pm).
func TestReplication(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{Nodes: []string{"mother"}})
		c.ok("POST", "/storage", form{"storage": "tank", "type": "zfspool", "pool": "tank", "content": "images,rootdir"})
		c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "scsi0": "tank:1"})
		c.done("POST", "/nodes/father/qemu", form{"vmid": "101", "scsi0": "local-lvm:1"})
		c.done("POST", "/nodes/father/qemu", form{"vmid": "102"})
		const at = "/cluster/replication"
		job := func(id, target string) form { return form{"id": id, "type": "local", "target": target} }
		c.steps(
			step{"GET", at + "/100-0", nil, "500 no such replication job '100-0'"},
			step{"POST", at, job("199-0", "mother"), "500 Guest '199' does not exist."},
			step{"POST", at, job("100-0", "aunt"), "500 Target 'aunt' does not exist."},
			step{"POST", at, job("100-0", "father"), "500 Source and target must not be identical"},
			step{"POST", at, job("101-0", "mother"), "500 missing replicate feature on volume 'local-lvm:vm-101-disk-0'"},
			step{"POST", at, job("102-0", "mother"), "500 No replicatable volumes found"},
			step{"POST", at, form{"id": "100-0", "type": "local", "target": "mother", "schedule": "*/30", "rate": "12.5", "comment": "copy"}, "OK"},
			step{"POST", at, job("100-0", "mother"), "500 replication job '100-0' already exists"},
			step{"PUT", at + "/100-9", form{"comment": "x"}, "500 no such job '100-9'"},
			step{"DELETE", vmURL("100", ""), nil, "500 There is a replication job '100-0' for guest '100' - Please remove that first."},
		)
		entry := c.object(at + "/100-0")
		require.Equal(t, []any{100.0, 0.0, "mother", "father", 12.5, "*/30"},
			[]any{entry["guest"], entry["jobnum"], entry["target"], entry["source"], entry["rate"], entry["schedule"]})
		c.ok("PUT", at+"/100-0", form{"delete": "comment,rate", "disable": "0", "digest": fmt.Sprint(entry["digest"])})
		require.Contains(t, c.ask("PUT", at+"/100-0", form{"disable": "1", "digest": fmt.Sprint(entry["digest"])}).reason, "detected modified configuration")
		require.NotContains(t, c.object(at+"/100-0"), "comment")

		c.ok("DELETE", at+"/100-0", nil)
		require.Equal(t, "full", c.object(at + "/100-0")["remove_job"], "the scheduler takes it away")
		time.Sleep(time.Minute)
		require.Empty(t, c.list(at))
		c.done("DELETE", vmURL("100", ""), nil)
	})
}
