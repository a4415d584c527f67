package pvesim

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
	if g.kind == "lxc" {
		return map[string]any{"hasFeature": boolInt(w.ctFeature(g, conf, c.in["feature"]))}, nil
	}
	has := true
	for key, volid := range g.disks(conf) {
		if parseDrive(key, conf[key]).cdrom() {
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

// ctFeature is has_feature in PVE/LXC/Config.pm. A container wants its copies raw or as
// directories, so that files have no linked clones, and directories no copies.
func (w *world) ctFeature(g *guest, conf config, feature string) bool {
	for _, key := range mountNames(conf) {
		m := parseMount(key, conf[key])
		storage, name, managed := volumeID(m.volume)
		st := w.stores[storage]
		if m.kind() != "volume" || !managed || st == nil {
			return false
		}
		has := true
		switch v := st.find(g.node, name); feature {
		case "snapshot":
			has = v != nil && st.snapshots(v) && !w.based(m.volume)
		case "clone":
			has = !st.files() && w.clonable(m.volume)
		case "copy":
			has = !st.files() || v == nil || v.format != "subvol"
		}
		if !has {
			return false
		}
	}
	return true
}
