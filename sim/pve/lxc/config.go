package lxc

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// apiSetLXCConfig is PUT /nodes/{node}/lxc/{vmid}/config, without a task (update_vm in PVE/API2/LXC/Config.pm).
func apiSetLXCConfig(w *core.World, c *core.Call) (any, error) {
	node, vmid, digest := c.Take("node"), perl.Atoi(c.Take("vmid")), c.Take("digest")
	if len(c.In)+len(c.Null) == 0 {
		return nil, perl.Fail("no options specified")
	}
	ch := guests.Change{Remove: perl.SplitList(c.Take("delete")), Revert: perl.SplitList(c.Take("revert"))}
	ch.Set = c.In
	if units, ok := ch.Set["cpuunits"]; ok {
		ch.Set["cpuunits"] = fmt.Sprint(min(max(perl.Atoi(units), 1), 10000))
	}
	g := w.Guest(node, "lxc", vmid)
	if g == nil {
		return nil, core.Missing(node, "lxc", vmid)
	}
	if err := cmp.Or(c.LockFile(g), g.CheckLock()); err != nil {
		return nil, err
	}
	if digest != "" && digest != g.Sum() {
		return nil, perl.Fail("detected modified configuration - file changed by other user? Try again.")
	}
	rights := ctChange{vmid: vmid, old: g.Conf, remove: slices.Concat(ch.Remove, ch.Revert), unprivileged: g.Conf["unprivileged"] == "1"}
	if err := mayConfigureCT(c, rights); err != nil { // PVE asks for a revert what it asks for a deletion
		return nil, err
	}
	if err := checkNamesOfCT(&ch); err != nil {
		return nil, err
	}
	rights.set, rights.remove = ch.Set, nil
	if err := cmp.Or(mayConfigureCT(c, rights), w.NeedWritable(g)); err != nil {
		return nil, err
	}
	return nil, changeCT(w, g, ch)
}

// checkNamesOfCT checks the lists of keys to delete and to revert (update_vm in
// PVE/API2/LXC/Config.pm).
func checkNamesOfCT(ch *guests.Change) error {
	for _, key := range ch.Revert {
		switch {
		case !isCTOption(key):
			return perl.BadParam("revert", "unknown option '"+key+"'")
		case ch.Has(key):
			return perl.BadParam("revert", "you can't use '-"+key+"' and '-revert "+key+"' at the same time")
		}
	}
	for _, key := range ch.Remove {
		switch {
		case !isCTOption(key):
			return perl.BadParam("delete", "unknown option '"+key+"'")
		case ch.Has(key):
			return perl.BadParam("delete", "you can't use '-"+key+"' and -delete "+key+"' at the same time")
		case slices.Contains(ch.Revert, key):
			return perl.BadParam("delete", "you can't use '-delete "+key+"' and '-revert "+key+"' at the same time")
		}
	}
	return nil
}

// isCTOption reports whether a key can be in the configuration of a container.
func isCTOption(key string) bool {
	switch key {
	case "node", "vmid", "ostemplate", "password", "ssh-public-keys", "storage", "pool", "start", "restore", "unique", "force",
		"bwlimit", "ignore-unpack-errors", "ha-managed", "digest":
		return false
	case "lock", "parent", "snaptime":
		return true
	}
	return perl.KeyType("lxc", key) != ""
}

// changeCT makes all changes pending, then applies those that it can (update_pct_config in PVE/LXC/Config.pm). If
// one of them is refused or fails, nothing is written, except what update_net writes itself. Unlike for a VM, a
// deletion does not drop a pending value: only a revert does.
func changeCT(w *core.World, g *core.Guest, ch guests.Change) error {
	pend, going := maps.Clone(g.Pend), g.Deletions()
	for _, key := range ch.Revert {
		delete(pend, key)
		delete(going, key)
	}
	modified := map[string]bool{}
	for _, key := range ch.Remove {
		_, set := g.Conf[key]
		if _, waiting := pend[key]; !set && !waiting {
			continue // PVE warns in its log.
		}
		if err := mayRemoveCT(g, key); err != nil {
			return err
		}
		modified[key] = true
		going[key] = false
	}
	for _, key := range slices.Sorted(maps.Keys(ch.Set)) {
		if err := cmp.Or(maySetCTValue(w, g, key, ch.Set[key]), mtuOfCT(w, g.Node, key, ch.Set[key])); err != nil {
			return err
		}
		modified[key] = true
		pend[key] = ctCanonical(w, key, ch.Set[key])
		delete(going, key)
	}
	written := ctFile{maps.Clone(g.Conf), maps.Clone(g.Pend)}
	g.Pend = pend
	g.SetDeletions(going)
	guests.CleanupPending(g)
	problems := map[string]string{}
	if g.Run != nil {
		hotplugCT(w, g, modified, &written, problems)
	} else {
		coldplugCT(w, g, modified, problems)
	}
	if len(problems) > 0 {
		g.Conf, g.Pend = written.conf, written.pend // Of a change that went wrong nothing is written (update_vm in PVE/API2/LXC/Config.pm).
		w.Write(g)
		return &perl.APIError{Status: 400, Errors: problems}
	}
	w.Write(g)
	return lxcConfig(w, g)
}

func mayRemoveCT(g *core.Guest, key string) error {
	switch {
	case key == "memory" || key == "rootfs" || key == "ostype":
		return perl.Fail("unable to delete required option '%s'", key)
	case key == "unprivileged":
		return perl.Fail("unable to delete read-only option: '%s'", key)
	case (perl.IsMount(key) || strings.HasPrefix(key, "unused")) && g.Conf["protection"] == "1":
		return perl.Fail("can't remove CT %d drive '%s' - protection mode enabled", g.Vmid, key)
	}
	return nil
}

func maySetCTValue(w *core.World, g *core.Guest, key, value string) error {
	switch {
	case key == "unprivileged":
		return perl.Fail("unable to modify read-only option: '%s'", key)
	case perl.IsMount(key) && g.Conf["protection"] == "1":
		return perl.Fail("can't update CT %d drive '%s' - protection mode enabled", g.Vmid, key)
	default:
		return checkCTValue(w, key, value)
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
func hotplugCT(w *core.World, g *core.Guest, modified map[string]bool, written *ctFile, problems map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(g.Pend)) {
		if key != "delete" && modified[key] && fastCT[key] {
			g.Conf[key] = g.Pend[key]
			delete(g.Pend, key)
		}
	}
	going := g.Deletions()
	for _, key := range slices.Sorted(maps.Keys(going)) {
		family := perl.FamilyOf(key)
		if modified[key] && (fastCT[key] || hotCT[key] || family == "net" && len(key) == len("net0") || family == "unused") {
			dropCT(w, g, key, "unable to hotplug "+key+": ", going, problems)
		}
	}
	g.SetDeletions(going)
	for _, key := range slices.Sorted(maps.Keys(g.Pend)) {
		family := perl.FamilyOf(key)
		hot := hotCT[key] || key == "memory" || family == "net" || family == "dev"
		if family == "mp" {
			_, there := g.Conf[key]
			hot = !there // A mount point can be added, not changed.
		}
		if key == "delete" || !modified[key] || !hot {
			continue
		}
		if family == "net" {
			if err := updateCTNet(w, g, key, g.Pend[key], written); err != nil {
				problems[key] = "unable to hotplug " + key + ": " + err.Error() + "\n"
				continue
			}
		}
		takeCT(w, g, key, "unable to hotplug "+key+": ", problems)
	}
}

// coldplugCT makes the waiting changes of a container that does not run; all of
// them when modified is nil.
func coldplugCT(w *core.World, g *core.Guest, modified map[string]bool, problems map[string]string) {
	going := g.Deletions()
	for _, key := range slices.Sorted(maps.Keys(going)) {
		if modified == nil || modified[key] {
			dropCT(w, g, key, "unable to apply pending change "+key+" : ", going, problems)
		}
	}
	g.SetDeletions(going)
	guests.CleanupPending(g)
	for _, key := range slices.Sorted(maps.Keys(g.Pend)) {
		if key != "delete" && (modified == nil || modified[key]) {
			takeCT(w, g, key, "unable to apply pending change "+key+" : ", problems)
		}
	}
}

// dropCT takes a key out of the configuration: the volume of a mount point stays
// as unused, that of an unused one is freed.
func dropCT(w *core.World, g *core.Guest, key, trouble string, going map[string]bool, problems map[string]string) {
	value := g.Conf[key]
	switch {
	case perl.IsMount(key):
		// Also one that something else uses: PVE compares its whole value with volumes. If
		// a mount point has it, it is not unused once the file is written.
		if m := perl.ParseMount(key, value); m.Kind() == "volume" {
			g.Conf.AddUnused(m.Volume)
		}
	case strings.HasPrefix(key, "unused"):
		if !mounts(g, value) && guests.Owns(w, g, value) {
			if err := core.Free(w, g.Node, value); err != nil {
				problems[key] = trouble + err.Error() + "\n"
				return
			}
		}
	}
	delete(g.Conf, key)
	delete(going, key)
}

// takeCT applies a pending value. A new volume of a mount point is created, and its former one stays as unused.
func takeCT(w *core.World, g *core.Guest, key, trouble string, problems map[string]string) {
	value := g.Pend[key]
	if perl.IsMount(key) && key != "rootfs" { // That is stored as it was sent.
		made, err := pendingMount(w, g, perl.ParseMount(key, value))
		if err != nil {
			problems[key] = trouble + err.Error() + "\n"
			return
		}
		value = made
		if old, ok := g.Conf[key]; ok {
			if m := perl.ParseMount(key, old); m.Kind() == "volume" {
				g.Conf.AddUnused(m.Volume) // If it is the same one, it is gone when the file is written.
			}
		}
	}
	g.Conf[key] = value
	delete(g.Pend, key)
}

// pendingMount makes the volume that a mount point orders, or looks at the one that it
// names (apply_pending_mountpoint in PVE/LXC/Config.pm). A running container mounts it.
func pendingMount(w *core.World, g *core.Guest, m perl.Mount) (string, error) {
	if _, _, order := m.Order(); order {
		made, _, err := newMount(w, g, m, func(string, ...any) {})
		return made, err
	}
	if g.Run != nil && m.Kind() == "volume" && w.Volume(g.Node, m.Volume) == nil {
		return "", perl.Fail("volume '%s' does not exist", m.Volume)
	}
	return measured(w, g, m).String(), nil
}

// mounts says whether a mount point names a volume: in force, waiting or in a snapshot.
func mounts(g *core.Guest, volid string) bool {
	for _, section := range g.Sections() {
		for _, key := range section.MountNames() {
			if perl.ParseMount(key, section[key]).Volume == volid {
				return true
			}
		}
	}
	return false
}

// measured is a mount point with the size that its volume has now ($rescan_volume in
// PVE/LXC/Config.pm). Of a volume that is not there a storage of files knows no size, and
// the option goes; the others fail, and the option stays as it was.
func measured(w *core.World, g *core.Guest, m perl.Mount) perl.Mount {
	storage, _, managed := core.VolumeID(m.Volume)
	if m.Kind() != "volume" || !managed {
		return m
	}
	switch v, st := w.Volume(g.Node, m.Volume), w.Stores[storage]; {
	case v != nil:
		m.Opts["size"] = perl.FormatSize(v.Size)
	case st != nil && st.Files():
		delete(m.Opts, "size")
	}
	return m
}

// mtuOfCT refuses a device of a container whose MTU its bridge does not have
// (update_pct_config in PVE/LXC/Config.pm, which creates go through as well).
func mtuOfCT(w *core.World, node, key, value string) error {
	if family := perl.FamilyOf(key); family != "net" || key == family {
		return nil
	}
	device := perl.CTProperty(key, value)
	mtu, bridge := perl.Atoi(device["mtu"]), device["bridge"]
	switch most := guests.BridgeMTU(w, node, bridge); {
	case mtu == 0:
		return nil
	case !guests.HasBridge(w, bridge):
		return perl.Fail("bridge '%s' does not exist", bridge)
	case mtu > most:
		return perl.Fail("%s: MTU size '%d' is bigger than bridge MTU '%d'", key, mtu, most)
	default:
		return nil
	}
}

// ctNet brings a network device of a container into the form in which it is
// stored: with a hardware address, its name first.
func ctNet(w *core.World, value string) string {
	n := perl.CTProperty("net0", value)
	if n["hwaddr"] == "" {
		n["hwaddr"] = w.MAC()
	}
	n["type"] = "veth"
	return printCTNet(n)
}

// ctCanonical is a value as it is stored.
func ctCanonical(w *core.World, key, value string) string {
	switch family := perl.FamilyOf(key); {
	case family == "net" && key != family:
		return ctNet(w, value)
	case key == "tags":
		return guests.UniqueTags(w, value)
	case key == "nameserver", key == "searchdomain":
		return strings.Join(perl.SplitList(value), " ")
	default:
		return perl.Canonical("lxc", key, value)
	}
}

// printCTNet prints a network device of a container, its name first.
func printCTNet(n map[string]string) string {
	parts := []string{"name=" + n["name"]}
	for _, key := range slices.Sorted(maps.Keys(n)) {
		if key != "name" {
			parts = append(parts, key+"="+n[key])
		}
	}
	return strings.Join(parts, ",")
}
