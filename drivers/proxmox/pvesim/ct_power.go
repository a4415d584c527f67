package pvesim

import "fmt"

// beginCTs makes waiting changes whenever a container ends: PVE hears of the end of each.
func beginCTs(w *world) {
	w.hooks.ended["lxc"] = func(g *guest, _ *call) {
		if len(g.pend) > 0 {
			w.coldplugCT(g, nil, map[string]string{})
		}
	}
}

// The calls about a container that does not exist are odd: start finds it out in
// its task, the others at once say that it does not run.

// apiStartCT is POST …/lxc/{vmid}/status/start.
func apiStartCT(w *world, c *call) (any, error) {
	if c.flag("skiplock") && !c.root() {
		return nil, badParam("skiplock", "Only root may use this option.")
	}
	node, vmid := c.in["node"], c.vmid()
	g := w.guest(node, "lxc", vmid)
	if g == nil {
		return w.fork(c, node, job{kind: "vzstart", id: fmt.Sprint(vmid), begin: func(*task) error { return missing(node, "lxc", vmid) }}), nil
	}
	if g.run != nil {
		return nil, fail("CT %d already running", vmid)
	}
	if err := w.needQuorum(); err != nil {
		return nil, err
	}
	if w.ha.managed(g) {
		return w.ha.request(c, g, "started"), nil
	}
	return w.fork(c, node, w.startCTJob(g, c)), nil
}

// startCTJob starts a container (vm_start in PVE/LXC.pm).
func (w *world) startCTJob(g *guest, c *call) job {
	skipLock := c.flag("skiplock")
	return job{kind: "vzstart", id: fmt.Sprint(g.vmid), guest: g, begin: func(t *task) error {
		if g.conf["template"] == "1" {
			return fail("you can't start a CT if it's a template")
		}
		if !skipLock && g.conf["lock"] != "mounted" {
			if err := g.checkLock(); err != nil {
				return err
			}
		}
		if g.run != nil {
			return fail("CT %d already running", g.vmid)
		}
		if err := quotaOfUnprivileged(g.conf); err != nil {
			return err
		}
		return w.prepareCT(g, t.logf)
	}, end: func(*task) error {
		w.powerOn(g)
		return nil
	}}
}

// prepareCT makes waiting changes and finds out whether the container would come
// up (vm_start in PVE/LXC.pm).
func (w *world) prepareCT(g *guest, log func(string, ...any)) error {
	if len(g.pend) > 0 {
		w.coldplugCT(g, nil, map[string]string{})
		w.write(g)
	}
	if err := w.lxcConfig(g); err != nil {
		return err
	}
	if err := w.volumesThere(g.node, g.conf); err != nil {
		return err
	}
	for _, key := range indexedKeys(g.conf, "net") {
		device := ctProperty(key, g.conf[key])
		if trouble := w.trunkTrouble(g.node, device); trouble != "" && device["link_down"] != "1" {
			log("%s", trouble)
			log("run_buffer: 571 Script exited with status 255")
			return fail("startup for container '%d' failed", g.vmid)
		}
	}
	return nil
}

// runningCT begins a call that fails at once unless the container runs.
func (c *call) runningCT(what string) (*guest, error) {
	if c.flag("skiplock") && !c.root() {
		return nil, badParam("skiplock", "Only root may use this option.")
	}
	g := c.w.guest(c.in["node"], "lxc", c.vmid())
	if g == nil || g.run == nil {
		return nil, fail("%s %d not running", what, c.vmid())
	}
	return g, nil
}

// apiStopCT is POST …/lxc/{vmid}/status/stop.
func apiStopCT(w *world, c *call) (any, error) {
	g, err := c.runningCT("CT")
	if err != nil {
		return nil, err
	}
	if c.flag("overrule-shutdown") {
		w.overrule(c, g, "vzshutdown")
	}
	if w.ha.managed(g) {
		return w.ha.request(c, g, "stopped"), nil
	}
	return w.fork(c, g.node, w.stopCTJob("vzstop", g, c)), nil
}

// stopCTJob ends a container. Its system obeys at once, so that a shutdown is a
// stop by another name.
func (w *world) stopCTJob(kind string, g *guest, c *call) job {
	skipLock := c.flag("skiplock")
	return job{kind: kind, id: fmt.Sprint(g.vmid), guest: g, begin: func(*task) error {
		switch {
		case g.run == nil:
			return fail("CT %d not running", g.vmid)
		case skipLock, kind == "vzstop" && g.conf["lock"] == "mounted":
			return nil
		default:
			return g.checkLock()
		}
	}, end: func(*task) error {
		if g.run != nil {
			w.powerOff(g, c)
		}
		return nil
	}}
}

// apiShutdownCT is POST …/lxc/{vmid}/status/shutdown.
func apiShutdownCT(w *world, c *call) (any, error) {
	g, err := c.runningCT("CT")
	if err != nil {
		return nil, err
	}
	if w.ha.managed(g) {
		return w.ha.request(c, g, "stopped"), nil
	}
	return w.fork(c, g.node, w.stopCTJob("vzshutdown", g, c)), nil
}

// apiRebootCT is POST …/lxc/{vmid}/status/reboot. Its text says VM, also in PVE.
func apiRebootCT(w *world, c *call) (any, error) {
	g, err := c.runningCT("VM")
	if err != nil {
		return nil, err
	}
	j := w.stopCTJob("vzreboot", g, c)
	stop := j.end
	j.end = func(t *task) error {
		if err := stop(t); err != nil {
			return err
		}
		if err := w.prepareCT(g, t.logf); err != nil {
			return err
		}
		w.powerOn(g)
		return nil
	}
	return w.fork(c, g.node, j), nil
}
