package lxc

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// beginCTs makes waiting changes whenever a container ends: PVE hears of the end of each.
func beginCTs(w *core.World) {
	w.Hooks.Ended["lxc"] = func(g *core.Guest, _ *core.Call) {
		if len(g.Pend) > 0 {
			coldplugCT(w, g, nil, map[string]string{})
		}
	}
}

// The calls about a container that does not exist are odd: start finds it out in
// its task, the others at once say that it does not run.

// apiStartCT is POST …/lxc/{vmid}/status/start.
func apiStartCT(w *core.World, c *core.Call) (any, error) {
	node, vmid := c.In["node"], c.Vmid()
	g := w.Guest(node, "lxc", vmid)
	if g == nil {
		return w.Fork(c, node, guests.Failing("vzstart", c, core.Missing(node, "lxc", vmid))), nil
	}
	if g.Run != nil {
		return nil, perl.Fail("CT %d already running", vmid)
	}
	if err := w.NeedQuorum(); err != nil {
		return nil, err
	}
	if w.HA.Managed(g) {
		return w.HA.Request(c, g, "started"), nil
	}
	return w.Fork(c, node, StartCTJob(w, g, c)), nil
}

// StartCTJob starts a container (vm_start in PVE/LXC.pm).
func StartCTJob(w *core.World, g *core.Guest, c *core.Call) core.Job {
	skipLock := c.Flag("skiplock")
	return core.Job{Kind: "vzstart", ID: fmt.Sprint(g.Vmid), Guest: g, Begin: func(t *core.Task) error {
		if g.Conf["template"] == "1" {
			return perl.Fail("you can't start a CT if it's a template")
		}
		if !skipLock && g.Conf["lock"] != "mounted" {
			if err := g.CheckLock(); err != nil {
				return err
			}
		}
		if g.Run != nil {
			return perl.Fail("CT %d already running", g.Vmid)
		}
		if err := quotaOfUnprivileged(g.Conf); err != nil {
			return err
		}
		return prepareCT(w, g, t.Logf)
	}, End: func(*core.Task) error {
		guests.PowerOn(w, g)
		return nil
	}}
}

// prepareCT makes waiting changes and finds out whether the container would come
// up (vm_start in PVE/LXC.pm).
func prepareCT(w *core.World, g *core.Guest, log func(string, ...any)) error {
	if len(g.Pend) > 0 {
		coldplugCT(w, g, nil, map[string]string{})
		w.Write(g)
	}
	if err := cmp.Or(lxcConfig(w, g), volumesThere(w, g.Node, g.Conf)); err != nil {
		return err
	}
	for _, key := range g.Conf.IndexedKeys("net") {
		device := perl.CTProperty(key, g.Conf[key])
		if trouble := guests.TrunkTrouble(w, g.Node, device); trouble != "" && device["link_down"] != "1" {
			log("%s", trouble)
			log("run_buffer: 571 Script exited with status 255")
			return perl.Fail("startup for container '%d' failed", g.Vmid)
		}
	}
	return nil
}

// runningCT is the container of a call that fails at once unless it runs.
func runningCT(c *core.Call) (*core.Guest, error) {
	if g := c.W.Guest(c.In["node"], "lxc", c.Vmid()); g != nil && g.Run != nil {
		return g, nil
	}
	what := "CT"
	if strings.HasSuffix(c.M.Path, "/reboot") {
		what = "VM" // Also in PVE.
	}
	return nil, perl.Fail("%s %d not running", what, c.Vmid())
}

// apiStopCT is POST …/lxc/{vmid}/status/stop.
func apiStopCT(w *core.World, c *core.Call, g *core.Guest) (any, error) {
	if c.Flag("overrule-shutdown") {
		guests.Overrule(w, c, g, "vzshutdown")
	}
	if w.HA.Managed(g) {
		return w.HA.Request(c, g, "stopped"), nil
	}
	return w.Fork(c, g.Node, StopCTJob(w, "vzstop", g, c)), nil
}

// StopCTJob ends a container. Its system obeys at once, so that a shutdown is a
// stop by another name.
func StopCTJob(w *core.World, kind string, g *core.Guest, c *core.Call) core.Job {
	skipLock := c.Flag("skiplock")
	return core.Job{Kind: kind, ID: fmt.Sprint(g.Vmid), Guest: g, Begin: func(*core.Task) error {
		switch {
		case g.Run == nil:
			return perl.Fail("CT %d not running", g.Vmid)
		case skipLock, kind == "vzstop" && g.Conf["lock"] == "mounted":
			return nil
		default:
			return g.CheckLock()
		}
	}, End: func(*core.Task) error {
		if g.Run != nil {
			guests.PowerOff(w, g, c)
		}
		return nil
	}}
}

// apiShutdown is POST …/lxc/{vmid}/status/shutdown.
var apiShutdown = core.On(runningCT, apiShutdownCT)

func apiShutdownCT(w *core.World, c *core.Call, g *core.Guest) (any, error) {
	if w.HA.Managed(g) {
		return w.HA.Request(c, g, "stopped"), nil
	}
	return w.Fork(c, g.Node, StopCTJob(w, "vzshutdown", g, c)), nil
}

// apiRebootCT is POST …/lxc/{vmid}/status/reboot.
func apiRebootCT(w *core.World, c *core.Call, g *core.Guest) (any, error) {
	j := StopCTJob(w, "vzreboot", g, c)
	stop := j.End
	j.End = func(t *core.Task) error {
		if err := stop(t); err != nil {
			return err
		}
		if err := prepareCT(w, g, t.Logf); err != nil {
			return err
		}
		guests.PowerOn(w, g)
		return nil
	}
	return w.Fork(c, g.Node, j), nil
}

// apiSuspendCT is POST …/lxc/{vmid}/status/suspend. PVE calls it experimental, and
// without CRIU it fails.
func apiSuspendCT(w *core.World, c *core.Call, g *core.Guest) (any, error) {
	return checkpoint(w, c, g, "vzsuspend", "-s -D"), nil
}

// apiResumeCT is POST …/lxc/{vmid}/status/resume.
func apiResumeCT(w *core.World, c *core.Call, g *core.Guest) (any, error) {
	if g.Run != nil {
		return nil, perl.Fail("CT %d already running", g.Vmid)
	}
	return checkpoint(w, c, g, "vzresume", "-r --foreground -D"), nil
}

func checkpoint(w *core.World, c *core.Call, g *core.Guest, kind, options string) string {
	return w.Fork(c, g.Node, core.Job{Kind: kind, ID: fmt.Sprint(g.Vmid), Guest: g, End: func(*core.Task) error {
		if err := g.CheckLock(); err != nil {
			return err
		}
		return perl.Fail("command 'lxc-checkpoint -n %d %s /var/lib/vz/dump' failed: exit code 1", g.Vmid, options)
	}})
}
