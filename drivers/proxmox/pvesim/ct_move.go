package pvesim

import "fmt"

// apiMoveVolume is POST /nodes/{node}/lxc/{vmid}/move_volume: to another storage, or
// to another container.
func apiMoveVolume(w *world, c *call) (any, error) {
	switch target, storage := c.num("target-vmid", 0), c.in["storage"]; {
	case target != 0 && storage != "":
		return nil, fail("either set storage or target-vmid, but not both")
	case target != 0:
		return w.reassignVolume(c, target)
	case storage == "":
		return nil, movingWhere("both 'storage' and 'target-vmid' missing, either needs to be set")
	}
	return w.moveVolume(c)
}

func (w *world) moveVolume(c *call) (any, error) {
	key, storage, remove, digest := c.in["volume"], c.in["storage"], c.flag("delete"), c.in["digest"]
	if err := c.need("/storage/"+storage, "Datastore.AllocateSpace"); err != nil {
		return nil, err
	}
	g, err := c.ct()
	if err != nil {
		return nil, err
	}
	if err := g.mayMoveVolume(key, digest, remove); err != nil {
		return nil, err
	}
	g.conf["lock"] = "disk"
	w.write(g)
	unlock := func(*task) {
		delete(g.conf, "lock")
		w.write(g)
	}
	return w.fork(c, g.node, job{kind: "move_volume", id: fmt.Sprint(g.vmid), guest: g, abort: unlock, end: func(t *task) error {
		unlock(t)
		m := parseMount(key, g.conf[key])
		old := m.volume
		from := w.volume(g.node, old)
		if from == nil {
			return fail("volume '%s' does not exist", old)
		}
		st, err := w.store(storage)
		if err != nil {
			return err
		}
		v, err := w.copyMount(g.node, from, st, g.vmid, t.logf)
		if err != nil {
			return err
		}
		m.volume = storage + ":" + v.name
		if g.conf["template"] == "1" {
			m.volume = w.baseOf(g, m.volume)
		}
		m.opts["size"] = formatSize(v.size)
		g.conf[key] = m.String()
		w.leave(g, old, remove, t)
		w.write(g)
		return nil
	}}), nil
}

// mayMoveVolume is $move_to_storage_checks in PVE/API2/LXC.pm. The storage may be the
// one where the volume is: it is copied there.
func (g *guest) mayMoveVolume(key, digest string, remove bool) error {
	if err := g.checkLock(); err != nil {
		return err
	}
	if g.run != nil {
		return fail("cannot move volumes of a running container")
	}
	if familyOf(key) == "unused" {
		return fail("cannot move volume '%s', only configured volumes can be moved to another storage", key)
	}
	value, ok := g.conf[key]
	if !ok {
		return noMount(key)
	}
	m := parseMount(key, value)
	switch {
	case remove && g.inSnapshot(m.volume):
		return fail("you can't move a volume with snapshots and delete the source")
	case digest != "" && digest != g.sum():
		return fail("detected modified configuration - file changed by other user? Try again.")
	}
	return nil
}

// noMount is how PVE refuses a mount point that is not there: it parses nothing.
func noMount(key string) error {
	missing := "property is missing and it is not optional"
	wrong := map[string]string{"volume": missing, "mp": missing}
	if key == "rootfs" {
		delete(wrong, "mp")
	}
	return &apiError{status: 500, message: "format error", errors: wrong}
}

// reassignVolume gives a mount point of a container to another one of the same node
// ($load_and_check_reassign_configs and $volume_reassignfn in PVE/API2/LXC.pm).
func (w *world) reassignVolume(c *call, target int) (any, error) {
	key, as := c.in["volume"], c.in["target-volume"]
	if as == "" {
		as = key
	}
	if !c.root() {
		if err := c.needVM(target, "", "VM.Config.Disk"); err != nil {
			return nil, err
		}
	}
	digest, targetDigest, vmid := c.in["digest"], c.in["target-digest"], c.vmid()
	check := func() (from, to *guest, err error) {
		if key == "rootfs" || as == "rootfs" {
			return nil, nil, fail("Cannot move to/from 'rootfs'")
		}
		if familyOf(key) == "unused" && familyOf(as) != "unused" {
			return nil, nil, fail("Moving an unused volume to a used one is not possible")
		}
		if from, to, err = w.bothGuests("CT", "lxc", vmid, target); err != nil {
			return nil, nil, err
		}
		if from.conf["template"] == "1" || to.conf["template"] == "1" {
			return nil, nil, fail("Can't move volumes from or to template CT")
		}
		if err := sameDigests("Container", from, digest, to, targetDigest); err != nil {
			return nil, nil, err
		}
		return from, to, w.mayReassignVolume(from, to, key, as)
	}
	from, _, err := check()
	if err != nil {
		return nil, err
	}
	storage, _, _ := volumeID(parseMount(key, from.conf[key]).volume)
	if err := c.need("/storage/"+storage, "Datastore.AllocateSpace"); err != nil {
		return nil, err
	}
	return w.fork(c, from.node, job{kind: "move_volume", id: fmt.Sprintf("%d-%s>%d-%s", vmid, key, target, as), guest: from, end: func(t *task) error {
		from, to, err := check()
		if err != nil {
			return err
		}
		t.logf("moving volume '%s' from container '%d' to '%d'", key, from.vmid, to.vmid)
		m := parseMount(key, from.conf[key])
		m.key, m.volume = as, storage+":"+w.rename(from, to, m.volume).name
		delete(from.conf, key)
		t.logf("removing volume '%s' from container '%d' config", key, from.vmid)
		w.write(from)
		switch {
		case familyOf(as) == "unused":
			to.conf[as] = m.volume
		default: // One that is new is plugged into a container that runs, too.
			to.conf[as] = m.String()
		}
		w.write(to)
		t.logf("target container '%d' updated with '%s'", to.vmid, as)
		return nil
	}}), nil
}

func (w *world) mayReassignVolume(from, to *guest, key, as string) error {
	value, ok := from.conf[key]
	if !ok {
		return fail("volume '%s' for container '%d' does not exist", key, from.vmid)
	}
	if _, taken := to.conf[as]; taken {
		return fail("Target volume key '%s' is already in use for container '%d'", as, to.vmid)
	}
	m := parseMount(key, value)
	switch {
	case from.inSnapshot(m.volume):
		return fail("Cannot move volume used by a snapshot to another container")
	case m.kind() != "volume" || w.volume(from.node, m.volume) == nil || w.based(m.volume):
		return fail("Storage does not support moving of this disk to another container")
	case from.run != nil && familyOf(key) != "unused":
		return fail("Cannot move in-use volume while the source CT is running - detach or shutdown first")
	}
	return nil
}
