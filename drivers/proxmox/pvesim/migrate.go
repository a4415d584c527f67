package pvesim

import (
	"fmt"
	"maps"
	"slices"
)

// migration is where a guest has to go, and how.
type migration struct {
	target, storage        string
	online, disks, restart bool
}

// apiMigrateInfo is GET …/qemu/{vmid}/migrate: what speaks against it.
func apiMigrateInfo(w *world, c *call) (any, error) {
	g, err := c.vm()
	if err != nil {
		return nil, err
	}
	disks := []map[string]any{}
	for _, key := range driveOrder(g.conf) {
		d := parseDrive(key, g.conf[key])
		storage, _, managed := volumeID(d.file)
		if !managed || w.stores[storage] == nil || w.stores[storage].Shared {
			continue
		}
		entry := map[string]any{
			"volid": d.file, "drivename": key, "cdrom": boolInt(d.cdrom()), "shared": 0, "replicate": 1, "is_attached": boolInt(isDrive(key)),
			"is_unused": boolInt(!isDrive(key)), "is_vmstate": 0, "is_tpmstate": boolInt(key == "tpmstate0"),
		}
		// Told is what the configuration says (foreach_volid in PVE/QemuServer.pm).
		if size, ok := parseSize(d.opts["size"]); ok && size > 0 {
			entry["size"] = size
		}
		disks = append(disks, entry)
	}
	allowed := []string{}
	for _, name := range w.nodeNames() {
		if name != g.node && !w.nodes[name].offline {
			allowed = append(allowed, name)
		}
	}
	info := map[string]any{
		"running": boolInt(g.run != nil), "local_disks": disks, "local_resources": []string{}, "mapped-resources": []string{},
		"mapped-resource-info": map[string]any{}, "allowed_nodes": allowed, "not_allowed_nodes": map[string]any{},
	}
	if w.v9() {
		info["has-dbus-vmstate"] = 1
		info["dependent-ha-resources"] = []string{}
	}
	return info, nil
}

// apiMigrateCTInfo is GET /nodes/{node}/lxc/{vmid}/migrate, since PVE 9.
func apiMigrateCTInfo(w *world, c *call) (any, error) {
	if err := w.needQuorum(); err != nil {
		return nil, err
	}
	g, err := c.ct()
	if err != nil {
		return nil, err
	}
	if err := g.checkLock(); err != nil {
		return nil, err
	}
	allowed := []string{} // Also a node that is down.
	for _, name := range w.nodeNames() {
		if name != g.node {
			allowed = append(allowed, name)
		}
	}
	info := map[string]any{"running": boolInt(g.run != nil), "allowed-nodes": allowed, "not-allowed-nodes": map[string]any{}}
	if w.ha.managed(g) {
		info["dependent-ha-resources"] = []string{}
	}
	return info, nil
}

// apiMigrate is POST …/migrate of VMs and containers.
func apiMigrate(w *world, c *call) (any, error) {
	m := migration{
		target: c.in["target"], online: c.flag("online"), restart: c.flag("restart"), disks: c.flag("with-local-disks"),
		storage: c.in["targetstorage"] + c.in["target-storage"],
	}
	switch {
	case m.target == c.in["node"]:
		return nil, badParam("target", "target is local node.")
	case w.nodes[m.target] == nil:
		return nil, fail("no such cluster node '%s'", m.target)
	case c.has("force") && !c.root():
		return nil, badParam("force", "Only root may use this option.")
	case (c.has("migration_type") || c.has("migration_network")) && !c.root():
		return nil, badParam("migration_type", "Only root may use this option.")
	}
	if err := w.needQuorum(); err != nil {
		return nil, err
	}
	g, err := c.guestCall()
	if err != nil {
		return nil, err
	}
	if g.kind == "qemu" { // Of a container only the task asks.
		if err := g.checkLock(); err != nil {
			return nil, err
		}
	}
	switch {
	case g.run == nil:
		m.online = false
	case g.kind == "lxc" && !m.online && !m.restart:
		return nil, fail("can't migrate running container without --online or --restart")
	case g.kind == "qemu" && !m.online:
		return nil, fail("can't migrate running VM without --online")
	}
	if m.storage != "" {
		if err := c.mayMoveTo(m.storage); err != nil {
			return nil, err
		}
	}
	if w.ha.managed(g) {
		return w.ha.move(c, g, m.target), nil
	}
	return w.fork(c, g.node, w.migrateJob(c, g, m)), nil
}

func (c *call) mayMoveTo(storage string) error {
	if storage == "1" {
		return nil // Each volume on the storage of the same name.
	}
	if _, err := c.w.store(storage); err != nil {
		return err
	}
	return c.need("/storage/"+storage, "Datastore.AllocateSpace")
}

// migrateJob moves a guest (PVE/QemuMigrate.pm, PVE/LXC/Migrate.pm).
func (w *world) migrateJob(c *call, g *guest, m migration) job {
	unlock := func(*task) {
		delete(g.conf, "lock")
		w.write(g)
	}
	aborted := func(t *task, err error) error {
		t.logf("ERROR: migration aborted (duration 00:00:00): %s", err)
		return fail("migration aborted")
	}
	kind := map[string]string{"qm": "qmigrate", "vz": "vzmigrate"}[g.word()] // fork_worker in PVE/API2/Qemu.pm and LXC.pm
	return job{kind: kind, id: fmt.Sprint(g.vmid), guest: g, abort: unlock, begin: func(t *task) error {
		if err := g.checkLock(); err != nil {
			return err
		}
		if w.nodes[m.target].offline {
			return aborted(t, fail("Can't connect to destination address using public key"))
		}
		t.logf("starting migration of %s %d to node '%s' (192.0.2.%d)", g.title(), g.vmid, m.target, 1+w.nodes[m.target].index)
		if err := w.mayMigrate(g, m, t.logf); err != nil {
			return aborted(t, err)
		}
		g.conf["lock"] = "migrate"
		w.write(g)
		return nil
	}, end: func(t *task) error {
		unlock(t)
		if w.nodes[m.target].offline {
			return aborted(t, fail("Can't connect to destination address using public key"))
		}
		return w.migrate(c, g, m, t)
	}}
}

// mayMigrate finds out what cannot move: disks of a running VM unless that is
// asked for, bases of linked clones and CD images that lie on one node only.
func (w *world) mayMigrate(g *guest, m migration, log func(string, ...any)) error {
	for _, key := range driveNames(g.conf) {
		d := parseDrive(key, g.conf[key])
		storage, _, managed := volumeID(d.file)
		if g.kind == "qemu" && managed && d.cdrom() && !d.cloudinit() && w.stores[storage] != nil && !w.stores[storage].Shared {
			return fail("Problem found while scanning volumes - can't migrate local cdrom '%s'", d.file)
		}
	}
	if g.kind == "lxc" {
		if err := mayMigrateCT(g, m); err != nil {
			return err
		}
	}
	disks := g.disks(g.conf)
	for _, key := range slices.Sorted(maps.Keys(disks)) {
		storage, name, _ := volumeID(disks[key])
		st := w.stores[storage]
		if st == nil || st.Shared {
			continue
		}
		v := st.find(g.node, name)
		switch {
		case v == nil:
			return fail("volume '%s' does not exist", disks[key])
		case v.parent != "" || st.inUse(g.node, name):
			return fail("Problem found while scanning volumes - can't migrate local disk '%s': it is (or is based on) a base image", disks[key])
		case m.online && !m.disks && !cloudFile.MatchString(disks[key]):
			return fail("Problem found while scanning volumes - can't live migrate attached local disks without with-local-disks option")
		}
		log("found local disk '%s' (attached)", disks[key])
	}
	return nil
}

// mayMigrateCT is the beginning of prepare in PVE/LXC/Migrate.pm.
func mayMigrateCT(g *guest, m migration) error {
	if g.run != nil && m.online {
		return fail("lxc live migration is currently not implemented")
	}
	for _, key := range mountNames(g.conf) {
		if p := parseMount(key, g.conf[key]); p.kind() != "volume" && p.opts["shared"] != "1" {
			return fail("cannot migrate local %s mount point '%s'", p.kind(), key)
		}
	}
	return nil
}

// migrate moves the volumes that lie on one node only, and the guest.
func (w *world) migrate(c *call, g *guest, m migration, t *task) error {
	from := g.node
	for _, volid := range w.owned(g) {
		storage, name, _ := volumeID(volid)
		st := w.stores[storage]
		v := st.find(from, name)
		if st.Shared || v == nil {
			continue
		}
		to := st
		if m.storage != "" && m.storage != "1" {
			var err error
			if to, err = w.store(m.storage); err != nil {
				return err
			}
		}
		if err := to.room(m.target, v.used); err != nil {
			return err
		}
		if to == st {
			delete(st.volumes, st.key(from, name))
			st.put(m.target, v)
			continue
		}
		moved, err := w.copyDisk(m.target, v, to, g.vmid, to.formatFor("", v.format), t.logf)
		if err != nil {
			return err
		}
		delete(st.volumes, st.key(from, name))
		renamed := to.Name + ":" + moved.name
		g.rename(volid, renamed)
	}
	g.node = m.target
	if g.run != nil {
		g.run.pid = w.pid()
		if m.restart {
			w.powerOff(g, c)
			w.powerOn(g)
		}
	}
	w.write(g)
	t.logf("migration finished successfully (duration 00:00:01)")
	return nil
}

// rename lets everything that names a volume name another.
func (g *guest) rename(from, to string) {
	for _, section := range []config{g.conf, g.pend} {
		for key, value := range section {
			switch {
			case value == from:
				section[key] = to
			case g.kind == "lxc" && isMount(key):
				if m := parseMount(key, value); m.volume == from {
					m.volume = to
					section[key] = m.String()
				}
			case g.kind == "qemu" && isDrive(key):
				if d := parseDrive(key, value); d.file == from {
					d.file = to
					section[key] = d.String()
				}
			}
		}
	}
}
