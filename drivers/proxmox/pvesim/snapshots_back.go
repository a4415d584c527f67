package pvesim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// apiRollback is POST …/snapshot/{snapname}/rollback. A VM runs afterwards if its
// memory was kept, else it is stopped unless start is asked for.
func apiRollback(w *world, c *call) (any, error) {
	g, err := c.guestCall()
	if err != nil {
		return nil, err
	}
	name, start := c.in["snapname"], c.flag("start")
	if start && g.kind == "qemu" && w.v92() { // The start is made directly and asks no more.
		if err := c.need(vmPath(g.vmid), "VM.PowerMgmt"); err != nil {
			return nil, err
		}
	}
	unlock := func(*task) {
		delete(g.conf, "lock")
		w.write(g)
	}
	return w.fork(c, g.node, job{kind: g.word() + "rollback", id: fmt.Sprint(g.vmid), guest: g, abort: unlock, begin: func(*task) error {
		switch {
		case g.snapshot(name) == nil:
			return fail("snapshot '%s' does not exist", name)
		case g.conf["template"] == "1":
			return fail("you can't rollback if %s is a template", g.title())
		}
		if err := g.checkLock(); err != nil {
			return err
		}
		g.conf["lock"] = "rollback"
		w.write(g)
		return nil
	}, end: func(t *task) error {
		s := g.snapshot(name)
		if s == nil {
			return fail("snapshot '%s' does not exist", name)
		}
		if g.run != nil {
			g.run = nil
			w.cleanUp(g)
		}
		w.rollBack(g, s)
		switch {
		case s.conf["vmstate"] != "":
			if err := w.prepareStart(g, c, t.logf); err != nil {
				return err
			}
			w.powerOn(g)
			g.run.booted = w.now // Its memory holds a system that is up.
		case start && g.kind == "qemu": // A task of its own, whose failure is not that of this one.
			w.fork(c, g.node, w.startJob(g, c))
		case start:
			w.fork(c, g.node, w.startCTJob(g, c))
		}
		return nil
	}}), nil
}

// rollBack brings configuration and volumes back. Description and unused volumes
// stay as they are now; a disk that the snapshot does not know becomes unused.
func (w *world) rollBack(g *guest, s *snapshot) {
	conf := maps.Clone(s.conf)
	maps.DeleteFunc(conf, func(key, _ string) bool { return notInSnapshots(key) })
	for key, value := range g.conf {
		if key == "description" || strings.HasPrefix(key, "unused") {
			conf[key] = value
		}
	}
	before := g.disks(g.conf)
	kept := slices.Collect(maps.Values(g.disks(conf)))
	for _, key := range slices.Sorted(maps.Keys(before)) {
		if volid := before[key]; !slices.Contains(kept, volid) && w.owns(g, volid) {
			addUnused(conf, volid)
		}
	}
	conf["parent"] = s.name
	if conf["vmgenid"] != "" {
		conf["vmgenid"] = w.uuid()
	}
	for volid, size := range s.sizes {
		if v := w.volume(g.node, volid); v != nil {
			v.size = size
		}
	}
	g.conf, g.pend, g.cloud = conf, config{}, config{}
	w.write(g)
}

// apiDeleteSnapshot is DELETE …/snapshot/{snapname}.
func apiDeleteSnapshot(w *world, c *call) (any, error) {
	g, err := c.guestCall()
	if err != nil {
		return nil, err
	}
	name := c.in["snapname"]
	unlock := func(*task) {
		delete(g.conf, "lock")
		w.write(g)
	}
	return w.fork(c, g.node, job{kind: g.word() + "delsnapshot", id: fmt.Sprint(g.vmid), guest: g, abort: unlock, begin: func(*task) error {
		if err := g.checkLock(); err != nil {
			return err
		}
		if g.snapshot(name) == nil {
			return fail("snapshot '%s' does not exist", name)
		}
		g.conf["lock"] = "snapshot-delete"
		w.write(g)
		return nil
	}, end: func(t *task) error {
		unlock(t)
		w.dropSnapshot(g, name)
		return nil
	}}), nil
}

// dropSnapshot takes a snapshot out of its line: those that came after it follow
// the one before it.
func (w *world) dropSnapshot(g *guest, name string) {
	gone := g.snapshot(name)
	if gone == nil {
		return
	}
	g.snapshots = slices.DeleteFunc(g.snapshots, func(s *snapshot) bool { return s == gone })
	sections := []config{g.conf}
	for _, s := range g.snapshots {
		sections = append(sections, s.conf)
	}
	for _, section := range sections {
		if section["parent"] != name {
			continue
		}
		if section["parent"] = gone.conf["parent"]; section["parent"] == "" {
			delete(section, "parent")
		}
	}
	if state := gone.conf["vmstate"]; state != "" {
		_ = w.free(g.node, state)
	}
	w.write(g)
}
