package guests

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// NotInSnapshots says which keys a snapshot neither takes nor gives back
// (__snapshot_copy_config in PVE/AbstractConfig.pm).
func NotInSnapshots(key string) bool {
	switch key {
	case "description", "lock", "parent", "snaptime", "vmstate", "runningmachine", "runningcpu", "running-nets-host-mtu", "digest":
		return true
	}
	return strings.HasPrefix(key, "unused")
}

// Disks are the volumes that a snapshot of a guest is one of, by key: no CD
// drives, but for that of cloud-init.
func Disks(g *core.Guest, c perl.Config) map[string]string {
	found := map[string]string{}
	if g.Kind == "lxc" {
		for _, key := range c.MountNames() {
			if m := perl.ParseMount(key, c[key]); m.Kind() == "volume" {
				found[key] = m.Volume
			}
		}
		return found
	}
	for _, key := range c.DriveNames() {
		d := perl.ParseDrive(key, c[key])
		if _, _, managed := core.VolumeID(d.File); managed && (!d.Cdrom() || d.Cloudinit()) {
			found[key] = d.File
		}
	}
	return found
}

// Snapshots says whether snapshots of a volume can be made (volume_has_feature in
// PVE/Storage.pm).
func Snapshots(s *core.Store, v *core.Volume) bool {
	switch s.Type {
	case "lvm", "iscsi":
		return false
	case "lvmthin", "zfspool", "zfs", "rbd", "btrfs", "cephfs":
		return true
	default:
		return v.Format == "qcow2"
	}
}

// Snapshotable fails unless all disks of a guest can be in a snapshot.
func Snapshotable(w *core.World, g *core.Guest) error {
	for key, volid := range Disks(g, g.Conf) {
		v := w.Volume(g.Node, volid)
		storage, _, _ := core.VolumeID(volid)
		if v == nil || key != "tpmstate0" && !perl.ParseDrive(key, g.Conf[key]).Cloudinit() && !Snapshots(w.Stores[storage], v) {
			return perl.Fail("snapshot feature is not available")
		}
	}
	return nil
}

// Word returns the beginning of the types of a guest's tasks.
func Word(g *core.Guest) string {
	if g.Kind == "lxc" {
		return "vz"
	}
	return "qm"
}

// apiSnapshots is GET …/snapshot: the snapshots, and the present state.
func apiSnapshots(_ *core.World, _ *core.Call, g *core.Guest) (any, error) {
	list := []map[string]any{}
	for _, s := range g.Snapshots {
		entry := map[string]any{"name": s.Name, "snaptime": perl.Atoi(s.Conf["snaptime"]), "description": s.Conf["description"]}
		if g.Kind == "qemu" {
			entry["vmstate"] = perl.BoolInt(s.Conf["vmstate"] != "")
		}
		if parent := s.Conf["parent"]; parent != "" {
			entry["parent"] = parent
		}
		list = append(list, entry)
	}
	current := map[string]any{"name": "current", "description": "You are here!", "digest": g.Sum(), "running": perl.BoolInt(g.Run != nil)}
	if parent := g.Conf["parent"]; parent != "" {
		current["parent"] = parent
	}
	return append(list, current), nil
}

// apiCreateSnapshot is POST …/snapshot. Its errors show in the task.
func apiCreateSnapshot(w *core.World, c *core.Call) (any, error) {
	name, description, withState := c.In["snapname"], c.In["description"], c.Flag("vmstate")
	ofCT := strings.HasPrefix(c.M.Path, "/nodes/{node}/lxc")
	if name == "current" || name == "pending" && !ofCT || name == "vzdump" {
		return nil, perl.Fail("unable to use snapshot name '%s' (reserved name)", name)
	}
	g, err := c.Guest()
	if err != nil {
		return nil, err
	}
	unlock := func(*core.Task) {
		if g.Conf["lock"] == "snapshot" {
			w.SetLock(g, "")
		}
	}
	return w.Fork(c, g.Node, core.Job{Kind: Word(g) + "snapshot", ID: fmt.Sprint(g.Vmid), Guest: g, Abort: unlock, Begin: func(*core.Task) error {
		if err := maySnapshot(w, g, name); err != nil {
			return err
		}
		w.SetLock(g, "snapshot")
		return nil
	}, End: func(t *core.Task) error {
		unlock(t)
		return takeSnapshot(w, g, name, description, withState && g.Run != nil, t.Logf)
	}}), nil
}

func maySnapshot(w *core.World, g *core.Guest, name string) error {
	if err := g.CheckLock(); err != nil {
		return err
	}
	switch {
	case g.Conf["template"] == "1":
		return perl.Fail("you can't take a snapshot if it's a template")
	case g.Snapshot(name) != nil:
		return perl.Fail("snapshot name '%s' already used", name)
	}
	return cmp.Or(w.NeedWritable(g), Snapshotable(w, g))
}

func takeSnapshot(w *core.World, g *core.Guest, name, description string, withState bool, log func(string, ...any)) error {
	s := &core.Snapshot{Name: name, Conf: maps.Clone(g.Conf), Sizes: map[string]int64{}}
	maps.DeleteFunc(s.Conf, func(key, _ string) bool { return NotInSnapshots(key) })
	s.Conf["snaptime"] = fmt.Sprint(w.Now.Unix())
	if parent := g.Conf["parent"]; parent != "" {
		s.Conf["parent"] = parent
	}
	if description != "" {
		s.Conf["description"] = description
	}
	if withState {
		if err := saveState(w, g, s, log); err != nil {
			return err
		}
	}
	if g.Kind == "qemu" && g.Run != nil && !withState {
		logFreeze(w, g, log)
	}
	disks := Disks(g, g.Conf)
	keys := slices.Sorted(maps.Keys(disks))
	if g.Kind == "qemu" { // In the order of the buses (valid_drive_names in PVE/QemuServer/Drive.pm).
		keys = slices.DeleteFunc(g.Conf.DriveNames(), func(key string) bool { return disks[key] == "" })
	}
	for _, key := range keys {
		if v := w.Volume(g.Node, disks[key]); v != nil {
			s.Sizes[disks[key]] = v.Size
			if g.Kind == "qemu" && !perl.ParseDrive(key, g.Conf[key]).Cdrom() {
				log("snapshotting 'drive-%s' (%s)", key, disks[key])
			}
		}
	}
	g.Snapshots = append(g.Snapshots, s)
	if w.Cfg.Systems != nil {
		w.Cfg.Systems.Copy(g.Key(), g.SnapshotKey(name))
	}
	g.Conf["parent"] = name
	w.Write(g)
	return nil
}

// logFreeze has the lines of the log about the file systems of a running VM, which its agent may
// freeze (guest_fs_freeze_applicable in PVE/QemuServer/Agent.pm since qemu-server 9.1.9;
// __snapshot_check_freeze_needed in PVE/QemuConfig.pm before).
func logFreeze(w *core.World, g *core.Guest, log func(string, ...any)) {
	agent := perl.ParseProperty("agent", g.Conf["agent"])
	answers := g.Run.System && !g.Run.Paused() && !w.Now.Before(g.Run.Booted)
	frozen := agent["freeze-fs"] == "0" || agent["freeze-fs-on-backup"] == "0"
	switch {
	case w.V92() && (agent["enabled"] != "1" || frozen):
		log("skipping guest filesystem freeze - disabled in VM options")
	case agent["enabled"] != "1" || answers:
	case w.V92():
		log("skipping guest filesystem freeze - agent configured but not running?")
	default:
		log("QEMU Guest Agent is not running - VM %d qmp command 'guest-ping' failed - got timeout", g.Vmid)
	}
}

// saveState keeps the memory of a running VM with a snapshot.
func saveState(w *core.World, g *core.Guest, s *core.Snapshot, log func(string, ...any)) error {
	storage, err := AllocateState(w, g, s.Name, s.Conf, "", log)
	if err == nil {
		log("saving VM state and RAM using storage '%s'", storage)
	}
	return err
}

// AllocateState makes room for the memory of a running VM, on the storage that was
// asked for or that of its first disk, and notes in a section of its configuration
// what was running (__snapshot_save_vmstate in PVE/QemuConfig.pm).
func AllocateState(w *core.World, g *core.Guest, of string, section perl.Config, storage string, log func(string, ...any)) (string, error) {
	storage = cmp.Or(storage, g.Conf["vmstatestorage"])
	for _, key := range g.Conf.DriveNames() {
		if name, _, managed := core.VolumeID(perl.ParseDrive(key, g.Conf[key]).File); managed && storage == "" {
			storage = name
		}
	}
	st := w.Stores[storage]
	if st == nil {
		return "", perl.Fail("no target storage found for VM state")
	}
	name := st.NameOf(g.Vmid, fmt.Sprintf("vm-%d-state-%s", g.Vmid, of), "raw")
	size := int64(perl.MemoryMiB(g.Conf["memory"])*2+500) << 20
	if _, err := st.AllocateAs(w, g.Node, name, g.Vmid, "raw", size, log); err != nil {
		return "", err
	}
	section["vmstate"] = storage + ":" + name
	section["runningmachine"], section["runningcpu"] = g.Run.Machine, cpuArgument(w, g.Conf)
	if w.V9() { // Since qemu-server 9.0.21.
		section["running-nets-host-mtu"] = netMTUs(w, g.Node, g.Conf)
	}
	return storage, nil
}

// apiSnapshotConfig is GET …/snapshot/{snapname}/config.
func apiSnapshotConfig(_ *core.World, c *core.Call, g *core.Guest) (any, error) {
	s := g.Snapshot(c.In["snapname"])
	if s == nil {
		return nil, perl.Fail("snapshot '%s' does not exist", c.In["snapname"])
	}
	return shown(s, g.Kind), nil
}

func shown(s *core.Snapshot, kind string) map[string]any {
	entry := map[string]any{}
	for key, value := range s.Conf {
		entry[key] = core.Masked(key, perl.Typed(kind, key, value))
	}
	entry["snaptime"] = perl.Atoi(s.Conf["snaptime"])
	return entry
}

// apiSetSnapshot is PUT …/snapshot/{snapname}/config: its description.
func apiSetSnapshot(w *core.World, c *core.Call) (any, error) {
	if !c.Has("description") {
		return nil, nil // Nothing else can be set, and nothing is checked.
	}
	g, err := c.Guest()
	if err != nil {
		return nil, err
	}
	if err := cmp.Or(c.LockFile(g), g.CheckLock()); err != nil {
		return nil, err
	}
	s := g.Snapshot(c.In["snapname"])
	if s == nil {
		return nil, perl.Fail("snapshot '%s' does not exist", c.In["snapname"])
	}
	s.Conf["description"] = c.In["description"]
	w.Touch(g)
	return nil, nil
}
