package qemu

import (
	"fmt"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/guests"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
)

// apiReset is POST …/status/reset: the same process boots again.
func apiReset(w *core.World, c *core.Call) (any, error) {
	g, err := RunningOnly(c)
	if err != nil {
		return nil, err
	}
	return w.Fork(c, g.Node, core.Job{Kind: "qmreset", ID: fmt.Sprint(g.Vmid), Guest: g, Begin: func(*core.Task) error {
		if g.Run == nil {
			return perl.Fail("VM %d not running", g.Vmid)
		}
		if !c.Flag("skiplock") {
			return g.CheckLock()
		}
		return nil
	}, End: func(*core.Task) error {
		if g.Run != nil {
			g.Run.Booted = w.Now.Add(w.Cfg.BootTime)
		}
		return nil
	}}), nil
}

// APISuspend is POST …/status/suspend: a pause; with todisk a hibernation, which keeps
// the memory on a volume and ends the process (vm_suspend in PVE/QemuServer.pm).
func APISuspend(w *core.World, c *core.Call) (any, error) {
	g, err := RunningOnly(c)
	if err != nil {
		return nil, err
	}
	kind, toDisk := "qmpause", c.Flag("todisk")
	if toDisk {
		kind = "qmsuspend"
		if err := c.Need(core.VMPath(g.Vmid), "VM.Config.Disk"); err != nil {
			return nil, err
		}
	}
	undo := func(*core.Task) {
		if g.Conf["lock"] == "suspending" {
			guests.ForgetState(w, g)
		}
	}
	return w.Fork(c, g.Node, core.Job{Kind: kind, ID: fmt.Sprint(g.Vmid), Guest: g, Abort: undo, Begin: func(t *core.Task) error {
		if g.Run == nil {
			return perl.Fail("VM %d not running", g.Vmid)
		}
		if err := g.CheckLock(); err != nil && !c.Flag("skiplock") && g.Conf["lock"] != "backup" {
			return err
		}
		if !toDisk {
			return nil
		}
		if g.Conf["lock"] == "backup" {
			return perl.Fail("Cannot suspend VM to disk during backup")
		}
		if _, err := guests.AllocateState(w, g, "suspend-"+w.Now.UTC().Format(time.DateOnly), g.Conf, c.In["statestorage"], t.Logf); err != nil {
			return err
		}
		g.Conf["lock"] = "suspending"
		w.Write(g)
		return nil
	}, End: func(t *core.Task) error {
		if g.Run == nil {
			return perl.Fail("VM %d not running", g.Vmid)
		}
		if g.Run.Qmp = "paused"; toDisk {
			t.Logf("State saved, quitting")
			g.Conf["lock"] = "suspended"
			g.Run = nil
			CleanUp(w, g)
		}
		w.Write(g)
		return nil
	}}), nil
}

// apiResume is POST …/status/resume.
func apiResume(w *core.World, c *core.Call) (any, error) {
	g := called(c)
	if g == nil {
		return nil, lost(c)
	}
	if c.Flag("nocheck") && !c.Root() {
		return nil, perl.BadParam("nocheck", "Only root may use this option.")
	}
	if g.Conf["lock"] == "suspended" {
		j := StartJob(w, g, c)
		j.Kind = "qmresume"
		return w.Fork(c, g.Node, j), nil
	}
	if g.Run == nil {
		return nil, perl.Fail("VM %d not running", g.Vmid)
	}
	return w.Fork(c, g.Node, core.Job{Kind: "qmresume", ID: c.In["vmid"], Guest: g, Begin: func(*core.Task) error {
		if g.Run != nil && g.Run.Qmp == "" || c.Flag("skiplock") || g.Conf["lock"] == "backup" {
			return nil // Of one that runs nothing is checked (vm_resume in PVE/QemuServer/RunState.pm).
		}
		return g.CheckLock()
	}, End: func(*core.Task) error {
		if g.Run != nil {
			g.Run.Qmp = ""
			w.Touch(g)
		}
		return nil
	}}), nil
}
