package pvesim

import (
	"fmt"
	"strings"
	"time"
)

// power begins a call that changes the power state. The guest may be missing:
// most of these calls find that out only in the task.
func (c *call) power() (g *guest, id string, err error) {
	if c.flag("skiplock") && !c.root() {
		return nil, "", badParam("skiplock", "Only root may use this option.")
	}
	return c.w.guest(c.in["node"], "qemu", c.vmid()), fmt.Sprint(c.vmid()), nil
}

// beginVMs makes waiting changes when a process ends, if it was PVE that ended it.
func beginVMs(w *world) {
	w.hooks.ended["qemu"] = func(g *guest, c *call) {
		w.cleanUp(g)
		if len(g.pend) > 0 && c != nil {
			_ = c.coldplug(g, map[string]string{}) // PVE only warns.
		}
	}
}

// apiStart is POST /nodes/{node}/qemu/{vmid}/status/start.
func apiStart(w *world, c *call) (any, error) {
	g, id, err := c.power()
	if err != nil {
		return nil, err
	}
	if g != nil && w.ha.managed(g) {
		return w.ha.request(c, g, "started"), nil
	}
	if g == nil {
		node, vmid := c.in["node"], c.vmid()
		return w.fork(c, node, job{kind: "qmstart", id: id, begin: func(*task) error { return missing(node, "qemu", vmid) }}), nil
	}
	return w.fork(c, g.node, w.startJob(g, c)), nil
}

// startJob starts a VM (vm_start in PVE/QemuServer.pm).
func (w *world) startJob(g *guest, c *call) job {
	skipLock := c.flag("skiplock")
	return job{kind: "qmstart", id: fmt.Sprint(g.vmid), guest: g, begin: func(t *task) error {
		if g.conf["template"] == "1" {
			return fail("you can't start a vm if it's a template")
		}
		if !skipLock && g.conf["lock"] != "suspended" {
			if err := g.checkLock(); err != nil {
				return err
			}
		}
		if g.run != nil {
			return fail("VM %d already running", g.vmid)
		}
		if err := w.needQuorum(); err != nil {
			return err
		}
		return w.prepareStart(g, c, t.logf)
	}, end: func(t *task) error {
		if w.guests[g.vmid] != g {
			return missing(g.node, "qemu", g.vmid)
		}
		if g.conf["bios"] == "ovmf" && g.conf["efidisk0"] == "" {
			t.warn("no efidisk configured! Using temporary efivars disk.")
		}
		for _, ignored := range w.ignoredMTUs(g) {
			t.warn(ignored)
		}
		if g.conf["lock"] == "suspended" {
			t.logf("Resumed VM, removing state")
		}
		w.powerOn(g)
		return nil
	}}
}

// lost is what tasks say about a VM whose file they cannot find when they look
// for its process.
func lost(node string, vmid int) error {
	return fail("unable to find configuration file for VM %d on node '%s'", vmid, node)
}

// apiStop is POST …/status/stop: the plug is pulled. Of a stopped VM it is no
// error.
func apiStop(w *world, c *call) (any, error) {
	g, id, err := c.power()
	if err != nil {
		return nil, err
	}
	node, vmid, skipLock := c.in["node"], c.vmid(), c.flag("skiplock")
	if c.flag("overrule-shutdown") {
		w.overrule(c, g, "qmshutdown")
	}
	if g != nil && w.ha.managed(g) {
		return w.ha.request(c, g, "stopped"), nil
	}
	return w.fork(c, node, job{kind: "qmstop", id: id, guest: g, begin: func(*task) error {
		if g == nil {
			return lost(node, vmid)
		}
		if g.run != nil && !skipLock {
			return g.checkLock()
		}
		return nil
	}, end: func(*task) error {
		if g.run != nil {
			w.powerOff(g, c)
		}
		return nil
	}}), nil
}

// apiShutdown is POST …/status/shutdown: the guest is asked, and has time to
// obey; then the task fails, or with forceStop it is stopped.
func apiShutdown(w *world, c *call) (any, error) {
	g, id, err := c.power()
	if err != nil {
		return nil, err
	}
	force := c.flag("forceStop")
	if g == nil {
		node, vmid := c.in["node"], c.vmid()
		return w.fork(c, node, job{kind: "qmshutdown", id: id, begin: func(*task) error { return lost(node, vmid) }}), nil
	}
	if g.run != nil && g.run.paused() && !force {
		return nil, fail("VM is paused - cannot shutdown")
	}
	if w.ha.managed(g) {
		return w.ha.request(c, g, "stopped"), nil
	}
	return w.fork(c, g.node, w.shutdownJob(g, c, force)), nil
}

// shutdownJob asks a VM to end, with force it is ended when it does not.
func (w *world) shutdownJob(g *guest, c *call, force bool) job {
	patience, failed := shutdownTime(g, c), false
	return job{kind: "qmshutdown", id: fmt.Sprint(g.vmid), guest: g, begin: func(t *task) error {
		if g.run == nil {
			return nil
		}
		if err := g.checkLock(); err != nil && !c.flag("skiplock") {
			return err
		}
		if force && g.run.paused() {
			t.logf("VM is paused - stop instead of shutdown")
			return nil
		}
		failed = t.askToShutDown(g, patience)
		return nil
	}, end: func(t *task) error {
		if g.run == nil {
			return nil
		}
		switch {
		case failed && !force:
			return fail("VM quit/powerdown failed - got timeout")
		case failed:
			t.logf("VM still running - terminating now with SIGTERM")
		}
		w.powerOff(g, c)
		return nil
	}}
}

// askToShutDown sets how long the task waits for the guest, and reports whether it waits in vain.
func (t *task) askToShutDown(g *guest, patience time.Duration) (inVain bool) {
	t.takes, inVain = t.w.shutdownTakes(g, patience)
	if inVain && agentEnabled(g) {
		t.logf("QEMU Guest Agent is not running - VM %d qmp command 'guest-ping' failed - got timeout", g.vmid)
	}
	return inVain
}

// shutdownTakes is how long the guest takes to obey, 0 for as long as tasks
// take. One that is still coming up obeys when it is up; one without a system
// never does, so the wait fails when the patience is over.
func (w *world) shutdownTakes(g *guest, patience time.Duration) (takes time.Duration, failed bool) {
	if w.obeys(g) {
		return 0, false
	}
	takes = g.run.booted.Sub(w.now) + w.taskTime("qmshutdown")
	if !g.run.system || g.run.qmp != "" || takes > patience {
		return patience, true
	}
	return takes, false
}

// shutdownTime is how long a shutdown waits: as asked, as the guest's startup
// key says, or a minute.
func shutdownTime(g *guest, c *call) time.Duration {
	seconds := 60
	if g != nil {
		for _, part := range splitList(g.conf["startup"]) {
			if down, ok := strings.CutPrefix(part, "down="); ok {
				seconds = atoi(down)
			}
		}
	}
	return time.Duration(max(c.num("timeout", seconds), 1)) * time.Second
}

// runningOnly begins a call that fails at once unless the VM runs.
func (c *call) runningOnly() (*guest, error) {
	g, id, err := c.power()
	if err != nil {
		return nil, err
	}
	if g == nil {
		return nil, lost(c.in["node"], c.vmid())
	}
	if g.run == nil {
		return nil, fail("VM %s not running", id)
	}
	return g, nil
}
