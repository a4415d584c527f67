package qemu

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// PrepareStart makes waiting changes, writes the cloud-init drive, and finds out whether
// QEMU would come up (vm_start_nolock in PVE/QemuServer.pm). log gets the lines that a
// start which fails has in its log, in their order.
func PrepareStart(w *core.World, g *core.Guest, c *core.Call, log func(string, ...any)) error {
	g.Rebooting = false
	if len(g.Pend) > 0 {
		err := coldplug(c, g, map[string]string{})
		w.Write(g)
		if err != nil {
			return err
		}
	}
	if err := writeCloudDrive(w, g, g.Conf, log); err != nil {
		return err
	}
	if g.Conf["lock"] == "suspended" {
		log("Resuming suspended VM")
	}
	// PVE 9 activates the volumes before it writes the command, PVE 8 after that.
	checks := []func(*core.World, *core.Guest) error{checkCommand, checkVolumes}
	if w.V9() {
		slices.Reverse(checks)
	}
	for _, check := range checks {
		if err := check(w, g); err != nil {
			return err
		}
	}
	return runQEMU(w, g, log)
}

// checkCommand refuses a configuration as config_to_command does.
func checkCommand(w *core.World, g *core.Guest) error {
	if guests.Cpus(w, g) > w.Cfg.CPUs {
		return perl.Fail("MAX %d vcpus allowed per VM on this node", w.Cfg.CPUs)
	}
	if err := checkMTUs(w, g); err != nil {
		return err
	}
	if g.Conf["numa"] == "1" {
		return checkNUMA(g)
	}
	return nil
}

// checkNUMA refuses a declared topology as config in PVE/QemuServer/Memory.pm does.
func checkNUMA(g *core.Guest) error {
	total := 0
	for _, key := range g.Conf.IndexedKeys("numa") {
		n := perl.ParseProperty(key, g.Conf[key])
		nodes := n["hostnodes"]
		switch {
		case perl.Atoi(n["memory"]) == 0:
			return perl.Fail("missing NUMA node%s memory value", strings.TrimPrefix(key, "numa"))
		case n["cpus"] == "":
			return perl.Fail("missing NUMA node%s cpus", strings.TrimPrefix(key, "numa"))
		case nodes != "" && nodes != "0": // The simulated node has one.
			_, last, _ := strings.Cut(nodes, "-")
			last = cmp.Or(last, nodes)
			return perl.Fail("host NUMA node%s doesn't exist", last)
		case nodes != "" && n["policy"] == "":
			return perl.Fail("you need to define a policy for hostnode %s", nodes)
		}
		total += perl.Atoi(n["memory"])
	}
	if total != 0 && total != perl.MemoryMiB(g.Conf["memory"]) {
		return perl.Fail("total memory for NUMA nodes must be equal to vm static memory")
	}
	return nil
}

// checkVolumes activates the volumes of a VM.
func checkVolumes(w *core.World, g *core.Guest) error {
	for _, key := range g.Conf.DriveNames() {
		d := perl.ParseDrive(key, g.Conf[key])
		storage, _, managed := core.VolumeID(d.File)
		if !managed {
			continue
		}
		if _, err := w.Store(storage); err != nil {
			return err
		}
		if w.Volume(g.Node, d.File) == nil {
			return perl.Fail("volume '%s' does not exist", d.File)
		}
	}
	return nil
}

// runQEMU returns the errors of QEMU itself and of the script that plugs in its cards (pve-bridge).
func runQEMU(w *core.World, g *core.Guest, log func(string, ...any)) error {
	died := func() error {
		if g.Conf["tpmstate0"] != "" {
			log("stopping swtpm instance (pid %d) due to QEMU startup error", w.Pid())
		}
		return perl.Fail("start failed: QEMU exited with code 1")
	}
	for _, key := range g.Conf.IndexedKeys("net") {
		why, status := plugFails(w, g, perl.ParseProperty(key, g.Conf[key]))
		if why == "" {
			continue
		}
		log("%s", why)
		log("kvm: -netdev type=tap,id=%s,ifname=tap%di%s,script=/usr/libexec/qemu-server/pve-bridge,downscript=/usr/libexec/qemu-server/pve-bridgedown: network script /usr/libexec/qemu-server/pve-bridge failed with status %d",
			key, g.Vmid, strings.TrimPrefix(key, "net"), status)
		return died()
	}
	if w.Cfg.NoKVM && g.Conf["kvm"] != "0" {
		log("kvm: warning: host doesn't support requested feature: CPUID.01H:ECX.pni [bit 0]")
		log("kvm: Host doesn't support requested features")
		return died()
	}
	return nil
}

// plugFails tells why a card cannot be plugged into its bridge, and the status of the
// script then (tap_plug and activate_bridge_vlan in PVE/Network.pm): a VLAN on a bridge
// that does not know of VLANs takes a port of that bridge.
func plugFails(w *core.World, g *core.Guest, card map[string]string) (why string, status int) {
	bridge := card["bridge"]
	if trouble := guests.TrunkTrouble(w, g.Node, card); trouble != "" && guests.HasBridge(w, bridge) {
		return trouble, 512
	}
	switch {
	case bridge == "":
		return "", 0
	case !guests.HasBridge(w, bridge):
		return "bridge '" + bridge + "' does not exist", 512
	case card["tag"] == "" || !slices.Contains(w.Bridges, bridge):
		return "", 0
	}
	for _, entry := range guests.Interfaces(w, g.Node) {
		if entry["iface"] == bridge && entry["bridge_ports"] == "" && perl.Text(entry["bridge_vlan_aware"]) != "1" {
			return "no physical interface on bridge '" + bridge + "'", 6400
		}
	}
	return "", 0
}

// apiReset is POST …/status/reset: the same process boots again.
func apiReset(w *core.World, c *core.Call, g *core.Guest) (any, error) {
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

// suspend is POST …/status/suspend: a pause; with todisk a hibernation, which keeps
// the memory on a volume and ends the process (vm_suspend in PVE/QemuServer.pm).
var suspend = core.On(runningOnly, apiSuspend)

func apiSuspend(w *core.World, c *core.Call, g *core.Guest) (any, error) {
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
		w.SetLock(g, "suspending")
		return nil
	}, End: func(t *core.Task) error {
		if g.Run == nil {
			return perl.Fail("VM %d not running", g.Vmid)
		}
		if g.Run.Qmp = "paused"; toDisk {
			t.Logf("State saved, quitting")
			g.Conf["lock"] = "suspended"
			g.Run = nil
			if w.Cfg.Systems != nil {
				w.Cfg.Systems.Halt(g.Key())
			}
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
