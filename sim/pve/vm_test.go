package pve_test

import (
	"fmt"
	"maps"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/homestak/homestak-gitops/sim/pve"
)

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

// TestDrives: a drive as ordered is not a drive as configured. Ordering twice
// allocates twice; what is taken off stays until its unusedN is deleted.
func TestDrives(t *testing.T) {
	c := newClient(t, pve.Config{})
	c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "scsi0": "local-lvm:4,ssd=on,discard=on"})
	drives := func() map[string]string {
		g, _ := c.h.Snapshot().Guest(100)
		found := map[string]string{}
		for _, key := range []string{"scsi0", "scsi1", "unused0", "unused1"} {
			if value, ok := g.Config[key]; ok {
				found[key] = value
			}
		}
		return found
	}
	set := func(params form) { c.ok("PUT", vmURL("100", "/config"), params) }
	require.Equal(t, map[string]string{"scsi0": "local-lvm:vm-100-disk-0,discard=on,size=4G,ssd=1"}, drives())
	set(form{"scsi0": "local-lvm:4,ssd=on,discard=on"})
	require.Equal(t, map[string]string{
		"scsi0": "local-lvm:vm-100-disk-1,discard=on,size=4G,ssd=1", "unused0": "local-lvm:vm-100-disk-0",
	}, drives(), "the same order again")
	set(form{"scsi0": "local-lvm:vm-100-disk-1,cache=none"})
	require.Equal(t, "local-lvm:vm-100-disk-1,cache=none,size=4G", drives()["scsi0"], "other options of the same volume")
	set(form{"scsi1": "local-lvm:vm-100-disk-0"})
	require.NotContains(t, drives(), "unused0", "in use again")
	set(form{"delete": "scsi1"})
	set(form{"delete": "unused0"})
	require.Len(t, drives(), 1)
	require.Len(t, c.h.Snapshot().Volumes["local-lvm"], 1)

	require.Equal(t, "shrinking disks is not supported", c.task("PUT", vmURL("100", "/resize"), form{"disk": "scsi0", "size": "1G"}))
	c.done("PUT", vmURL("100", "/resize"), form{"disk": "scsi0", "size": "+1G"})
	c.done("PUT", vmURL("100", "/resize"), form{"disk": "scsi0", "size": "5G"})
	require.Equal(t, "local-lvm:vm-100-disk-1,cache=none,size=5G", drives()["scsi0"])
	require.Equal(t, int64(5<<30), c.h.Snapshot().Volumes["local-lvm"][0].Size)
}

// TestDriveChecks: what drives may say together, and what they may name
// (parse_drive in PVE/QemuServer/Drive.pm; $check_drive_param, $check_storage_access,
// create_disks and prohibit_tpm_version_change in PVE/API2/Qemu.pm; cleanup_drive_path in
// PVE/QemuServer.pm). The same holds in both versions but where it says so.
func TestDriveChecks(t *testing.T) {
	const unparsed = "unable to parse drive options"
	for _, version := range pve.Versions() {
		c := newClient(t, files(version))
		c.done("POST", "/nodes/father/qemu", form{
			"vmid": "100", "virtio0": "files:1", "sata1": "files:1,format=qcow2", "scsi3": "files:1", "ide2": "files:cloudinit", "tpmstate0": "files:1,version=v2.0",
		})
		conf := c.object(vmURL("100", "/config"))
		for key, volume := range map[string]string{
			"sata1": "files:100/vm-100-disk-0.qcow2,size=1G", "scsi3": "files:100/vm-100-disk-1.raw,size=1G",
			"tpmstate0": "files:100/vm-100-disk-2.raw,size=4M,version=v2.0", "virtio0": "files:100/vm-100-disk-3.raw,size=1G",
			"ide2": "files:100/vm-100-cloudinit.qcow2,media=cdrom",
		} {
			require.Equal(t, volume, conf[key], key)
		}
		for params, want := range map[string]string{
			"scsi0=files:1,mbps=1,mbps_rd=1":                                      "scsi0: " + unparsed,
			"scsi0=files:1,iops=10,iops_wr=10":                                    "scsi0: " + unparsed,
			"scsi0=files:1,mbps_max=5":                                            "scsi0: " + unparsed,
			"scsi0=files:1,iops_max=50,iops=10":                                   "OK",
			"scsi1=files:1,bps_max_length=3,mbps=1":                               "scsi1: " + unparsed,
			"virtio1=none,media=cdrom":                                            "virtio1: " + unparsed,
			"ide0=none,media=cdrom,format=raw":                                    "ide0: " + unparsed,
			"ide0=/srv/files/template/iso/none.iso":                               "volume 'files:iso/none.iso' does not exist",
			"ide0=/srv/files/snippets/x,media=cdrom":                              "ide0: unexpected media type (snippets != iso)",
			"scsi5=files:100/vm-100-disk-1.raw,format=qcow2":                      "drive 'scsi5' - volume 'files:100/vm-100-disk-1.raw' - 'format=qcow2' option different from storage format 'raw'",
			"sata0=files:100/vm-100-cloudinit.qcow2,media=cdrom":                  "sata0 - cloud-init drive is already attached at 'ide2'",
			"tpmstate0=files:100/vm-100-disk-2.raw,version=v1.2":                  "cannot change TPM state version after creation",
			"efidisk0=files:0,import-from=files:100/vm-100-disk-1.raw,efitype=4m": "efidisk0: need to specify 'pre-enrolled-keys' when using 'import-from'",
			"scsi6=files:0,import-from=files:100/vm-100-disk-9.raw":               "cannot import from 'files:100/vm-100-disk-9.raw' - could not get size of files:100/vm-100-disk-9.raw",
			"scsi6=files:0,import-from=files:100/vm-100-cloudinit.qcow2":          "cannot import from 'files:100/vm-100-cloudinit.qcow2' - cannot import from cloudinit disk",
			"vga=serial0,clipboard=vnc":                                           "vga type serial0 is not compatible with VNC clipboard",
			"machine=pc,viommu=intel":                                             "to use Intel vIOMMU please set the machine type to q35",
			"unused0=files:none":                                                  "unable to parse directory volume name 'none'",
			"unused0=files:100/vm-100-none.raw":                                   "OK",
			"revert=pool":                                                         "revert: unknown option 'pool'",
		} {
			values, err := url.ParseQuery(params)
			require.NoError(t, err)
			set := form{}
			for name := range values {
				set[name] = values.Get(name)
			}
			a := c.ticketed().ask("PUT", vmURL("100", "/config"), set)
			require.Equal(t, want, firstError(a), "%s: %s", version, params)
		}
		c.ok("PUT", vmURL("100", "/config"), form{"sata1": "files:100/vm-100-disk-0.qcow2,format=qcow2"})
		require.Equal(t, "files:100/vm-100-disk-0.qcow2,format=qcow2,size=1G", c.object(vmURL("100", "/config"))["sata1"], "a format that is given stays")
	}
}

// TestRatesInBytes: what a drive is given in bytes per second is 0.000 afterwards
// (parse_drive in PVE/QemuServer/Drive.pm).
func TestRatesInBytes(t *testing.T) {
	for _, version := range pve.Versions() {
		c := newClient(t, files(version))
		c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "scsi0": "files:1,bps=10485760"})
		require.Equal(t, "files:100/vm-100-disk-0.raw,mbps=0.000,size=1G", c.object(vmURL("100", "/config"))["scsi0"])
		set := func(value, want string) step { return step{"PUT", vmURL("100", "/config"), form{"scsi0": value}, want} }
		const disk, unparsed = "files:100/vm-100-disk-0.raw", "scsi0: unable to parse drive options"
		c.steps(
			set(disk+",bps_rd=1,bps_wr=2", "OK"),
			set(disk+",bps_rd=1,mbps_rd=2", unparsed),
			set(disk+",bps=1,mbps_rd=2", unparsed),
			set(disk+",bps=1,mbps_max=2", "OK"),
		)
		require.Equal(t, disk+",mbps=0.000,mbps_max=2,size=1G", c.object(vmURL("100", "/config"))["scsi0"])
	}
}

// TestMoveDisk: to another storage; the old volume stays unless told otherwise.
func TestMoveDisk(t *testing.T) {
	fast, err := pve.ParseStorage("fast:zfspool:images:100")
	require.NoError(t, err)
	c := newClient(t, pve.Config{Storages: append(pve.DefaultStorages(), fast)})
	c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "scsi0": "local-lvm:4", "scsi1": "local-lvm:1"})
	c.done("POST", vmURL("100", "/move_disk"), form{"disk": "scsi0", "storage": "fast"})
	c.done("POST", vmURL("100", "/move_disk"), form{"disk": "scsi1", "storage": "fast", "delete": "1"})
	config := c.object(vmURL("100", "/config"))
	require.Equal(t, "fast:vm-100-disk-0,size=4G", config["scsi0"])
	require.Equal(t, "local-lvm:vm-100-disk-0", config["unused0"])
	require.Equal(t, "fast:vm-100-disk-1,size=1G", config["scsi1"])
	require.Len(t, c.h.Snapshot().Volumes["local-lvm"], 1)
	c.done("DELETE", vmURL("100", ""), nil)
	require.Empty(t, c.h.Snapshot().Volumes["local-lvm"])
	require.Empty(t, c.h.Snapshot().Volumes["fast"])
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

// TestPending: what a running VM takes at once, what by a hot plug, what waits.
func TestPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{Bridges: []string{"vmbr0", "vmbr1"}})
		c.image()
		c.vm("100", form{"cores": "1", "ide2": "none,media=cdrom", "net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0"})
		c.done("POST", vmURL("100", "/status/start"), nil)
		changes := []struct {
			key, value string
			waits      bool
		}{
			{"name", "other", false},
			{"description", "d", false},
			{"tags", "t", false},
			{"onboot", "1", false},
			{"protection", "0", false},
			{"startup", "order=1", false},
			{"ciuser", "me", false},
			{"ipconfig0", "ip=dhcp", false},
			{"cpulimit", "2", false},
			{"cpuunits", "200", false},
			{"balloon", "512", false},
			{"tablet", "0", false},
			{"cores", "2", true},
			{"sockets", "2", true},
			{"memory", "2048", true},
			{"ostype", "other", true},
			{"machine", "q35", true},
			{"agent", "0", true},
			{"bios", "ovmf", true},
			{"vga", "std", true},
			{"scsihw", "virtio-scsi-pci", true},
			{"scsi1", "local-lvm:1", false},
			{"virtio0", "local-lvm:1", false},
			{"ide0", "local-lvm:1", true},
			{"sata0", "local-lvm:1", true},
			{"net1", "virtio,bridge=vmbr0", false},
			{"net0", "virtio=BC:24:11:00:00:01,bridge=vmbr1", false},
			{"net0", "virtio=BC:24:11:00:00:02,bridge=vmbr1", false},
		}
		for _, change := range changes {
			c.ok("PUT", vmURL("100", "/config"), form{change.key: change.value})
			g, _ := c.h.Snapshot().Guest(100)
			_, waits := g.Pending[change.key]
			require.Equal(t, change.waits, waits, change.key)
		}
		c.ok("PUT", vmURL("100", "/config"), form{"hotplug": "disk"})
		c.ok("PUT", vmURL("100", "/config"), form{"net2": "virtio,bridge=vmbr0"})
		g, _ := c.h.Snapshot().Guest(100)
		require.Contains(t, g.Pending, "net2", "network is no longer plugged hot")

		require.EqualValues(t, 2, c.object(vmURL("100", "/config"))["cores"], "waiting changes are shown as made")
		require.EqualValues(t, 1, c.object(vmURL("100", "/config?current=1"))["cores"])
		c.ok("PUT", vmURL("100", "/config"), form{"revert": "cores"})
		require.EqualValues(t, 1, c.object(vmURL("100", "/config"))["cores"])
		c.ok("PUT", vmURL("100", "/config"), form{"delete": "ostype,ciuser"})
		for _, entry := range c.list(vmURL("100", "/pending")) {
			if entry["key"] == "ostype" {
				require.EqualValues(t, 1, entry["delete"])
			}
		}
		time.Sleep(5 * time.Second)
		c.done("POST", vmURL("100", "/status/reboot"), nil)
		g, _ = c.h.Snapshot().Guest(100)
		require.Empty(t, g.Pending, "a reboot by the API makes them")
		require.Equal(t, "2048", g.Config["memory"])
		require.NotContains(t, g.Config, "ostype")
	})
}

// TestEmptyKeys: empty keys are written, but do not parse, so the old ones stay; what
// does not parse goes with the next change (parse_vm_config in PVE/QemuServer.pm).
func TestEmptyKeys(t *testing.T) {
	c := newClient(t, files("8.4"))
	c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "sshkeys": ""})
	digest := func() any { return c.object(vmURL("100", "/config"))["digest"] }
	before := digest()
	c.ok("PUT", vmURL("100", "/config"), form{"sshkeys": ""})
	require.NotEqual(t, before, digest())
	require.NotContains(t, c.object(vmURL("100", "/config")), "sshkeys")
	c.ok("PUT", vmURL("100", "/config"), form{"name": "a"})
	c.ok("PUT", vmURL("100", "/config"), form{"delete": "name"})
	require.Equal(t, before, digest())
}

// TestDigest: it changes exactly when the file does, and a write that carries an
// old one is refused.
func TestDigest(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := newClient(t, pve.Config{})
		c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "cores": "1", "description": "d", "tags": "a;b"})
		seen := map[string]string{} // Digest to the content it stood for.
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			params := form{}
			switch key := rapid.SampledFrom([]string{"cores", "memory", "description", "tags", "delete", "revert", "start", "stop"}).Draw(rt, "key"); key {
			case "start", "stop":
				c.task("POST", vmURL("100", "/status/"+key), nil)
			case "delete", "revert":
				params[key] = rapid.SampledFrom([]string{"cores", "memory", "description", "tags"}).Draw(rt, "which")
			case "tags":
				params[key] = rapid.SampledFrom([]string{"a;b", "b,a", "c", ""}).Draw(rt, "tags")
			case "description":
				params[key] = rapid.SampledFrom([]string{"d", "e\nf", "100%: ü", "d \n"}).Draw(rt, "text")
			default:
				params[key] = fmt.Sprint(rapid.IntRange(16, 18).Draw(rt, "number"))
			}
			before, _ := c.h.Snapshot().Guest(100)
			if len(params) > 0 {
				params["digest"] = before.Digest
				c.ok("PUT", vmURL("100", "/config"), params)
			}
			after, _ := c.h.Snapshot().Guest(100)
			content := fmt.Sprint(after.Config, after.Pending)
			if old, known := seen[after.Digest]; known {
				require.Equal(rt, old, content)
			}
			seen[after.Digest] = content
			require.Equal(rt, fmt.Sprint(before.Config, before.Pending) == content, before.Digest == after.Digest)
			if before.Digest != after.Digest {
				params := form{"cores": "3", "digest": before.Digest}
				require.Equal(rt, "checksum mismatch (file change by other user?)", c.ask("PUT", vmURL("100", "/config"), params).reason)
			}
		}
	})
}

// TestCustomModel: a model that does not exist is refused before anything else
// (get_custom_model in PVE/QemuServer/CPUConfig.pm).
func TestCustomModel(t *testing.T) {
	c := likeRecorded(t)
	const missing = "cpu: invalid format - Custom cputype 'x' not found"
	c.steps(
		step{"POST", "/nodes/father/qemu", form{"vmid": "100", "cpu": "custom-x"}, missing},
		step{"POST", "/nodes/father/qemu", form{"vmid": "100", "cpu": "kvm64"}, "OK"},
		step{"PUT", vmURL("100", "/config"), form{"cpu": "cputype=custom-x,flags=+aes", "cores": "0"}, "cores: value must have a minimum value of 1; " + missing},
	)
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
			c := newClient(t, files(version)).ticketed() // in 8.4 only root may leave the bridge out.
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

// TestCloudDrive: when the drive of cloud-init is written, what keeps it from that, and
// what is on it (PVE/QemuServer/Cloudinit.pm; vmconfig_hotplug_pending in
// PVE/QemuServer.pm).
func TestCloudDrive(t *testing.T) {
	c := newClient(t, files("9.2"))
	c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "name": "web.example.test", "ide2": "files:cloudinit", "net0": "virtio,bridge=vmbr0", "ipconfig0": "ip=dhcp"})
	c.done("POST", "/nodes/father/qemu", form{"vmid": "101", "cicustom": "user=files:snippets/none"})
	put := func(vmid string, params form) string { return firstError(c.ask("PUT", vmURL(vmid, "/config"), params)) }
	dump := func(kind string) string {
		return fmt.Sprint(c.ok("GET", vmURL("100", "/cloudinit/dump"), form{"type": kind}))
	}
	require.Contains(t, dump("user"), "hostname: web\nmanage_etc_hosts: true\nfqdn: web.example.test\n")
	require.Contains(t, dump("network"), "    - type: nameserver\n      address:\n      - '192.0.2.53'\n      search:\n      - 'example.test'\n", "those of the node")
	c.ok("PUT", "/nodes/father/dns", form{"search": "other.test", "dns1": "192.0.2.1", "dns2": "192.0.2.2"})
	require.Contains(t, dump("network"), "      - '192.0.2.1'\n      - '192.0.2.2'\n      search:\n      - 'other.test'\n")
	require.Equal(t, "OK", put("100", form{"ciuser": "root", "nameserver": "192.0.2.9"}))
	require.Contains(t, dump("user"), "user: root\ndisable_root: False\n")
	require.Equal(t, "OK", put("100", form{"ostype": "win11"}))
	require.Contains(t, dump("network"), "auto lo\niface lo inet loopback\n\n        dns_nameservers 192.0.2.9\n        dns_search other.test\nauto eth0\niface eth0 inet dhcp\n", "Windows knows but the configuration drive")
	require.Contains(t, dump("meta"), "     \"network_config\": { \"content_path\": \"/content/0000\" }\n")

	require.Equal(t, "OK", firstError(c.ask("PUT", vmURL("101", "/cloudinit"), nil)), "without a drive nothing is read")
	for custom, want := range map[string]string{
		"user=files:snippets/none": "volume 'files:snippets/none' does not exist", "vendor=files:iso/x.iso": "files:iso/x.iso is not in the snippets directory",
		"meta=none:snippets/x": "storage 'none' does not exist", "network=files:nosuch/x": "unable to parse directory volume name 'nosuch/x'",
	} {
		require.Equal(t, "OK", put("100", form{"cicustom": custom}))
		require.Equal(t, want, firstError(c.ask("PUT", vmURL("100", "/cloudinit"), nil)))
		require.Equal(t, want, c.task("POST", vmURL("100", "/status/start"), nil))
	}
	require.Equal(t, "OK", put("100", form{"delete": "cicustom", "hotplug": "network,cloudinit"}))
	c.done("POST", vmURL("100", "/status/start"), nil)
	require.Equal(t, "OK", put("100", form{"ciuser": "hot"}))
	require.NotContains(t, fmt.Sprint(c.list(vmURL("100", "/cloudinit"))), "pending", "written at once")
	require.Equal(t, "volume 'files:snippets/none' does not exist", put("100", form{"cicustom": "user=files:snippets/none"}))
	require.Equal(t, "OK", put("100", form{"cipassword": "x", "delete": "cicustom"}))
}

// TestFeatures: a VM can be snapshot and not cloned by link; of a template it is the
// other way round.
func TestFeatures(t *testing.T) {
	c := newClient(t, pve.Config{Storages: []pve.Storage{{Name: "local", Type: "dir", Content: []string{"images"}}}})
	c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "scsi0": "local:1,format=qcow2", "ide2": "local:cloudinit"})
	has := func() (all []any) {
		for _, feature := range []string{"clone", "snapshot", "copy"} {
			all = append(all, c.object(vmURL("100", "/feature?feature="+feature))["hasFeature"])
		}
		return all
	}
	require.Equal(t, []any{0.0, 1.0, 1.0}, has())
	c.done("POST", vmURL("100", "/template"), nil)
	require.Equal(t, []any{1.0, 0.0, 1.0}, has())
}

// TestSmallRules are rules of PVE's source that no recording has, each with its file.
func TestSmallRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := likeRecorded(t)
		c.steps(
			// PVE/API2/Pool.pm: what is not there any more keeps no pool.
			step{"POST", "/pools", form{"poolid": "lab"}, "OK"},
			step{"PUT", "/pools/lab", form{"vms": "999"}, "OK"},
			step{"DELETE", "/pools/lab", nil, "OK"},
			// PVE/API2/HA/Resources.pm checks the type of a resource first.
			step{"POST", "/cluster/ha/resources", form{"sid": "xx:999"}, "500 unknown section type 'xx'"},
			// PVE/Storage/Plugin.pm assumes a storage local, and cannot lose it.
			step{"DELETE", "/storage/local", nil, "OK"},
		)
		local := c.object("/storage/local")
		require.Equal(t, "keep-all=1", local["prune-backups"])
		require.EqualValues(t, 0, local["priority"])
		require.Equal(t, "/var/lib/vz", local["path"])
		c.ok("PUT", "/storage/local", form{"content": "iso"})
		require.NotContains(t, c.object("/storage/local"), "priority", "what is written has no priority")
		// PVE/HTTPServer.pm leaves a total of 0 out.
		c.task("POST", vmURL("999", "/status/start"), nil)
		require.NotContains(t, c.ask("GET", "/nodes/father/tasks?source=active", nil).raw, "total")
		require.Contains(t, c.ask("GET", "/nodes/father/tasks?limit=1", nil).raw, "total")
	})
}

// TestMachine: a host can have few processors, no KVM and a web of its own.
func TestMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{Version: "8.4", CPUs: 2, Memory: 8 << 30, NoKVM: true, Web: func(address string) pve.Page {
			if strings.HasSuffix(address, "/disk.qcow2") {
				return pve.Page{Size: 4, Disk: 1 << 30, Sums: pve.Sums([]byte("disk"))}
			}
			return pve.Page{Missing: "404 Not Found"}
		}})
		status := c.object("/nodes/father/status")
		require.EqualValues(t, 8<<30, status["memory"].(map[string]any)["total"])
		require.NotContains(t, status["memory"], "available", "since PVE 9")
		require.EqualValues(t, 2, status["cpuinfo"].(map[string]any)["cpus"])
		c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "cores": "3", "kvm": "0"})
		c.done("POST", "/nodes/father/qemu", form{"vmid": "101"})
		c.done("POST", "/nodes/father/qemu", form{"vmid": "102", "kvm": "0"})
		c.steps(
			step{"POST", vmURL("100", "/status/start"), nil, "MAX 2 vcpus allowed per VM on this node"},
			step{"POST", vmURL("101", "/status/start"), nil, "start failed: QEMU exited with code 1"},
			step{"POST", vmURL("102", "/status/start"), nil, "OK"},
		)
		load := func(name, sum, want string) step {
			params := form{"content": "import", "filename": "x.qcow2", "url": "http://web.test/" + name}
			if sum != "" {
				params["checksum"], params["checksum-algorithm"] = sum, "md5"
			}
			return step{"POST", "/nodes/father/storage/local/download-url", params, want}
		}
		sum := pve.Sums([]byte("disk"))["md5"]
		c.steps(
			load("nosuch", "", "download failed: exit code 8"),
			load("disk.qcow2", "0123", "checksum mismatch: got '"+sum+"' != expect '0123'"),
			load("disk.qcow2", sum, "OK"),
			load("disk.qcow2", sum, "OK"),
			load("disk.qcow2", "", "refusing to override existing file '/var/lib/vz/import/x.qcow2'"),
			step{"GET", "/nodes/father/query-url-metadata?url=http://web.test/nosuch", nil, "500 invalid server response: '404 Not Found'"},
		)
		require.EqualValues(t, 4, c.object("/nodes/father/query-url-metadata?url=http://web.test/disk.qcow2")["size"])
	})
}
