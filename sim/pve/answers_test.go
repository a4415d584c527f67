package pve_test

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// step is a request with what PVE answers to it: "OK" (for a task: how it ended), the
// status and its line, or, of a 400, each parameter with its text. Where a text is from
// is said above the steps.
type step struct {
	verb, path string
	params     form
	want       string
}

// steps plays requests in order.
func (c *client) steps(all ...step) {
	c.t.Helper()
	for _, s := range all {
		require.Equal(c.t, s.want, c.told(s), "%s %s %v", s.verb, s.path, s.params)
	}
}

// told is the answer to a step in one line.
func (c *client) told(s step) string {
	c.t.Helper()
	return c.line(c.ask(s.verb, s.path, s.params))
}

// line is an answer in one line, with the outcome of its task.
func (c *client) line(a answer) string {
	c.t.Helper()
	upid, _ := a.data.(string)
	switch {
	case len(a.errors) > 0:
		var wrong []string
		for _, name := range slices.Sorted(maps.Keys(a.errors)) {
			wrong = append(wrong, name+": "+strings.TrimSpace(a.errors[name]))
		}
		return strings.Join(wrong, "; ")
	case a.status != 200:
		return fmt.Sprint(a.status, " ", a.reason)
	case strings.HasPrefix(upid, "UPID:"):
		return c.wait(upid)
	}
	return "OK"
}

// likeRecorded is a host as the recordings have it: all storages are directories.
func likeRecorded(t *testing.T) *client {
	t.Helper()
	local, err := pve.ParseStorage("local:dir:iso,vztmpl,backup,snippets,import:100:/var/lib/vz")
	require.NoError(t, err)
	all, err := pve.ParseStorage("vmstore:dir:images,rootdir,iso,vztmpl,backup,snippets,import:100:/srv/vmstore")
	require.NoError(t, err)
	return newClient(t, pve.Config{Version: "8.4", Storages: []pve.Storage{local, all}})
}

// TestMovingDisks: move_vm_disk in PVE/API2/Qemu.pm.
func TestMovingDisks(t *testing.T) {
	c := likeRecorded(t)
	move := func(params form, want string) step { return step{"POST", vmURL("100", "/move_disk"), params, want} }
	c.steps(
		step{"POST", "/nodes/father/qemu", form{"vmid": "100", "scsi0": "vmstore:1,format=qcow2", "scsi1": "vmstore:2", "ide2": "none,media=cdrom"}, "OK"},
		step{"POST", "/nodes/father/qemu", form{"vmid": "101"}, "OK"},
		step{"POST", "/nodes/father/lxc", form{"vmid": "102"}, "ostemplate: property is missing and it is not optional"},
		move(form{"disk": "scsi0"}, "storage: both 'storage' and 'target-vmid' missing, either needs to be set; target-vmid: both 'storage' and 'target-vmid' missing, either needs to be set"),
		move(form{"disk": "scsi0", "storage": "vmstore", "target-vmid": "101"},
			"storage: either set 'storage' or 'target-vmid', but not both; target-vmid: either set 'storage' or 'target-vmid', but not both"),
		move(form{"disk": "scsi0", "storage": "local"}, "storage: storage 'local' does not support vm images"),
		move(form{"disk": "ide2", "storage": "vmstore"}, "500 you can't move a cdrom"),
		move(form{"disk": "scsi0", "target-vmid": "100"}, "target-vmid: must be different than source VMID to reassign disk"),
		move(form{"disk": "scsi0", "target-vmid": "999"}, "500 could not find target VM 999"),
		move(form{"disk": "scsi7", "target-vmid": "101"}, "500 Disk 'scsi7' for VM '100' does not exist"),
		move(form{"disk": "ide2", "target-vmid": "101"}, "500 CD drive contents can't be moved to another VM"),
		move(form{"disk": "scsi0", "target-vmid": "101", "digest": "00"}, "500 VM 100: detected modified configuration - file changed by other user? Try again."),
		move(form{"disk": "scsi0", "target-vmid": "101", "target-digest": "00"}, "500 VM 101: detected modified configuration - file changed by other user? Try again."),
		move(form{"disk": "scsi1", "target-vmid": "101"}, "OK"),
		move(form{"disk": "scsi0", "target-vmid": "101", "target-disk": "scsi1"}, "500 Target disk key 'scsi1' is already in use for VM '101'"),
		step{"PUT", vmURL("101", "/config"), form{"delete": "scsi1"}, "OK"},
		step{"POST", vmURL("101", "/move_disk"), form{"disk": "unused0", "target-vmid": "100", "target-disk": "virtio3"}, "OK"},
		step{"POST", vmURL("100", "/status/start"), nil, "OK"},
		move(form{"disk": "scsi0", "target-vmid": "101"}, "500 Cannot move disk to another VM while the source VM is running - detach first"),
		step{"POST", vmURL("100", "/status/stop"), nil, "OK"},
		move(form{"disk": "virtio3", "target-vmid": "101", "target-disk": "unused0"}, "OK"),
		step{"POST", vmURL("100", "/snapshot"), form{"snapname": "one"}, "OK"},
		move(form{"disk": "scsi0", "target-vmid": "101"}, "500 Can't move disk used by a snapshot to another VM"),
		move(form{"disk": "scsi0", "storage": "vmstore", "format": "raw", "delete": "1"}, "500 you can't move a disk with snapshots and delete the source"),
	)
	config := c.object(vmURL("101", "/config"))
	require.Equal(t, "vmstore:101/vm-101-disk-0.raw", config["unused0"])
	require.Equal(t, "order=scsi0", strings.Split(c.object(vmURL("100", "/config"))["boot"].(string), ";")[0])
	require.NotContains(t, c.object(vmURL("100", "/config")), "scsi1")
}

// TestMovingVolumes: move_volume in PVE/API2/LXC.pm. A volume may be copied on the storage
// where it is; the lock is there with the answer.
func TestMovingVolumes(t *testing.T) {
	c := likeRecorded(t)
	c.done("POST", "/nodes/father/aplinfo", form{"storage": "local", "template": debianTemplate})
	create := func(vmid string) step {
		return step{"POST", "/nodes/father/lxc", form{
			"vmid": vmid, "ostemplate": "local:vztmpl/" + debianTemplate, "rootfs": "vmstore:1", "mp0": "vmstore:1,mp=/data", "hostname": "ct", "unprivileged": "1",
		}, "OK"}
	}
	move := func(params form, want string) step { return step{"POST", ctURL("200", "/move_volume"), params, want} }
	c.steps(
		create("200"), create("201"),
		move(form{"volume": "rootfs"}, "storage: both 'storage' and 'target-vmid' missing, either needs to be set; target-vmid: both 'storage' and 'target-vmid' missing, either needs to be set"),
		move(form{"volume": "rootfs", "storage": "vmstore", "target-vmid": "201"}, "500 either set storage or target-vmid, but not both"),
		move(form{"volume": "mp3", "storage": "vmstore"}, "mp: property is missing and it is not optional; volume: property is missing and it is not optional"),
		move(form{"volume": "unused0", "storage": "vmstore"}, "500 cannot move volume 'unused0', only configured volumes can be moved to another storage"),
		move(form{"volume": "rootfs", "target-vmid": "201"}, "500 Cannot move to/from 'rootfs'"),
		move(form{"volume": "unused0", "target-vmid": "201", "target-volume": "mp3"}, "500 Moving an unused volume to a used one is not possible"),
		move(form{"volume": "mp0", "target-vmid": "999"}, "500 could not find CT 999"),
		move(form{"volume": "mp0", "target-vmid": "201"}, "500 Target volume key 'mp0' is already in use for container '201'"),
		move(form{"volume": "mp5", "target-vmid": "201"}, "500 volume 'mp5' for container '200' does not exist"),
		move(form{"volume": "mp0", "target-vmid": "201", "digest": "00"}, "500 Container 200: detected modified configuration - file changed by other user? Try again."),
		move(form{"volume": "mp0", "target-vmid": "201", "target-volume": "mp4"}, "OK"),
		move(form{"volume": "rootfs", "storage": "vmstore", "delete": "1"}, "OK"),
		step{"POST", ctURL("200", "/status/start"), nil, "OK"},
		move(form{"volume": "rootfs", "storage": "vmstore"}, "500 cannot move volumes of a running container"),
	)
	require.Equal(t, "vmstore:201/vm-201-disk-2.raw,mp=/data,size=1G", c.object(ctURL("201", "/config"))["mp4"])
	require.NotContains(t, c.object(ctURL("200", "/config")), "mp0")
	require.NotContains(t, c.object(ctURL("200", "/config")), "lock")
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

// TestStorageEntries: PVE/API2/Storage/Config.pm, check_config in PVE/SectionConfig.pm,
// PVE/API2/Storage/Status.pm.
func TestStorageEntries(t *testing.T) {
	c := likeRecorded(t)
	c.steps(
		step{"POST", "/storage", form{"storage": "d1", "type": "dir", "path": "/srv/d1", "server": "192.0.2.1"}, "500 unexpected property 'server'"},
		step{"POST", "/storage", form{"storage": "d1", "type": "dir", "path": "/srv/d1", "content": "iso", "nodes": "father"}, "OK"},
		step{"PUT", "/storage/d1", form{"delete": "nosuch"}, "500 update storage failed: no such option 'nosuch'"},
		step{"PUT", "/storage/d1", form{"delete": "path"}, "500 update storage failed: unable to delete required option 'path'"},
		step{"PUT", "/storage/d1", form{"delete": "content", "content": "iso"}, "500 update storage failed: cannot set and delete property 'content' at the same time!"},
		step{"PUT", "/storage/d1", form{"digest": "00"}, "500 update storage failed: detected modified configuration - file changed by other user? Try again."},
		step{"GET", "/nodes/father/storage", form{"storage": "nosuch"}, "storage: No such storage."},
		step{"GET", "/nodes/father/storage", form{"storage": "local", "content": "images"}, "storage: No such storage."},
		step{"PUT", "/storage/d1", form{"nodes": "mother"}, "OK"},
		step{"GET", "/nodes/father/storage/d1/content", nil, "500 storage 'd1' is not available on node 'father'"},
		step{"PUT", "/storage/d1", form{"delete": "nodes,content"}, "OK"},
	)
	require.Equal(t, "images,rootdir", c.object("/storage/d1")["content"])
	c.ok("PUT", "/storage/d1", form{"disable": "1"})
	status := c.object("/nodes/father/storage/d1/status")
	require.EqualValues(t, 0, status["enabled"])
	require.EqualValues(t, 0, status["total"])
	require.Len(t, c.list("/cluster/resources?type=storage"), 2)
	require.Len(t, c.list("/nodes/father/storage"), 3)
	require.Len(t, c.list("/nodes/father/storage?enabled=1"), 2)
	require.Empty(t, c.list("/nodes/father/storage?target=mother"), "nothing is shared")
}

// TestAllocate: alloc_image in PVE/Storage/Plugin.pm and update_volume_attribute in
// PVE/Storage/DirPlugin.pm.
func TestAllocate(t *testing.T) {
	c := likeRecorded(t)
	allocate := func(name, format, want string) step {
		params := form{"vmid": "400", "filename": name, "size": "1024"}
		if format != "" {
			params["format"] = format
		}
		return step{"POST", "/nodes/father/storage/vmstore/content", params, want}
	}
	c.steps(
		allocate("vm-400-disk-0.raw", "", "OK"),
		allocate("vm-401-disk-0.qcow2", "", "OK"),
		allocate("vm-400-disk-0.raw", "", "500 disk image '/srv/vmstore/images/400/vm-400-disk-0.raw' already exists"),
		allocate("x.iso", "", "500 unable to parse volume filename 'x.iso'"),
		allocate("vm-400-disk-1", "qcow2", "500 unable to parse volume filename 'vm-400-disk-1'"),
		allocate("vm-400-disk-1.raw", "qcow2", "format: different storage formats (qcow2 != raw)"),
		allocate("vm-400-disk-1.subvol", "raw", "500 illegal name 'vm-400-disk-1.subvol' - wrong extension for format ('subvol != 'raw')"),
		allocate("subvol-400-disk-1.subvol", "subvol", "500 storage does not support subvol quotas"),
		step{"PUT", "/nodes/father/storage/vmstore/content/400%2Fvm-400-disk-0.raw", form{"protected": "1"}, "500 only backups support attribute 'protected'"},
	)
}

// TestAlone: what a host answers of things that it does not have: CRIU
// (PVE/API2/LXC/Status.pm), replication (PVE/API2/ReplicationConfig.pm),
// machines of other hypervisors (PVE/Storage.pm).
func TestAlone(t *testing.T) {
	c := likeRecorded(t)
	c.done("POST", "/nodes/father/aplinfo", form{"storage": "local", "template": debianTemplate})
	at := "/nodes/father/storage/local"
	c.steps(
		step{"POST", "/nodes/father/lxc", form{"vmid": "200", "ostemplate": "local:vztmpl/" + debianTemplate, "rootfs": "vmstore:1"}, "OK"},
		step{"POST", ctURL("200", "/status/suspend"), nil, "500 CT 200 not running"},
		step{"POST", ctURL("200", "/status/start"), nil, "OK"},
		step{"POST", ctURL("200", "/status/resume"), nil, "500 CT 200 already running"},
		step{"POST", ctURL("200", "/status/suspend"), nil, "command 'lxc-checkpoint -n 200 -s -D /var/lib/vz/dump' failed: exit code 1"},
		step{"GET", "/cluster/replication/100-0", nil, "500 no such replication job '100-0'"},
		step{"DELETE", "/cluster/replication/100-0", nil, "500 no such job '100-0'"},
		step{"POST", "/nodes/father/qemu", form{"vmid": "100"}, "OK"},
		step{"POST", vmURL("100", "/agent/suspend-ram"), nil, "500 No QEMU guest agent configured"},
		step{"GET", at + "/import-metadata", form{"volume": "local:iso/x.iso"}, "500 unable to parse directory volume name 'local:iso/x.iso'"},
		step{"GET", at + "/import-metadata", form{"volume": "import/x.qcow2"}, "500 invalid format"},
		step{"GET", at + "/prunebackups", nil, "500 no prune-backups options configured for storage 'local'"},
		step{"DELETE", at + "/prunebackups", nil, "no prune-backups options configured for storage 'local'"},
	)
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
