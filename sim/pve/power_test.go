package pve_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// TestPower: who obeys the power button and who does not.
func TestPower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{})
		c.image()
		c.vm("100", nil)
		c.done("POST", "/nodes/father/qemu", form{"vmid": "101", "scsi0": "local-lvm:1"})
		running := func(vmid int) bool {
			g, found := c.h.Snapshot().Guest(vmid)
			require.True(t, found)
			return g.Running
		}
		for _, vmid := range []string{"100", "101"} {
			c.done("POST", vmURL(vmid, "/status/shutdown"), nil)
			require.Equal(t, "VM "+vmid+" not running", c.ask("POST", vmURL(vmid, "/status/reboot"), nil).reason)
			c.done("POST", vmURL(vmid, "/status/start"), nil)
			require.Equal(t, "VM "+vmid+" already running", c.task("POST", vmURL(vmid, "/status/start"), nil))
			time.Sleep(time.Minute)
		}
		began := time.Now()
		c.done("POST", vmURL("100", "/status/shutdown"), nil)
		require.Less(t, time.Since(began), time.Second)
		require.False(t, running(100))

		require.Equal(t, "VM quit/powerdown failed - got timeout", c.task("POST", vmURL("101", "/status/shutdown"), form{"timeout": "7"}))
		require.True(t, running(101), "an empty disk has no system that could obey")
		c.done("POST", vmURL("101", "/status/shutdown"), form{"timeout": "3", "forceStop": "1"})
		require.False(t, running(101))
	})
}

// TestQuickStart: a start right after a stop comes before the cleaning up after the old
// process. That gives up on 8.4, and on 9.2 it waits for half a minute with the lock file.
func TestQuickStart(t *testing.T) {
	for version, says := range map[string]string{"8.4": "", "9.2": "can't lock file '/var/lock/qemu-server/lock-100.conf' - got timeout"} {
		t.Run(version, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newClient(t, pve.Config{TaskTime: time.Second, Version: version})
				c.done("POST", "/nodes/father/qemu", form{"vmid": "100"})
				c.done("POST", vmURL("100", "/status/start"), nil)
				c.done("POST", vmURL("100", "/status/stop"), nil)
				c.done("POST", vmURL("100", "/status/start"), nil)
				time.Sleep(6 * time.Second)
				answer := c.ask("PUT", vmURL("100", "/config"), form{"name": "x"})
				require.True(t, says == "" && answer.status == 200 || strings.HasPrefix(answer.reason, says) && says != "", answer.reason)
				time.Sleep(30 * time.Second)
				c.ok("PUT", vmURL("100", "/config"), form{"name": "y"})
			})
		})
	}
}

// TestLogOfAStart: the lines of a start that fails, in the order of the recorded ones.
func TestLogOfAStart(t *testing.T) {
	const plug = "kvm: -netdev type=tap,id=net0,ifname=tap100i0,script=/usr/libexec/qemu-server/pve-bridge,downscript=/usr/libexec/qemu-server/pve-bridgedown: network script /usr/libexec/qemu-server/pve-bridge failed with status "
	for name, test := range map[string]struct {
		version, net, address string
		tpm                   bool
		log                   []string
	}{
		"8.4, no bridge":    {"8.4", "virtio,bridge=nosuch", "", false, []string{"bridge 'nosuch' does not exist", plug + "512", "TASK ERROR: start failed: QEMU exited with code 1"}},
		"9.2, no bridge":    {"9.2", "virtio,bridge=nosuch", "", false, []string{"TASK ERROR: bridge 'nosuch' does not exist"}},
		"9.2, another card": {"9.2", "e1000,bridge=nosuch", "", false, []string{"bridge 'nosuch' does not exist", plug + "512", "TASK ERROR: start failed: QEMU exited with code 1"}},
		"no port": {"9.2", "virtio,bridge=vmbr0,tag=7", "10.0.0.1/24", true, []string{
			"no physical interface on bridge 'vmbr0'", plug + "6400", "stopping swtpm instance", "TASK ERROR: start failed: QEMU exited with code 1",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClient(t, pve.Config{Version: test.version, Address: test.address})
			params := form{"vmid": "100", "net0": test.net}
			if test.tpm {
				params["tpmstate0"] = "local-lvm:1,version=v2.0"
			}
			c.done("POST", "/nodes/father/qemu", params)
			upid := c.ok("POST", vmURL("100", "/status/start"), nil).(string)
			c.wait(upid)
			lines := c.list("/nodes/father/tasks/" + upid + "/log")
			require.Len(t, lines, len(test.log), "%v", lines)
			for i, line := range test.log {
				require.Contains(t, lines[i]["t"], line)
			}
		})
	}
}

// TestStartFailures: the task says why a VM does not start.
func TestStartFailures(t *testing.T) {
	tests := map[string]struct {
		create form
		edit   func(*pve.Edit)
		status string
	}{
		"no such bridge": {form{"net0": "virtio,bridge=vmbr9"}, nil, "bridge 'vmbr9' does not exist"},
		"NUMA memory":    {form{"numa": "1", "numa0": "cpus=0,memory=100"}, nil, "total memory for NUMA nodes must be equal to vm static memory"},
		"NUMA host":      {form{"numa": "1", "numa0": "cpus=0,memory=512,hostnodes=5,policy=bind"}, nil, "host NUMA node5 doesn't exist"},
		"too many cores": {form{"cores": "65"}, nil, "MAX 64 vcpus allowed per VM on this node"},
		"volume gone":    {form{"scsi0": "local-lvm:1"}, func(e *pve.Edit) { e.RemoveVolume("local-lvm:vm-100-disk-0") }, "volume 'local-lvm:vm-100-disk-0' does not exist"},
		"locked":         {nil, func(e *pve.Edit) { e.Lock(100, "backup") }, "VM is locked (backup)"},
		"a template":     {form{"template": "1"}, nil, "you can't start a vm if it's a template"},
		"no quorum":      {nil, func(e *pve.Edit) { e.Quorum(false) }, "cluster not ready - no quorum?"},
		"gone":           {nil, func(e *pve.Edit) { e.Delete(100) }, "Configuration file 'nodes/father/qemu-server/100.conf' does not exist"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := newClient(t, pve.Config{})
			params := form{"vmid": "100"}
			maps.Copy(params, test.create)
			c.done("POST", "/nodes/father/qemu", params)
			if test.edit != nil {
				c.h.Edit(test.edit)
			}
			require.Equal(t, test.status, c.task("POST", vmURL("100", "/status/start"), nil))
		})
	}
}

// tasksOf are the types and users of the tasks about VM 100, and how they ended.
func tasksOf(h *pve.Host) (all []string) {
	for _, t := range h.Snapshot().Tasks {
		if t.ID == "100" {
			all = append(all, t.Type+" "+t.User+" "+t.Status)
		}
	}
	return all
}

// TestReboot: the task of a reboot ends when the VM has stopped. A task of root starts it
// 2 to 6 seconds later, which may fail.
func TestReboot(t *testing.T) {
	for name, test := range map[string]struct {
		set     form
		managed bool
		ends    []string
		runs    bool
	}{
		"plain":     {nil, false, []string{"qmstart root@pam OK"}, true},
		"a pending": {form{"cores": "2"}, false, []string{"qmstart root@pam OK"}, true},
		"NUMA":      {form{"numa": "1", "numa0": "cpus=0,memory=5"}, false, []string{"qmstart root@pam total memory for NUMA nodes must be equal to vm static memory"}, false},
		"under HA":  {nil, true, []string{"hastart root@pam OK", "qmstart root@pam OK"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newClient(t, pve.Config{TaskTime: time.Second})
				c.done("POST", "/nodes/father/storage/local/download-url", form{"content": "import", "filename": "x.qcow2", "url": "https://images.example/x.qcow2"})
				c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "scsi0": "local-lvm:0,import-from=local:import/x.qcow2"})
				c.done("POST", vmURL("100", "/status/start"), nil)
				if test.managed {
					c.ok("POST", "/cluster/ha/resources", form{"sid": "vm:100"})
				}
				time.Sleep(20 * time.Second)
				if test.set != nil {
					c.ok("PUT", vmURL("100", "/config"), test.set)
				}
				before := len(tasksOf(c.h))
				pid := c.object(vmURL("100", "/status/current"))["pid"]
				c.done("POST", vmURL("100", "/status/reboot"), nil)
				ended := time.Now()
				require.Equal(t, "stopped", c.object(vmURL("100", "/status/current"))["status"])
				require.Empty(t, c.h.Snapshot().Guests[0].Pending, "applied when it stopped")
				var follows time.Duration
				for len(tasksOf(c.h)) == before+1 {
					time.Sleep(100 * time.Millisecond)
					follows = time.Since(ended)
				}
				require.GreaterOrEqual(t, follows, 2*time.Second)
				require.LessOrEqual(t, follows, 6100*time.Millisecond)
				time.Sleep(time.Minute)
				after := tasksOf(c.h)[before+1:]
				slices.Sort(after)
				require.Equal(t, test.ends, after)
				now := c.object(vmURL("100", "/status/current"))
				require.Equal(t, test.runs, now["status"] == "running")
				require.NotEqual(t, pid, now["pid"])
			})
		})
	}
}

// TestRebootIsRefused as a shutdown is, and nothing starts the VM later.
func TestRebootIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{TaskTime: time.Second})
		c.done("POST", "/nodes/father/qemu", form{"vmid": "100"})
		c.done("POST", vmURL("100", "/status/start"), nil)
		c.done("POST", vmURL("100", "/status/suspend"), nil)
		require.Equal(t, "VM is paused - cannot shutdown", c.ask("POST", vmURL("100", "/status/reboot"), nil).reason)
		c.done("POST", vmURL("100", "/status/resume"), nil)
		require.Equal(t, "VM quit/powerdown failed - got timeout", c.task("POST", vmURL("100", "/status/reboot"), form{"timeout": "5"}))
		c.done("POST", vmURL("100", "/status/stop"), nil)
		time.Sleep(time.Minute)
		require.Equal(t, "stopped", c.object(vmURL("100", "/status/current"))["status"], "the next end is no reboot")
		c.done("POST", vmURL("100", "/status/start"), nil)
		c.done("POST", vmURL("100", "/status/suspend"), nil)
		began := time.Now()
		c.done("POST", vmURL("100", "/status/shutdown"), form{"forceStop": "1", "timeout": "100"})
		require.Less(t, time.Since(began), 10*time.Second, "one that is paused is stopped at once")
	})
}

// TestPausedIsBroadcast: the list of the cluster shows what QEMU says, that of the node
// only with the option full (PVE/Service/pvestatd.pm; PVE/QemuServer.pm, vmstatus).
func TestPausedIsBroadcast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{})
		c.done("POST", "/nodes/father/qemu", form{"vmid": "100"})
		c.done("POST", vmURL("100", "/status/start"), nil)
		for _, state := range []string{"paused", "io-error", "prelaunch", "suspended"} {
			c.h.Edit(func(e *pve.Edit) { e.QMP(100, state) })
			time.Sleep(11 * time.Second)
			require.Equal(t, state, c.list("/cluster/resources?type=vm")[0]["status"])
			require.Equal(t, "running", c.list("/nodes/father/qemu")[0]["status"])
			require.Nil(t, c.list("/nodes/father/qemu")[0]["qmpstatus"])
			require.Equal(t, state, c.list("/nodes/father/qemu?full=1")[0]["qmpstatus"])
			require.Equal(t, state, c.object(vmURL("100", "/status/current"))["qmpstatus"])
		}
		c.done("POST", vmURL("100", "/status/resume"), nil)
		require.Equal(t, "running", c.object(vmURL("100", "/status/current"))["qmpstatus"])
	})
}

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
