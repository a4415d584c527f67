package transfer

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/lxc"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
	"github.com/homestak/homestak-gitops/sim/pve/qemu"
)

// apiRollback is POST …/snapshot/{snapname}/rollback. A VM runs afterwards if its
// memory was kept, else it is stopped unless start is asked for.
func apiRollback(w *core.World, c *core.Call, g *core.Guest) (any, error) {
	name, start := c.In["snapname"], c.Flag("start")
	if start && g.Kind == "qemu" && w.V92() { // The start is made directly and asks no more.
		if err := c.Need(core.VMPath(g.Vmid), "VM.PowerMgmt"); err != nil {
			return nil, err
		}
	}
	unlock := func(*core.Task) { w.SetLock(g, "") }
	return w.Fork(c, g.Node, core.Job{Kind: guests.Word(g) + "rollback", ID: fmt.Sprint(g.Vmid), Guest: g, Abort: unlock, Begin: func(*core.Task) error {
		switch {
		case g.Snapshot(name) == nil:
			return perl.Fail("snapshot '%s' does not exist", name)
		case g.Conf["template"] == "1":
			return perl.Fail("you can't rollback if %s is a template", g.Title())
		}
		if err := g.CheckLock(); err != nil {
			return err
		}
		w.SetLock(g, "rollback")
		return nil
	}, End: func(t *core.Task) error {
		s := g.Snapshot(name)
		if s == nil {
			return perl.Fail("snapshot '%s' does not exist", name)
		}
		if g.Run != nil {
			g.Run = nil
			if w.Cfg.Systems != nil {
				w.Cfg.Systems.Halt(g.Key())
			}
			qemu.CleanUp(w, g)
		}
		rollBack(w, g, s)
		if w.Cfg.Systems != nil {
			w.Cfg.Systems.Copy(g.SnapshotKey(name), g.Key())
		}
		switch {
		case s.Conf["vmstate"] != "":
			if err := qemu.PrepareStart(w, g, c, t.Logf); err != nil {
				return err
			}
			guests.PowerOn(w, g)
			g.Run.Booted = w.Now // Its memory holds a system that is up.
		case start && g.Kind == "qemu": // A task of its own, whose failure is not that of this one.
			w.Fork(c, g.Node, qemu.StartJob(w, g, c))
		case start:
			w.Fork(c, g.Node, lxc.StartCTJob(w, g, c))
		}
		return nil
	}}), nil
}

// rollBack brings configuration and volumes back. Description and unused volumes
// stay as they are now; a disk that the snapshot does not know becomes unused.
func rollBack(w *core.World, g *core.Guest, s *core.Snapshot) {
	conf := maps.Clone(s.Conf)
	maps.DeleteFunc(conf, func(key, _ string) bool { return guests.NotInSnapshots(key) })
	for key, value := range g.Conf {
		if key == "description" || strings.HasPrefix(key, "unused") {
			conf[key] = value
		}
	}
	before := guests.Disks(g, g.Conf)
	kept := slices.Collect(maps.Values(guests.Disks(g, conf)))
	for _, key := range slices.Sorted(maps.Keys(before)) {
		if volid := before[key]; !slices.Contains(kept, volid) && guests.Owns(w, g, volid) {
			conf.AddUnused(volid)
		}
	}
	conf["parent"] = s.Name
	if conf["vmgenid"] != "" {
		conf["vmgenid"] = w.Rng.UUID()
	}
	for volid, size := range s.Sizes {
		if v := w.Volume(g.Node, volid); v != nil {
			v.Size = size
		}
	}
	g.Conf, g.Pend, g.Cloud = conf, perl.Config{}, perl.Config{}
	w.Write(g)
}

// apiDeleteSnapshot is DELETE …/snapshot/{snapname}.
func apiDeleteSnapshot(w *core.World, c *core.Call, g *core.Guest) (any, error) {
	name := c.In["snapname"]
	unlock := func(*core.Task) { w.SetLock(g, "") }
	return w.Fork(c, g.Node, core.Job{Kind: guests.Word(g) + "delsnapshot", ID: fmt.Sprint(g.Vmid), Guest: g, Abort: unlock, Begin: func(*core.Task) error {
		if err := g.CheckLock(); err != nil {
			return err
		}
		if g.Snapshot(name) == nil {
			return perl.Fail("snapshot '%s' does not exist", name)
		}
		w.SetLock(g, "snapshot-delete")
		return nil
	}, End: func(t *core.Task) error {
		unlock(t)
		dropSnapshot(w, g, name)
		return nil
	}}), nil
}

// dropSnapshot takes a snapshot out of its line: those that came after it follow
// the one before it.
func dropSnapshot(w *core.World, g *core.Guest, name string) {
	gone := g.Snapshot(name)
	if gone == nil {
		return
	}
	g.Snapshots = slices.DeleteFunc(g.Snapshots, func(s *core.Snapshot) bool { return s == gone })
	sections := []perl.Config{g.Conf}
	for _, s := range g.Snapshots {
		sections = append(sections, s.Conf)
	}
	for _, section := range sections {
		if section["parent"] != name {
			continue
		}
		if section["parent"] = gone.Conf["parent"]; section["parent"] == "" {
			delete(section, "parent")
		}
	}
	if state := gone.Conf["vmstate"]; state != "" {
		_ = core.Free(w, g.Node, state)
	}
	w.Write(g)
}
