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

// files is a host with one file storage that holds everything.
func files(version string) pve.Config {
	return pve.Config{Version: version, Storages: []pve.Storage{
		{Name: "files", Type: "dir", Path: "/srv/files", Content: []string{"images", "rootdir", "iso", "vztmpl", "backup", "snippets", "import"}},
		{Name: "thin", Type: "lvmthin", Content: []string{"images"}},
		{Name: "dumps", Type: "dir", Path: "/srv/dumps", Content: []string{"backup"}},
	}}
}

// firstError is the reason of an answer, or the one parameter that was wrong.
func firstError(a answer) string {
	for name, text := range a.errors {
		return name + ": " + text
	}
	return a.reason
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

// TestInterrupted: how tasks end that are stopped by hand (fork_worker in
// PVE/RESTEnvironment.pm; clone_vm and move_disk in PVE/API2/Qemu.pm; PVE/API2/VZDump.pm).
func TestInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config := files("9.2")
		config.TaskTime = time.Minute
		c := newClient(t, config)
		stopped := func(verb, path string, params form) string {
			upid := fmt.Sprint(c.ok(verb, path, params))
			time.Sleep(time.Second)
			c.ok("DELETE", "/nodes/father/tasks/"+url.PathEscape(upid), nil)
			return c.wait(upid)
		}
		require.Equal(t, "unable to create VM 100 - received interrupt", stopped("POST", "/nodes/father/qemu", form{"vmid": "100"}))
		c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "scsi0": "files:1"})
		require.Equal(t, "clone failed: interrupted by signal", stopped("POST", vmURL("100", "/clone"), form{"newid": "101"}))
		require.Equal(t, "storage migration failed: interrupted by signal", stopped("POST", vmURL("100", "/move_disk"), form{"disk": "scsi0", "storage": "thin"}))
		require.Equal(t, "interrupted by signal", stopped("POST", "/nodes/father/vzdump", form{"vmid": "100", "storage": "dumps"}))
		require.Equal(t, "received interrupt", stopped("POST", vmURL("100", "/status/start"), nil))
		require.Len(t, c.h.Snapshot().Guests, 1)
	})
}
