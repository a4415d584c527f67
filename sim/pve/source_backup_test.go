package pve_test

import (
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// dumped backs up VM 100 and gives the exit status and why it failed.
func (c *client) dumped(more form) (status, why string) {
	params := form{"vmid": "100", "storage": "vmstore"}
	maps.Copy(params, more)
	upid, _ := c.ok("POST", "/nodes/father/vzdump", params).(string)
	status = c.wait(upid)
	for _, task := range c.h.Snapshot().Tasks {
		if task.UPID == upid && len(task.Log) > 1 {
			why = task.Log[1]
		}
	}
	return status, why
}

// TestBackupsThatAreRefused: a guest that the HA manager keeps running in mode stop, more
// protected backups than a storage keeps of a guest, more than its rule where none is pruned
// (exec_backup_task in PVE/VZDump.pm; get_max_protected_backups and
// update_volume_attribute in PVE/Storage.pm).
func TestBackupsThatAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := likeRecorded(t)
		c.done("POST", "/nodes/father/qemu", form{"vmid": "100"})
		c.ok("POST", "/cluster/ha/resources", form{"sid": "vm:100"})
		status, why := c.dumped(form{"mode": "stop"})
		require.Equal(t, "job errors", status)
		require.Equal(t, "ERROR: Backup of VM 100 failed - Cannot execute a backup with stop mode on a HA managed and enabled Service. Use snapshot mode or disable the Service.", why)
		status, _ = c.dumped(form{"mode": "snapshot"})
		require.Equal(t, "OK", status)
		c.ok("PUT", "/cluster/ha/resources/vm:100", form{"state": "stopped"})
		time.Sleep(time.Second)
		status, _ = c.dumped(form{"mode": "stop", "protected": "1"})
		require.Equal(t, "OK", status)
		c.ok("DELETE", "/cluster/ha/resources/vm:100", nil)
		require.Equal(t, "500 cannot delete service 'vm:100', not HA managed!", c.told(step{verb: "DELETE", path: "/cluster/ha/resources/vm:100"}))

		c.ok("POST", "/access/users", form{"userid": "ann@pve"})
		c.ok("PUT", "/access/acl", form{"path": "/", "users": "ann@pve", "roles": "PVEAdmin"})
		c.ok("PUT", "/access/acl", form{"path": "/storage/vmstore", "users": "ann@pve", "roles": "PVEDatastoreUser"})
		token, _ := c.ok("POST", "/access/users/ann@pve/token/dump", form{"privsep": "0"}).(map[string]any)["value"].(string)
		ann := c.as("ann@pve!dump=" + token)
		for range 4 {
			time.Sleep(time.Second)
			status, _ = ann.dumped(form{"protected": "1"})
			require.Equal(t, "OK", status)
		}
		status, why = ann.dumped(form{"protected": "1"})
		require.Equal(t, "job errors", status)
		require.Equal(t, "ERROR: Backup of VM 100 failed - The number of protected backups per guest is limited to 5 on storage 'vmstore'", why)
		time.Sleep(time.Second)
		status, _ = ann.dumped(nil)
		require.Equal(t, "OK", status)
		free := ""
		for _, v := range c.list("/nodes/father/storage/vmstore/content?content=backup") {
			if v["protected"] == nil {
				free, _ = v["volid"].(string)
			}
		}
		mark := step{verb: "PUT", path: "/nodes/father/storage/vmstore/content/" + free, params: form{"protected": "1"}}
		require.Equal(t, "500 The number of protected backups per guest is limited to 5 on storage 'vmstore'", ann.told(mark))
		time.Sleep(time.Second)
		status, _ = c.dumped(form{"protected": "1"})
		require.Equal(t, "OK", status, "who may allocate in the storage is not held to it")

		c.ok("PUT", "/storage/vmstore", form{"prune-backups": "keep-last=2", "max-protected-backups": "3"})
		_, why = c.dumped(form{"protected": "1"})
		require.Contains(t, why, "limited to 3 on storage 'vmstore'")
		_, why = c.dumped(form{"remove": "0"})
		require.Contains(t, why, "There is a max backup limit of 2 enforced by the target storage or the vzdump parameters. Either increase the limit or delete old backups.")
	})
}

// TestAgentsThatAreSwitchedOff: a VM whose agent is switched off has one configured, and it
// never answers (assert_agent_available in PVE/QemuServer/Agent.pm). What a program wrote
// comes with each byte as a letter (qemu_exec_status there).
func TestAgentsThatAreSwitchedOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{Exec: func(int, []string, string) (string, string, int, bool) { return "ä", "", 0, true }})
		c.image()
		for vmid, change := range map[string]form{"100": {"delete": "agent"}, "101": {"agent": "0"}, "102": {"agent": "1"}} {
			c.vm(vmid, nil)
			c.ok("PUT", vmURL(vmid, "/config"), change)
			c.done("POST", vmURL(vmid, "/status/start"), nil)
		}
		time.Sleep(time.Minute)
		ping := func(vmid string) step { return step{verb: "POST", path: vmURL(vmid, "/agent/ping")} }
		require.Equal(t, "500 No QEMU guest agent configured", c.told(ping("100")))
		require.Equal(t, "500 QEMU guest agent is not running", c.told(ping("101")))
		require.Equal(t, "OK", c.told(ping("102")))
		c.ok("POST", vmURL("102", "/agent/exec"), form{"command": "/bin/x"})
		require.Equal(t, "Ã¤", c.object(vmURL("102", "/agent/exec-status?pid=144"))["out-data"])
	})
}
