package pve_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// TestClones: by link from a template, by copy from a VM, on each kind of
// storage; never with the source's identity.
func TestClones(t *testing.T) {
	for _, kind := range []struct{ storage, base, clone, frees string }{
		{"dir:dir:images", "dir:100/base-100-disk-0.raw", "dir:100/base-100-disk-0.raw/101/vm-101-disk-0.qcow2", "still in use"},
		{"lvm:lvmthin:images", "lvm:base-100-disk-0", "lvm:vm-101-disk-0", "OK"},
		{"zfs:zfspool:images", "zfs:base-100-disk-0", "zfs:base-100-disk-0/vm-101-disk-0", "still in use"},
	} {
		t.Run(kind.storage, func(t *testing.T) {
			st, err := pve.ParseStorage(kind.storage)
			require.NoError(t, err)
			c := newClient(t, pve.Config{Storages: []pve.Storage{st}})
			c.done("POST", "/nodes/father/qemu", form{
				"vmid": "100", "name": "base", "scsi0": st.Name + ":1", "net0": "virtio,bridge=vmbr0", "smbios1": "uuid=3f6ec9a4-52f7-4c1e-8d6b-0a6c5ad1b001,serial=abc",
			})
			require.Regexp(t, "Linked clone feature is not supported", c.ask("POST", vmURL("100", "/clone"), form{"newid": "101", "full": "0"}).reason)
			c.done("POST", vmURL("100", "/template"), nil)
			c.done("POST", vmURL("100", "/clone"), form{"newid": "101", "name": "linked"})
			c.done("POST", vmURL("100", "/clone"), form{"newid": "102", "full": "1"})
			base, linked, full := c.object(vmURL("100", "/config")), c.object(vmURL("101", "/config")), c.object(vmURL("102", "/config"))
			require.Equal(t, kind.base+",size=1G", base["scsi0"])
			require.Equal(t, kind.clone+",size=1G", linked["scsi0"])
			require.Contains(t, full["scsi0"], "vm-102-disk-0")
			require.Equal(t, "Copy-of-VM-base", full["name"])
			for _, key := range []string{"net0", "smbios1", "vmgenid"} {
				require.Len(t, map[any]bool{base[key]: true, linked[key]: true, full[key]: true}, 3, key)
			}
			require.Contains(t, linked["smbios1"], "serial=abc")
			require.NotContains(t, linked, "template")
			require.Contains(t, c.task("DELETE", vmURL("100", ""), nil), kind.frees)
		})
	}
}

// newPair sends the same request twice before either task can begin, and
// returns both exit statuses.
func newPair(c *client, verb, path string, params form) []string {
	upids := make(chan string, 2)
	for range 2 {
		go func() { upids <- fmt.Sprint(c.ok(verb, path, params)) }()
	}
	first, second := <-upids, <-upids
	return []string{c.wait(first), c.wait(second)}
}

// TestCloneToOneID: a clone claims its id only in the task, so the second of
// two fails late.
func TestCloneToOneID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{TaskTime: time.Second})
		c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "scsi0": "local-lvm:1"})
		h := newPair(c, "POST", vmURL("100", "/clone"), form{"newid": "101"})
		require.ElementsMatch(t, []string{"OK", "unable to create VM 101: config file already exists"}, h)
		require.Len(t, c.h.Snapshot().Volumes["local-lvm"], 2)
	})
}

// TestCloneToATakenID: before it forks, PVE looks for the file of a VM on the node alone;
// another guest is found out when the file is written (clone_vm in PVE/API2/Qemu.pm,
// memdb_rename of pmxcfs). A container asks the cluster at once.
func TestCloneToATakenID(t *testing.T) {
	for _, version := range pve.Versions() {
		c := newClient(t, pve.Config{Version: version, Nodes: []string{"mother"}})
		c.image()
		c.vm("100", nil)
		c.vm("101", nil)
		c.ct("200", nil)
		c.done("POST", "/nodes/mother/qemu", form{"vmid": "102"})
		c.steps(step{"POST", vmURL("100", "/clone"), form{"newid": "101"}, "500 unable to create VM 101: config file already exists"})
		for _, id := range []string{"102", "200"} {
			require.Equal(t, "close (rename) atomic file '/etc/pve/nodes/father/qemu-server/"+id+".conf' failed: File exists",
				c.task("POST", vmURL("100", "/clone"), form{"newid": id}), version)
		}
		c.steps(
			step{"POST", ctURL("200", "/clone"), form{"newid": "101"}, "500 VM 101 already exists on node 'father'"},
			step{"POST", ctURL("200", "/clone"), form{"newid": "102"}, "500 VM 102 already exists on node 'mother'"},
		)
		require.NotContains(t, c.object(ctURL("200", "/config")), "lock", "the source is free again")
		require.Contains(t, c.object(ctURL("200", "/config")), "rootfs")
	}
}

// TestCopies: what storages can clone (volume_has_feature of the plugins), and how a
// clone that cannot be is refused (clone_vm in PVE/API2/Qemu.pm).
func TestCopies(t *testing.T) {
	c := newClient(t, files("9.2"))
	c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "scsi0": "files:1,format=qcow2"})
	c.done("POST", "/nodes/father/qemu", form{"vmid": "101", "scsi0": "thin:1"})
	for _, vmid := range []string{"100", "101"} {
		c.done("POST", vmURL(vmid, "/snapshot"), form{"snapname": "one"})
	}
	clone := func(vmid string, params form) string {
		params["newid"] = "200"
		return firstError(c.ask("POST", vmURL(vmid, "/clone"), params))
	}
	require.Equal(t, "Linked clone feature is not supported for 'files:100/vm-100-disk-0.qcow2' (scsi0)", clone("100", form{"full": "0"}))
	require.Equal(t, "Linked clone feature is not supported for a snapshot of 'files:100/vm-100-disk-0.qcow2' (scsi0)", clone("100", form{"full": "0", "snapname": "one"}))
	require.Equal(t, "Linked clone feature is not supported for 'thin:vm-101-disk-0' (scsi0)", clone("101", form{"full": "0"}))
	require.Equal(t, "storage: storage 'dumps' does not support vm images", clone("100", form{"storage": "dumps"}))
	require.Equal(t, "OK", clone("101", form{"full": "0", "snapname": "one"}), "a thin volume is cloned from a snapshot")
}
