package pve_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// pair is a cluster of two nodes with a storage that both see.
func pair(t *testing.T, version string) *client {
	t.Helper()
	nas, err := pve.ParseStorage("nas:nfs:images,iso,import,rootdir")
	require.NoError(t, err)
	return newClient(t, pve.Config{Nodes: []string{"mother"}, Version: version, Storages: append(pve.DefaultStorages(), nas)})
}

// TestMigration: what a move takes along, and what keeps a guest where it is.
func TestMigration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := pair(t, "9.1")
		c.image()
		c.vm("100", nil)
		require.Equal(t, "no such cluster node 'aunt'", c.ask("POST", vmURL("100", "/migrate"), form{"target": "aunt"}).reason)
		require.Equal(t, map[string]string{"target": "target is local node."}, c.ask("POST", vmURL("100", "/migrate"), form{"target": "father"}).errors)
		info := c.object(vmURL("100", "/migrate"))
		require.Equal(t, []any{"mother"}, info["allowed_nodes"])
		require.Len(t, info["local_disks"], 1)
		c.done("POST", vmURL("100", "/migrate"), form{"target": "mother"})
		require.Equal(t, "mother", c.resource(100)["node"])
		require.Equal(t, "mother", c.h.Snapshot().Volumes["local-lvm"][0].Node, "its disk went with it")
		require.Equal(t, 500, c.ask("GET", vmURL("100", "/config"), nil).status)

		on := "/nodes/mother/qemu/100"
		c.done("POST", on+"/status/start", nil)
		require.Equal(t, "can't migrate running VM without --online", c.ask("POST", on+"/migrate", form{"target": "father"}).reason)
		require.Equal(t, "migration aborted", c.task("POST", on+"/migrate", form{"target": "father", "online": "1"}))
		require.Contains(t, c.log(), "ERROR: migration aborted (duration 00:00:00): Problem found while scanning volumes - can't live migrate attached local disks without with-local-disks option")
		c.done("POST", on+"/migrate", form{"target": "father", "online": "1", "with-local-disks": "1", "targetstorage": "nas"})
		require.Contains(t, c.object(vmURL("100", "/config"))["scsi0"], "nas:100/vm-100-disk-0.raw,size=")
		require.Equal(t, "running", c.object(vmURL("100", "/status/current"))["status"])

		c.ct("200", form{"start": "1"})
		require.Contains(t, c.ask("POST", ctURL("200", "/migrate"), form{"target": "mother"}).reason, "--online or --restart")
		c.done("POST", ctURL("200", "/migrate"), form{"target": "mother", "restart": "1"})
		require.Equal(t, "running", c.object("/nodes/mother/lxc/200/status/current")["status"])
		c.h.Edit(func(e *pve.Edit) { e.Offline("mother", true) })
		require.Equal(t, "migration aborted", c.task("POST", vmURL("100", "/migrate"), form{"target": "mother", "online": "1"}))
		c.h.Edit(func(e *pve.Edit) { e.Quorum(false) })
		require.Equal(t, "cluster not ready - no quorum?", c.ask("POST", vmURL("100", "/migrate"), form{"target": "mother"}).reason)
	})
}

// TestManaged: the tasks about a managed guest end when the request is filed; the
// manager acts ten seconds later, and starts again what was ended otherwise.
func TestManaged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := pair(t, "8.4")
		c.image()
		c.vm("100", nil)
		status := func() any { return c.object(vmURL("100", "/status/current"))["status"] }
		require.Equal(t, "resource 'vm:999' does not exist in cluster", c.ask("POST", "/cluster/ha/resources", form{"sid": "vm:999"}).reason)
		c.ok("POST", "/cluster/ha/groups", form{"group": "both", "nodes": "father:2,mother"})
		c.ok("POST", "/cluster/ha/resources", form{"sid": "vm:100", "state": "stopped", "group": "both"})
		require.Equal(t, "create resource failed: resource ID 'vm:100' already defined", c.ask("POST", "/cluster/ha/resources", form{"sid": "100"}).reason)
		require.Equal(t, map[string]any{"managed": 1.0, "state": "queued", "group": "both"}, c.object(vmURL("100", "/status/current"))["ha"])
		require.Equal(t, "delete ha group failed: ha group is used by service 'vm:100'", c.ask("DELETE", "/cluster/ha/groups/both", nil).reason)

		upid := c.ok("POST", vmURL("100", "/status/start"), nil).(string)
		require.Contains(t, upid, ":hastart:100:")
		require.Equal(t, "OK", c.wait(upid))
		time.Sleep(2 * time.Second)
		require.Equal(t, "stopped", status(), "the task only filed the request")
		time.Sleep(9 * time.Second)
		require.Equal(t, "running", status())
		time.Sleep(11 * time.Second)
		require.Equal(t, "started", c.resource(100)["hastate"])
		c.h.Edit(func(e *pve.Edit) { e.Stop(100) })
		time.Sleep(11 * time.Second)
		require.Equal(t, "running", status(), "it fights who ends it otherwise")

		time.Sleep(time.Minute) // nothing else is on its list any more
		require.Contains(t, c.ok("POST", vmURL("100", "/status/shutdown"), nil), ":hastop:100:")
		time.Sleep(30 * time.Second)
		require.Equal(t, "stopped", status())
		require.Equal(t, "unable to remove VM 100 - used in HA resources and purge parameter not set.", c.ask("DELETE", vmURL("100", ""), nil).reason)
		require.Contains(t, c.ok("POST", vmURL("100", "/migrate"), form{"target": "mother"}), ":hamigrate:100:")
		time.Sleep(30 * time.Second)
		require.Equal(t, "mother", c.resource(100)["node"])
		c.done("DELETE", "/nodes/mother/qemu/100", form{"purge": "1"})
		require.Empty(t, c.list("/cluster/ha/resources"))
		c.vm("101", nil)
		c.ok("POST", "/cluster/ha/resources", form{"sid": "vm:101"})
		c.h.Edit(func(e *pve.Edit) { e.Delete(101) })
		require.Empty(t, c.list("/cluster/ha/resources"), "nobody can delete it otherwise")
		require.Equal(t, 501, c.ask("GET", "/cluster/ha/rules", nil).status, "PVE 8 has no rules")
	})
}

// TestRecovered: what a dead node ran is taken over after its fencing, where its disks
// are; without quorum nothing is.
func TestRecovered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := pair(t, "9.1")
		c.done("POST", "/nodes/mother/qemu", form{"vmid": "100", "scsi0": "nas:1", "ha-managed": "1", "start": "1"})
		require.Contains(t, c.ask("GET", "/cluster/ha/groups", nil).reason, "ha groups have been migrated to rules")
		c.ok("POST", "/cluster/ha/rules", form{"rule": "home", "type": "node-affinity", "resources": "vm:100", "nodes": "mother"})
		require.Len(t, c.list("/cluster/ha/rules?type=node-affinity"), 1)
		time.Sleep(20 * time.Second)
		c.h.Edit(func(e *pve.Edit) { e.Quorum(false); e.Offline("mother", true) })
		time.Sleep(5 * time.Minute)
		require.Equal(t, "mother", c.resource(100)["node"])
		c.h.Edit(func(e *pve.Edit) { e.Quorum(true) })
		time.Sleep(time.Minute)
		require.Equal(t, "mother", c.resource(100)["node"], "it might still run there")
		time.Sleep(3 * time.Minute)
		require.Equal(t, "father", c.resource(100)["node"])
		require.Equal(t, "running", c.object(vmURL("100", "/status/current"))["status"])
		var states []string
		for _, entry := range c.list("/cluster/ha/status/current") {
			states = append(states, fmt.Sprint(entry["type"]))
		}
		require.Equal(t, []string{"quorum", "master", "lrm", "lrm", "service"}, states)
	})
}

// TestTasksWithoutQuorum: what writes a configuration fails, in its task or at once;
// what only ends a process does not.
func TestTasksWithoutQuorum(t *testing.T) {
	c := pair(t, "9.1")
	c.image()
	c.vm("100", nil)
	c.done("POST", vmURL("100", "/snapshot"), form{"snapname": "one"})
	c.done("POST", vmURL("100", "/status/start"), nil)
	c.ct("200", nil)
	c.h.Edit(func(e *pve.Edit) { e.Quorum(false) })
	for _, call := range []struct{ verb, path, size, name string }{
		{"PUT", vmURL("100", "/resize"), "+1G", "scsi0"},
		{"PUT", ctURL("200", "/resize"), "+1G", "rootfs"},
	} {
		require.Contains(t, c.task(call.verb, call.path, form{"disk": call.name, "size": call.size}), "Permission denied")
	}
	require.Contains(t, c.task("POST", vmURL("100", "/snapshot"), form{"snapname": "two"}), "Permission denied")
	require.Contains(t, c.task("POST", vmURL("100", "/snapshot/one/rollback"), nil), "Permission denied")
	require.Equal(t, "job errors", c.task("POST", "/nodes/father/vzdump", form{"vmid": "100", "storage": "local"}))
	require.Contains(t, c.ask("PUT", ctURL("200", "/config"), form{"memory": "256"}).reason, "Permission denied")
	for _, path := range []string{"/storage", "/cluster/ha/resources", "/cluster/firewall/rules"} {
		params := map[string]form{
			"/storage":                {"storage": "more", "type": "dir", "path": "/x"},
			"/cluster/ha/resources":   {"sid": "vm:100"},
			"/cluster/firewall/rules": {"type": "in", "action": "DROP"},
		}[path]
		require.Equal(t, "cluster not ready - no quorum?", c.ask("POST", path, params).reason, path)
	}
	c.done("POST", vmURL("100", "/status/stop"), nil)
}
