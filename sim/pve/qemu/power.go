package qemu

import (
	"fmt"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// called is the VM of a call that changes the power state; nil if there is none, which most
// of these calls find out only in the task.
func called(c *core.Call) *core.Guest { return c.W.Guest(c.In["node"], "qemu", c.Vmid()) }

// beginVMs makes waiting changes when a process ends, if it was PVE that ended it.
func beginVMs(w *core.World) {
	w.Hooks.Ended["qemu"] = func(g *core.Guest, c *core.Call) {
		CleanUp(w, g)
		if len(g.Pend) > 0 && c != nil {
			_ = coldplug(c, g, map[string]string{}) // PVE only warns.
		}
	}
}

// apiStart is POST /nodes/{node}/qemu/{vmid}/status/start.
func apiStart(w *core.World, c *core.Call) (any, error) {
	switch g := called(c); {
	case g == nil:
		return w.Fork(c, c.In["node"], guests.Failing("qmstart", c, core.Missing(c.In["node"], "qemu", c.Vmid()))), nil
	case w.HA.Managed(g):
		return w.HA.Request(c, g, "started"), nil
	default:
		return w.Fork(c, g.Node, StartJob(w, g, c)), nil
	}
}

// StartJob starts a VM (vm_start in PVE/QemuServer.pm).
func StartJob(w *core.World, g *core.Guest, c *core.Call) core.Job {
	skipLock := c.Flag("skiplock")
	return core.Job{Kind: "qmstart", ID: fmt.Sprint(g.Vmid), Guest: g, Begin: func(t *core.Task) error {
		if g.Conf["template"] == "1" {
			return perl.Fail("you can't start a vm if it's a template")
		}
		if !skipLock && g.Conf["lock"] != "suspended" {
			if err := g.CheckLock(); err != nil {
				return err
			}
		}
		if g.Run != nil {
			return perl.Fail("VM %d already running", g.Vmid)
		}
		if err := w.NeedQuorum(); err != nil {
			return err
		}
		return PrepareStart(w, g, c, t.Logf)
	}, End: func(t *core.Task) error {
		if w.Guests[g.Vmid] != g {
			return core.Missing(g.Node, "qemu", g.Vmid)
		}
		if g.Conf["bios"] == "ovmf" && g.Conf["efidisk0"] == "" {
			t.Warn("no efidisk configured! Using temporary efivars disk.")
		}
		for _, ignored := range ignoredMTUs(w, g) {
			t.Warn(ignored)
		}
		if g.Conf["lock"] == "suspended" {
			t.Logf("Resumed VM, removing state")
		}
		guests.PowerOn(w, g)
		return nil
	}}
}

// lost returns the error of tasks about a VM whose file they cannot find when they look
// for its process.
func lost(c *core.Call) error {
	return perl.Fail("unable to find configuration file for VM %d on node '%s'", c.Vmid(), c.In["node"])
}

// apiStop is POST …/status/stop: a hard stop. For a stopped VM it succeeds.
func apiStop(w *core.World, c *core.Call) (any, error) {
	g, skipLock := called(c), c.Flag("skiplock")
	if g == nil {
		return w.Fork(c, c.In["node"], guests.Failing("qmstop", c, lost(c))), nil
	}
	if c.Flag("overrule-shutdown") {
		guests.Overrule(w, c, g, "qmshutdown")
	}
	if w.HA.Managed(g) {
		return w.HA.Request(c, g, "stopped"), nil
	}
	return w.Fork(c, g.Node, core.Job{Kind: "qmstop", ID: c.In["vmid"], Guest: g, Begin: func(*core.Task) error {
		if g.Run != nil && !skipLock {
			return g.CheckLock()
		}
		return nil
	}, End: func(*core.Task) error {
		if g.Run != nil {
			guests.PowerOff(w, g, c)
		}
		return nil
	}}), nil
}

// apiShutdown is POST …/status/shutdown: the guest is asked, and has time to
// obey; then the task fails, or with forceStop it is stopped.
func apiShutdown(w *core.World, c *core.Call) (any, error) {
	g, force := called(c), c.Flag("forceStop")
	if g == nil {
		return w.Fork(c, c.In["node"], guests.Failing("qmshutdown", c, lost(c))), nil
	}
	if g.Run != nil && g.Run.Paused() && !force {
		return nil, perl.Fail("VM is paused - cannot shutdown")
	}
	if w.HA.Managed(g) {
		return w.HA.Request(c, g, "stopped"), nil
	}
	return w.Fork(c, g.Node, ShutdownJob(w, g, c, force)), nil
}

// ShutdownJob asks a VM to end, with force it is ended when it does not.
func ShutdownJob(w *core.World, g *core.Guest, c *core.Call, force bool) core.Job {
	patience, failed := shutdownTime(g, c), false
	return core.Job{Kind: "qmshutdown", ID: fmt.Sprint(g.Vmid), Guest: g, Begin: func(t *core.Task) error {
		if g.Run == nil {
			return nil
		}
		if err := g.CheckLock(); err != nil && !c.Flag("skiplock") {
			return err
		}
		if force && g.Run.Paused() {
			t.Logf("VM is paused - stop instead of shutdown")
			return nil
		}
		failed = askToShutDown(t, g, patience)
		return nil
	}, End: func(t *core.Task) error {
		if g.Run == nil {
			return nil
		}
		switch {
		case failed && !force:
			return perl.Fail("VM quit/powerdown failed - got timeout")
		case failed:
			t.Logf("VM still running - terminating now with SIGTERM")
		}
		guests.PowerOff(w, g, c)
		return nil
	}}
}

// askToShutDown sets how long the task waits for the guest, and reports whether it waits in vain.
func askToShutDown(t *core.Task, g *core.Guest, patience time.Duration) (inVain bool) {
	t.Takes, inVain = shutdownTakes(t.W, g, patience)
	if inVain && g.AgentEnabled() {
		t.Logf("QEMU Guest Agent is not running - VM %d qmp command 'guest-ping' failed - got timeout", g.Vmid)
	}
	return inVain
}

// shutdownTakes returns the time that the guest takes to shut down, 0 for as long as tasks
// take. One that is still coming up obeys when it is up; one without a system
// never does, so the wait fails when the patience is over.
func shutdownTakes(w *core.World, g *core.Guest, patience time.Duration) (takes time.Duration, failed bool) {
	if guests.Obeys(w, g) {
		return 0, false
	}
	takes = g.Run.Booted.Sub(w.Now) + w.Cfg.TaskTimeOf("qmshutdown")
	if !g.Run.System || g.Run.Qmp != "" || takes > patience {
		return patience, true
	}
	return takes, false
}

// shutdownTime returns the time that a shutdown waits: as asked, as the guest's startup
// key says, or a minute.
func shutdownTime(g *core.Guest, c *core.Call) time.Duration {
	seconds := 60
	if g != nil {
		for _, part := range perl.SplitList(g.Conf["startup"]) {
			if down, ok := strings.CutPrefix(part, "down="); ok {
				seconds = perl.Atoi(down)
			}
		}
	}
	return time.Duration(max(c.Num("timeout", seconds), 1)) * time.Second
}

// runningOnly begins a call that fails at once unless the VM runs.
func runningOnly(c *core.Call) (*core.Guest, error) {
	g := called(c)
	switch {
	case g == nil:
		return nil, lost(c)
	case g.Run == nil:
		return nil, perl.Fail("VM %d not running", g.Vmid)
	}
	return g, nil
}

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
	// cleanupWaits is the time that the cleanup waits for the lock file of a VM.
	cleanupWaits = time.Minute
	// cleanupHolds is the time that it then holds the lock file where the VM runs (again).
	cleanupHolds = 30 * time.Second
)

// CleanUp plans the work of qmeventd after the process of a VM has ended: `qm cleanup`, which holds the lock file
// of the VM and starts it again if a reboot asked for that. On real hosts the new start came 2 to 6 seconds after
// the end. With shorter tasks it comes sooner, in proportion; with tasks of zero length, at once.
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
		default: // It was started before. Newer versions take it for the old process, and wait for its end.
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
