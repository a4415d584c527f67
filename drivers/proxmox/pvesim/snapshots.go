package pvesim

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

func (g *guest) snapshotNames() []string {
	var names []string
	for _, s := range g.snapshots {
		names = append(names, s.name)
	}
	return names
}

// notInSnapshots says which keys a snapshot neither takes nor gives back
// (__snapshot_copy_config in PVE/AbstractConfig.pm).
func notInSnapshots(key string) bool {
	switch key {
	case "description", "lock", "parent", "snaptime", "vmstate", "runningmachine", "runningcpu", "running-nets-host-mtu", "digest":
		return true
	}
	return strings.HasPrefix(key, "unused")
}

// disks are the volumes that a snapshot of a guest is one of, by key: no CD
// drives, but for that of cloud-init.
func (g *guest) disks(c config) map[string]string {
	found := map[string]string{}
	if g.kind == "lxc" {
		for _, key := range mountNames(c) {
			if m := parseMount(key, c[key]); m.kind() == "volume" {
				found[key] = m.volume
			}
		}
		return found
	}
	for _, key := range driveNames(c) {
		d := parseDrive(key, c[key])
		if _, _, managed := volumeID(d.file); managed && (!d.cdrom() || d.cloudinit()) {
			found[key] = d.file
		}
	}
	return found
}

// snapshots says whether snapshots of a volume can be made (volume_has_feature in
// PVE/Storage.pm).
func (s *store) snapshots(v *volume) bool {
	switch s.Type {
	case "lvm", "iscsi":
		return false
	case "lvmthin", "zfspool", "zfs", "rbd", "btrfs", "cephfs":
		return true
	default:
		return v.format == "qcow2"
	}
}

// snapshotable fails unless all disks of a guest can be in a snapshot.
func (w *world) snapshotable(g *guest) error {
	for key, volid := range g.disks(g.conf) {
		v := w.volume(g.node, volid)
		storage, _, _ := volumeID(volid)
		if v == nil || key != "tpmstate0" && !parseDrive(key, g.conf[key]).cloudinit() && !w.stores[storage].snapshots(v) {
			return fail("snapshot feature is not available")
		}
	}
	return nil
}

// word is what begins the types of a guest's tasks.
func (g *guest) word() string {
	if g.kind == "lxc" {
		return "vz"
	}
	return "qm"
}

// apiSnapshots is GET …/snapshot: the snapshots, and the present state.
func apiSnapshots(_ *world, c *call) (any, error) {
	g, err := c.guestCall()
	if err != nil {
		return nil, err
	}
	list := []map[string]any{}
	for _, s := range g.snapshots {
		entry := map[string]any{"name": s.name, "snaptime": atoi(s.conf["snaptime"]), "description": s.conf["description"]}
		if g.kind == "qemu" {
			entry["vmstate"] = boolInt(s.conf["vmstate"] != "")
		}
		if parent := s.conf["parent"]; parent != "" {
			entry["parent"] = parent
		}
		list = append(list, entry)
	}
	current := map[string]any{"name": "current", "description": "You are here!", "digest": g.sum(), "running": boolInt(g.run != nil)}
	if parent := g.conf["parent"]; parent != "" {
		current["parent"] = parent
	}
	return append(list, current), nil
}

// apiCreateSnapshot is POST …/snapshot. What is wrong shows in the task.
func apiCreateSnapshot(w *world, c *call) (any, error) {
	name, description, withState := c.in["snapname"], c.in["description"], c.flag("vmstate")
	ofCT := strings.HasPrefix(c.m.Path, "/nodes/{node}/lxc")
	if name == "current" || name == "pending" && !ofCT || name == "vzdump" {
		return nil, fail("unable to use snapshot name '%s' (reserved name)", name)
	}
	g, err := c.guestCall()
	if err != nil {
		return nil, err
	}
	unlock := func(*task) {
		if g.conf["lock"] == "snapshot" {
			delete(g.conf, "lock")
			w.write(g)
		}
	}
	return w.fork(c, g.node, job{kind: g.word() + "snapshot", id: fmt.Sprint(g.vmid), guest: g, abort: unlock, begin: func(*task) error {
		if err := w.maySnapshot(g, name); err != nil {
			return err
		}
		g.conf["lock"] = "snapshot"
		w.write(g)
		return nil
	}, end: func(t *task) error {
		unlock(t)
		return w.takeSnapshot(g, name, description, withState && g.run != nil, t.logf)
	}}), nil
}

func (w *world) maySnapshot(g *guest, name string) error {
	if err := g.checkLock(); err != nil {
		return err
	}
	switch {
	case g.conf["template"] == "1":
		return fail("you can't take a snapshot if it's a template")
	case g.snapshot(name) != nil:
		return fail("snapshot name '%s' already used", name)
	}
	if err := w.needWritable(g); err != nil {
		return err
	}
	return w.snapshotable(g)
}

func (w *world) takeSnapshot(g *guest, name, description string, withState bool, log func(string, ...any)) error {
	s := &snapshot{name: name, conf: maps.Clone(g.conf), sizes: map[string]int64{}}
	maps.DeleteFunc(s.conf, func(key, _ string) bool { return notInSnapshots(key) })
	s.conf["snaptime"] = fmt.Sprint(w.now.Unix())
	if parent := g.conf["parent"]; parent != "" {
		s.conf["parent"] = parent
	}
	if description != "" {
		s.conf["description"] = description
	}
	if withState {
		if err := w.saveState(g, s, log); err != nil {
			return err
		}
	}
	if g.kind == "qemu" && g.run != nil && !withState {
		w.logFreeze(g, log)
	}
	disks := g.disks(g.conf)
	keys := slices.Sorted(maps.Keys(disks))
	if g.kind == "qemu" { // In the order of the buses (valid_drive_names in PVE/QemuServer/Drive.pm).
		keys = slices.DeleteFunc(driveNames(g.conf), func(key string) bool { return disks[key] == "" })
	}
	for _, key := range keys {
		if v := w.volume(g.node, disks[key]); v != nil {
			s.sizes[disks[key]] = v.size
			if g.kind == "qemu" && !parseDrive(key, g.conf[key]).cdrom() {
				log("snapshotting 'drive-%s' (%s)", key, disks[key])
			}
		}
	}
	g.snapshots = append(g.snapshots, s)
	g.conf["parent"] = name
	w.write(g)
	return nil
}

// logFreeze is what the log says of the file systems of a running VM, which its agent may
// freeze (guest_fs_freeze_applicable in PVE/QemuServer/Agent.pm since qemu-server 9.1.9;
// __snapshot_check_freeze_needed in PVE/QemuConfig.pm before).
func (w *world) logFreeze(g *guest, log func(string, ...any)) {
	agent := parseProperty("agent", g.conf["agent"])
	answers := g.run.system && !g.run.paused() && !w.now.Before(g.run.booted)
	frozen := agent["freeze-fs"] == "0" || agent["freeze-fs-on-backup"] == "0"
	switch {
	case w.v92() && (agent["enabled"] != "1" || frozen):
		log("skipping guest filesystem freeze - disabled in VM options")
	case agent["enabled"] != "1" || answers:
	case w.v92():
		log("skipping guest filesystem freeze - agent configured but not running?")
	default:
		log("QEMU Guest Agent is not running - VM %d qmp command 'guest-ping' failed - got timeout", g.vmid)
	}
}

// saveState keeps the memory of a running VM with a snapshot.
func (w *world) saveState(g *guest, s *snapshot, log func(string, ...any)) error {
	storage, err := w.allocateState(g, s.name, s.conf, "", log)
	if err == nil {
		log("saving VM state and RAM using storage '%s'", storage)
	}
	return err
}

// allocateState makes room for the memory of a running VM, on the storage that was
// asked for or that of its first disk, and notes in a section of its configuration
// what was running (__snapshot_save_vmstate in PVE/QemuConfig.pm).
func (w *world) allocateState(g *guest, of string, section config, storage string, log func(string, ...any)) (string, error) {
	storage = cmp.Or(storage, g.conf["vmstatestorage"])
	for _, key := range driveNames(g.conf) {
		if name, _, managed := volumeID(parseDrive(key, g.conf[key]).file); managed && storage == "" {
			storage = name
		}
	}
	st := w.stores[storage]
	if st == nil {
		return "", fail("no target storage found for VM state")
	}
	name := fmt.Sprintf("vm-%d-state-%s", g.vmid, of)
	if st.files() {
		name = fmt.Sprintf("%d/%s.raw", g.vmid, name)
	}
	size := int64(memoryMiB(g.conf["memory"])*2+500) << 20
	if _, err := w.allocateAs(g.node, st, name, g.vmid, "raw", size, log); err != nil {
		return "", err
	}
	section["vmstate"] = storage + ":" + name
	section["runningmachine"], section["runningcpu"] = g.run.machine, w.cpuArgument(g.conf)
	if w.v9() { // Since qemu-server 9.0.21.
		section["running-nets-host-mtu"] = w.netMTUs(g.node, g.conf)
	}
	return storage, nil
}

// apiSnapshotIndex is GET …/snapshot/{snapname}.
func apiSnapshotIndex(*world, *call) (any, error) { return subdirs("cmd", "rollback", "config"), nil }

// apiSnapshotConfig is GET …/snapshot/{snapname}/config.
func apiSnapshotConfig(_ *world, c *call) (any, error) {
	g, err := c.guestCall()
	if err != nil {
		return nil, err
	}
	s := g.snapshot(c.in["snapname"])
	if s == nil {
		return nil, fail("snapshot '%s' does not exist", c.in["snapname"])
	}
	return s.shown(g.kind), nil
}

func (s *snapshot) shown(kind string) map[string]any {
	entry := map[string]any{}
	for key, value := range s.conf {
		entry[key] = masked(key, typed(kind, key, value))
	}
	entry["snaptime"] = atoi(s.conf["snaptime"])
	return entry
}

// apiSetSnapshot is PUT …/snapshot/{snapname}/config: its description.
func apiSetSnapshot(w *world, c *call) (any, error) {
	if !c.has("description") {
		return nil, nil // Nothing else can be set, and nothing is looked at.
	}
	g, err := c.guestCall()
	if err != nil {
		return nil, err
	}
	if err := c.lockFile(g); err != nil {
		return nil, err
	}
	if err := g.checkLock(); err != nil {
		return nil, err
	}
	s := g.snapshot(c.in["snapname"])
	if s == nil {
		return nil, fail("snapshot '%s' does not exist", c.in["snapname"])
	}
	s.conf["description"] = c.in["description"]
	w.touch(g)
	return nil, nil
}
