package pve_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// TestHibernation: a VM that is suspended to disk leaves its memory on a volume, with
// what was running in its configuration, and takes it back at its start (vm_suspend
// and vm_start_nolock in PVE/QemuServer.pm, __snapshot_save_vmstate in
// PVE/QemuConfig.pm, get_cpu_options in PVE/QemuServer/CPUConfig.pm).
func TestHibernation(t *testing.T) {
	for cpu, argument := range map[string]string{
		"":                        "kvm64,enforce,+kvm_pv_eoi,+kvm_pv_unhalt,+lahf_lm,+sep",
		"x86-64-v2-AES":           "qemu64,+aes,enforce,+kvm_pv_eoi,+kvm_pv_unhalt,+pni,+popcnt,+sse4.1,+sse4.2,+ssse3",
		"host":                    "host,+kvm_pv_eoi,+kvm_pv_unhalt",
		"qemu64,flags=+aes;-pcid": "qemu64,+aes,enforce,+kvm_pv_eoi,+kvm_pv_unhalt,-pcid",
	} {
		synctest.Test(t, func(t *testing.T) {
			c := likeRecorded(t)
			params := form{"vmid": "100", "memory": "512", "scsi0": "vmstore:1,format=qcow2", "ide2": "vmstore:cloudinit"}
			if cpu != "" {
				params["cpu"] = cpu
			}
			c.done("POST", "/nodes/father/qemu", params)
			c.done("POST", vmURL("100", "/status/start"), nil)
			c.done("POST", vmURL("100", "/status/suspend"), form{"todisk": "1"})
			conf := c.object(vmURL("100", "/config"))
			require.Equal(t, "suspended", conf["lock"])
			require.Equal(t, argument, conf["runningcpu"])
			require.Contains(t, conf["runningmachine"], "pc-i440fx-")
			require.Regexp(t, `^vmstore:100/vm-100-state-suspend-\d{4}-\d\d-\d\d\.raw$`, conf["vmstate"])
			require.Equal(t, "stopped", c.object(vmURL("100", "/status/current"))["status"])
			require.Len(t, c.list("/nodes/father/storage/vmstore/content?vmid=100&content=images"), 3)

			upid, _ := c.ok("POST", vmURL("100", "/status/resume"), nil).(string)
			require.Equal(t, "OK", c.wait(upid))
			var log []string
			for _, task := range c.h.Snapshot().Tasks {
				if task.UPID == upid {
					log = task.Log
				}
			}
			require.Equal(t, []string{"generating cloud-init ISO", "Resuming suspended VM", "Resumed VM, removing state", "TASK OK"}, log)
			conf = c.object(vmURL("100", "/config"))
			for _, key := range []string{"lock", "vmstate", "runningcpu", "runningmachine"} {
				require.NotContains(t, conf, key)
			}
			require.Len(t, c.list("/nodes/father/storage/vmstore/content?vmid=100&content=images"), 2)
		})
	}
}

// TestUsersAsListed: the type of a realm is told where there is one, the tokens of a
// user without any are null, and who manages a group sees its members
// (PVE/API2/User.pm).
func TestUsersAsListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{Version: "8.4"})
		c.ok("POST", "/access/domains", form{"realm": "firm", "type": "ldap", "base_dn": "dc=a", "server1": "ldap.test", "user_attr": "uid"})
		c.ok("POST", "/access/groups", form{"groupid": "devs"})
		for userid, groups := range map[string]string{"lead@pve": "", "dev@firm": "devs", "other@nosuch": ""} {
			c.ok("POST", "/access/users", form{"userid": userid, "groups": groups})
		}
		types, tokens := map[string]any{}, map[string]any{}
		for _, user := range c.list("/access/users?full=1") {
			id, _ := user["userid"].(string)
			types[id], tokens[id] = user["realm-type"], user["tokens"]
			require.Contains(t, user, "tokens")
		}
		require.Equal(t, map[string]any{"root@pam": "pam", "lead@pve": "pve", "dev@firm": "ldap", "other@nosuch": nil}, types)
		require.Nil(t, tokens["dev@firm"])
		require.Len(t, tokens["root@pam"], 1)
		user := c.object("/access/users/lead@pve")
		require.Contains(t, user, "tokens")
		require.Nil(t, user["tokens"])

		c.ok("PUT", "/access/acl", form{"path": "/access/groups/devs", "roles": "PVEUserAdmin", "users": "lead@pve"})
		made, _ := c.ok("POST", "/access/users/lead@pve/token/own", form{"privsep": "0"}).(map[string]any)
		value, _ := made["value"].(string)
		var seen []any
		for _, user := range c.as("lead@pve!own=" + value).list("/access/users") {
			seen = append(seen, user["userid"])
		}
		require.Equal(t, []any{"dev@firm"}, seen)
	})
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
			// PVE/API2/HA/Resources.pm looks for the type of a resource first.
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
