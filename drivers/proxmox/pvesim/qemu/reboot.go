package qemu

import (
	"fmt"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/guests"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
)

// apiReboot is POST …/status/reboot: a shutdown that leaves a request behind to start the
// VM again. The task ends when the VM has stopped; who starts it is the cleaning up after
// its process, in a task of root (vm_reboot in PVE/QemuServer.pm, cleanup in PVE/CLI/qm.pm).
// A reboot from inside is none of this: the process goes on.
func apiReboot(w *core.World, c *core.Call) (any, error) {
	g := called(c)
	switch {
	case g == nil:
		return nil, lost(c)
	case g.Run != nil && g.Run.Paused():
		return nil, perl.Fail("VM is paused - cannot shutdown")
	case g.Run == nil:
		return nil, perl.Fail("VM %d not running", g.Vmid)
	}
	patience, failed := shutdownTime(g, c), false
	return w.Fork(c, g.Node, core.Job{Kind: "qmreboot", ID: c.In["vmid"], Guest: g, Begin: func(t *core.Task) error {
		if g.Run == nil {
			return nil // It stopped before its lock was free: nothing starts it again.
		}
		if err := g.CheckLock(); err != nil {
			return err
		}
		g.Rebooting = true
		failed = askToShutDown(t, g, patience)
		return nil
	}, Abort: func(*core.Task) { g.Rebooting = false }, End: func(*core.Task) error {
		if g.Run == nil {
			return nil
		}
		if failed {
			g.Rebooting = false
			return perl.Fail("VM quit/powerdown failed - got timeout")
		}
		guests.PowerOff(w, g, c)
		return nil
	}}), nil
}

const (
	// cleanupWaits is how long the cleaning up waits for the lock file of a VM.
	cleanupWaits = time.Minute
	// cleanupHolds is how long it then holds the lock file where the VM runs (again).
	cleanupHolds = 30 * time.Second
)

// CleanUp plans what qmeventd does when the process of a VM has ended: `qm cleanup`, which
// holds the lock file of the VM and starts it again if a reboot asked for that. On real
// hosts the new start came 2 to 6 seconds after the end. Where tasks take no second here,
// it comes sooner, in proportion; where they take no time, at once.
func CleanUp(w *core.World, g *core.Guest) {
	if g.Kind != "qemu" {
		return
	}
	unit := min(w.Cfg.TaskTime, time.Second)
	takes := 2*unit + time.Duration(w.Sized(fmt.Sprintf("cleanup of %d at %s", g.Vmid, w.Now), 0, int64(4*unit)+1))
	t := &core.Task{W: w, Node: g.Node, Who: core.RootIdentity, Start: w.Now, Unlisted: true, Patience: cleanupWaits, Job: core.Job{Kind: "cleanup", ID: fmt.Sprint(g.Vmid), Guest: g}}
	t.Begin = func(t *core.Task) error {
		t.Takes = takes / 2
		switch {
		case g.Run == nil:
			return nil
		case !w.V92() || unit == 0:
			return perl.Fail("vm still running")
		default: // Somebody was faster. Newer versions take it for the old process, and wait for its end.
			t.Takes = cleanupHolds / time.Second * unit
			return nil
		}
	}
	t.End = func(*core.Task) error {
		if g.Run != nil {
			return perl.Fail("aborting cleanup, VM is still running after 30 seconds")
		}
		if g.Rebooting {
			g.Rebooting = false
			w.At(w.Now, func() { startAgain(w, g) }) // When the lock file is free.
		}
		return nil
	}
	w.At(w.Now.Add(takes-takes/2), t.Enter)
}

// startAgain ends a reboot.
func startAgain(w *core.World, g *core.Guest) {
	if w.Guests[g.Vmid] != g || w.NeedQuorum() != nil {
		return
	}
	c := w.RootCall()
	if w.HA.Managed(g) {
		w.HA.Request(c, g, "started")
		return
	}
	w.Fork(c, g.Node, StartJob(w, g, c))
}
