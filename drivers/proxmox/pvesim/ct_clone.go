package pvesim

import (
	"fmt"
	"maps"
	"slices"
)

// apiCloneCT is POST /nodes/{node}/lxc/{vmid}/clone. Unlike that of a VM the new
// container is there, with a lock, before the answer goes back.
func apiCloneCT(w *world, c *call) (any, error) {
	g, err := c.ct()
	if err != nil {
		return nil, err
	}
	cl := cloning{
		newid: atoi(c.in["newid"]), name: c.in["hostname"], description: c.in["description"], pool: c.in["pool"],
		storage: c.in["storage"], target: c.in["target"], full: c.in["full"], snapshot: c.in["snapname"], running: g.run != nil,
	}
	if cl.target == g.node || cl.target == "localhost" {
		cl.target = ""
	}
	source, err := c.checkCloneCT(g, cl)
	if err != nil {
		return nil, err
	}
	if err := c.lockFile(g); err != nil {
		return nil, err
	}
	conf, err := c.clonedConfig(source, cl, cl.isFull(g))
	if err != nil {
		return nil, err
	}
	copied := newGuest(g.node, "lxc", cl.newid)
	copied.conf = maps.Clone(conf) // All but the volumes stands there before the task begins.
	copied.conf["lock"] = "create"
	w.add(copied)
	g.conf["lock"] = "disk"
	w.write(g)
	unlock := func() {
		delete(g.conf, "lock")
		w.write(g)
	}
	return w.fork(c, g.node, job{
		kind: "vzclone", id: fmt.Sprint(g.vmid), guest: copied,
		abort: func(*task) { unlock(); w.remove(copied) },
		end: func(t *task) error {
			defer unlock()
			if w.v92() { // since pve-container 6.1.3
				t.logf("creating a clone of container %d with ID %d", g.vmid, cl.newid)
			}
			if err := w.cloneCT(source, conf, g, copied, cl, t.logf); err != nil {
				w.remove(copied)
				return fail("clone failed: %s", taskText(err))
			}
			if cl.pool != "" {
				w.joinPool(cl.pool, cl.newid)
			}
			return nil
		},
	}), nil
}

// checkCloneCT makes the checks that come before the lock, and returns the
// configuration to copy: that in force or a snapshot's.
func (c *call) checkCloneCT(g *guest, cl cloning) (config, error) {
	w := c.w
	if cl.pool != "" && w.pools[cl.pool] == nil {
		return nil, forbidden("pool '" + cl.pool + "' does not exist")
	}
	if cl.target != "" && w.nodes[cl.target] == nil {
		return nil, fail("no such cluster node '%s'", cl.target)
	}
	if cl.storage != "" {
		st, err := w.store(cl.storage)
		if err != nil {
			return nil, err
		}
		if cl.target != "" && !st.Shared {
			return nil, fail("can't clone to non-shared storage '%s'", cl.storage)
		}
	}
	if err := w.needQuorum(); err != nil {
		return nil, err
	}
	if err := g.checkLock(); err != nil {
		return nil, err
	}
	if err := w.unusedID(cl.newid); err != nil {
		return nil, err
	}
	if !cl.isFull(g) && cl.storage != "" {
		return nil, fail("parameter 'storage' not allowed for linked clones")
	}
	if cl.snapshot == "" {
		return g.conf, nil
	}
	if s := g.snapshot(cl.snapshot); s != nil {
		return s.conf, nil
	}
	return nil, fail("snapshot '%s' does not exist", cl.snapshot)
}

// clonedConfig is what a clone takes over: all but its volumes, with hardware
// addresses of its own.
func (c *call) clonedConfig(source config, cl cloning, full bool) (config, error) {
	conf, shared := config{}, true
	for _, key := range slices.Sorted(maps.Keys(source)) {
		value, family := source[key], familyOf(key)
		switch {
		case family == "unused", key == "template", key == "lock", key == "parent", key == "snaptime":
		case isMount(key):
			m := parseMount(key, value)
			storage, err := c.mayCloneMount(m, cl, full)
			if err != nil {
				return nil, err
			}
			shared = shared && storage.Shared
		case family == "net" && key != family:
			n := ctProperty(key, value)
			n["hwaddr"] = c.w.mac()
			conf[key] = printCTNet(n)
			if err := c.mayUseCTBridge(value); err != nil {
				return nil, err
			}
		default:
			conf[key] = value
		}
	}
	if cl.target != "" && !shared {
		return nil, fail("can't clone CT to node '%s' (CT uses local storage)", cl.target)
	}
	if cl.name != "" {
		conf["hostname"] = cl.name
	}
	if cl.description != "" {
		conf["description"] = cl.description
	}
	return conf, nil
}

func (c *call) mayCloneMount(m mount, cl cloning, full bool) (*store, error) {
	if m.kind() != "volume" {
		return nil, fail("unable to clone mountpoint '%s' (type %s)", m.key, m.kind())
	}
	name, _, _ := volumeID(m.volume)
	if cl.storage != "" {
		name = cl.storage
	}
	st, err := c.w.store(name)
	if err != nil {
		return nil, err
	}
	if err := c.need("/storage/"+name, "Datastore.AllocateSpace"); err != nil {
		return nil, err
	}
	switch {
	case full && cl.running && cl.snapshot == "" && c.w.v92(): // since pve-container 6.1.0
		return nil, fail("Full clone of a running container is only possible from a snapshot")
	case full && cl.running && cl.snapshot == "":
		return nil, fail("Cannot do full clones on a running container without snapshots")
	case !full && (st.files() || !c.w.clonable(m.volume)): // Raw files have no backing file.
		return nil, fail("Linked clone feature for '%s' is not available", m.volume)
	}
	return st, nil
}

// cloneCT makes the volumes of the clone and writes its configuration.
func (w *world) cloneCT(source, conf config, g, copied *guest, cl cloning, log func(string, ...any)) error {
	var made []string
	keys := mountNames(source)
	slices.Sort(keys)
	for _, key := range keys {
		m := parseMount(key, source[key])
		v, storage, err := w.cloneMount(m, g, copied, cl, log)
		if err != nil {
			for _, volid := range made {
				_ = w.free(copied.node, volid)
			}
			return err
		}
		m.volume = storage + ":" + v.name
		m.opts["size"] = formatSize(v.size)
		made = append(made, m.volume)
		conf[key] = m.String()
	}
	copied.conf = conf
	w.cloned(g, copied)
	if cl.target != "" {
		copied.node = cl.target
	}
	w.write(copied)
	return nil
}

func (w *world) cloneMount(m mount, g, copied *guest, cl cloning, log func(string, ...any)) (*volume, string, error) {
	storage, name, _ := volumeID(m.volume)
	st, err := w.store(storage)
	if err != nil {
		return nil, "", err
	}
	from := st.find(g.node, name)
	if from == nil {
		return nil, "", fail("volume '%s' does not exist", m.volume)
	}
	if !cl.isFull(g) {
		log("create linked clone of mount point %s (%s)", m.key, m.volume)
		v, err := w.linkDisk(st, g.node, from, copied.vmid, log)
		return v, storage, err
	}
	log("create full clone of mountpoint %s (%s)", m.key, m.volume)
	if cl.storage != "" {
		storage = cl.storage
		if st, err = w.store(storage); err != nil {
			return nil, "", err
		}
	}
	v, err := w.copyMount(g.node, from, st, copied.vmid, log)
	return v, storage, err
}

// copyMount copies the files of one volume to a new one (copy_volume in PVE/LXC.pm).
func (w *world) copyMount(node string, from *volume, st *store, vmid int, log func(string, ...any)) (*volume, error) {
	v, err := w.allocateMount(node, st, vmid, from.size, log)
	if err != nil {
		return nil, err
	}
	v.used = max(v.used, from.used)
	log("Number of files: 57 (reg: 15, dir: 24, link: 18)")
	log("total size is 1,983,340  speedup is 1.00")
	return v, nil
}
