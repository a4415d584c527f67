package pvesim

import "fmt"

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

// apiSuspend is POST …/status/suspend: a pause; with todisk a hibernation.
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
	return w.fork(c, g.node, job{kind: kind, id: fmt.Sprint(g.vmid), guest: g, begin: func(*task) error {
		if g.run == nil {
			return fail("VM %d not running", g.vmid)
		}
		if c.flag("skiplock") || g.conf["lock"] == "backup" {
			return nil
		}
		return g.checkLock()
	}, end: func(*task) error {
		if g.run == nil {
			return fail("VM %d not running", g.vmid)
		}
		g.run.paused = true
		if toDisk {
			g.conf["lock"] = "suspended"
			g.run = nil
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
	if g.run == nil && g.conf["lock"] == "suspended" {
		return w.fork(c, g.node, w.startJob(g, c)), nil
	}
	if g.run == nil {
		return nil, fail("VM %s not running", id)
	}
	return w.fork(c, g.node, job{kind: "qmresume", id: id, guest: g, begin: func(*task) error {
		if c.flag("skiplock") || g.conf["lock"] == "backup" {
			return nil
		}
		return g.checkLock()
	}, end: func(*task) error {
		if g.run != nil {
			g.run.paused = false
			w.touch(g)
		}
		return nil
	}}), nil
}
