package pve_test

import (
	"encoding/json"
	"fmt"
	"strings"
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

		c.ok("POST", "/nodes/father/replication/100-0/schedule_now", nil)
		require.Equal(t, 0.0, c.list("/nodes/father/replication")[0]["last_sync"])
		time.Sleep(time.Minute)
		require.NotEqual(t, 0.0, c.object("/nodes/father/replication/100-0/status")["last_sync"])
		require.Len(t, c.list("/nodes/father/replication/100-0/log"), 2)

		c.ok("DELETE", at+"/100-0", nil)
		require.Equal(t, "full", c.object(at + "/100-0")["remove_job"], "the scheduler takes it away")
		time.Sleep(time.Minute)
		require.Empty(t, c.list(at))
		c.done("DELETE", vmURL("100", ""), nil)
	})
}

// TestRealmJobs: times at which realms are synchronized (PVE/API2/Jobs/RealmSync.pm),
// and what a synchronization says where no directory answers.
func TestRealmJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{})
		const at = "/cluster/jobs/realm-sync/sync"
		c.ok("POST", "/access/domains", form{"realm": "tree", "type": "ldap", "base_dn": "dc=test", "server1": "192.0.2.9", "user_attr": "uid"})
		c.steps(
			step{"GET", at, nil, "id: No such job 'sync'"},
			step{"POST", at, form{"realm": "pve", "schedule": "daily"}, "500 400 Parameter verification failed."},
			step{"POST", at, form{"realm": "none", "schedule": "daily"}, "500 400 Parameter verification failed."},
			step{"POST", at, form{"realm": "tree", "schedule": "daily", "scope": "both"}, "OK"},
			step{"POST", at, form{"realm": "tree", "schedule": "daily"}, "500 Job 'sync' already exists"},
			step{"PUT", at, form{"schedule": "sun 03:00", "enabled": "0", "delete": "scope"}, "OK"},
			step{"POST", "/access/domains/pve/sync", form{"scope": "both"}, "500 Cannot sync realm type 'pve'! Only LDAP/AD realms can be synced."},
			step{"POST", "/access/domains/none/sync", form{"scope": "both"}, "realm: Realm does not exist."},
			step{"POST", "/access/domains/tree/sync", nil, "scope: Not passed as parameter and not defined in realm default sync options."},
			step{"POST", "/access/domains/tree/sync", form{"scope": "both"}, "unable to connect to LDAP server: 192.0.2.9"},
			step{"POST", "/access/openid/auth-url", form{"realm": "tree", "redirect-url": "https://here.test"}, "500 wrong realm type (ldap != openid)"},
		)
		require.Equal(t, "400 Parameter verification failed.\nrealm: No such realm 'none'\n",
			c.ask("POST", "/cluster/jobs/realm-sync/other", form{"realm": "none", "schedule": "daily"}).message)
		entry := c.list("/cluster/jobs/realm-sync")[0]
		require.Equal(t, []any{"sync", 0.0, "sun 03:00", "tree"}, []any{entry["id"], entry["enabled"], entry["schedule"], entry["realm"]})
		require.NotContains(t, entry, "scope")
		c.steps(step{"DELETE", at, nil, "OK"}, step{"DELETE", at, nil, "id: No such job 'sync'"})
	})
}

// TestRepositories: the crate proxmox-apt, as PVE/API2/APT.pm calls it.
func TestRepositories(t *testing.T) {
	for version, path := range map[string]string{"8.4": "/etc/apt/sources.list", "9.1": "/etc/apt/sources.list.d/proxmox.sources"} {
		c := newClient(t, pve.Config{Version: version})
		const at = "/nodes/father/apt/repositories"
		before := c.object(at)
		status := func(handle string) any {
			for _, entry := range objects(t, c.object(at)["standard-repos"]) {
				if entry["handle"] == handle {
					return entry["status"]
				}
			}
			return "unknown"
		}
		require.Equal(t, []any{1.0, nil}, []any{status("enterprise"), status("no-subscription")})
		c.steps(
			step{"PUT", at, form{"handle": "nightly"}, "500 unknown repository handle 'nightly'"},
			step{"PUT", at, form{"handle": "no-subscription", "digest": fmt.Sprint(before["digest"])}, "OK"},
			step{"PUT", at, form{"handle": "no-subscription"}, "OK"},
			step{"POST", at, form{"path": "/etc/none", "index": "0"}, "500 invalid path - /etc/none"},
			step{"POST", at, form{"path": path, "index": "9", "enabled": "0"}, "500 invalid index - 9"},
		)
		require.Contains(t, c.ask("PUT", at, form{"handle": "test", "digest": fmt.Sprint(before["digest"])}).reason, "detected modified configuration")
		require.Equal(t, 1.0, status("no-subscription"))
		index := map[string]string{"8.4": "2", "9.1": "0"}[version] // Behind the two of Debian.
		c.ok("POST", at, form{"path": path, "index": index, "enabled": "0"})
		require.Equal(t, 0.0, status("no-subscription"))
		require.Contains(t, c.ok("GET", "/nodes/father/apt/changelog?name=nothing", nil), "Unable to locate package nothing")
	}
}

// TestDisks: a pool is made of free disks, becomes a storage and goes again
// (PVE/API2/Disks/ZFS.pm and its like).
func TestDisks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{})
		const at = "/nodes/father/disks"
		pool := form{"name": "tank", "devices": "/dev/sdb,/dev/sdc", "raidlevel": "mirror", "add_storage": "1"}
		c.steps(
			step{"POST", at + "/zfs", form{"name": "tank", "devices": "/dev/sda", "raidlevel": "single"}, "500 device '/dev/sda' is already in use"},
			step{"POST", at + "/zfs", form{"name": "tank", "devices": "/dev/sdb", "raidlevel": "mirror"}, "500 mirror needs at least 2 disks"},
			step{"POST", at + "/zfs", form{"name": "tank", "devices": "/dev/sdb,/dev/sdc,/dev/sdd", "raidlevel": "raid10"}, "500 raid10 needs an even number of disks"},
			step{"POST", at + "/zfs", pool, "OK"},
			step{"POST", at + "/zfs", form{"name": "tank", "devices": "/dev/sdd", "raidlevel": "single"}, "500 pool 'tank' already exists on node 'father'"},
			step{"GET", at + "/zfs/none", nil, "500 command '/sbin/zpool status -P none' failed: exit code 1"},
			step{"PUT", at + "/wipedisk", form{"disk": "/dev/sdb"}, "500 disk/partition '/dev/sdb' has a holder"},
			step{"POST", at + "/initgpt", form{"disk": "/dev/sdd"}, "OK"},
		)
		require.Equal(t, []any{"tank", "ONLINE"}, []any{c.list(at + "/zfs")[0]["name"], c.object(at + "/zfs/tank")["state"]})
		require.Equal(t, []any{"zfspool", "tank", "father"}, []any{c.object("/storage/tank")["type"], c.object("/storage/tank")["pool"], c.object("/storage/tank")["nodes"]})
		require.Len(t, c.list(at+"/list?type=unused"), 1)
		c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "scsi0": "tank:1"})
		c.done("DELETE", vmURL("100", ""), nil)
		c.steps(
			step{"DELETE", at + "/lvm/tank", nil, "no such volume group 'tank'"},
			step{"DELETE", at + "/zfs/tank", form{"cleanup-config": "1", "cleanup-disks": "1"}, "OK"},
			step{"GET", "/storage/tank", nil, "500 storage 'tank' does not exist"},
			step{"POST", at + "/directory", form{"name": "backups", "device": "/dev/sdb", "filesystem": "xfs", "add_storage": "1"}, "OK"},
			step{"POST", at + "/lvmthin", form{"name": "thin", "device": "/dev/sdc"}, "OK"},
			step{"POST", at + "/lvm", form{"name": "thick", "device": "/dev/sdd"}, "OK"},
		)
		require.Equal(t, []any{"/mnt/pve/backups", "xfs"}, []any{c.list(at + "/directory")[0]["path"], c.list(at + "/directory")[0]["type"]})
		require.Equal(t, "thin", c.list(at + "/lvmthin")[1]["lv"], "beside the one of the installation")
		require.Len(t, c.object(at + "/lvm")["children"], 3, "a thin pool has a volume group of its name")
		require.Equal(t, "PASSED", c.object(at + "/smart?disk=/dev/sda&healthonly=1")["health"])
	})
}

// TestExecute: several calls in one (PVE/API2/Nodes.pm), for root alone.
func TestExecute(t *testing.T) {
	c := newClient(t, pve.Config{Guests: 1})
	commands, err := json.Marshal([]map[string]any{
		{"path": "version", "method": "GET"},
		{"path": "qemu", "method": "POST", "args": map[string]any{}},
		{"path": "none", "method": "GET"},
		{"path": "sdn/zones", "method": "GET"},
	})
	require.NoError(t, err)
	require.Equal(t, 403, c.ask("POST", "/nodes/father/execute", form{"commands": string(commands)}).status)
	root := c.ticketed()
	list := objects(t, root.ok("POST", "/nodes/father/execute", form{"commands": string(commands)}))
	require.Equal(t, []any{200.0, 400.0, 500.0, 200.0}, []any{list[0]["status"], list[1]["status"], list[2]["status"], list[3]["status"]})
	require.Equal(t, "9.2", list[0]["data"].(map[string]any)["release"])
	require.Contains(t, list[1]["errors"], "vmid")
	require.Equal(t, "no handler for 'nodes/father/none'\n", list[2]["message"])
	require.Contains(t, root.ask("POST", "/nodes/father/execute", form{"commands": "{}"}).errors["commands"], "not a valid JSON array")
}

// TestNodePower: a node that is told to goes down with its guests, and comes back.
func TestNodePower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{Nodes: []string{"mother"}})
		c.done("POST", "/nodes/mother/qemu", form{"vmid": "100", "onboot": "1"})
		c.done("POST", "/nodes/mother/qemu", form{"vmid": "101"})
		c.done("POST", "/nodes/mother/qemu/100/status/start", nil)
		c.done("POST", "/nodes/mother/qemu/101/status/start", nil)
		c.ok("POST", "/nodes/mother/status", form{"command": "reboot"})
		time.Sleep(10 * time.Second)
		require.Equal(t, "595 No route to host", c.told(step{"GET", "/nodes/mother/status", nil, ""}))
		time.Sleep(2 * time.Minute)
		require.Equal(t, "running", c.object("/nodes/mother/qemu/100/status/current")["status"])
		require.Equal(t, "stopped", c.object("/nodes/mother/qemu/101/status/current")["status"])
		c.ok("POST", "/nodes/mother/status", form{"command": "shutdown"})
		time.Sleep(time.Hour)
		require.Equal(t, 595, c.ask("GET", "/nodes/mother/status", nil).status)
	})
}

// TestConsoleTickets: a ticket of a console is known where it was given out, and by
// nobody else; what a viewer of SPICE needs.
func TestConsoleTickets(t *testing.T) {
	c := newClient(t, pve.Config{})
	c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "vga": "qxl"})
	require.Equal(t, "VM 100 not running", c.ask("POST", vmURL("100", "/spiceproxy"), nil).reason)
	require.Equal(t, "VM 100 not running", c.ask("POST", vmURL("100", "/dbus-vmstate"), form{"action": "start"}).reason)
	c.done("POST", vmURL("100", "/status/start"), nil)
	viewer := c.ok("POST", vmURL("100", "/spiceproxy"), nil).(map[string]any)
	require.Equal(t, []any{"spice", 61000.0, "http://father:3128"}, []any{viewer["type"], viewer["tls-port"], viewer["proxy"]})
	console := c.ok("POST", vmURL("100", "/vncproxy"), nil).(map[string]any)
	ticket, port := fmt.Sprint(console["ticket"]), fmt.Sprint(console["port"])
	require.Equal(t, map[string]any{"port": port}, c.ok("GET", vmURL("100", "/vncwebsocket"), form{"vncticket": ticket, "port": port}))
	who, _, _ := strings.Cut(c.token, "=")
	login := form{"authid": who, "path": "/vms/100", "privs": "VM.Console", "vncticket": ticket}
	c.ok("POST", "/access/vncticket", login)
	synctest.Test(t, func(t *testing.T) { // A refusal is held back.
		c := newClient(t, pve.Config{})
		require.Equal(t, "401 permission denied - invalid PVEVNC ticket", c.told(step{"POST", "/access/vncticket", login, ""}))
	})
}
