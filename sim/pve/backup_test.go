package pve_test

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
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

// TestSnapshotLine: snapshots follow each other; a deleted one is bridged; a roll back
// brings configuration and sizes, and keeps description and new disks.
func TestSnapshotLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{})
		c.image()
		c.vm("100", form{"description": "mine"})
		before := c.object(vmURL("100", "/config"))
		c.done("POST", vmURL("100", "/snapshot"), form{"snapname": "one", "description": "first"})
		require.NotEqual(t, before["digest"], c.object(vmURL("100", "/config"))["digest"], "the digest is that of the whole file")
		c.done("PUT", vmURL("100", "/resize"), form{"disk": "scsi0", "size": "+1G"})
		c.ok("PUT", vmURL("100", "/config"), form{"memory": "2048", "scsi1": "local-lvm:1", "description": "changed"})
		c.done("POST", vmURL("100", "/snapshot"), form{"snapname": "two"})
		c.done("POST", vmURL("100", "/snapshot"), form{"snapname": "three"})
		require.Equal(t, "snapshot name 'two' already used", c.task("POST", vmURL("100", "/snapshot"), form{"snapname": "two"}))
		c.done("DELETE", vmURL("100", "/snapshot/two"), nil)
		list := c.list(vmURL("100", "/snapshot"))
		require.Equal(t, []any{nil, "one", "three"}, []any{list[0]["parent"], list[1]["parent"], list[2]["parent"]})

		require.Equal(t, "unable to create template, because VM contains snapshots", c.ask("POST", vmURL("100", "/template"), nil).reason)
		c.done("POST", vmURL("100", "/snapshot/one/rollback"), nil)
		after := c.object(vmURL("100", "/config"))
		require.Equal(t, before["scsi0"], after["scsi0"])
		require.Equal(t, "1024", after["memory"])
		require.Equal(t, "changed", after["description"])
		require.Equal(t, "local-lvm:vm-100-disk-1", after["unused0"])
		require.NotEqual(t, before["vmgenid"], after["vmgenid"])
		require.Contains(t, c.ask("PUT", vmURL("100", "/config"), form{"delete": "unused0"}).reason, "volume is still in use (snapshot?)")
		c.done("POST", vmURL("100", "/clone"), form{"newid": "101", "snapname": "three"})
		require.Equal(t, "2048", c.object(vmURL("101", "/config"))["memory"])
		c.done("DELETE", vmURL("100", ""), nil)
		c.done("DELETE", vmURL("101", ""), nil)
		require.Empty(t, c.h.Snapshot().Volumes["local-lvm"])
	})
}

// TestSnapshotMemory: with its memory a VM goes on where it was.
func TestSnapshotMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{TaskTime: time.Second})
		c.image()
		c.vm("100", nil)
		c.done("POST", vmURL("100", "/status/start"), nil)
		upid := c.ok("POST", vmURL("100", "/snapshot"), form{"snapname": "ram", "vmstate": "1"})
		time.Sleep(500 * time.Millisecond)
		require.Equal(t, "snapshot", c.object(vmURL("100", "/config"))["lock"])
		require.Equal(t, "OK", c.wait(upid.(string)))
		require.Equal(t, "local-lvm:vm-100-state-ram", c.object(vmURL("100", "/snapshot/ram/config"))["vmstate"])
		c.done("POST", vmURL("100", "/status/stop"), nil)
		c.done("POST", vmURL("100", "/snapshot/ram/rollback"), nil)
		require.Equal(t, "running", c.object(vmURL("100", "/status/current"))["status"])
		c.done("DELETE", vmURL("100", "/snapshot/ram"), nil)
		require.Len(t, c.h.Snapshot().Volumes["local-lvm"], 1)
	})
}

// TestSnapshotStorages: which storages can.
func TestSnapshotStorages(t *testing.T) {
	for text, can := range map[string]bool{
		"fast:lvmthin:images": true, "fast:zfspool:images": true, "fast:rbd:images": true, "fast:lvm:images": false, "fast:dir:images": false,
	} {
		st, err := pve.ParseStorage(text)
		require.NoError(t, err)
		c := newClient(t, pve.Config{Storages: append(pve.DefaultStorages(), st)})
		c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "scsi0": "fast:1"})
		want := "snapshot feature is not available"
		if can {
			want = "OK"
		}
		require.Equal(t, want, c.task("POST", vmURL("100", "/snapshot"), form{"snapname": "one"}), text)
	}
}

// TestSnapshotParameters: vm_config of both kinds and update_snapshot_config in
// PVE/API2/Qemu.pm and PVE/API2/LXC/Snapshot.pm.
func TestSnapshotParameters(t *testing.T) {
	c := likeRecorded(t)
	c.steps(
		step{"POST", "/nodes/father/qemu", form{"vmid": "100", "scsi0": "vmstore:1,format=qcow2"}, "OK"},
		step{
			"GET", vmURL("100", "/config"),
			form{"snapshot": "one", "current": "1"},
			"current: cannot use 'snapshot' parameter with 'current'; snapshot: cannot use 'snapshot' parameter with 'current'",
		},
		step{"PUT", vmURL("100", "/snapshot/none/config"), nil, "OK"},
		step{"PUT", vmURL("100", "/snapshot/none/config"), form{"description": "x"}, "500 snapshot 'none' does not exist"},
	)
}

// TestRollbackStarts: the start is a task of its own. Since 9.2 the caller needs the right to start the VM; for a container there is
// no such check (rollback in PVE/API2/Qemu.pm and in PVE/API2/LXC/Snapshot.pm).
func TestRollbackStarts(t *testing.T) {
	const refused = "403 Permission check failed (/vms/100, VM.PowerMgmt)"
	for version, want := range map[string]string{"8.4": "OK", "9.1": "OK", "9.2": refused} {
		c := newClient(t, pve.Config{Version: version})
		c.image()
		c.vm("100", nil)
		c.ct("200", nil)
		c.steps(
			step{"POST", "/access/users", form{"userid": "ann@pve"}, "OK"},
			step{"POST", "/access/roles", form{"roleid": "Back", "privs": "VM.Snapshot.Rollback,VM.Audit"}, "OK"},
			step{"PUT", "/access/acl", form{"path": "/vms", "roles": "Back", "users": "ann@pve"}, "OK"},
		)
		for _, guest := range []string{vmURL("100", ""), ctURL("200", "")} {
			c.done("POST", guest+"/snapshot", form{"snapname": "one"})
		}
		ann := c.as(c.tokenOf("ann@pve"))
		require.Equal(t, "OK", ann.answer(step{"POST", vmURL("100", "/snapshot/one/rollback"), form{"start": "0"}, ""}), version)
		require.Equal(t, want, ann.answer(step{"POST", vmURL("100", "/snapshot/one/rollback"), form{"start": "1"}, ""}), version)
		require.Equal(t, "OK", ann.answer(step{"POST", ctURL("200", "/snapshot/one/rollback"), form{"start": "1"}, ""}), version)
		c.done("POST", vmURL("100", "/status/stop"), nil)
		c.done("POST", vmURL("100", "/snapshot/one/rollback"), form{"start": "1"})
		require.Len(t, c.list("/nodes/father/tasks?source=all&typefilter=qmstart&vmid=100"), map[string]int{"OK": 2, refused: 1}[want], version)
	}
}

// TestBackups: an archive is a volume of its own that survives its guest and makes a
// new one, with the same identity unless that is to be unique.
func TestBackups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{Guests: 0})
		c.image()
		c.vm("100", form{"tags": "a"})
		c.ct("200", form{"mp0": "local-lvm:1,mp=/srv"})
		require.Equal(t, "job errors", c.task("POST", "/nodes/father/vzdump", form{"vmid": "100,999", "storage": "local"}))
		c.done("POST", "/nodes/father/vzdump", form{"all": "1", "storage": "local", "compress": "zstd", "notes-template": "{{guestname}} on {{node}}", "protected": "1"})
		require.Equal(t, "could not get storage information for 'local-lvm': can't use storage 'local-lvm' for backups - wrong content type",
			c.task("POST", "/nodes/father/vzdump", form{"vmid": "100", "storage": "local-lvm"}))
		archives := map[any]string{}
		for _, entry := range c.list("/nodes/father/storage/local/content?content=backup") {
			if entry["protected"] == 1.0 {
				archives[entry["subtype"]] = entry["volid"].(string)
				require.Contains(t, []any{"vm-100 on father", "ct-200 on father"}, entry["notes"])
			}
		}
		require.Len(t, archives, 2)
		original := c.object(vmURL("100", "/config"))
		c.done("DELETE", vmURL("100", ""), nil)
		c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "archive": archives["qemu"], "name": "back"})
		same := c.object(vmURL("100", "/config"))
		require.Equal(t, "back", same["name"])
		for _, key := range []string{"net0", "smbios1", "scsi0", "tags"} {
			require.Equal(t, original[key], same[key], key)
		}
		c.done("POST", "/nodes/father/qemu", form{"vmid": "101", "archive": archives["qemu"], "unique": "1", "start": "1"})
		require.NotEqual(t, original["net0"], c.object("/nodes/father/qemu/101/config")["net0"])
		require.Equal(t, "running", c.object(vmURL("101", "/status/current"))["status"])
		over := c.task("POST", "/nodes/father/qemu", form{"vmid": "101", "archive": archives["qemu"], "force": "1"})
		require.Equal(t, "unable to restore VM 101 - vm is running", over, "that is found out in the task")
		require.NotContains(t, c.object(vmURL("101", "/config")), "lock")

		c.done("POST", "/nodes/father/lxc", form{"vmid": "200", "ostemplate": archives["lxc"], "restore": "1", "force": "1", "storage": "local-lvm"})
		require.Equal(t, "local-lvm:vm-200-disk-3,mp=/srv,size=1G", c.object(ctURL("200", "/config"))["mp0"])
		require.Len(t, c.h.Snapshot().Volumes["local-lvm"], 4, "what was overwritten is gone")
	})
}

// TestBackupHolds: a guest is locked while it is backed up, and only the newest
// archives stay.
func TestBackupHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{TaskTime: 2 * time.Second})
		c.image()
		c.vm("100", nil)
		upid := c.ok("POST", "/nodes/father/vzdump", form{"vmid": "100", "storage": "local"})
		time.Sleep(time.Second)
		require.Equal(t, "VM is locked (backup)", c.ask("PUT", vmURL("100", "/config"), form{"memory": "2048"}).reason)
		require.Equal(t, "OK", c.wait(upid.(string)))
		for range 3 {
			c.done("POST", "/nodes/father/vzdump", form{"vmid": "100", "storage": "local", "prune-backups": "keep-last=2"})
		}
		require.Len(t, c.list("/nodes/father/storage/local/content?content=backup"), 2)
		crashed := c.ok("POST", "/nodes/father/vzdump", form{"vmid": "100", "storage": "local"})
		time.Sleep(time.Second)
		c.h.Edit(func(e *pve.Edit) { e.Crash(100) })
		require.Equal(t, "unexpected status", c.wait(crashed.(string)))
		require.Equal(t, "backup", c.object(vmURL("100", "/config"))["lock"], "a crash leaves the lock")
	})
}

// TestBackupNotes: of a backup both attributes are told, its listing has the first line of
// its notes, and one that is not there takes them without a word (PVE/Storage/DirPlugin.pm,
// get_subdir_files in PVE/Storage/Plugin.pm).
func TestBackupNotes(t *testing.T) {
	c := likeRecorded(t)
	c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "scsi0": "vmstore:1"})
	c.done("POST", "/nodes/father/vzdump", form{"vmid": "100", "storage": "local", "mode": "stop"})
	at := "/nodes/father/storage/local/content"
	volid, _ := c.list(at + "?content=backup")[0]["volid"].(string)
	shown := c.object(at + "/" + volid)
	require.Equal(t, []any{"", 0.0}, []any{shown["notes"], shown["protected"]})
	c.ok("PUT", at+"/"+volid, form{"notes": "before\nthe change"})
	require.Equal(t, "before\nthe change", c.object(at + "/" + volid)["notes"])
	require.Equal(t, "before", c.list(at + "?content=backup")[0]["notes"])
	c.steps(
		step{"PUT", at + "/backup/vzdump-qemu-100-2001_01_01-00_00_00.vma", form{"notes": "x", "protected": "1"}, "OK"},
		step{"GET", "/nodes/father/vzdump/extractconfig?volume=local:backup/x", nil, "500 unable to parse directory volume name 'backup/x'"},
	)
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
		require.Equal(t, "500 cannot delete service 'vm:100', not HA managed!", c.answer(step{verb: "DELETE", path: "/cluster/ha/resources/vm:100"}))

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
		require.Equal(t, "500 The number of protected backups per guest is limited to 5 on storage 'vmstore'", ann.answer(mark))
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

// TestTemplatesComeBack: what was a template is one again.
func TestTemplatesComeBack(t *testing.T) {
	c := newClient(t, pve.Config{})
	c.image()
	c.vm("100", nil)
	c.done("POST", vmURL("100", "/template"), nil)
	c.ct("200", nil)
	c.ctTemplate("200")
	c.done("POST", "/nodes/father/vzdump", form{"vmid": "100,200", "storage": "local"})
	for _, entry := range c.list("/nodes/father/storage/local/content?content=backup") {
		if entry["subtype"] == "qemu" {
			c.done("POST", "/nodes/father/qemu", form{"vmid": "101", "archive": fmt.Sprint(entry["volid"])})
			require.Contains(t, c.object(vmURL("101", "/config"))["scsi0"], "local-lvm:base-101-disk-0,")
		} else {
			c.done("POST", "/nodes/father/lxc", form{"vmid": "201", "ostemplate": fmt.Sprint(entry["volid"]), "restore": "1", "storage": "local-lvm"})
			require.Equal(t, "local-lvm:base-201-disk-0,size=2G", c.object(ctURL("201", "/config"))["rootfs"])
		}
	}
}

// TestRestoreOver: a disk that is left out of backups is no part of one, its line
// becomes part of the description when it is restored, and the disk that was there is
// kept as unused; what forbids it shows in the task (create_vm in PVE/API2/Qemu.pm,
// restore_update_config_line and rescan in PVE/QemuServer.pm).
func TestRestoreOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := likeRecorded(t)
		c.done("POST", "/nodes/father/qemu", form{
			"vmid": "100", "description": "mine", "scsi0": "vmstore:1,format=qcow2", "scsi1": "vmstore:1,format=raw,backup=0", "protection": "1",
		})
		c.done("POST", "/nodes/father/vzdump", form{"vmid": "100", "storage": "vmstore", "compress": "zstd"})
		require.Contains(t, c.log(), "INFO: exclude disk 'scsi1' 'vmstore:100/vm-100-disk-1.raw' (backup=no)")
		archive, _ := c.list("/nodes/father/storage/vmstore/content?content=backup")[0]["volid"].(string)
		over := form{"vmid": "100", "archive": archive, "force": "1"}
		require.Equal(t, "unable to restore VM 100 - - protection mode enabled", c.task("POST", "/nodes/father/qemu", over))
		require.NotContains(t, c.object(vmURL("100", "/config")), "lock")
		c.ok("PUT", vmURL("100", "/config"), form{"protection": "0"})
		c.done("POST", "/nodes/father/qemu", over)
		require.Contains(t, c.log()[0], "restore vma archive: zstd -q -d -c ")
		conf := c.object(vmURL("100", "/config"))
		require.Equal(t, "vmstore:100/vm-100-disk-0.qcow2,size=1G", conf["scsi0"])
		require.NotContains(t, conf, "scsi1")
		require.Equal(t, "vmstore:100/vm-100-disk-1.raw", conf["unused0"])
		require.Equal(t, "mine\nscsi1: vmstore:100/vm-100-disk-1.raw,backup=0,size=1G", conf["description"])

		c.done("POST", "/nodes/father/qemu", form{"vmid": "101", "archive": archive})
		require.NotContains(t, c.object(vmURL("101", "/config")), "unused0")
	})
}

// TestPruning: prune_mark_backup_group in PVE/Storage/Plugin.pm. Rules go from the
// finest to the coarsest, and a span in which one is kept already counts for nothing.
func TestPruning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := likeRecorded(t)
		c.done("POST", "/nodes/father/qemu", form{"vmid": "100"})
		for range 4 {
			c.done("POST", "/nodes/father/vzdump", form{"vmid": "100", "storage": "local"})
			time.Sleep(12 * time.Hour)
		}
		marks := func(rule string) (all []any) {
			list := c.list("/nodes/father/storage/local/prunebackups?prune-backups=" + url.QueryEscape(rule))
			slices.SortFunc(list, func(a, b map[string]any) int { return int(b["ctime"].(float64) - a["ctime"].(float64)) })
			for _, entry := range list {
				all = append(all, entry["mark"])
			}
			return all
		}
		require.Equal(t, []any{"keep", "remove", "remove", "remove"}, marks("keep-last=1"))
		require.Equal(t, []any{"keep", "remove", "keep", "remove"}, marks("keep-daily=2"))
		require.Equal(t, []any{"keep", "keep", "keep", "remove"}, marks("keep-last=2,keep-daily=1"))
		require.Equal(t, []any{"keep", "keep", "keep", "keep"}, marks("keep-all=1"))
		c.ok("PUT", "/storage/local", form{"prune-backups": "keep-last=1"})
		c.done("POST", "/nodes/father/vzdump", form{"vmid": "100", "storage": "local"})
		require.Len(t, c.list("/nodes/father/storage/local/content?content=backup"), 1, "the storage says how many")
	})
}

// TestBackupJobs: jobs are kept, and forget a guest that is purged.
func TestBackupJobs(t *testing.T) {
	c := newClient(t, pve.Config{})
	c.done("POST", "/nodes/father/qemu", form{"vmid": "100"})
	c.ok("POST", "/cluster/backup", form{"id": "nightly", "vmid": "100,101", "storage": "local", "schedule": "daily"})
	c.ok("PUT", "/cluster/backup/nightly", form{"enabled": "0"})
	require.Equal(t, 0.0, c.object("/cluster/backup/nightly")["enabled"])
	c.done("DELETE", vmURL("100", ""), form{"purge": "1"})
	require.Equal(t, "101", c.list("/cluster/backup")[0]["vmid"])
	c.ok("DELETE", "/cluster/backup/nightly", nil)
	require.Equal(t, map[string]string{"id": "No such job 'nightly'"}, c.ask("GET", "/cluster/backup/nightly", nil).errors)
}

// TestJobInParts: so are those of a backup job (decode_value in PVE/VZDump/JobBase.pm).
func TestJobInParts(t *testing.T) {
	c := newClient(t, pve.Config{})
	c.ok("POST", "/cluster/backup", form{"id": "nightly", "all": "1", "storage": "local", "schedule": "daily", "prune-backups": "keep-last=3,keep-daily=7"})
	parts := map[string]any{"keep-last": "3", "keep-daily": "7"}
	require.Equal(t, parts, c.ok("GET", "/cluster/backup/nightly", nil).(map[string]any)["prune-backups"])
	require.Equal(t, parts, c.ok("GET", "/cluster/backup", nil).([]any)[0].(map[string]any)["prune-backups"])
}

// TestPoolsOfJobs: the pool of a backup job has to be there (PVE/API2/Backup.pm).
func TestPoolsOfJobs(t *testing.T) {
	c := likeRecorded(t)
	job := form{"schedule": "daily", "pool": "p", "id": "job-p"}
	c.steps(
		step{"POST", "/cluster/backup", job, "403 Permission check failed (pool 'p' does not exist)"},
		step{"POST", "/pools", form{"poolid": "p"}, "OK"},
		step{"POST", "/cluster/backup", job, "OK"},
		step{"PUT", "/cluster/backup/job-p", form{"pool": "q"}, "403 Permission check failed (pool 'q' does not exist)"},
	)
}
