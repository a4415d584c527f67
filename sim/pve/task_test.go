package pve_test

import (
	"fmt"
	"net/http"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// TestTaskLife: a create holds its id from the answer on, and all else comes at
// the end of the task.
func TestTaskLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{TaskTime: 4 * time.Second})
		c.image()
		upid := fmt.Sprint(c.ok("POST", "/nodes/father/qemu", form{"vmid": "100", "scsi0": "local-lvm:0,import-from=local:import/debian.qcow2"}))
		require.Regexp(t, `^UPID:father:[0-9A-F]{8}:[0-9A-F]{8}:[0-9A-F]{8}:qmcreate:100:root@pam!sim:$`, upid)
		config := c.object(vmURL("100", "/config"))
		require.Len(t, config, 2)
		require.Equal(t, "create", config["lock"])
		path := "/nodes/father/tasks/" + url.PathEscape(upid)
		require.Equal(t, "running", c.object(path + "/status")["status"])
		require.NotContains(t, c.object(path+"/status"), "exitstatus")
		require.Empty(t, c.list("/nodes/father/tasks?vmid=100"), "the archive has only what is over")
		require.Equal(t, "RUNNING", c.list("/nodes/father/tasks?source=active")[0]["status"])
		a := c.ask("POST", "/nodes/father/qemu", form{"vmid": "100"})
		require.Equal(t, "unable to create VM 100 - VM 100 already exists on node 'father'", a.reason)
		require.Empty(t, c.h.Snapshot().Volumes["local-lvm"])

		time.Sleep(4 * time.Second)
		require.Equal(t, "OK", c.object(path + "/status")["exitstatus"])
		config = c.object(vmURL("100", "/config"))
		require.NotContains(t, config, "lock")
		require.Contains(t, config["scsi0"], "local-lvm:vm-100-disk-0,size=")
		require.Equal(t, "OK", c.list("/nodes/father/tasks?vmid=100")[0]["status"])
		lines := c.list(path + "/log")
		require.Equal(t, "TASK OK", lines[len(lines)-1]["t"])
	})
}

// TestTaskTimes: single types of task may take another time.
func TestTaskTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{TaskTime: time.Second, TaskTimes: map[string]time.Duration{"qmclone": time.Minute, "qmcreate": 0}})
		took := func(run func()) time.Duration {
			began := time.Now()
			run()
			return time.Since(began)
		}
		require.Zero(t, took(func() { c.done("POST", "/nodes/father/qemu", form{"vmid": "100"}) }))
		require.Equal(t, time.Second, took(func() { c.done("POST", vmURL("100", "/status/start"), nil) }))
		require.Equal(t, time.Minute, took(func() { c.done("POST", vmURL("100", "/clone"), form{"newid": "101"}) }))
	})
}

// TestTaskLists: filters and pages.
func TestTaskLists(t *testing.T) {
	c := newClient(t, pve.Config{})
	for i := range 3 {
		c.done("POST", "/nodes/father/qemu", form{"vmid": fmt.Sprint(100 + i)})
	}
	c.done("POST", vmURL("101", "/status/start"), nil)
	require.NotEqual(t, "OK", c.task("POST", vmURL("101", "/status/start"), nil))
	for query, want := range map[string]int{
		"": 5, "?vmid=101": 3, "?typefilter=qmcreate": 3, "?errors=1": 1, "?statusfilter=ok": 4, "?statusfilter=error": 1, "?userfilter=sim": 5,
		"?userfilter=nobody": 0, "?limit=2": 2, "?start=4": 1, "?start=9": 0, "?source=active": 0, "?source=all": 5, "?since=4000000000": 0,
	} {
		require.Len(t, c.list("/nodes/father/tasks"+query), want, query)
	}
	require.Len(t, c.list("/cluster/tasks"), 5)
	require.Equal(t, "VM 101 already running", c.list("/nodes/father/tasks?limit=1")[0]["status"], "newest first")
	require.Equal(t, map[string]string{"upid": "no such task"}, c.ask("GET", "/nodes/father/tasks/UPID:father:00000001:00000001:00000001:qmstart:1:root@pam:/status", nil).errors)
	require.Equal(t, map[string]string{"upid": "unable to parse worker upid"}, c.ask("GET", "/nodes/father/tasks/x/status", nil).errors)
}

// TestStoppedTask: a task that is stopped by hand fails and cleans up; one that crashed
// has an unexpected status and leaves its lock.
func TestStoppedTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{TaskTime: time.Minute})
		upid := fmt.Sprint(c.ok("POST", "/nodes/father/qemu", form{"vmid": "100"}))
		c.ok("DELETE", "/nodes/father/tasks/"+url.PathEscape(upid), nil)
		require.Equal(t, "unable to create VM 100 - received interrupt", c.wait(upid))
		require.Empty(t, c.h.Snapshot().Guests, "an interrupted create cleans up")

		upid = fmt.Sprint(c.ok("POST", "/nodes/father/qemu", form{"vmid": "101"}))
		c.ok("GET", "/version", nil)
		c.h.Edit(func(e *pve.Edit) { e.Crash(101) })
		require.Equal(t, "unexpected status", c.wait(upid))
		require.Equal(t, "create", c.h.Snapshot().Guests[0].Lock)
		for verb, path := range map[string]string{"PUT": "/config", "POST": "/config"} {
			require.Equal(t, "VM is locked (create)", c.ask(verb, vmURL("101", path), form{"memory": "512"}).reason)
		}
		require.Equal(t, "VM is locked (create)", c.task("DELETE", vmURL("101", ""), nil))

		upid = fmt.Sprint(c.ok("POST", "/nodes/father/qemu", form{"vmid": "102"}))
		c.h.Edit(func(e *pve.Edit) { e.Lose(102) })
		require.Equal(t, map[string]string{"upid": "no such task"}, c.ask("GET", "/nodes/father/tasks/"+url.PathEscape(upid)+"/status", nil).errors)
		require.Equal(t, "unable to open file - No such file or directory", c.list("/nodes/father/tasks?vmid=102")[0]["status"])
		require.Equal(t, "create", c.h.Snapshot().Guests[1].Lock)
	})
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

// TestWarnings: a task that warned ended well.
func TestWarnings(t *testing.T) {
	c := newClient(t, pve.Config{})
	c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "bios": "ovmf"})
	require.Equal(t, "WARNINGS: 1", c.task("POST", vmURL("100", "/status/start"), nil))
	require.True(t, c.h.Snapshot().Guests[0].Running)
	require.Equal(t, []string{"WARN: no efidisk configured! Using temporary efivars disk.", "TASK WARNINGS: 1"}, c.log())
	require.Len(t, c.list("/nodes/father/tasks?statusfilter=warning"), 1)
	require.Empty(t, c.list("/nodes/father/tasks?errors=1"))
}

// TestPeaks: the snapshot tells how many tasks ran at once.
func TestPeaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{TaskTime: time.Second})
		for i := range 5 {
			c.ok("POST", "/nodes/father/qemu", form{"vmid": fmt.Sprint(100 + i)})
		}
		time.Sleep(time.Second)
		c.done("DELETE", vmURL("100", ""), nil)
		s := c.h.Snapshot()
		require.Equal(t, 5, s.PeakTasks)
		require.Equal(t, map[string]int{"qmcreate": 5, "qmdestroy": 1}, s.PeakByType)
		require.Equal(t, 5, s.Requests["POST /nodes/{node}/qemu"])
		require.Equal(t, 6, s.Writes)
	})
}

// TestLockFile: calls wait for a task that holds the lock file of a guest, ten
// seconds at most; tasks queue.
func TestLockFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{TaskTime: 6 * time.Second})
		c.done("POST", "/nodes/father/qemu", form{"vmid": "100"})
		start := fmt.Sprint(c.ok("POST", vmURL("100", "/status/start"), nil))
		began := time.Now()
		c.ok("PUT", vmURL("100", "/config"), form{"description": "before the worker is up"})
		require.Zero(t, time.Since(began))
		time.Sleep(time.Second)
		c.ok("PUT", vmURL("100", "/config"), form{"description": "waited"})
		require.Equal(t, 6*time.Second, time.Since(began))
		require.Equal(t, "OK", c.wait(start))

		stop := fmt.Sprint(c.ok("POST", vmURL("100", "/status/stop"), nil))
		again := fmt.Sprint(c.ok("POST", vmURL("100", "/status/start"), nil))
		third := fmt.Sprint(c.ok("POST", vmURL("100", "/status/stop"), nil))
		time.Sleep(100 * time.Millisecond)
		began = time.Now()
		a := c.ask("PUT", vmURL("100", "/config"), form{"description": "too long"})
		require.Equal(t, 500, a.status)
		require.Equal(t, "can't lock file '/var/lock/qemu-server/lock-100.conf' - got timeout", a.reason)
		require.Equal(t, 10*time.Second, time.Since(began))
		require.Equal(t, "OK", c.wait(stop))
		require.Equal(t, "OK", c.wait(again))
		require.Equal(t, "can't lock file '/var/lock/qemu-server/lock-100.conf' - got timeout", c.wait(third))
		tasks := c.h.Snapshot().Tasks
		require.Equal(t, []string{"trying to acquire lock...", " OK", "TASK OK"}, tasks[len(tasks)-2].Log)
		require.True(t, c.h.Snapshot().Guests[0].Running)
	})
}

// TestLag: existence, lock, tags and pool are fresh in /cluster/resources;
// name, status and figures are up to ten seconds old.
func TestLag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{})
		c.image()
		time.Sleep(time.Second)
		c.ok("POST", "/pools", form{"poolid": "p"})
		c.vm("100", form{"tags": "b;a", "pool": "p"})
		require.Equal(t, map[string]any{
			"id": "qemu/100", "type": "qemu", "node": "father", "vmid": 100.0, "status": "unknown", "tags": "a;b", "pool": "p",
		}, c.resource(100))
		fresh := c.list("/nodes/father/qemu")[0]
		require.Equal(t, "vm-100", fresh["name"])
		require.Equal(t, "stopped", fresh["status"])

		time.Sleep(9 * time.Second)
		entry := c.resource(100)
		require.Equal(t, "stopped", entry["status"])
		require.Equal(t, "vm-100", entry["name"])
		require.EqualValues(t, 1<<30, entry["maxmem"])

		c.done("POST", vmURL("100", "/status/start"), nil)
		c.ok("PUT", vmURL("100", "/config"), form{"name": "renamed", "tags": "new"})
		entry = c.resource(100)
		require.Equal(t, "stopped", entry["status"], "not before the next sample")
		require.Equal(t, "vm-100", entry["name"])
		require.Equal(t, "new", entry["tags"], "tags are read from the file")
		require.Equal(t, "running", c.object(vmURL("100", "/status/current"))["status"])
		time.Sleep(10 * time.Second)
		entry = c.resource(100)
		require.Equal(t, "running", entry["status"])
		require.Equal(t, "renamed", entry["name"])

		c.done("POST", vmURL("100", "/status/stop"), nil)
		c.done("DELETE", vmURL("100", ""), nil)
		require.Nil(t, c.resource(100), "what is gone is gone at once")
		c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "name": "next"})
		require.Equal(t, "renamed", c.resource(100)["name"], "the last broadcast was about the one before")
		time.Sleep(10 * time.Second)
		require.Equal(t, "next", c.resource(100)["name"])
	})
}

// TestSpeed: all that a host measures, it measures by its own clock, which may run faster.
func TestSpeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const speed = 10
		c := newClient(t, pve.Config{TaskTime: 30 * time.Second, BootTime: 20 * time.Second, Latency: time.Second, Speed: speed})
		c.image()
		hostTime := func() int64 { return int64(c.object("/nodes/father/time")["time"].(float64)) }
		began, host := time.Now(), hostTime()
		require.Equal(t, time.Second/speed, time.Since(began), "latency")

		began = time.Now()
		require.Equal(t, http.StatusUnauthorized, c.as("nobody@pam!x=y").ask("GET", "/version", nil).status)
		require.Equal(t, 4*time.Second/speed, time.Since(began), "latency, and a failed login is held back")

		began = time.Now()
		upid := fmt.Sprint(c.ok("POST", "/nodes/father/qemu", form{"vmid": "100", "agent": "1", "scsi0": "local-lvm:0,import-from=local:import/debian.qcow2"}))
		path := "/nodes/father/tasks/" + url.PathEscape(upid) + "/status"
		time.Sleep(29*time.Second/speed - time.Since(began))
		require.Equal(t, "running", c.object(path)["status"])
		time.Sleep(time.Second / speed)
		require.Equal(t, "stopped", c.object(path)["status"])

		c.done("POST", vmURL("100", "/status/start"), nil)
		require.Equal(t, 500, c.ask("POST", vmURL("100", "/agent/ping"), nil).status, "it boots")
		time.Sleep(20 * time.Second / speed)
		require.Equal(t, 200, c.ask("POST", vmURL("100", "/agent/ping"), nil).status)

		time.Sleep(time.Hour)
		a := c.ask("GET", "/version", nil)
		date, err := http.ParseTime(a.header.Get("Date"))
		require.NoError(t, err)
		require.Greater(t, date.Unix()-host, int64(speed*3600))
		require.InDelta(t, hostTime(), date.Unix(), 1)
	})
}

// TestDelayedAnswers: some calls wait for their task if asked to.
func TestDelayedAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{TaskTime: 3 * time.Second})
		c.done("POST", "/nodes/father/qemu", form{"vmid": "100"})
		began := time.Now()
		require.Nil(t, c.ok("POST", vmURL("100", "/config"), form{"name": "x", "background_delay": "10"}))
		require.Equal(t, 3*time.Second, time.Since(began))
		require.NotNil(t, c.ok("POST", vmURL("100", "/config"), form{"name": "y", "background_delay": "1"}))
		require.Equal(t, 4*time.Second, time.Since(began))
		c.ok("GET", "/version", nil)
		time.Sleep(3 * time.Second)
		g, _ := c.h.Snapshot().Guest(100)
		require.Equal(t, "y", g.Config["name"])
		require.Equal(t, []string{"update VM 100: -name y", "TASK OK"}, c.log())
		c.h.Edit(func(e *pve.Edit) { e.Quorum(false) })
		a := c.ask("DELETE", "/nodes/father/storage/local/content/local:iso%2Fnone.iso?delay=5", nil)
		require.Equal(t, 200, a.status)
		require.Nil(t, a.data)
	})
}

// TestOfflineNode: what is proxied to it answers 595 without a body; its guests
// stay listed, and are unknown after five minutes.
func TestOfflineNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{Nodes: []string{"mother"}})
		c.done("POST", "/nodes/mother/qemu", form{"vmid": "100", "name": "far"})
		time.Sleep(11 * time.Second)
		c.h.Edit(func(e *pve.Edit) { e.Offline("mother", true) })
		a := c.ask("GET", "/nodes/mother/qemu/100/config", nil)
		require.Equal(t, 595, a.status)
		require.Equal(t, "No route to host", a.reason)
		require.Empty(t, a.raw)
		require.Equal(t, "stopped", c.resource(100)["status"])
		time.Sleep(6 * time.Minute)
		require.Equal(t, "unknown", c.resource(100)["status"])
		require.NotContains(t, c.resource(100), "name")
		for _, node := range c.list("/nodes") {
			require.Equal(t, map[any]any{"father": "online", "mother": "offline"}[node["node"]], node["status"])
		}
		c.h.Edit(func(e *pve.Edit) { e.Offline("mother", false) })
		time.Sleep(10 * time.Second)
		require.Equal(t, "far", c.resource(100)["name"])
	})
}

// TestFailedCreate leaves nothing behind.
func TestFailedCreate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{TaskTime: time.Second})
		c.h.Edit(func(e *pve.Edit) { e.Fill("local-lvm", true) })
		status := c.task("POST", "/nodes/father/qemu", form{"vmid": "100", "scsi0": "local-lvm:8", "ide2": "local-lvm:cloudinit"})
		require.Regexp(t, `^unable to create VM 100 - lvcreate .* free space in thin pool`, status)
		require.Empty(t, c.h.Snapshot().Guests)
		require.Empty(t, c.h.Snapshot().Volumes["local-lvm"])
		require.Equal(t, "TASK ERROR: "+status, c.log()[len(c.log())-1])
	})
}
