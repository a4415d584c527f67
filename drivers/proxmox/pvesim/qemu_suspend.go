package pvesim

import (
	"fmt"
	"time"
)

// apiReset is POST …/status/reset: the same process boots again.
func apiReset(w *world, c *call) (any, error) {
	g, err := c.runningOnly()
	if err != nil {
		return nil, err
	}
	return w.fork(c, g.node, job{kind: "qmreset", id: fmt.Sprint(g.vmid), guest: g, begin: func(*task) error {
		if g.run == nil {
			return fail("VM %d not running", g.vmid)
		}
		if !c.flag("skiplock") {
			return g.checkLock()
		}
		return nil
	}, end: func(*task) error {
		if g.run != nil {
			g.run.booted = w.now.Add(w.cfg.BootTime)
		}
		return nil
	}}), nil
}

// apiSuspend is POST …/status/suspend: a pause; with todisk a hibernation, which keeps
// the memory on a volume and ends the process (vm_suspend in PVE/QemuServer.pm).
func apiSuspend(w *world, c *call) (any, error) {
	g, err := c.runningOnly()
	if err != nil {
		return nil, err
	}
	kind, toDisk := "qmpause", c.flag("todisk")
	if toDisk {
		kind = "qmsuspend"
		if err := c.need(vmPath(g.vmid), "VM.Config.Disk"); err != nil {
			return nil, err
		}
	}
	undo := func(*task) {
		if g.conf["lock"] == "suspending" {
			w.forgetState(g)
		}
	}
	return w.fork(c, g.node, job{kind: kind, id: fmt.Sprint(g.vmid), guest: g, abort: undo, begin: func(t *task) error {
		if g.run == nil {
			return fail("VM %d not running", g.vmid)
		}
		if err := g.checkLock(); err != nil && !c.flag("skiplock") && g.conf["lock"] != "backup" {
			return err
		}
		if !toDisk {
			return nil
		}
		if g.conf["lock"] == "backup" {
			return fail("Cannot suspend VM to disk during backup")
		}
		if _, err := w.allocateState(g, "suspend-"+w.now.UTC().Format(time.DateOnly), g.conf, c.in["statestorage"], t.logf); err != nil {
			return err
		}
		g.conf["lock"] = "suspending"
		w.write(g)
		return nil
	}, end: func(t *task) error {
		if g.run == nil {
			return fail("VM %d not running", g.vmid)
		}
		if g.run.qmp = "paused"; toDisk {
			t.logf("State saved, quitting")
			g.conf["lock"] = "suspended"
			g.run = nil
			w.cleanUp(g)
		}
		w.write(g)
		return nil
	}}), nil
}

// apiResume is POST …/status/resume.
func apiResume(w *world, c *call) (any, error) {
	g, id, err := c.power()
	if err != nil {
		return nil, err
	}
	if g == nil {
		return nil, lost(c.in["node"], c.vmid())
	}
	if c.flag("nocheck") && !c.root() {
		return nil, badParam("nocheck", "Only root may use this option.")
	}
	if g.conf["lock"] == "suspended" {
		j := w.startJob(g, c)
		j.kind = "qmresume"
		return w.fork(c, g.node, j), nil
	}
	if g.run == nil {
		return nil, fail("VM %s not running", id)
	}
	return w.fork(c, g.node, job{kind: "qmresume", id: id, guest: g, begin: func(*task) error {
		if g.run != nil && g.run.qmp == "" || c.flag("skiplock") || g.conf["lock"] == "backup" {
			return nil // Of one that runs nothing is checked (vm_resume in PVE/QemuServer/RunState.pm).
		}
		return g.checkLock()
	}, end: func(*task) error {
		if g.run != nil {
			g.run.qmp = ""
			w.touch(g)
		}
		return nil
	}}), nil
}
