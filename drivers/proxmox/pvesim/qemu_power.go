package pvesim

import (
	"fmt"
	"slices"
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

// apiStart is POST /nodes/{node}/qemu/{vmid}/status/start.
func apiStart(w *world, c *call) (any, error) {
	g, id, err := c.power()
	if err != nil {
		return nil, err
	}
	if g != nil && w.ha.managed(g) {
		return w.haRequest(c, g, "started"), nil
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

// powerOn lets the process be there.
func (w *world) powerOn(g *guest) {
	p := &process{pid: w.pid(), since: w.now, booted: w.now.Add(w.cfg.BootTime), disks: map[string]bool{}}
	p.machine = "pc-i440fx-" + w.machineVersion() + "+pve0"
	if strings.Contains(g.conf["machine"], "q35") {
		p.machine = "pc-q35-" + w.machineVersion() + "+pve0"
	}
	p.system = g.kind == "lxc"
	for _, key := range driveNames(g.conf) {
		p.disks[key] = true
		if v := w.volume(g.node, parseDrive(key, g.conf[key]).file); v != nil && v.system {
			p.system = true
		}
	}
	if g.conf["lock"] == "suspended" {
		w.forgetState(g)
		p.booted = w.now
	}
	g.run = p
	w.touch(g)
	w.haNotice(g)
}

// powerOff ends the process. Waiting changes of a VM are made if it was PVE that
// ended it, those of a container in any case: PVE hears of the end of each.
func (w *world) powerOff(g *guest, c *call) {
	g.run = nil
	w.cleanUp(g)
	switch {
	case len(g.pend) == 0:
	case g.kind == "lxc":
		w.coldplugCT(g, nil, map[string]string{})
	case c != nil:
		_ = c.coldplug(g, map[string]string{}) // PVE only warns.
	}
	w.write(g)
	w.haNotice(g)
}

// hasBridge says whether guests can be plugged there: a bridge of the nodes, or a virtual
// network that runs.
func (w *world) hasBridge(name string) bool {
	return slices.Contains(w.bridges, name) || w.sdn.running["sdn/vnets"][name] != nil
}

// cpus is how many the guest sees.
func (w *world) cpus(g *guest) int {
	count := func(key string) int { return max(atoi(g.conf[key]), 1) }
	if g.kind == "lxc" {
		if n := atoi(g.conf["cores"]); n > 0 {
			return n
		}
		return w.cfg.CPUs
	}
	n := count("sockets") * count("cores")
	if v := atoi(g.conf["vcpus"]); v > 0 {
		n = min(n, v)
	}
	return n
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
		return w.haRequest(c, g, "stopped"), nil
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

// overrule stops the caller's own attempts to shut a guest down.
func (w *world) overrule(c *call, g *guest, kind string) {
	for _, t := range w.tasks.all {
		if t.running() && t.kind == kind && t.guest == g && c.who.owns(t.who) {
			t.kill()
		}
	}
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
		return w.haRequest(c, g, "stopped"), nil
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

// obeys says whether a guest reacts to the power button: there must be a system
// on its disks, and it must be up.
func (w *world) obeys(g *guest) bool {
	return g.run.system && g.run.qmp == "" && !w.now.Before(g.run.booted)
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
