package transfer

import (
	"fmt"
	"maps"
	"slices"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// Migration says where a guest moves, and how.
type Migration struct {
	Target, storage        string
	Online, Disks, restart bool
}

// apiMigrateInfo is GET …/qemu/{vmid}/migrate: what speaks against it.
func apiMigrateInfo(w *core.World, _ *core.Call, g *core.Guest) (any, error) {
	disks := []map[string]any{}
	for _, key := range driveOrder(g.Conf) {
		d := perl.ParseDrive(key, g.Conf[key])
		storage, _, managed := core.VolumeID(d.File)
		if !managed || w.Stores[storage] == nil || w.Stores[storage].Shared {
			continue
		}
		entry := map[string]any{
			"volid": d.File, "drivename": key, "cdrom": perl.BoolInt(d.Cdrom()), "shared": 0, "replicate": 1, "is_attached": perl.BoolInt(perl.IsDrive(key)),
			"is_unused": perl.BoolInt(!perl.IsDrive(key)), "is_vmstate": 0, "is_tpmstate": perl.BoolInt(key == "tpmstate0"),
		}
		// Told is the value in the configuration (foreach_volid in PVE/QemuServer.pm).
		if size, ok := perl.ParseSize(d.Opts["size"]); ok && size > 0 {
			entry["size"] = size
		}
		disks = append(disks, entry)
	}
	allowed := []string{}
	for _, name := range w.NodeNames() {
		if name != g.Node && !w.Nodes[name].Offline {
			allowed = append(allowed, name)
		}
	}
	info := map[string]any{
		"running": perl.BoolInt(g.Run != nil), "local_disks": disks, "local_resources": []string{}, "mapped-resources": []string{},
		"mapped-resource-info": map[string]any{}, "allowed_nodes": allowed, "not_allowed_nodes": map[string]any{},
	}
	if w.V9() {
		info["has-dbus-vmstate"] = 1
		info["dependent-ha-resources"] = []string{}
	}
	return info, nil
}

// apiMigrateCTInfo is GET /nodes/{node}/lxc/{vmid}/migrate, since PVE 9.
func apiMigrateCTInfo(w *core.World, c *core.Call) (any, error) {
	if err := w.NeedQuorum(); err != nil {
		return nil, err
	}
	g, err := c.Guest()
	if err != nil {
		return nil, err
	}
	if err := g.CheckLock(); err != nil {
		return nil, err
	}
	allowed := []string{} // Also a node that is down.
	for _, name := range w.NodeNames() {
		if name != g.Node {
			allowed = append(allowed, name)
		}
	}
	info := map[string]any{"running": perl.BoolInt(g.Run != nil), "allowed-nodes": allowed, "not-allowed-nodes": map[string]any{}}
	if w.HA.Managed(g) {
		info["dependent-ha-resources"] = []string{}
	}
	return info, nil
}

// apiMigrate is POST …/migrate of VMs and containers.
func apiMigrate(w *core.World, c *core.Call) (any, error) {
	m := Migration{
		Target: c.In["target"], Online: c.Flag("online"), restart: c.Flag("restart"), Disks: c.Flag("with-local-disks"),
		storage: c.In["targetstorage"] + c.In["target-storage"],
	}
	switch {
	case m.Target == c.In["node"]:
		return nil, perl.BadParam("target", "target is local node.")
	case w.Nodes[m.Target] == nil:
		return nil, perl.Fail("no such cluster node '%s'", m.Target)
	case c.Has("force") && !c.Root():
		return nil, perl.BadParam("force", "Only root may use this option.")
	case (c.Has("migration_type") || c.Has("migration_network")) && !c.Root():
		return nil, perl.BadParam("migration_type", "Only root may use this option.")
	}
	if err := w.NeedQuorum(); err != nil {
		return nil, err
	}
	g, err := c.Guest()
	if err != nil {
		return nil, err
	}
	if g.Kind == "qemu" { // Of a container only the task asks.
		if err := g.CheckLock(); err != nil {
			return nil, err
		}
	}
	switch {
	case g.Run == nil:
		m.Online = false
	case g.Kind == "lxc" && !m.Online && !m.restart:
		return nil, perl.Fail("can't migrate running container without --online or --restart")
	case g.Kind == "qemu" && !m.Online:
		return nil, perl.Fail("can't migrate running VM without --online")
	}
	if m.storage != "" {
		if err := mayMoveTo(c, m.storage); err != nil {
			return nil, err
		}
	}
	if w.HA.Managed(g) {
		return w.HA.Move(c, g, m.Target), nil
	}
	return w.Fork(c, g.Node, m.Job(w, c, g)), nil
}

func mayMoveTo(c *core.Call, storage string) error {
	if storage == "1" {
		return nil // Each volume on the storage of the same name.
	}
	if _, err := c.W.Store(storage); err != nil {
		return err
	}
	return c.Need("/storage/"+storage, "Datastore.AllocateSpace")
}

// Job moves a guest (PVE/QemuMigrate.pm, PVE/LXC/Migrate.pm).
func (m Migration) Job(w *core.World, c *core.Call, g *core.Guest) core.Job {
	unlock := func(*core.Task) { w.SetLock(g, "") }
	aborted := func(t *core.Task, err error) error {
		t.Logf("ERROR: migration aborted (duration 00:00:00): %s", err)
		return perl.Fail("migration aborted")
	}
	kind := map[string]string{"qm": "qmigrate", "vz": "vzmigrate"}[guests.Word(g)] // fork_worker in PVE/API2/Qemu.pm and LXC.pm
	return core.Job{Kind: kind, ID: fmt.Sprint(g.Vmid), Guest: g, Abort: unlock, Begin: func(t *core.Task) error {
		if err := g.CheckLock(); err != nil {
			return err
		}
		if w.Nodes[m.Target].Offline {
			return aborted(t, perl.Fail("Can't connect to destination address using public key"))
		}
		t.Logf("starting migration of %s %d to node '%s' (192.0.2.%d)", g.Title(), g.Vmid, m.Target, 1+w.Nodes[m.Target].Index)
		if err := mayMigrate(w, g, m, t.Logf); err != nil {
			return aborted(t, err)
		}
		w.SetLock(g, "migrate")
		return nil
	}, End: func(t *core.Task) error {
		unlock(t)
		if w.Nodes[m.Target].Offline {
			return aborted(t, perl.Fail("Can't connect to destination address using public key"))
		}
		return migrate(w, c, g, m, t)
	}}
}

// mayMigrate finds out what cannot move: disks of a running VM unless that is
// asked for, bases of linked clones and CD images that are on one node only.
func mayMigrate(w *core.World, g *core.Guest, m Migration, log func(string, ...any)) error {
	for _, key := range g.Conf.DriveNames() {
		d := perl.ParseDrive(key, g.Conf[key])
		storage, _, managed := core.VolumeID(d.File)
		if g.Kind == "qemu" && managed && d.Cdrom() && !d.Cloudinit() && w.Stores[storage] != nil && !w.Stores[storage].Shared {
			return perl.Fail("Problem found while scanning volumes - can't migrate local cdrom '%s'", d.File)
		}
	}
	if g.Kind == "lxc" {
		if err := mayMigrateCT(g, m); err != nil {
			return err
		}
	}
	disks := guests.Disks(g, g.Conf)
	for _, key := range slices.Sorted(maps.Keys(disks)) {
		storage, name, _ := core.VolumeID(disks[key])
		st := w.Stores[storage]
		if st == nil || st.Shared {
			continue
		}
		v := st.Find(g.Node, name)
		switch {
		case v == nil:
			return perl.Fail("volume '%s' does not exist", disks[key])
		case v.Parent != "" || st.InUse(g.Node, name):
			return perl.Fail("Problem found while scanning volumes - can't migrate local disk '%s': it is (or is based on) a base image", disks[key])
		case m.Online && !m.Disks && !perl.CloudFile.MatchString(disks[key]):
			return perl.Fail("Problem found while scanning volumes - can't live migrate attached local disks without with-local-disks option")
		}
		log("found local disk '%s' (attached)", disks[key])
	}
	return nil
}

// mayMigrateCT is the beginning of prepare in PVE/LXC/Migrate.pm.
func mayMigrateCT(g *core.Guest, m Migration) error {
	if g.Run != nil && m.Online {
		return perl.Fail("lxc live migration is currently not implemented")
	}
	for _, key := range g.Conf.MountNames() {
		if p := perl.ParseMount(key, g.Conf[key]); p.Kind() != "volume" && p.Opts["shared"] != "1" {
			return perl.Fail("cannot migrate local %s mount point '%s'", p.Kind(), key)
		}
	}
	return nil
}

// migrate moves the volumes that are on one node only, and the guest.
func migrate(w *core.World, c *core.Call, g *core.Guest, m Migration, t *core.Task) error {
	from := g.Node
	for _, volid := range guests.Owned(w, g) {
		storage, name, _ := core.VolumeID(volid)
		st := w.Stores[storage]
		v := st.Find(from, name)
		if st.Shared || v == nil {
			continue
		}
		to := st
		if m.storage != "" && m.storage != "1" {
			var err error
			if to, err = w.Store(m.storage); err != nil {
				return err
			}
		}
		if err := to.Room(m.Target, v.Used); err != nil {
			return err
		}
		if to == st {
			delete(st.Volumes, st.Key(from, name))
			st.Put(m.Target, v)
			continue
		}
		moved, err := v.Copy(w, m.Target, to, g.Vmid, to.FormatFor("", v.Format), t.Logf)
		if err != nil {
			return err
		}
		delete(st.Volumes, st.Key(from, name))
		renamed := to.Name + ":" + moved.Name
		rename(g, volid, renamed)
	}
	g.Node = m.Target
	if g.Run != nil {
		g.Run.Pid = w.Pid()
		if m.restart {
			guests.PowerOff(w, g, c)
			guests.PowerOn(w, g)
		}
	}
	w.Write(g)
	t.Logf("migration finished successfully (duration 00:00:01)")
	return nil
}

// rename lets everything that names a volume name another.
func rename(g *core.Guest, from, to string) {
	for _, section := range []perl.Config{g.Conf, g.Pend} {
		for key, value := range section {
			switch {
			case value == from:
				section[key] = to
			case g.Kind == "lxc" && perl.IsMount(key):
				if m := perl.ParseMount(key, value); m.Volume == from {
					m.Volume = to
					section[key] = m.String()
				}
			case g.Kind == "qemu" && perl.IsDrive(key):
				if d := perl.ParseDrive(key, value); d.File == from {
					d.File = to
					section[key] = d.String()
				}
			}
		}
	}
}

// driveOrder lists drives as PVE goes through them, unused ones at the end.
func driveOrder(settings map[string]string) []string {
	return append(perl.Config(settings).DriveNames(), perl.Config(settings).IndexedKeys("unused")...)
}
