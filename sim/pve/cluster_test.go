package pve_test

import (
	"fmt"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// TestQuorum: without it the cluster can be read and not written.
func TestQuorum(t *testing.T) {
	c := newClient(t, pve.Config{Nodes: []string{"mother"}})
	c.done("POST", "/nodes/father/qemu", form{"vmid": "100"})
	c.h.Edit(func(e *pve.Edit) { e.Quorum(false) })
	require.EqualValues(t, 0, c.list("/cluster/status")[0]["quorate"])
	require.Equal(t, "cluster not ready - no quorum?", c.ask("POST", "/nodes/father/qemu", form{"vmid": "101"}).reason)
	require.Regexp(t, `^unable to open file '/etc/pve/nodes/father/qemu-server/100.conf.tmp.\d+' - Permission denied$`,
		c.ask("PUT", vmURL("100", "/config"), form{"name": "x"}).reason)
	require.Equal(t, "create pool failed: cfs-lock 'file-user_cfg' error: no quorum!", c.ask("POST", "/pools", form{"poolid": "p"}).reason)
	require.Contains(t, c.task("DELETE", vmURL("100", ""), nil), "Permission denied")
	require.Len(t, c.h.Snapshot().Guests, 1)
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
		require.Empty(t, c.list("/cluster/ha/resources"), "it cannot be deleted otherwise")
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

// TestNoManager: without a manager of HA requested states have no effect: the
// recorded host's status/current has no state, the lists have what was written
// (PVE/API2/Cluster.pm), the status is queued (PVE/HA/Tools.pm).
func TestNoManager(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{Version: "8.4", NoManager: true})
		c.done("POST", "/nodes/father/qemu", form{"vmid": "100"})
		c.ok("POST", "/cluster/ha/resources", form{"sid": "vm:100", "state": "started", "comment": "c", "max_restart": "2"})
		time.Sleep(time.Minute)
		require.Equal(t, map[string]any{"managed": 1.0, "state": nil, "group": nil}, c.object("/nodes/father/qemu/100/status/current")["ha"])
		c.done("POST", "/nodes/father/qemu/100/status/start", nil)
		time.Sleep(time.Minute)
		require.Equal(t, "stopped", c.object("/nodes/father/qemu/100/status/current")["status"])
		require.Equal(t, "started", c.list("/cluster/resources?type=vm")[0]["hastate"])
		status := c.list("/cluster/ha/status/current")
		require.Len(t, status, 2)
		require.Equal(t, map[string]any{
			"id": "service:vm:100", "type": "service", "sid": "vm:100", "node": "father", "state": "queued", "request_state": "started",
			"status": "vm:100 (father, queued)", "max_restart": 2.0, "max_relocate": 1.0, "comment": "c",
		}, status[1])
		require.Empty(t, c.object("/cluster/ha/status/manager_status")["manager_status"])
	})
}

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

// TestDatacenterOptions: get_options in PVE/API2/Cluster.pm, the rules of tags in
// PVE/GuestHelpers.pm (get_allowed_tags, assert_tag_permissions, get_unique_tags).
func TestDatacenterOptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{Version: "8.4"})
		c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "tags": "web;db"})
		c.done("POST", "/nodes/father/qemu", form{"vmid": "101", "tags": "secret"})
		c.ok("POST", "/access/users", form{"userid": "ann@pve"})
		c.ok("PUT", "/access/acl", form{"path": "/vms/100", "users": "ann@pve", "roles": "PVEVMAdmin"})
		token := c.ok("POST", "/access/users/ann@pve/token/tags", form{"privsep": "0"}).(map[string]any)["value"].(string)
		ann := c.as("ann@pve!tags=" + token)
		require.Equal(t, map[string]any{"allowed-tags": []any{"db", "web"}}, ann.ok("GET", "/cluster/options", nil))

		c.ok("PUT", "/cluster/options", form{
			"registered-tags": "prod;web", "user-tag-access": "user-allow=list,user-allow-list=a;b", "tag-style": "case-sensitive=1,ordering=config",
		})
		require.Equal(t, map[string]any{
			"allowed-tags": []any{"a", "b", "db", "prod", "secret", "web"}, "registered-tags": []any{"prod", "web"}, "mac_prefix": "BC:24:11", "description": "",
			"user-tag-access": map[string]any{"user-allow": "list", "user-allow-list": []any{"a", "b"}},
			"tag-style":       map[string]any{"case-sensitive": 1.0, "ordering": "config"},
		}, c.ok("GET", "/cluster/options", nil))
		require.Equal(t, map[string]any{
			"allowed-tags": []any{"a", "b"}, "tag-style": map[string]any{"case-sensitive": 1.0, "ordering": "config"},
		}, ann.ok("GET", "/cluster/options", nil))
		refused := func(tag string) string {
			return "403 Permission check failed (/, Sys.Modify for modifying tag '" + tag + "')"
		}
		config := "/nodes/father/qemu/100/config"
		ann.steps(
			step{"PUT", config, form{"tags": "web;db;c"}, refused("c")},
			step{"PUT", config, form{"tags": "db"}, refused("web")},
			step{"PUT", config, form{"delete": "tags"}, refused("web")},
			step{"PUT", config, form{"tags": "web;db;b"}, "OK"},
		)
		c.ok("PUT", config, form{"tags": "Web;b;Web;a"})
		require.Equal(t, "Web;b;a", c.object(config)["tags"])
		c.ok("PUT", "/cluster/options", form{"delete": "tag-style"})
		c.ok("PUT", config, form{"tags": "Web;b;Web;a"})
		require.Equal(t, "a;b;web", c.object(config)["tags"])
	})
}

// TestOptionsInParts: property strings of the data centre are kept as text and shown in
// their parts, whose values are text as long as they are no booleans
// (parse_datacenter_config in PVE/DataCenterConfig.pm); bwlimit is shown as it is.
func TestOptionsInParts(t *testing.T) {
	c := newClient(t, pve.Config{})
	c.ok("PUT", "/cluster/options", form{
		"migration": "secure,network=192.0.2.0/24", "next-id": "lower=200,upper=300", "crs": "ha=static,ha-rebalance-on-start=1", "bwlimit": "migration=100",
	})
	options := c.ok("GET", "/cluster/options", nil).(map[string]any)
	require.Equal(t, map[string]any{"type": "secure", "network": "192.0.2.0/24"}, options["migration"])
	require.Equal(t, map[string]any{"lower": "200", "upper": "300"}, options["next-id"])
	require.Equal(t, map[string]any{"ha": "static", "ha-rebalance-on-start": 1.0}, options["crs"])
	require.Equal(t, "migration=100", options["bwlimit"])
	require.Equal(t, "200", c.ok("GET", "/cluster/nextid", nil))
}

// TestNextIDRange: the upper bound is exclusive, and the error shows it as it is (nextid in
// PVE/API2/Cluster.pm).
func TestNextIDRange(t *testing.T) {
	c := newClient(t, pve.Config{})
	c.done("POST", "/nodes/father/qemu", form{"vmid": "300"})
	c.steps(
		step{"PUT", "/cluster/options", form{"next-id": "lower=300,upper=301"}, "OK"},
		step{"GET", "/cluster/nextid", nil, "500 unable to get any free VMID in range [300, 301]"},
		step{"PUT", "/cluster/options", form{"next-id": "lower=400,upper=400"}, "OK"},
		step{"GET", "/cluster/nextid", nil, "500 unable to get any free VMID in range [400, 400]"},
		step{"PUT", "/cluster/options", form{"next-id": "upper=99"}, "500 lower (100) <= upper (99) boundary rule broken"}, // Its least value is not checked.
		step{"PUT", "/cluster/options", form{"next-id": "lower=1000001"}, "500 lower (1000001) <= upper (1000000) boundary rule broken"},
	)
}

// TestNodeSettings: files of the node are kept, one with a digest; the log tells of
// tasks.
func TestNodeSettings(t *testing.T) {
	c := newClient(t, pve.Config{})
	hosts := c.object("/nodes/father/hosts")
	require.Contains(t, hosts["data"], "father")
	c.ok("POST", "/nodes/father/hosts", form{"data": "127.0.0.1 localhost\n", "digest": fmt.Sprint(hosts["digest"])})
	require.Contains(t, c.ask("POST", "/nodes/father/hosts", form{"data": "x", "digest": fmt.Sprint(hosts["digest"])}).reason, "detected modified configuration")
	c.ok("PUT", "/nodes/father/dns", form{"search": "home.test", "dns1": "192.0.2.1"})
	require.Equal(t, map[string]any{"search": "home.test", "dns1": "192.0.2.1"}, c.object("/nodes/father/dns"))
	c.ok("PUT", "/nodes/father/time", form{"timezone": "Europe/Vienna"})
	now := c.object("/nodes/father/time")
	require.Contains(t, []any{3600.0, 7200.0}, now["localtime"].(float64)-now["time"].(float64))
	c.ok("PUT", "/nodes/father/config", form{"description": "the big one"})
	require.Equal(t, "the big one\n", c.object("/nodes/father/config")["description"])
	c.done("POST", "/nodes/father/qemu", form{"vmid": "100"})
	require.Contains(t, fmt.Sprint(c.list("/nodes/father/syslog?limit=0")), "qmcreate")
}

// TestFigures: a series has seventy points; those from before the host was there are
// times and nothing else.
func TestFigures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{})
		c.done("POST", "/nodes/father/qemu", form{"vmid": "100"})
		time.Sleep(time.Minute)
		for path, key := range map[string]string{"/nodes/father": "memtotal", vmURL("100", ""): "maxmem"} {
			points := c.list(path + "/rrddata?timeframe=hour")
			require.Len(t, points, 70, path)
			require.Len(t, points[0], 1, path)
			require.NotZero(t, points[69][key], path)
			require.Equal(t, 60.0, points[69]["time"].(float64)-points[68]["time"].(float64))
		}
	})
}

// TestMappings: devices and folders under one name in the cluster (PVE/API2/Cluster/Mapping).
func TestMappings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{Nodes: []string{"mother"}})
		const pci, graphics = "/cluster/mapping/pci", "node=father,path=0000:00:02.0,id=1234:1111,iommugroup=2"
		c.steps(
			step{"GET", pci + "/gpu", nil, "500 mapping 'gpu' not found"},
			step{"POST", pci, form{"id": "gpu"}, "map: property is missing and it is not optional"},
			step{"POST", pci, form{"id": "gpu", "map": graphics, "description": "graphics", "mdev": "1"}, "OK"},
			step{"POST", pci, form{"id": "gpu", "map": graphics}, "500 create hardware mapping failed: pci ID 'gpu' already defined"},
			step{"PUT", pci + "/none", form{"map": graphics}, "500 update hardware mapping failed: pci ID 'none' does not exist"},
			step{"PUT", pci + "/gpu", form{"map": "node=father,id=1234:1111"}, "500 update hardware mapping failed: 400 Parameter verification failed."},
		)
		entry := c.object(pci + "/gpu")
		require.Equal(t, []any{"graphics", 1.0, []any{graphics}, "pci"}, []any{entry["description"], entry["mdev"], entry["map"], entry["type"]})
		require.NotContains(t, entry, "id")
		body := url.Values{"map": {graphics, "node=mother,path=0000:00:09.0,id=1234:1111"}, "delete": {"description"}, "digest": {fmt.Sprint(entry["digest"])}}.Encode()
		require.Equal(t, 200, c.body("PUT", pci+"/gpu", body).status)
		require.Contains(t, c.body("PUT", pci+"/gpu", body).reason, "detected modified configuration")
		require.Empty(t, c.list(pci + "?check-node=father")[0]["checks"])
		require.Equal(t, []any{map[string]any{"severity": "error", "message": "Invalid configuration: pci device '0000:00:09.0' not found\n"}},
			c.list(pci + "?check-node=mother")[0]["checks"])

		c.steps(
			step{"POST", "/cluster/mapping/usb", form{"id": "stick", "map": "node=father,id=1d6b:0002"}, "OK"},
			step{"POST", "/cluster/mapping/dir", form{"id": "share", "map": "node=father,path=/srv/share"}, "OK"},
			step{"DELETE", pci + "/gpu", nil, "OK"},
			step{"DELETE", pci + "/gpu", nil, "OK"},
		)
		require.Equal(t, []any{map[string]any{"severity": "warning", "message": "No mapping for node mother."}},
			c.list("/cluster/mapping/usb?check-node=mother")[0]["errors"])
		require.Empty(t, c.agent().list("/cluster/mapping/usb"), "who may not use it does not see it")
	})
}

func withoutDigest(entry map[string]any) map[string]any {
	delete(entry, "digest")
	return entry
}

// TestMetricServers: PVE/API2/Cluster/MetricServer.pm; the token is kept elsewhere.
func TestMetricServers(t *testing.T) {
	c := newClient(t, pve.Config{Guests: 1})
	const at = "/cluster/metrics/server"
	c.steps(
		step{"GET", at + "/influx", nil, "500 status server entry 'influx' does not exist"},
		step{"POST", at + "/influx", form{"type": "influxdb", "server": "192.0.2.9"}, "port: property is missing and it is not optional"},
		step{"POST", at + "/influx", form{"type": "influxdb", "server": "192.0.2.9", "port": "8089", "token": "secret", "mtu": "1400"}, "OK"},
		step{"POST", at + "/influx", form{"type": "influxdb", "server": "192.0.2.9", "port": "8089"}, "500 Metric server 'influx' already exists"},
		step{"POST", at + "/coal", form{"type": "graphite", "server": "192.0.2.9", "port": "2003", "bucket": "b"}, "500 unexpected property 'bucket'"},
		step{"PUT", at + "/coal", form{"port": "1"}, "500 no such server 'coal'"},
		step{"PUT", at + "/influx", form{"port": "8090", "delete": "mtu"}, "OK"},
		step{"PUT", at + "/influx", form{"delete": "server"}, "500 unable to delete required option 'server'"},
	)
	require.Equal(t, map[string]any{"type": "influxdb", "server": "192.0.2.9", "port": 8090.0}, withoutDigest(c.object(at+"/influx")))
	require.Equal(t, []any{0.0, "influx"}, []any{c.list(at)[0]["disable"], c.list(at)[0]["id"]})
	c.ok("DELETE", at+"/influx", nil)
	require.Empty(t, c.list(at))
}

// TestNotifications: endpoints and matchers (PVE/API2/Cluster/Notifications.pm and the
// crate proxmox-notify, whose failures have statuses of their own).
func TestNotifications(t *testing.T) {
	c := newClient(t, pve.Config{})
	const ends, matchers = "/cluster/notifications/endpoints", "/cluster/notifications/matchers"
	require.Equal(t, []any{"mail-to-root", "builtin"}, []any{c.list(ends + "/sendmail")[0]["name"], c.list(ends + "/sendmail")[0]["origin"]})
	c.steps(
		step{"GET", ends + "/gotify/phone", nil, "404 endpoint 'phone' not found"},
		step{"POST", ends + "/gotify", form{"name": "phone", "server": "https://push.test"}, "token: property is missing and it is not optional"},
		step{"POST", ends + "/gotify", form{"name": "phone", "server": "https://push.test", "token": "secret", "comment": "mine"}, "OK"},
		step{
			"POST", ends + "/smtp",
			form{"name": "phone", "server": "mx.test", "from-address": "a@b.test", "mailto": "c@d.test"},
			"400 Cannot create 'phone', an entity with the same name already exists",
		},
		step{
			"POST", ends + "/smtp",
			form{"name": "mail", "server": "mx.test", "from-address": "a@b.test"},
			"400 must at least provide one recipient, either in mailto or in mailto-user",
		},
		step{"POST", ends + "/smtp", form{"name": "mail", "server": "mx.test", "from-address": "a@b.test", "mailto": "c@d.test", "password": "x", "port": "25"}, "OK"},
		step{"POST", ends + "/webhook", form{"name": "hook", "url": "https://hook.test", "method": "post", "secret": "name=key,value=eA=="}, "OK"},
		step{"POST", matchers, form{"name": "ours", "target": "phone", "mode": "any", "match-field": "exact:type=vzdump"}, "OK"},
		step{"DELETE", ends + "/gotify/phone", nil, "400 cannot delete 'phone', referenced by: ours"},
		step{"PUT", matchers + "/none", form{"comment": "x"}, "404 matcher 'none' not found"},
		step{"POST", matchers, form{"name": "lost", "target": "fax"}, "404 endpoint 'fax' does not exist"},
		step{"POST", matchers, form{"name": "odd", "match-field": "type=vzdump"}, "500 could not apply filter: invalid match-field statement: type=vzdump"},
		step{"POST", matchers, form{"name": "odd", "match-field": "exact:=vzdump"}, "500 could not apply filter: invalid match-field statement: exact:=vzdump"},
		step{"POST", matchers, form{"name": "odd", "match-field": "regex:job-id=.*"}, "OK"},
		step{"DELETE", matchers + "/odd", nil, "OK"},
		step{"PUT", ends + "/sendmail/mail-to-root", form{"comment": "changed"}, "OK"},
		step{"DELETE", ends + "/sendmail/mail-to-root", nil, "OK"}, // A matcher names it, and it comes back.
	)
	require.Equal(t, "builtin", c.list(ends + "/sendmail")[0]["origin"])
	phone := c.object(ends + "/gotify/phone")
	require.Equal(t, map[string]any{"name": "phone", "server": "https://push.test", "comment": "mine"}, withoutDigest(phone))
	require.Equal(t, []any{"c@d.test"}, c.object(ends + "/smtp/mail")["mailto"])
	require.NotContains(t, c.object(ends+"/smtp/mail"), "password")
	require.Equal(t, []any{"name=key"}, c.object(ends + "/webhook/hook")["secret"])
	digest := fmt.Sprint(c.object(matchers + "/ours")["digest"])
	c.ok("PUT", matchers+"/ours", form{"delete": "match-field", "digest": digest})
	require.Contains(t, c.ask("PUT", matchers+"/ours", form{"comment": "y", "digest": digest}).reason, "detected modified configuration")
	c.steps(step{"DELETE", matchers + "/ours", nil, "OK"}, step{"DELETE", ends + "/gotify/phone", nil, "OK"})
	c.ok("PUT", matchers+"/default-matcher", form{"comment": "changed"})
	require.Equal(t, "modified-builtin", c.list(matchers)[0]["origin"])
	c.ok("DELETE", matchers+"/default-matcher", nil)
	require.Equal(t, "builtin", c.list(matchers)[0]["origin"], "what is built in comes back")
}
