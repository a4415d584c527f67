package pve_test

import (
	"fmt"
	"maps"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// logOf is the log of a task that is over.
func logOf(c *client, upid any) []string {
	c.wait(fmt.Sprint(upid))
	tasks := c.h.Snapshot().Tasks
	for _, task := range tasks {
		if task.UPID == upid {
			return task.Log
		}
	}
	return nil
}

// scoped is a user whose privileges come through a pool alone.
func scoped(c *client, privileges string) *client {
	c.t.Helper()
	c.ok("POST", "/access/users", form{"userid": "u@pve"})
	c.ok("POST", "/access/roles", form{"roleid": "Some", "privs": privileges})
	c.ok("POST", "/pools", form{"poolid": "p"})
	c.ok("PUT", "/access/acl", form{"path": "/pool/p", "roles": "Some", "users": "u@pve"})
	token, ok := c.ok("POST", "/access/users/u@pve/token/full", form{"privsep": "0"}).(map[string]any)
	require.True(c.t, ok)
	return c.as("u@pve!full=" + fmt.Sprint(token["value"]))
}

// TestTagsAtCreation: 9.2 checks and tidies the tags of a new VM, before it is in its
// pool; older ones take them as they are (create_vm in PVE/API2/Qemu.pm, since
// qemu-server 9.1.17).
func TestTagsAtCreation(t *testing.T) {
	for version, row := range map[string]struct{ tags, status string }{
		"8.4": {"B;a;b", "OK"}, "9.1": {"B;a;b", "OK"},
		"9.2": {"a;b", "unable to create VM 101 - 403 Permission check failed (/vms/101, VM.Config.Options)"},
	} {
		c := newClient(t, files(version))
		c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "tags": "B;a;b"})
		require.Equal(t, row.tags, c.object(vmURL("100", "/config"))["tags"], version)
		u := scoped(c, "VM.Allocate,VM.Audit,VM.Config.Options,VM.Config.Disk,Datastore.AllocateSpace")
		c.ok("PUT", "/access/acl", form{"path": "/storage", "roles": "Some", "users": "u@pve"})
		require.Equal(t, row.status, u.task("POST", "/nodes/father/qemu", form{"vmid": "101", "pool": "p", "tags": "x", "scsi0": "files:1"}), version)
		if row.status != "OK" {
			require.Empty(t, c.h.Snapshot().Volumes["files"], "its disk is freed")
			u.done("POST", "/nodes/father/qemu", form{"vmid": "101", "pool": "p"})
			u.ok("PUT", vmURL("101", "/config"), form{"tags": "Y;x"})
			require.Equal(t, "x;y", u.object(vmURL("101", "/config"))["tags"])
		}
	}
}

// TestRightsOfDevices: what a VM takes from its host needs rights of its own
// (check_rng_perm, check_usb_perm, check_hostpci_perm in PVE/API2/Qemu.pm; check_bridge_access in PVE/QemuServer.pm).
func TestRightsOfDevices(t *testing.T) {
	const denied = "Permission check failed "
	for _, version := range pve.Versions() {
		c := newClient(t, files(version))
		u := scoped(c, "VM.Allocate,VM.Audit,VM.Config.HWType,VM.Config.CPU,VM.Config.Network")
		wants := map[string]string{
			"rng0=source=/dev/hwrng":              denied + "(/mapping/hwrng, Mapping.Use)",
			"rng0=source=/dev/urandom":            "OK",
			"usb0=host=1234:5678":                 "only root can set 'usb0' config for real devices",
			"usb0=host=SPICE":                     "OK",
			"hostpci0=mapping=none":               denied + "(/mapping/pci/none, Mapping.Use)",
			"net0=virtio,bridge=vmbr0,trunks=7;5": denied + "(/sdn/zones/localnetwork/vmbr0/5, SDN.Use)",
			"net0=virtio,bridge=vmbr0,tag=9":      denied + "(/sdn/zones/localnetwork/vmbr0/9, SDN.Use)",
			"net0=virtio":                         "OK",
		}
		if version == "8.4" {
			wants["net0=virtio"] = "no sdn vnet ID specified"
		}
		u.done("POST", "/nodes/father/qemu", form{"vmid": "100", "pool": "p"})
		for pair, want := range wants {
			var key, value string
			for i := range pair {
				if pair[i] == '=' {
					key, value = pair[:i], pair[i+1:]
					break
				}
			}
			require.Equal(t, want, firstError(u.ask("PUT", vmURL("100", "/config"), form{key: value})), "%s: %s", version, pair)
		}
	}
}

// TestSizesOfPackets: what a start says of the MTU of devices (print_netdevice_full in
// PVE/QemuServer.pm), and what a snapshot with memory keeps of it (get_nets_host_mtu).
func TestSizesOfPackets(t *testing.T) {
	const big = "netdev net0: MTU '9000' is bigger than the bridge MTU '1500' - adjust the MTU for the network device in the VM configuration, while ensuring that the bridge is configured as desired."
	for net, want := range map[string][2]string{ // In 8.4, in 9.2.
		"virtio,bridge=vmbr9":          {"start failed: QEMU exited with code 1", "bridge 'vmbr9' does not exist"},
		"virtio,bridge=vmbr9,mtu=1":    {"bridge 'vmbr9' does not exist", "bridge 'vmbr9' does not exist"},
		"e1000,bridge=vmbr9":           {"start failed: QEMU exited with code 1", "start failed: QEMU exited with code 1"},
		"virtio,bridge=vmbr0,mtu=9000": {big, big},
		"virtio,mtu=1400":              {"WARNINGS: 1", "WARNINGS: 1"},
		"e1000,bridge=vmbr0,mtu=1400":  {"WARNINGS: 1", "WARNINGS: 1"},
		"virtio,bridge=vmbr0":          {"OK", "OK"},
	} {
		for i, version := range []string{"8.4", "9.2"} {
			c := newClient(t, files(version)).ticketed() // 8.4 lets nobody else leave the bridge out.
			c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "net0": net, "scsi0": "files:1,format=qcow2"})
			require.Equal(t, want[i], c.task("POST", vmURL("100", "/status/start"), nil), "%s: %s", version, net)
			if want[i] == "OK" {
				c.done("POST", vmURL("100", "/snapshot"), form{"snapname": "ram", "vmstate": "1"})
				kept := c.object(vmURL("100", "/snapshot/ram/config"))["running-nets-host-mtu"]
				require.Equal(t, map[string]any{"8.4": nil, "9.2": "net0=1500"}[version], kept)
			}
		}
	}
}

// TestNewLogLines: what logs of 9.2 tell (PVE/API2/Qemu.pm; guest_fs_freeze_applicable in
// PVE/QemuServer/Agent.pm).
func TestNewLogLines(t *testing.T) {
	first := map[string][2]string{
		"clone": {"create full clone of drive scsi0 (files:100/vm-100-disk-0.qcow2)", "creating a clone of VM 100 with ID 101"},
		"move":  {"create full clone of drive scsi0 (files:100/vm-100-disk-0.qcow2)", "copying volume 'files:100/vm-100-disk-0.qcow2' from current storage 'files' to target storage 'thin'"},
		"give":  {"moving disk 'unused0' from VM '100' to '101'", "reassign disk 'unused0' from VM '100' as 'scsi5' to VM '101'"},
		"agent": {"QEMU Guest Agent is not running - VM 101 qmp command 'guest-ping' failed - got timeout", "skipping guest filesystem freeze - agent configured but not running?"},
		"bare":  {"snapshotting 'drive-scsi0' (files:101/vm-101-disk-0.qcow2)", "skipping guest filesystem freeze - disabled in VM options"},
	}
	for i, version := range []string{"8.4", "9.2"} {
		c := newClient(t, files(version))
		c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "scsi0": "files:1,format=qcow2"})
		got := map[string]string{"clone": logOf(c, c.ok("POST", vmURL("100", "/clone"), form{"newid": "101"}))[0]}
		got["move"] = logOf(c, c.ok("POST", vmURL("100", "/move_disk"), form{"disk": "scsi0", "storage": "thin"}))[0]
		got["give"] = logOf(c, c.ok("POST", vmURL("100", "/move_disk"), form{"disk": "unused0", "target-vmid": "101", "target-disk": "scsi5"}))[0]
		c.done("POST", vmURL("101", "/status/start"), nil)
		got["bare"] = logOf(c, c.ok("POST", vmURL("101", "/snapshot"), form{"snapname": "one"}))[0]
		c.done("POST", vmURL("101", "/status/stop"), nil)
		c.ok("PUT", vmURL("101", "/config"), form{"agent": "1"})
		c.done("POST", vmURL("101", "/status/start"), nil)
		got["agent"] = logOf(c, c.ok("POST", vmURL("101", "/snapshot"), form{"snapname": "two"}))[0]
		want := map[string]string{}
		for name := range maps.Keys(first) {
			want[name] = first[name][i]
		}
		require.Equal(t, want, got, version)
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

// TestResizeChecks: the order of the checks of a resize (resize_vm in
// PVE/API2/Qemu.pm), and what is told to qemu-img (volume_resize in
// PVE/Storage/Plugin.pm).
func TestResizeChecks(t *testing.T) {
	for version, option := range map[string]string{"8.4": "", "9.1": "'--preallocation=%s' ", "9.2": "'--preallocation=%s' "} {
		c := newClient(t, files(version))
		c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "scsi0": "files:1", "scsi1": "files:1,format=qcow2", "scsi2": "files:1,format=vmdk", "ide0": "none", "ide2": "files:cloudinit"})
		resize := func(disk string, more form) string {
			params := form{"disk": disk, "size": "+1G"}
			maps.Copy(params, more)
			return c.task("PUT", vmURL("100", "/resize"), params)
		}
		require.Equal(t, "unable to parse volume ID 'none'", resize("ide0", nil))
		require.Equal(t, "you can't resize a cdrom", resize("ide2", nil))
		require.Equal(t, "can't resize this image format", resize("scsi2", nil))
		require.Equal(t, "checksum mismatch (file change by other user?)", resize("scsi0", form{"digest": "0000000000000000000000000000000000000000"}))
		c.h.Edit(func(e *pve.Edit) { e.RemoveVolume("files:100/vm-100-disk-2.vmdk") })
		require.Equal(t, "volume 'files:100/vm-100-disk-2.vmdk' does not exist", resize("scsi2", nil))
		c.ok("PUT", vmURL("100", "/config"), form{"delete": "scsi2"})
		c.done("POST", vmURL("100", "/template"), nil)
		for disk, file := range map[string][2]string{"scsi0": {"off", "raw"}, "scsi1": {"metadata", "qcow2"}} {
			said := option
			if said != "" {
				said = fmt.Sprintf(option, file[0])
			}
			want := fmt.Sprintf("command '/usr/bin/qemu-img resize %s-f %s /srv/files/images/100/base-100-disk-%s.%s 2147483648' failed: exit code 1", said, file[1], disk[4:], file[1])
			require.Equal(t, want, resize(disk, nil), version)
		}
	}
}
