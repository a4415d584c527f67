package pvesim

import (
	"fmt"
	"time"
)

// apiReboot is POST …/status/reboot: a shutdown that leaves a request behind to start the
// VM again. The task ends when the VM has stopped; who starts it is the cleaning up after
// its process, in a task of root (vm_reboot in PVE/QemuServer.pm, cleanup in PVE/CLI/qm.pm).
// A reboot from inside is none of this: the process goes on.
func apiReboot(w *world, c *call) (any, error) {
	g, id, err := c.power()
	switch {
	case err != nil:
		return nil, err
	case g == nil:
		return nil, lost(c.in["node"], c.vmid())
	case g.run != nil && g.run.paused():
		return nil, fail("VM is paused - cannot shutdown")
	case g.run == nil:
		return nil, fail("VM %s not running", id)
	}
	patience, failed := shutdownTime(g, c), false
	return w.fork(c, g.node, job{kind: "qmreboot", id: id, guest: g, begin: func(t *task) error {
		if g.run == nil {
			return nil // It stopped before its lock was free: nothing starts it again.
		}
		if err := g.checkLock(); err != nil {
			return err
		}
		g.rebooting = true
		failed = t.askToShutDown(g, patience)
		return nil
	}, abort: func(*task) { g.rebooting = false }, end: func(*task) error {
		if g.run == nil {
			return nil
		}
		if failed {
			g.rebooting = false
			return fail("VM quit/powerdown failed - got timeout")
		}
		w.powerOff(g, c)
		return nil
	}}), nil
}

const (
	// cleanupWaits is how long the cleaning up waits for the lock file of a VM.
	cleanupWaits = time.Minute
	// cleanupHolds is how long it then holds the lock file where the VM runs (again).
	cleanupHolds = 30 * time.Second
)

// cleanUp plans what qmeventd does when the process of a VM has ended: `qm cleanup`, which
// holds the lock file of the VM and starts it again if a reboot asked for that. On real
// hosts the new start came 2 to 6 seconds after the end. Where tasks take no second here,
// it comes sooner, in proportion; where they take no time, at once.
func (w *world) cleanUp(g *guest) {
	if g.kind != "qemu" {
		return
	}
	unit := min(w.cfg.TaskTime, time.Second)
	takes := 2*unit + time.Duration(w.sized(fmt.Sprintf("cleanup of %d at %s", g.vmid, w.now), 0, int64(4*unit)+1))
	t := &task{w: w, node: g.node, who: rootIdentity, start: w.now, unlisted: true, patience: cleanupWaits, job: job{kind: "cleanup", id: fmt.Sprint(g.vmid), guest: g}}
	t.begin = func(t *task) error {
		t.takes = takes / 2
		switch {
		case g.run == nil:
			return nil
		case !w.v92() || unit == 0:
			return fail("vm still running")
		default: // Somebody was faster. Newer versions take it for the old process, and wait for its end.
			t.takes = cleanupHolds / time.Second * unit
			return nil
		}
	}
	t.end = func(*task) error {
		if g.run != nil {
			return fail("aborting cleanup, VM is still running after 30 seconds")
		}
		if g.rebooting {
			g.rebooting = false
			w.at(w.now, func() { w.startAgain(g) }) // When the lock file is free.
		}
		return nil
	}
	w.at(w.now.Add(takes-takes/2), t.enter)
}

// startAgain ends a reboot.
func (w *world) startAgain(g *guest) {
	if w.guests[g.vmid] != g || w.needQuorum() != nil {
		return
	}
	c := w.rootCall()
	if w.ha.managed(g) {
		w.ha.request(c, g, "started")
		return
	}
	w.fork(c, g.node, w.startJob(g, c))
}
