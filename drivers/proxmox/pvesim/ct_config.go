package pvesim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// apiSetLXCConfig is PUT /nodes/{node}/lxc/{vmid}/config: at once, there is no
// task for it (update_vm in PVE/API2/LXC/Config.pm).
func apiSetLXCConfig(w *world, c *call) (any, error) {
	node, vmid, digest := c.take("node"), atoi(c.take("vmid")), c.take("digest")
	if len(c.in)+len(c.null) == 0 {
		return nil, fail("no options specified")
	}
	ch := change{remove: splitList(c.take("delete")), revert: splitList(c.take("revert"))}
	ch.set = c.in
	if units, ok := ch.set["cpuunits"]; ok {
		ch.set["cpuunits"] = fmt.Sprint(min(max(atoi(units), 1), 10000))
	}
	g := w.guest(node, "lxc", vmid)
	if g == nil {
		return nil, missing(node, "lxc", vmid)
	}
	if err := c.lockFile(g); err != nil {
		return nil, err
	}
	if err := g.checkLock(); err != nil {
		return nil, err
	}
	if digest != "" && digest != g.sum() {
		return nil, fail("detected modified configuration - file changed by other user? Try again.")
	}
	rights := ctChange{vmid: vmid, old: g.conf, remove: slices.Concat(ch.remove, ch.revert), unprivileged: g.conf["unprivileged"] == "1"}
	if err := c.mayConfigureCT(rights); err != nil { // PVE asks for a revert what it asks for a deletion
		return nil, err
	}
	if err := ch.checkNamesOfCT(); err != nil {
		return nil, err
	}
	rights.set, rights.remove = ch.set, nil
	if err := c.mayConfigureCT(rights); err != nil {
		return nil, err
	}
	if err := w.needWritable(g); err != nil {
		return nil, err
	}
	return nil, w.changeCT(g, ch)
}

// checkNamesOfCT checks the lists of keys to delete and to revert (update_vm in
// PVE/API2/LXC/Config.pm).
func (ch *change) checkNamesOfCT() error {
	for _, key := range ch.revert {
		switch {
		case !isCTOption(key):
			return badParam("revert", "unknown option '"+key+"'")
		case ch.has(key):
			return badParam("revert", "you can't use '-"+key+"' and '-revert "+key+"' at the same time")
		}
	}
	for _, key := range ch.remove {
		switch {
		case !isCTOption(key):
			return badParam("delete", "unknown option '"+key+"'")
		case ch.has(key):
			return badParam("delete", "you can't use '-"+key+"' and -delete "+key+"' at the same time")
		case slices.Contains(ch.revert, key):
			return badParam("delete", "you can't use '-delete "+key+"' and '-revert "+key+"' at the same time")
		}
	}
	return nil
}

// isCTOption says whether a key can stand in the configuration of a container.
func isCTOption(key string) bool {
	switch key {
	case "node", "vmid", "ostemplate", "password", "ssh-public-keys", "storage", "pool", "start", "restore", "unique", "force",
		"bwlimit", "ignore-unpack-errors", "ha-managed", "digest":
		return false
	case "lock", "parent", "snaptime":
		return true
	}
	return keyType("lxc", key) != ""
}

// changeCT lets all changes wait, then makes those that can be made now
// (update_pct_config in PVE/LXC/Config.pm). Nothing is written when one of them is
// refused or fails, but for what update_net writes by itself. A deletion does not drop a
// value that waits, as it does of a VM: only a revert does.
func (w *world) changeCT(g *guest, ch change) error {
	pend, going := maps.Clone(g.pend), g.deletions()
	for _, key := range ch.revert {
		delete(pend, key)
		delete(going, key)
	}
	modified := map[string]bool{}
	for _, key := range ch.remove {
		_, set := g.conf[key]
		if _, waiting := pend[key]; !set && !waiting {
			continue // PVE warns in its log.
		}
		if err := g.mayRemoveCT(key); err != nil {
			return err
		}
		modified[key] = true
		going[key] = false
	}
	for _, key := range slices.Sorted(maps.Keys(ch.set)) {
		if err := w.maySetCTValue(g, key, ch.set[key]); err != nil {
			return err
		}
		if err := w.mtuOfCT(g.node, key, ch.set[key]); err != nil {
			return err
		}
		modified[key] = true
		pend[key] = w.ctCanonical(key, ch.set[key])
		delete(going, key)
	}
	written := ctFile{maps.Clone(g.conf), maps.Clone(g.pend)}
	g.pend = pend
	g.setDeletions(going)
	g.cleanupPending()
	problems := map[string]string{}
	if g.run != nil {
		w.hotplugCT(g, modified, &written, problems)
	} else {
		w.coldplugCT(g, modified, problems)
	}
	if len(problems) > 0 {
		g.conf, g.pend = written.conf, written.pend // Of a change that went wrong nothing is written (update_vm in PVE/API2/LXC/Config.pm).
		w.write(g)
		return &apiError{status: 400, errors: problems}
	}
	w.write(g)
	return w.lxcConfig(g)
}

func (g *guest) mayRemoveCT(key string) error {
	switch {
	case key == "memory" || key == "rootfs" || key == "ostype":
		return fail("unable to delete required option '%s'", key)
	case key == "unprivileged":
		return fail("unable to delete read-only option: '%s'", key)
	case (isMount(key) || strings.HasPrefix(key, "unused")) && g.conf["protection"] == "1":
		return fail("can't remove CT %d drive '%s' - protection mode enabled", g.vmid, key)
	}
	return nil
}

func (w *world) maySetCTValue(g *guest, key, value string) error {
	switch {
	case key == "unprivileged":
		return fail("unable to modify read-only option: '%s'", key)
	case isMount(key) && g.conf["protection"] == "1":
		return fail("can't update CT %d drive '%s' - protection mode enabled", g.vmid, key)
	default:
		return w.checkCTValue(key, value)
	}
}

// fastCT are the keys that mean nothing to a running container, hotCT those that
// can be changed under it.
var (
	fastCT = map[string]bool{
		"description": true, "onboot": true, "startup": true, "protection": true, "hostname": true, "hookscript": true,
		"cores": true, "tags": true, "lock": true,
	}
	hotCT = map[string]bool{"cpulimit": true, "cpuunits": true, "swap": true}
)

// hotplugCT makes what can be changed while the container runs
// (vmconfig_hotplug_pending in PVE/LXC/Config.pm). A card is unplugged by a pattern of
// one digit, so net10 and above wait.
func (w *world) hotplugCT(g *guest, modified map[string]bool, written *ctFile, problems map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(g.pend)) {
		if key != "delete" && modified[key] && fastCT[key] {
			g.conf[key] = g.pend[key]
			delete(g.pend, key)
		}
	}
	going := g.deletions()
	for _, key := range slices.Sorted(maps.Keys(going)) {
		family := familyOf(key)
		if modified[key] && (fastCT[key] || hotCT[key] || family == "net" && len(key) == len("net0") || family == "unused") {
			w.dropCT(g, key, "unable to hotplug "+key+": ", going, problems)
		}
	}
	g.setDeletions(going)
	for _, key := range slices.Sorted(maps.Keys(g.pend)) {
		family := familyOf(key)
		hot := hotCT[key] || key == "memory" || family == "net" || family == "dev"
		if family == "mp" {
			_, there := g.conf[key]
			hot = !there // A mount point can be added, not changed.
		}
		if key == "delete" || !modified[key] || !hot {
			continue
		}
		if family == "net" {
			if err := w.updateCTNet(g, key, g.pend[key], written); err != nil {
				problems[key] = "unable to hotplug " + key + ": " + err.Error() + "\n"
				continue
			}
		}
		w.takeCT(g, key, "unable to hotplug "+key+": ", problems)
	}
}

// coldplugCT makes the waiting changes of a container that does not run; all of
// them when modified is nil.
func (w *world) coldplugCT(g *guest, modified map[string]bool, problems map[string]string) {
	going := g.deletions()
	for _, key := range slices.Sorted(maps.Keys(going)) {
		if modified == nil || modified[key] {
			w.dropCT(g, key, "unable to apply pending change "+key+" : ", going, problems)
		}
	}
	g.setDeletions(going)
	g.cleanupPending()
	for _, key := range slices.Sorted(maps.Keys(g.pend)) {
		if key != "delete" && (modified == nil || modified[key]) {
			w.takeCT(g, key, "unable to apply pending change "+key+" : ", problems)
		}
	}
}

// dropCT takes a key out of the configuration: the volume of a mount point stays
// as unused, that of an unused one is freed.
func (w *world) dropCT(g *guest, key, trouble string, going map[string]bool, problems map[string]string) {
	value := g.conf[key]
	switch {
	case isMount(key):
		// Also one that something else uses: PVE compares its whole value with volumes. If
		// a mount point has it, it is not unused once the file is written.
		if m := parseMount(key, value); m.kind() == "volume" {
			addUnused(g.conf, m.volume)
		}
	case strings.HasPrefix(key, "unused"):
		if !g.mounts(value) && w.owns(g, value) {
			if err := w.free(g.node, value); err != nil {
				problems[key] = trouble + err.Error() + "\n"
				return
			}
		}
	}
	delete(g.conf, key)
	delete(going, key)
}

// takeCT puts a waiting value into force. What a mount point names is made, what
// it named before stays as unused.
func (w *world) takeCT(g *guest, key, trouble string, problems map[string]string) {
	value := g.pend[key]
	if isMount(key) && key != "rootfs" { // That is stored as it was sent.
		made, err := w.pendingMount(g, parseMount(key, value))
		if err != nil {
			problems[key] = trouble + err.Error() + "\n"
			return
		}
		value = made
		if old, ok := g.conf[key]; ok {
			if m := parseMount(key, old); m.kind() == "volume" {
				addUnused(g.conf, m.volume) // If it is the same one, it is gone when the file is written.
			}
		}
	}
	g.conf[key] = value
	delete(g.pend, key)
}

// pendingMount makes the volume that a mount point orders, or looks at the one that it
// names (apply_pending_mountpoint in PVE/LXC/Config.pm). A running container mounts it.
func (w *world) pendingMount(g *guest, m mount) (string, error) {
	if _, _, order := m.order(); order {
		made, _, err := w.newMount(g, m, func(string, ...any) {})
		return made, err
	}
	if g.run != nil && m.kind() == "volume" && w.volume(g.node, m.volume) == nil {
		return "", fail("volume '%s' does not exist", m.volume)
	}
	return w.measured(g, m).String(), nil
}

// mounts says whether a mount point names a volume: in force, waiting or in a snapshot.
func (g *guest) mounts(volid string) bool {
	sections := []config{g.conf, g.pend}
	for _, s := range g.snapshots {
		sections = append(sections, s.conf)
	}
	for _, section := range sections {
		for _, key := range mountNames(section) {
			if parseMount(key, section[key]).volume == volid {
				return true
			}
		}
	}
	return false
}
