package pve_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

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
