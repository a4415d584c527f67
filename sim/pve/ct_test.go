package pve_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/sim/pve/content"
	"github.com/homestak/homestak-gitops/sim/pve/simtest"
)

// TestContainerLife: addresses, pending changes that the end of the container applies,
// a forced destruction, and secrets that are never returned.
func TestContainerLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{})
		c.ct("200", form{"cpulimit": "0.5", "start": "1"})
		require.NotContains(t, c.ask("GET", ctURL("200", "/config"), nil).raw, "throwaway")
		time.Sleep(11 * time.Second)
		require.InDelta(t, 0.5, c.resource(200)["maxcpu"], 0)
		require.Equal(t, "0.5", c.object(ctURL("200", "/config"))["cpulimit"])
		interfaces := c.list(ctURL("200", "/interfaces"))
		require.Equal(t, "192.0.2.50/24", interfaces[1]["inet"])
		c.ok("PUT", ctURL("200", "/config"), form{"tty": "1", "memory": "256"})
		require.Contains(t, c.list(ctURL("200", "/pending")), map[string]any{"key": "tty", "pending": 1.0})
		c.h.Edit(func(e *pve.Edit) { e.Stop(200) })
		require.NotContains(t, c.list(ctURL("200", "/pending")), map[string]any{"key": "tty", "pending": 1.0})
		c.done("POST", ctURL("200", "/status/start"), nil)
		require.Equal(t, "unable to destroy CT 200 - container is running", c.ask("DELETE", ctURL("200", ""), nil).reason)
		c.done("DELETE", ctURL("200", ""), form{"force": "1"})
		require.Empty(t, c.h.Snapshot().Guests)
	})
}

// TestContainerLocks: the id is taken with the answer, a clone is there with a lock
// before its task, and its source cannot be changed meanwhile.
func TestContainerLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{TaskTime: 4 * time.Second})
		c.ct("200", nil)
		upid := c.ok("POST", ctURL("200", "/clone"), form{"newid": "201", "hostname": "copy"})
		require.Equal(t, "create", c.object(ctURL("201", "/config"))["lock"])
		require.Equal(t, "CT is locked (disk)", c.ask("PUT", ctURL("200", "/config"), form{"memory": "1024"}).reason)
		require.Equal(t, "OK", c.wait(upid.(string)))
		copied, source := c.object(ctURL("201", "/config")), c.object(ctURL("200", "/config"))
		require.Equal(t, "copy", copied["hostname"])
		require.Equal(t, "local-lvm:vm-201-disk-0,size=2G", copied["rootfs"])
		require.NotEqual(t, source["net0"], copied["net0"], "another hardware address")
		require.NotContains(t, source, "lock")
		c.h.Edit(func(e *pve.Edit) { e.Lock(200, "backup") })
		require.Equal(t, "CT is locked (backup)", c.task("POST", ctURL("200", "/status/start"), nil))
		require.Equal(t, "CT is locked (backup)", c.ask("DELETE", ctURL("200", ""), nil).reason)
	})
}

// TestContainerRoots: a subvolume where the storage has such, an image elsewhere;
// linked clones of templates where the storage can.
func TestContainerRoots(t *testing.T) {
	for kind, test := range map[string]struct{ root, base, clone string }{
		"zfspool": {"fast:subvol-200-disk-0,size=2G", "fast:basevol-200-disk-0,size=2G", "fast:basevol-200-disk-0/subvol-201-disk-0,size=2G"},
		"lvmthin": {"fast:vm-200-disk-0,size=2G", "fast:base-200-disk-0,size=2G", "fast:vm-201-disk-0,size=2G"},
		"rbd":     {"fast:vm-200-disk-0,size=2G", "fast:base-200-disk-0,size=2G", "fast:base-200-disk-0/vm-201-disk-0,size=2G"},
	} {
		t.Run(kind, func(t *testing.T) {
			fast, err := pve.ParseStorage("fast:" + kind + ":rootdir")
			require.NoError(t, err)
			c := newClient(t, pve.Config{Storages: append(pve.DefaultStorages(), fast)})
			c.ct("200", form{"rootfs": "fast:2"})
			require.Equal(t, test.root, c.object(ctURL("200", "/config"))["rootfs"])
			require.Len(t, c.list("/nodes/father/storage/fast/content?content=rootdir"), 1)
			c.ctTemplate("200")
			require.Equal(t, test.base, c.object(ctURL("200", "/config"))["rootfs"])
			require.Equal(t, "you can't start a CT if it's a template", c.task("POST", ctURL("200", "/status/start"), nil))
			c.done("POST", ctURL("200", "/clone"), form{"newid": "201"})
			require.Equal(t, test.clone, c.object(ctURL("201", "/config"))["rootfs"])
			linked := kind != "lvmthin"
			if linked {
				require.Contains(t, c.task("DELETE", ctURL("200", ""), nil), "is still in use by linked cloned")
			}
			c.done("DELETE", ctURL("201", ""), nil)
			c.done("DELETE", ctURL("200", ""), nil)
			require.Empty(t, c.h.Snapshot().Volumes["fast"])
		})
	}
}

// TestContainerRights: which features and mounts a token may set.
func TestContainerRights(t *testing.T) {
	c := newClient(t, pve.Config{})
	c.ct("200", nil)
	for why, test := range map[string]struct {
		set  form
		want string
	}{
		"nesting":         {form{"features": "nesting=1"}, "OK"},
		"another feature": {form{"features": "keyctl=1"}, "Permission check failed (changing feature flags (except nesting) is only allowed for root@pam)"},
		"a folder":        {form{"mp0": "/srv,mp=/srv"}, "Permission check failed (mount point type bind is only allowed for root@pam)"},
		"a device":        {form{"dev0": "/dev/kvm"}, "Permission check failed (configuring device passthrough is only allowed for root@pam)"},
		"a hook":          {form{"hookscript": "local:snippets/x"}, "Permission check failed (changing the hookscript is only allowed for root@pam)"},
		"no such storage": {form{"mp0": "nosuch:1,mp=/srv"}, "storage 'nosuch' does not exist"},
		"no containers":   {form{"mp0": "local:1,mp=/srv"}, "storage 'local' does not allow content type 'rootdir' (Container)"},
	} {
		require.Equal(t, test.want, c.ask("PUT", ctURL("200", "/config"), test.set).reason, why)
	}
	a := c.ask("POST", "/nodes/father/lxc", form{"vmid": "201", "ostemplate": "local:vztmpl/" + debianTemplate, "storage": "local"})
	require.Equal(t, map[string]string{"storage": "storage 'local' does not support container directories"}, a.errors)
	c.ok("POST", "/storage", form{"storage": "other", "type": "lvmthin", "vgname": "two", "thinpool": "two", "content": "rootdir"})
	c.done("POST", ctURL("200", "/move_volume"), form{"volume": "rootfs", "storage": "other", "delete": "1"})
	require.Equal(t, "other:vm-200-disk-0,size=2G", c.object(ctURL("200", "/config"))["rootfs"])
}

// TestPrivilegedContainers: since pve-container 6.0.6, which came with PVE 9.0, a
// container is unprivileged unless the request says otherwise, and that needs the right to
// change the host (PVE/API2/LXC.pm, create_vm). The configuration of a privileged one does not mention it.
func TestPrivilegedContainers(t *testing.T) {
	for _, test := range []struct {
		version, said string
		status        int
		unprivileged  string
	}{
		{"8.4", "", 200, ""},
		{"8.4", "0", 200, ""},
		{"8.4", "1", 200, "1"},
		{"9.1", "", 200, "1"},
		{"9.1", "0", 403, ""},
		{"9.1", "1", 200, "1"},
	} {
		t.Run(test.version+" "+test.said, func(t *testing.T) {
			c := newClient(t, pve.Config{Version: test.version})
			c.done("POST", "/nodes/father/aplinfo", form{"storage": "local", "template": debianTemplate})
			c.ok("POST", "/access/roles", form{"roleid": "Maker", "privs": "VM.Allocate,VM.Audit,VM.Config.Options,VM.Config.Disk,Datastore.AllocateSpace,Datastore.Audit"})
			c.ok("POST", "/access/users", form{"userid": "ops@pve"})
			token, ok := c.ok("POST", "/access/users/ops@pve/token/tk", form{"privsep": "0"}).(map[string]any)
			require.True(t, ok)
			for _, path := range []string{"/vms", "/storage"} {
				c.ok("PUT", "/access/acl", form{"path": path, "roles": "Maker", "users": "ops@pve"})
			}
			c = c.as("ops@pve!tk=" + fmt.Sprint(token["value"]))
			order := form{"vmid": "100", "ostemplate": "local:vztmpl/" + debianTemplate, "rootfs": "local-lvm:2"}
			if test.said != "" {
				order["unprivileged"] = test.said
			}
			a := c.ask("POST", "/nodes/father/lxc", order)
			require.Equal(t, test.status, a.status, a.raw)
			if test.status != 200 {
				require.Equal(t, "Permission check failed (/, Sys.Modify)", a.reason)
				return
			}
			require.Equal(t, "OK", c.wait(fmt.Sprint(a.data)))
			require.Equal(t, test.unprivileged, c.h.Snapshot().Guests[0].Config["unprivileged"])
		})
	}
}

// TestSystemOfContainers: type and architecture come from the files of the template, and
// not from its name or the order ($autodetect_type in PVE/LXC/Setup.pm,
// detect_elf_architecture in PVE/LXC/Tools.pm).
func TestSystemOfContainers(t *testing.T) {
	const noArch = "Falling back to amd64."
	for what, test := range map[string]struct {
		files map[string]string
		order form
		want  string
		log   string
	}{
		"by its word": {map[string]string{"etc/os-release": "NAME=\"x\"\nID='alpine'\n", "bin/sh": simtest.ELF("\xb7")}, nil, "alpine arm64", "Detected container architecture: arm64"},
		"by another word": {
			map[string]string{"usr/lib/os-release": "ID=\"rocky\"\n", "etc/os-release": "-> ../usr/lib/os-release", "etc/redhat-release": "9\n", "bin": "-> usr/bin", "usr/bin/sh": "-> bash", "usr/bin/bash": simtest.ELF("\x3e")},
			nil, "centos amd64", "Detected container architecture: amd64",
		},
		"by a file":             {map[string]string{"etc/os-release": "ID=mine\n", "etc/debian_version": "13.1\n"}, nil, "debian amd64", "unknown ID 'mine' in /etc/os-release file, trying fallback detection"},
		"by Ubuntu's own file":  {map[string]string{"etc/lsb-release": "DISTRIB_ID=Ubuntu\nDISTRIB_RELEASE=24.04\n", "etc/debian_version": "trixie/sid\n"}, nil, "ubuntu amd64", noArch},
		"by a folder":           {map[string]string{"nix/store/": ""}, nil, "nixos amd64", noArch},
		"by nothing":            {map[string]string{"bin/sh": simtest.ELF("\x03")}, nil, "unmanaged amd64", "/etc/os-release file not found and autodetection failed, falling back to 'unmanaged'"},
		"another one ordered":   {map[string]string{"etc/os-release": "ID=alpine\n"}, form{"ostype": "debian", "arch": "i386"}, "alpine i386", "got unexpected ostype (alpine != debian)"},
		"not managed":           {map[string]string{"etc/os-release": "ID=alpine\n", "bin/sh": simtest.ELF("\xb7")}, form{"ostype": "unmanaged"}, "unmanaged amd64", noArch},
		"not known":             {map[string]string{"etc/os-release": "ID=mine\n"}, nil, "unable to create CT 100 - unable to detect OS distribution", ""},
		"without its version":   {map[string]string{"etc/os-release": "ID=debian\n"}, nil, "unable to create CT 100 - unable to read version info", ""},
		"a link without an end": {map[string]string{"etc/os-release": "-> os-release", "etc/arch-release": ""}, nil, "archlinux amd64", noArch},
		"a script for a shell":  {map[string]string{"etc/os-release": "ID=gentoo\n", "etc/gentoo-release": "x\n", "bin/sh": "#!/bin/sh, a long one"}, nil, "gentoo amd64", noArch},
	} {
		t.Run(what, func(t *testing.T) {
			c := newClient(t, pve.Config{})
			content := simtest.RootArchive(test.files)
			require.Equal(t, "OK", c.uploaded("vztmpl", "ubuntu_arm64.tar.gz", string(content)))
			order := form{"vmid": "100", "ostemplate": "local:vztmpl/ubuntu_arm64.tar.gz", "rootfs": "local-lvm:1"}
			maps.Copy(order, test.order)
			got := c.task("POST", "/nodes/father/lxc", order)
			if got == "OK" {
				conf := c.object(ctURL("100", "/config"))
				got = conf["ostype"].(string) + " " + conf["arch"].(string)
			}
			require.Equal(t, test.want, got)
			if test.log != "" {
				require.Contains(t, c.log(), test.log)
			}
		})
	}
}

// TestSystemByName: what the simulator cannot unpack, or was never there, is named, and a
// download tells it by its content if the test's web has that.
func TestSystemByName(t *testing.T) {
	root := simtest.RootArchive(map[string]string{"etc/os-release": "ID=alpine\n"})
	for what, test := range map[string]struct{ name, content, want string }{
		"packed with zstd": {"fedora-41.tar.zst", "\x28\xb5\x2f\xfd and more", "fedora"},
		"without a system": {"mine.tar.xz", "\xfd7zXZ\x00 and more", "debian"},
		"its content":      {"fedora-41.tar.gz", string(root), "alpine"},
	} {
		t.Run(what, func(t *testing.T) {
			web := func(string) pve.Page {
				return pve.Page{Size: int64(len(test.content)), Content: []byte(test.content)}
			}
			for _, config := range []pve.Config{{}, {Web: web}} {
				c := newClient(t, config)
				if config.Web == nil {
					require.Equal(t, "OK", c.uploaded("vztmpl", test.name, test.content))
				} else {
					c.done("POST", "/nodes/father/storage/local/download-url", form{"content": "vztmpl", "filename": test.name, "url": "http://x.test/a"})
				}
				c.done("POST", "/nodes/father/lxc", form{"vmid": "100", "ostemplate": "local:vztmpl/" + test.name, "rootfs": "local-lvm:1"})
				require.Equal(t, test.want, c.object(ctURL("100", "/config"))["ostype"])
			}
		})
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
			page, err := content.PageOf(strings.NewReader(test.content))
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

// versionedCTs is a host of a version as the recordings have it, with one container.
func versionedCTs(t *testing.T, version string, more form) *client {
	t.Helper()
	local, err := pve.ParseStorage("local:dir:iso,vztmpl,backup,snippets:100:/var/lib/vz")
	require.NoError(t, err)
	all, err := pve.ParseStorage("vmstore:dir:images,rootdir:100:/srv/vmstore")
	require.NoError(t, err)
	c := newClient(t, pve.Config{Version: version, Storages: []pve.Storage{local, all}})
	order := form{"rootfs": "vmstore:1", "storage": "vmstore"}
	maps.Copy(order, more)
	c.ct("200", order)
	return c
}

func ctSet(params form, want string) step { return step{"PUT", ctURL("200", "/config"), params, want} }

// TestValuesOfContainers: what a value needs (update_pct_config in PVE/LXC/Config.pm, and
// after it update_lxc_config in PVE/LXC.pm, when all is stored).
func TestValuesOfContainers(t *testing.T) {
	c := versionedCTs(t, "9.2", nil)
	root := c.ticketed()
	c.steps(
		ctSet(form{"timezone": "Nowhere/City"}, "timezone: invalid format - invalid time zone 'Nowhere/City'"),
		ctSet(form{"timezone": "Europe/Vienna"}, "OK"),
		ctSet(form{"mp0": "vmstore:1,mp=/a,idmap=u:0:5:2;g:0:5:9;u:1:9:1"}, "500 invalid map entry 'u 1 9 1': container uid 1 is also mapped by entry 'u 0 5 2'"),
		ctSet(form{"mp0": "vmstore:iso/a.iso,mp=/a"}, "500 unable to use volume vmstore:iso/a.iso - content type needs to be 'rootdir'"),
		ctSet(form{"net1": "name=eth1,bridge=vmbr0,host-managed=1,ip6=auto"}, "500 net1: SLAAC is not supported for host-managed network configuration."),
		ctSet(form{"net7": "name=eth7,bridge=nosuch"}, "500 bridge 'nosuch' does not exist"),
	)
	require.Contains(t, c.object(ctURL("200", "/config"))["net7"], "bridge=nosuch")
	c.steps(
		ctSet(form{"memory": "640"}, "500 bridge 'nosuch' does not exist"),
		step{"POST", ctURL("200", "/status/start"), nil, "bridge 'nosuch' does not exist"},
		ctSet(form{"delete": "net7"}, "OK"),
	)
	require.InDelta(t, 640, c.object(ctURL("200", "/config"))["memory"], 0)
	root.steps(
		ctSet(form{"hookscript": "local:snippets/no.sh"}, "500 script 'local:snippets/no.sh' does not exist"),
		ctSet(form{"hookscript": "vmstore:200/vm-200-disk-0.raw"}, "500 'vmstore:200/vm-200-disk-0.raw' is not in the snippets directory"),
	)
}

// TestMountPointsAreTakenAsTheyAre: a mount point may name a volume that is not there, a
// root is stored as it was sent, and a volume that goes is kept as unused even where
// something else has it (vmconfig_apply_pending and apply_pending_mountpoint in
// PVE/LXC/Config.pm).
func TestMountPointsAreTakenAsTheyAre(t *testing.T) {
	c := versionedCTs(t, "9.2", nil)
	const root, other = "vmstore:200/vm-200-disk-0.raw", "vmstore:200/vm-200-disk-1.raw"
	shown := func(key string) any { return c.object(ctURL("200", "/config"))[key] }
	c.steps(
		ctSet(form{"mp0": "vmstore:0.5,mp=/a,backup=1"}, "OK"),
		ctSet(form{"mp1": "vmstore:200/vm-200-disk-9.raw,mp=/b,size=2G"}, "OK"),
		ctSet(form{"mp2": other + ",mp=/c,size=7G"}, "OK"),
		ctSet(form{"rootfs": root + ",ro=1"}, "OK"),
	)
	require.Equal(t, other+",mp=/a,backup=1,size=512M", shown("mp0"))
	require.Equal(t, "vmstore:200/vm-200-disk-9.raw,mp=/b", shown("mp1"))
	require.Equal(t, other+",mp=/c,size=512M", shown("mp2"))
	require.Equal(t, root+",ro=1", shown("rootfs"))
	require.InDelta(t, 4<<30, c.object(ctURL("200", "/status/current"))["maxdisk"], 0)
	require.Equal(t, "volume 'vmstore:200/vm-200-disk-9.raw' does not exist", c.task("POST", ctURL("200", "/status/start"), nil))
	c.steps(ctSet(form{"delete": "mp1,mp2"}, "OK"))
	require.Equal(t, "vmstore:200/vm-200-disk-9.raw", shown("unused0"))
	require.Nil(t, shown("unused1"), "mp0 has it")
	c.steps(
		ctSet(form{"mp0": other + ",mp=/a,ro=1"}, "OK"),
		ctSet(form{"delete": "unused0"}, "OK"),
		ctSet(form{"rootfs": "vmstore:8"}, "OK"),
	)
	require.Nil(t, shown("unused0"))
	require.Equal(t, "vmstore:8", shown("rootfs"))
	require.Equal(t, "unable to parse directory volume name '8'", c.task("POST", ctURL("200", "/status/start"), nil))
	c.ct("201", form{"rootfs": "vmstore:1", "storage": "vmstore"})
	c.steps(
		ctSet(form{"rootfs": root, "unused3": "vmstore:201/vm-201-disk-0.raw"}, "OK"),
		ctSet(form{"delete": "unused3"}, "OK"), // delete_mountpoint_volume frees only what is its own.
		step{"POST", ctURL("201", "/status/start"), nil, "OK"},
	)
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

// TestQuotasAtStart: only a start asks (vm_start in PVE/API2/LXC/Status.pm), and before it
// brings waiting changes into force.
func TestQuotasAtStart(t *testing.T) {
	const refused = "Quotas are not supported by unprivileged containers."
	c := versionedCTs(t, "9.2", form{"start": "1"})
	root := "vmstore:200/vm-200-disk-0.raw,size=1G"
	c.steps(
		ctSet(form{"rootfs": root + ",quota=1"}, "OK"),
		step{"POST", ctURL("200", "/status/reboot"), nil, "OK"},
		step{"POST", ctURL("200", "/status/stop"), nil, "OK"},
		step{"POST", ctURL("200", "/status/start"), nil, refused},
		ctSet(form{"rootfs": root}, "OK"),
		step{"POST", ctURL("200", "/status/start"), nil, "OK"},
	)
}

// TestGrownFileSystem: a file system that grew keeps the journal and the room for
// descriptors that it was made with, so that more of it is usable than of a new one
// (resize2fs; the figures are those of a real one).
func TestGrownFileSystem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := likeRecorded(t)
		c.done("POST", "/nodes/father/storage/vmstore/download-url", form{"content": "vztmpl", "filename": "alpine_1_amd64.tar.gz", "url": "https://x.test/a"})
		for vmid, size := range map[string]string{"200": "1", "201": "2"} {
			c.done("POST", "/nodes/father/lxc", form{"vmid": vmid, "ostemplate": "vmstore:vztmpl/alpine_1_amd64.tar.gz", "rootfs": "vmstore:" + size})
		}
		c.done("PUT", "/nodes/father/lxc/200/resize", form{"disk": "rootfs", "size": "+1G"})
		for vmid, usable := range map[string]int{"200": 2077073408, "201": 2040373248} {
			c.done("POST", "/nodes/father/lxc/"+vmid+"/status/start", nil)
			require.EqualValues(t, usable, c.object("/nodes/father/lxc/" + vmid + "/status/current")["maxdisk"])
		}
	})
}

// TestContainersOfVersions: what pve-container 5.3.5 of PVE 8.4, 6.0 of 9.1 and 6.1.10 of
// 9.2 say (PVE/API2/LXC.pm, PVE/LXC.pm, PVE/Storage/Plugin.pm).
func TestContainersOfVersions(t *testing.T) {
	const (
		copies   = "500 Cannot do full clones on a running container without snapshots"
		snapshot = "500 Full clone of a running container is only possible from a snapshot"
	)
	for _, test := range []struct {
		version, clone, first, resize string
		pressure                      any
	}{
		{"8.4", copies, "create full clone of mountpoint rootfs (vmstore:200/vm-200-disk-0.raw)", "", nil},
		{"9.1", copies, "create full clone of mountpoint rootfs (vmstore:200/vm-200-disk-0.raw)", " '--preallocation=off'", "0.00"},
		{"9.2", snapshot, "creating a clone of container 200 with ID 201", " '--preallocation=off'", "0.00"},
	} {
		t.Run(test.version, func(t *testing.T) {
			c := versionedCTs(t, test.version, form{"hostname": "x", "cpulimit": "1", "start": "1"})
			status := c.object(ctURL("200", "/status/current"))
			require.Equal(t, []any{"1", test.pressure, test.pressure}, []any{status["cpus"], status["pressurecpusome"], status["pressurememoryfull"]})
			c.steps(
				step{"POST", ctURL("200", "/clone"), form{"newid": "201"}, test.clone},
				step{"POST", ctURL("200", "/status/stop"), nil, "OK"},
				step{"POST", ctURL("200", "/clone"), form{"newid": "201"}, "OK"},
			)
			require.Equal(t, test.first, c.log()[0])
			require.NotContains(t, c.object(ctURL("200", "/status/current")), "pressurecpusome")
			require.Equal(t, "1", c.list("/nodes/father/lxc")[0]["cpus"])
			c.ctTemplate("200")
			file := "/srv/vmstore/images/200/base-200-disk-0.raw"
			refused := "command '/usr/bin/qemu-img resize" + test.resize + " -f raw " + file + " 1074790400' failed: exit code 1"
			c.steps(
				step{"PUT", ctURL("200", "/resize"), form{"disk": "rootfs", "size": "+1M"}, refused},
				step{"POST", ctURL("200", "/template"), nil, "500 you can't convert a template to a template"},
				ctSet(form{"cpulimit": "0", "tags": "b,a B"}, "OK"),
			)
			require.Equal(t, "qemu-img: Could not open '"+file+"': Could not open '"+file+"': Operation not permitted", c.logOf("resize")[0])
			require.InDelta(t, 64, c.object(ctURL("200", "/status/current"))["cpus"], 0)
			require.Equal(t, "a;b", c.object(ctURL("200", "/config"))["tags"])
		})
	}
}

// TestNamesOfContainers: in which order a change is checked: the rights to delete and to
// revert, the names, the rights to set (update_vm in PVE/API2/LXC/Config.pm); and that
// those without a name have one from their creation (create_vm in PVE/API2/LXC.pm).
func TestNamesOfContainers(t *testing.T) {
	c := versionedCTs(t, "9.2", nil)
	c.steps(
		ctSet(form{"delete": "nosuch,dev0"}, "403 Permission check failed (configuring device passthrough is only allowed for root@pam)"),
		ctSet(form{"delete": "nosuch", "dev0": "/dev/kvm"}, "delete: unknown option 'nosuch'"),
		ctSet(form{"delete": "tty", "revert": "tty"}, "delete: you can't use '-delete tty' and '-revert tty' at the same time"),
		ctSet(form{"delete": "tty", "digest": "0"}, "500 detected modified configuration - file changed by other user? Try again."),
		step{"GET", "/nodes/father/lxc/999", nil, "500 Configuration file 'nodes/father/lxc/999.conf' does not exist"},
		step{"GET", "/nodes/father/lxc/999/status", nil, "500 Configuration file 'nodes/father/lxc/999.conf' does not exist"},
		step{"POST", "/nodes/father/lxc", form{"vmid": "201", "ostemplate": "local:vztmpl/" + debianTemplate, "storage": "vmstore"}, "OK"},
		step{"POST", "/nodes/father/lxc", form{"vmid": "202", "ostemplate": "local:vztmpl/" + debianTemplate, "rootfs": "vmstore:202/vm-202-disk-0.raw"}, "unable to create CT 202 - volume 'vmstore:202/vm-202-disk-0.raw' does not exist"},
		step{"POST", "/nodes/father/lxc", form{"vmid": "202", "ostemplate": "local:vztmpl/" + debianTemplate, "rootfs": "vmstore:1", "mp0": "8"}, "mp0: invalid format - format error\nmp0.mp: property is missing and it is not optional"},
	)
	conf := c.object(ctURL("201", "/config"))
	require.Equal(t, []any{"CT201", 512.0, 512.0, 1.0}, []any{conf["hostname"], conf["memory"], conf["swap"], conf["unprivileged"]})
}

// TestEnvironmentIsHidden: it may contain secrets, so a user with VM.Audit alone does not see it
// (delete_read_restricted_options in PVE/LXC.pm).
func TestEnvironmentIsHidden(t *testing.T) {
	c := versionedCTs(t, "9.2", nil)
	c.steps(
		ctSet(form{"env": "A=secret"}, "OK"),
		step{"POST", "/access/users", form{"userid": "ops@pve"}, "OK"},
		step{"PUT", "/access/acl", form{"path": "/vms", "roles": "PVEAuditor", "users": "ops@pve"}, "OK"},
	)
	token, ok := c.ok("POST", "/access/users/ops@pve/token/tk", form{"privsep": "0"}).(map[string]any)
	require.True(t, ok)
	ops := c.as("ops@pve!tk=" + fmt.Sprint(token["value"]))
	require.Equal(t, "A=secret", c.object(ctURL("200", "/config"))["env"])
	require.NotContains(t, ops.object(ctURL("200", "/config")), "env")
	require.NotContains(t, ops.ask("GET", ctURL("200", "/pending"), nil).raw, "secret")
}

// TestMovingContainers: what speaks against it (migrate_vm_precondition in
// PVE/API2/LXC.pm, prepare in PVE/LXC/Migrate.pm), and features (has_feature in
// PVE/LXC/Config.pm).
func TestMovingContainers(t *testing.T) {
	c := newClient(t, pve.Config{Nodes: []string{"mother"}, Offline: []string{"mother"}})
	c.ct("200", form{"start": "1"})
	require.Equal(t, map[string]any{"running": 1.0, "allowed-nodes": []any{"mother"}, "not-allowed-nodes": map[string]any{}}, c.object(ctURL("200", "/migrate")))
	require.Equal(t, map[string]any{"hasFeature": 1.0}, c.object(ctURL("200", "/feature?feature=snapshot")))
	c.h.Edit(func(e *pve.Edit) { e.Lock(200, "backup") })
	c.steps(step{"GET", ctURL("200", "/migrate"), nil, "500 CT is locked (backup)"})

	c = newClient(t, pve.Config{Nodes: []string{"mother"}})
	c.ct("200", form{"start": "1"})
	c.steps(
		step{"POST", ctURL("200", "/migrate"), form{"target": "mother"}, "500 can't migrate running container without --online or --restart"},
		step{"POST", ctURL("200", "/migrate"), form{"target": "mother", "online": "1"}, "migration aborted"},
		step{"POST", ctURL("200", "/migrate"), form{"target": "mother", "restart": "1"}, "OK"},
	)
}

// TestPluggingContainers: a network device that cannot be plugged into a container that
// runs is refused, and nothing of the call is kept (vmconfig_hotplug_pending in
// PVE/LXC/Config.pm, update_vm in PVE/API2/LXC/Config.pm).
func TestPluggingContainers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := likeRecorded(t)
		c.done("POST", "/nodes/father/aplinfo", form{"storage": "local", "template": debianTemplate})
		c.done("POST", "/nodes/father/lxc", form{"vmid": "200", "ostemplate": "local:vztmpl/" + debianTemplate, "rootfs": "vmstore:1", "net0": "name=eth0,bridge=vmbr0"})
		c.done("POST", ctURL("200", "/status/start"), nil)
		set := func(device, want string) step {
			return step{"PUT", ctURL("200", "/config"), form{"net1": device, "cores": "1"}, want}
		}
		before := c.object(ctURL("200", "/config"))
		c.steps(
			set("name=eth1,bridge=vmbr9", "net1: unable to hotplug net1: bridge 'vmbr9' does not exist"),
			set("name=eth0,bridge=vmbr0", "net1: unable to hotplug net1: command 'lxc-device -n 200 add veth200i1p eth0' failed: exit code 1"),
		)
		for key, value := range c.object(ctURL("200", "/config")) {
			if before[key] != value && key != "net0" {
				t.Errorf("%s was %v and is %v", key, before[key], value)
			}
		}
		c.steps(set("name=eth1,bridge=vmbr0", "OK"))
	})
}

// TestUpdatingCardsOfContainers: where a change of the cable alone cannot be plugged
// nothing is kept; another address takes the old device out first; and what PVE only finds
// out when it writes the configuration of LXC is stored by then (update_net,
// update_lxc_config in PVE/LXC.pm).
func TestUpdatingCardsOfContainers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{})
		const card = "name=eth0,bridge=vmbr0,hwaddr=BC:24:11:00:00:01"
		c.ct("200", form{"net0": card})
		c.done("POST", ctURL("200", "/status/start"), nil)
		put := func(value, want string) {
			c.steps(step{"PUT", ctURL("200", "/config"), form{"net0": value, "cores": "1"}, want})
		}
		stored := func() (value, pending any) {
			value, pending, _ = c.pendingOf(ctURL("200", "/pending"), "net0")
			return value, pending
		}
		put("name=eth0,bridge=vmbr9,hwaddr=BC:24:11:00:00:01", "net0: unable to hotplug net0: bridge 'vmbr9' is neither a linux nor an OVS bridge!")
		value, pending := stored()
		require.Equal(t, card+",type=veth", value)
		require.Nil(t, pending)
		require.NotContains(t, c.object(ctURL("200", "/config")), "cores")

		put("name=eth0,bridge=vmbr9,hwaddr=BC:24:11:00:00:02", "net0: unable to hotplug net0: bridge 'vmbr9' does not exist")
		value, pending = stored()
		require.Nil(t, value, "the old device is gone")
		require.Contains(t, pending, "BC:24:11:00:00:02")
		put(card, "OK")

		put(card+",mtu=9000", "500 net0: MTU size '9000' is bigger than bridge MTU '1500'")
		value, _ = stored()
		require.NotContains(t, value, "mtu")

		put("name=eth0,bridge=vmbr9,hwaddr=BC:24:11:00:00:01,link_down=1", "500 bridge 'vmbr9' does not exist")
		value, pending = stored()
		require.Contains(t, value, "bridge=vmbr9", "stored all the same")
		require.Nil(t, pending)
		put(card, "OK")
	})
}

// TestDrivesWithoutMediumAreNotPlugged: PVE activates the volume of a drive before it plugs
// it, and none is no volume (vmconfig_update_disk in PVE/QemuServer.pm, parse_volume_id in
// PVE/Storage/Plugin.pm).
func TestDrivesWithoutMediumAreNotPlugged(t *testing.T) {
	for _, version := range []string{"8.4", "9.2"} {
		synctest.Test(t, func(t *testing.T) {
			c := newClient(t, pve.Config{Version: version})
			c.ok("POST", "/nodes/father/qemu", form{"vmid": "100", "scsi0": "local-lvm:1"})
			c.done("POST", vmURL("100", "/status/start"), nil)
			c.uploaded("iso", "a.iso", "x")
			put := func(key, value, want string) {
				c.steps(step{"PUT", vmURL("100", "/config"), form{key: value}, want})
			}
			waits := func(key string) bool {
				_, pending, _ := c.pendingOf(vmURL("100", "/pending"), key)
				return pending != nil
			}
			put("scsi7", "none,media=cdrom", "scsi7: hotplug problem - unable to parse volume ID 'none'")
			require.True(t, waits("scsi7"))
			put("scsi8", "cdrom,media=cdrom", "scsi8: hotplug problem - unable to parse volume ID 'cdrom'")
			put("scsi9", "local:iso/a.iso,media=cdrom", "OK")
			require.False(t, waits("scsi9"))
			put("scsi9", "none,media=cdrom", "OK") // another medium in a drive that is there
			require.False(t, waits("scsi9"))
			for _, key := range []string{"ide0", "sata1"} {
				put(key, "none,media=cdrom", "OK")
				require.True(t, waits(key), key)
			}
		})
	}
}

// TestRevertOfContainers: only a revert takes back what waits. A deletion takes back a
// deletion that waits by nothing, and of a value that waits it drops neither that value
// nor, where it is never in force, leaves anything of itself (update_pct_config in
// PVE/LXC/Config.pm, cleanup_pending in PVE/AbstractConfig.pm).
func TestRevertOfContainers(t *testing.T) {
	for _, version := range []string{"8.4", "9.2"} {
		synctest.Test(t, func(t *testing.T) {
			c := newClient(t, pve.Config{Version: version})
			c.ct("200", form{"cmode": "tty"})
			c.done("POST", ctURL("200", "/status/start"), nil)
			put := func(params form, want string) { c.steps(step{"PUT", ctURL("200", "/config"), params, want}) }
			is := func(key string, value, pending, gone any) {
				t.Helper()
				v, p, g := c.pendingOf(ctURL("200", "/pending"), key)
				require.Equal(t, []any{value, pending, gone}, []any{v, p, g}, key)
			}
			put(form{"tty": "1", "cmode": "shell", "features": "nesting=1"}, "OK")
			is("tty", nil, float64(1), nil)
			put(form{"delete": "tty"}, "OK")
			is("tty", nil, float64(1), nil)
			put(form{"delete": "cmode"}, "OK")
			is("cmode", "tty", "shell", float64(1))
			put(form{"cmode": "shell"}, "OK") // sets what waits already, and takes back the deletion
			is("cmode", "tty", "shell", nil)
			put(form{"cmode": "tty"}, "OK") // what is in force waits for nothing
			is("cmode", "tty", nil, nil)
			put(form{"delete": "cmode"}, "OK")
			put(form{"revert": "tty cmode", "tags": "x"}, "OK")
			is("cmode", "tty", nil, nil)
			is("tty", nil, nil, nil)
			put(form{"revert": "nosuch"}, "revert: unknown option 'nosuch'")
			put(form{"revert": "tty", "tty": "2"}, "revert: you can't use '-tty' and '-revert tty' at the same time")
			put(form{"revert": "tty", "delete": "tty"}, "delete: you can't use '-delete tty' and '-revert tty' at the same time")
			put(form{"revert": "features"}, "OK")
			put(form{"revert": "features"}, "OK") // nothing waits any more
			put(form{"net10": "name=eth10,bridge=vmbr0"}, "OK")
			put(form{"delete": "net10"}, "OK") // a pattern of one digit takes cards out of what runs
			_, _, gone := c.pendingOf(ctURL("200", "/pending"), "net10")
			require.EqualValues(t, 1, gone)
			c.ok("POST", "/access/users", form{"userid": "op@pve"})
			c.ok("PUT", "/access/acl", form{"path": "/", "users": "op@pve", "roles": "PVEVMAdmin"})
			op := c.as("op@pve!own=" + c.ok("POST", "/access/users/op@pve/token/own", form{"privsep": "0"}).(map[string]any)["value"].(string))
			require.Equal(t, 403, op.ask("PUT", ctURL("200", "/config"), form{"revert": "hookscript"}).status, "a revert takes what a deletion takes")
		})
	}
}
