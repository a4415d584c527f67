package pvesim

import (
	"slices"
	"strings"
)

// prepareStart makes waiting changes, writes the cloud-init drive, and finds out whether
// QEMU would come up (vm_start_nolock in PVE/QemuServer.pm). log gets the lines that a
// start which fails has in its log, in their order.
func (w *world) prepareStart(g *guest, c *call, log func(string, ...any)) error {
	g.rebooting = false
	if len(g.pend) > 0 {
		err := c.coldplug(g, map[string]string{})
		w.write(g)
		if err != nil {
			return err
		}
	}
	if err := w.writeCloudDrive(g, g.conf, log); err != nil {
		return err
	}
	if g.conf["lock"] == "suspended" {
		log("Resuming suspended VM")
	}
	// PVE 9 activates the volumes before it writes the command, PVE 8 after that.
	checks := []func(*guest) error{w.checkCommand, w.checkVolumes}
	if w.v9() {
		slices.Reverse(checks)
	}
	for _, check := range checks {
		if err := check(g); err != nil {
			return err
		}
	}
	return w.runQEMU(g, log)
}

// checkCommand is what config_to_command refuses.
func (w *world) checkCommand(g *guest) error {
	if w.cpus(g) > w.cfg.CPUs {
		return fail("MAX %d vcpus allowed per VM on this node", w.cfg.CPUs)
	}
	if err := w.checkMTUs(g); err != nil {
		return err
	}
	if g.conf["numa"] == "1" {
		return checkNUMA(g)
	}
	return nil
}

// checkNUMA is what config in PVE/QemuServer/Memory.pm refuses of a topology of one's own.
func checkNUMA(g *guest) error {
	total := 0
	for _, key := range indexedKeys(g.conf, "numa") {
		n := parseProperty(key, g.conf[key])
		nodes := n["hostnodes"]
		switch {
		case atoi(n["memory"]) == 0:
			return fail("missing NUMA node%s memory value", strings.TrimPrefix(key, "numa"))
		case n["cpus"] == "":
			return fail("missing NUMA node%s cpus", strings.TrimPrefix(key, "numa"))
		case nodes != "" && nodes != "0": // The simulated node has one.
			_, last, _ := strings.Cut(nodes, "-")
			if last == "" {
				last = nodes
			}
			return fail("host NUMA node%s doesn't exist", last)
		case nodes != "" && n["policy"] == "":
			return fail("you need to define a policy for hostnode %s", nodes)
		}
		total += atoi(n["memory"])
	}
	if total != 0 && total != memoryMiB(g.conf["memory"]) {
		return fail("total memory for NUMA nodes must be equal to vm static memory")
	}
	return nil
}

// checkVolumes activates the volumes of a VM.
func (w *world) checkVolumes(g *guest) error {
	for _, key := range driveNames(g.conf) {
		d := parseDrive(key, g.conf[key])
		storage, _, managed := volumeID(d.file)
		if !managed {
			continue
		}
		if _, err := w.store(storage); err != nil {
			return err
		}
		if w.volume(g.node, d.file) == nil {
			return fail("volume '%s' does not exist", d.file)
		}
	}
	return nil
}

// runQEMU is what QEMU itself and the script that plugs in its cards (pve-bridge) say.
func (w *world) runQEMU(g *guest, log func(string, ...any)) error {
	died := func() error {
		if g.conf["tpmstate0"] != "" {
			log("stopping swtpm instance (pid %d) due to QEMU startup error", w.pid())
		}
		return fail("start failed: QEMU exited with code 1")
	}
	for _, key := range indexedKeys(g.conf, "net") {
		why, status := w.plugFails(g, parseProperty(key, g.conf[key]))
		if why == "" {
			continue
		}
		log("%s", why)
		log("kvm: -netdev type=tap,id=%s,ifname=tap%di%s,script=/usr/libexec/qemu-server/pve-bridge,downscript=/usr/libexec/qemu-server/pve-bridgedown: network script /usr/libexec/qemu-server/pve-bridge failed with status %d",
			key, g.vmid, strings.TrimPrefix(key, "net"), status)
		return died()
	}
	if w.cfg.NoKVM && g.conf["kvm"] != "0" {
		log("kvm: warning: host doesn't support requested feature: CPUID.01H:ECX.pni [bit 0]")
		log("kvm: Host doesn't support requested features")
		return died()
	}
	return nil
}

// plugFails tells why a card cannot be plugged into its bridge, and the status of the
// script then (tap_plug and activate_bridge_vlan in PVE/Network.pm): a VLAN on a bridge
// that does not know of VLANs takes a port of that bridge.
func (w *world) plugFails(g *guest, card map[string]string) (why string, status int) {
	bridge := card["bridge"]
	if trouble := w.trunkTrouble(g.node, card); trouble != "" && w.hasBridge(bridge) {
		return trouble, 512
	}
	switch {
	case bridge == "":
		return "", 0
	case !w.hasBridge(bridge):
		return "bridge '" + bridge + "' does not exist", 512
	case card["tag"] == "" || !slices.Contains(w.bridges, bridge):
		return "", 0
	}
	for _, entry := range w.interfaces(g.node) {
		if entry["iface"] == bridge && entry["bridge_ports"] == "" && text(entry["bridge_vlan_aware"]) != "1" {
			return "no physical interface on bridge '" + bridge + "'", 6400
		}
	}
	return "", 0
}
