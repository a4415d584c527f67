package pvesim

import "fmt"

// apiMoveVolume is POST /nodes/{node}/lxc/{vmid}/move_volume, to another storage.
func apiMoveVolume(w *world, c *call) (any, error) {
	g, err := c.ct()
	if err != nil {
		return nil, err
	}
	if c.has("target-vmid") || c.has("target-volume") {
		return nil, c.unimplemented("volumes cannot be moved between containers")
	}
	key, storage, remove, digest := c.in["volume"], c.in["storage"], c.flag("delete"), c.in["digest"]
	if storage == "" {
		return nil, badParam("storage", "missing storage")
	}
	if err := c.mayHoldCT(storage); err != nil {
		return nil, err
	}
	check := func() error {
		if err := g.checkLock(); err != nil {
			return err
		}
		if digest != "" && digest != g.sum() {
			return fail("detected modified configuration - file changed by other user? Try again.")
		}
		if g.run != nil {
			return fail("cannot move volumes of a running container")
		}
		value, ok := g.conf[key]
		if !ok {
			return fail("no such volume '%s'", key)
		}
		m := parseMount(key, value)
		if from, _, _ := volumeID(m.volume); m.kind() != "volume" || from == storage {
			return fail("you can't move a volume to the same storage")
		}
		if w.volume(g.node, m.volume) == nil {
			return fail("volume '%s' does not exist", m.volume)
		}
		return nil
	}
	if err := check(); err != nil {
		return nil, err
	}
	return w.fork(c, g.node, job{kind: "move_volume", id: fmt.Sprint(g.vmid), guest: g, begin: func(*task) error {
		return check()
	}, end: func(t *task) error {
		m := parseMount(key, g.conf[key])
		v, name, err := w.cloneMount(m, g, g, cloning{full: "1", storage: storage}, t.logf)
		if err != nil {
			return err
		}
		old := m.volume
		m.volume = name + ":" + v.name
		g.conf[key] = m.String()
		if !remove {
			addUnused(g.conf, old)
		} else if err := w.free(g.node, old); err != nil {
			t.logf("%s", err)
			addUnused(g.conf, old)
		}
		w.write(g)
		return nil
	}}), nil
}

// apiFeature is GET …/feature: whether all disks of a guest can be snapshot, cloned
// or copied.
func apiFeature(w *world, c *call) (any, error) {
	g, err := c.guestCall()
	if err != nil {
		return nil, err
	}
	conf := g.conf
	if name := c.in["snapname"]; name != "" {
		s := g.snapshot(name)
		if s == nil {
			return nil, fail("snapshot '%s' does not exist", name)
		}
		conf = s.conf
	}
	has := true
	for key, volid := range g.disks(conf) {
		if g.kind == "qemu" && parseDrive(key, conf[key]).cdrom() {
			continue
		}
		switch c.in["feature"] {
		case "snapshot":
			has = has && w.snapshotable(g) == nil && !w.based(volid) // A base takes none.
		case "clone":
			has = has && w.clonable(volid)
		}
	}
	nodes := []string{}
	for _, name := range w.nodeNames() {
		if here := name == g.node; here || w.shared(g, conf) {
			nodes = append(nodes, name)
		}
	}
	return map[string]any{"hasFeature": boolInt(has), "nodes": nodes}, nil
}

// shared says whether all disks of a configuration are there on every node.
func (w *world) shared(g *guest, conf config) bool {
	for _, volid := range g.disks(conf) {
		if storage, _, _ := volumeID(volid); w.stores[storage] == nil || !w.stores[storage].Shared {
			return false
		}
	}
	return true
}
