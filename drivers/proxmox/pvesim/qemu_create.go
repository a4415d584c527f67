package pvesim

import (
	"fmt"
	"maps"
	"slices"
)

// apiCreateVM is POST /nodes/{node}/qemu. The configuration file exists, with
// only a lock in it, before the answer goes back: with the UPID the id is taken.
// All else happens in the task; when that fails nothing is left.
func apiCreateVM(w *world, c *call) (any, error) {
	node, vmid := c.take("node"), atoi(c.take("vmid"))
	archive, pool, storage := c.take("archive"), c.take("pool"), c.take("storage")
	r := restoring{force: c.take("force") == "1", unique: c.take("unique") == "1", archive: archive, storage: storage, pool: pool}
	for _, key := range []string{"bwlimit", "live-restore", "import-working-storage"} {
		c.take(key)
	}
	if err := c.checkKeys(c.in); err != nil {
		return nil, err
	}
	if err := w.needQuorum(); err != nil {
		return nil, err
	}
	if err := c.mayCreate(vmid, pool, storage); err != nil {
		return nil, err
	}
	managed, start := c.take("ha-managed") == "1", c.take("start") == "1"
	if archive != "" {
		r.start, r.set = start, c.in
		return w.restoreVM(c, node, vmid, r)
	}
	if len(c.null) > 0 {
		return nil, fail("unable to parse value of '%s' - got undefined value", c.null[0])
	}
	set := c.in
	resolveCDROM(set)
	if err := c.mayUseStorages(vmid, set, storage); err != nil {
		return nil, err
	}
	if err := c.mayConfigure(vmid, pool, slices.Collect(maps.Keys(set))); err != nil {
		return nil, err
	}
	if err := c.mayUseDevices(vmid, pool, set, "set"); err != nil {
		return nil, err
	}
	if err := c.mayUseBridges(set); err != nil {
		return nil, err
	}
	if err := c.mayUseModel(set["cpu"], ""); err != nil {
		return nil, err
	}
	if err := c.tidy(set, false); err != nil {
		return nil, err
	}
	if err := w.unusedID(vmid); err != nil {
		return nil, fail("unable to create VM %d - %s", vmid, err)
	}
	g := newGuest(node, "qemu", vmid)
	g.conf["lock"] = "create"
	w.add(g)
	drop := func(*task) { w.remove(g) }
	return w.fork(c, node, job{kind: "qmcreate", id: fmt.Sprint(vmid), guest: g, abort: drop, end: func(t *task) error {
		if err := c.buildVM(g, set, storage, t.logf); err != nil {
			w.remove(g)
			return fail("unable to create VM %d - %s", vmid, taskText(err))
		}
		if pool != "" {
			w.joinPool(pool, vmid)
		}
		if managed {
			w.ha.manage(g, map[bool]string{true: "started", false: "stopped"}[start])
		}
		if start {
			t.logf("Execute autostart")
			w.fork(c, node, w.startJob(g, c))
		}
		return nil
	}}), nil
}

// buildVM writes the configuration of a new VM: what was asked for, and what
// PVE invents (create_vm in PVE/API2/Qemu.pm).
func (c *call) buildVM(g *guest, set map[string]string, storage string, log func(string, ...any)) error {
	w := c.w
	made, err := w.makeDisks(g, set, storage, log)
	if err != nil {
		return err
	}
	conf := config(maps.Clone(set))
	maps.Copy(conf, made)
	conf["meta"] = fmt.Sprintf("creation-qemu=%s,ctime=%d", w.qemuVersion(), w.now.Unix())
	if conf["boot"] == "" {
		conf["boot"] = defaultBoot(conf)
	}
	err = checkClipboard(conf["vga"])
	if conf["smbios1"] == "" {
		conf["smbios1"] = "uuid=" + w.uuid()
	}
	if conf["vmgenid"] == "" && conf["arch"] != "aarch64" {
		conf["vmgenid"] = w.uuid()
	}
	if err == nil {
		var pinned string
		if pinned, err = w.pinMachine(conf["machine"], conf["ostype"]); err == nil && pinned != "" {
			conf["machine"] = pinned
		}
	}
	if tags, tagged := conf["tags"]; tagged && err == nil && w.v92() {
		if err = c.mayTag(g.vmid, "", tags); err == nil {
			conf["tags"] = w.uniqueTags(tags)
		}
	}
	if err != nil {
		for _, key := range driveNames(made) {
			if d := parseDrive(key, made[key]); d.file != parseDrive(key, set[key]).file {
				_ = w.free(g.node, d.file)
			}
		}
		return err
	}
	g.conf = conf
	w.write(g)
	return nil
}

// apiDestroyVM is DELETE /nodes/{node}/qemu/{vmid}.
func apiDestroyVM(w *world, c *call) (any, error) {
	g, err := c.vm()
	if err != nil {
		return nil, err
	}
	skipLock := c.flag("skiplock")
	if skipLock && !c.root() {
		return nil, badParam("skiplock", "Only root may use this option.")
	}
	early := func() error {
		if g.conf["protection"] == "1" {
			return fail("can't remove VM %d - protection mode enabled", g.vmid)
		}
		if g.run != nil {
			return fail("VM %d is running - destroy failed", g.vmid)
		}
		if w.ha.state(g) != "" && !c.flag("purge") {
			return fail("unable to remove VM %d - used in HA resources and purge parameter not set.", g.vmid)
		}
		if !c.flag("purge") {
			return w.notReplicated(g)
		}
		return nil
	}
	if err := early(); err != nil {
		return nil, err
	}
	purge, unreferenced := c.flag("purge"), c.flag("destroy-unreferenced-disks")
	return w.fork(c, g.node, job{
		kind: "qmdestroy", id: fmt.Sprint(g.vmid), guest: g,
		begin: func(*task) error {
			if err := early(); err != nil {
				return err
			}
			if !skipLock && g.conf["lock"] != "suspended" {
				if err := g.checkLock(); err != nil {
					return err
				}
			}
			if err := w.mayFree(g); err != nil {
				return err
			}
			return w.needWritable(g)
		},
		end: func(t *task) error {
			w.freeDisks(g, unreferenced, t.logf)
			if purge {
				t.logf("purging VM %d from related configurations..", g.vmid)
				w.purge(g)
			}
			w.remove(g)
			return nil
		},
	}), nil
}
