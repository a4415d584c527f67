package pve_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/sim/pve/simtest"
)

// What no recording of a real host covers, from PVE's source.

// TestRollbackStarts: the start is a task of its own; since 9.2 whoever orders it must be
// allowed to start the VM, of a container nobody asks (rollback in PVE/API2/Qemu.pm and in
// PVE/API2/LXC/Snapshot.pm).
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
		require.Equal(t, "OK", ann.told(step{"POST", vmURL("100", "/snapshot/one/rollback"), form{"start": "0"}, ""}), version)
		require.Equal(t, want, ann.told(step{"POST", vmURL("100", "/snapshot/one/rollback"), form{"start": "1"}, ""}), version)
		require.Equal(t, "OK", ann.told(step{"POST", ctURL("200", "/snapshot/one/rollback"), form{"start": "1"}, ""}), version)
		c.done("POST", vmURL("100", "/status/stop"), nil)
		c.done("POST", vmURL("100", "/snapshot/one/rollback"), form{"start": "1"})
		require.Len(t, c.list("/nodes/father/tasks?source=all&typefilter=qmstart&vmid=100"), map[string]int{"OK": 2, refused: 1}[want], version)
	}
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

// TestBrokenTemplates: what tar cannot unpack fails the create, be it uploaded or
// downloaded, and nothing is left of the container (restore_archive in
// PVE/LXC/Create.pm).
func TestBrokenTemplates(t *testing.T) {
	good := simtest.RootArchive(map[string]string{"etc/alpine-release": "3.20", "etc/os-release": "ID=alpine\n"})
	const unprivileged = "lxc-usernsexec -m u:0:100000:65536 -m g:0:100000:65536 -- "
	tarFails := func(before, option string) string {
		return "unable to create CT 200 - command '" + before + "tar xpf - " + option + " --totals --one-file-system -p --sparse --numeric-owner --acls --xattrs '--xattrs-include=user.*' " +
			"'--xattrs-include=security.capability' '--warning=no-file-ignored' '--warning=no-xattr-write' -C /var/lib/lxc/200/rootfs --skip-old-files --anchored --exclude './dev/*'' failed: exit code 2"
	}
	c := newClient(t, pve.Config{})
	require.Equal(t, "OK", c.uploaded("vztmpl", "text.tar.gz", "not an archive"))
	require.Equal(t, tarFails(unprivileged, "-z"), c.task("POST", "/nodes/father/lxc", form{"vmid": "200", "ostemplate": "local:vztmpl/text.tar.gz", "rootfs": "local-lvm:1"}))
	for _, version := range pve.Versions() {
		for name, test := range map[string]struct {
			content, want string
		}{
			"good.tar.gz":      {string(good), "OK"},
			"text.tar.gz":      {"not an archive", tarFails(unprivileged, "-z")},
			"cut.tar.gz":       {string(good[:len(good)/2]), tarFails(unprivileged, "-z")},
			"other.tar.zst":    {string(good), tarFails(unprivileged, "--zstd")},
			"other.tar.xz":     {string(good), tarFails(unprivileged, "-J")},
			"alpine_1.tar.zst": {"\x28\xb5\x2f\xfd and more", "OK"},
			"text.tar":         {strings.Repeat("no archive ", 100), "unable to create CT 200 - command 'tar -tf /srv/files/template/cache/text.tar' failed: exit code 2"},
		} {
			if version == "8.4" && strings.HasSuffix(name, ".tar") {
				continue
			}
			config := files(version)
			config.Web = func(string) pve.Page {
				return pve.Page{Content: []byte(test.content), Size: int64(len(test.content))}
			}
			page, err := pve.PageOf(strings.NewReader(test.content))
			require.NoError(t, err)
			for how, web := range map[string]func(string) pve.Page{"content": config.Web, "file": func(string) pve.Page { return page }} {
				config.Web = web
				c := newClient(t, config)
				c.done("POST", "/nodes/father/storage/files/download-url", form{"content": "vztmpl", "filename": name, "url": "https://host.test/" + name})
				order := form{"vmid": "200", "ostemplate": "files:vztmpl/" + name, "storage": "files", "unprivileged": "1"}
				require.Equal(t, test.want, c.task("POST", "/nodes/father/lxc", order), "%s %s of %s", version, name, how)
				if test.want == "OK" {
					require.Equal(t, "alpine", c.object(ctURL("200", "/config"))["ostype"])
					continue
				}
				require.NotContains(t, c.h.Snapshot().Guests, 200)
				require.Len(t, c.h.Snapshot().Volumes["files"], 1, "the template alone")
				if strings.HasSuffix(name, ".tar") {
					continue
				}
				order["ignore-unpack-errors"] = "1"
				c.done("POST", "/nodes/father/lxc", order)
				require.Equal(t, "unmanaged", c.object(ctURL("200", "/config"))["ostype"])
			}
		}
	}
}
