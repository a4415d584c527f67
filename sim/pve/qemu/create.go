package qemu

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/host"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// apiCreateVM is POST /nodes/{node}/qemu. The configuration file exists, with
// only a lock in it, before the answer goes back: with the UPID the id is taken.
// All else happens in the task; when that fails nothing is left.
func apiCreateVM(w *core.World, c *core.Call) (any, error) {
	node, vmid := c.Take("node"), perl.Atoi(c.Take("vmid"))
	archive, pool, storage := c.Take("archive"), c.Take("pool"), c.Take("storage")
	r := restoring{force: c.Take("force") == "1", unique: c.Take("unique") == "1", archive: archive, storage: storage, pool: pool}
	for _, key := range []string{"bwlimit", "live-restore", "import-working-storage"} {
		c.Take(key)
	}
	if err := cmp.Or(checkKeys(c, c.In), w.NeedQuorum(), guests.MayCreate(c, vmid, pool, storage)); err != nil {
		return nil, err
	}
	managed, start := c.Take("ha-managed") == "1", c.Take("start") == "1"
	if archive != "" {
		r.start, r.set = start, c.In
		return restoreVM(w, c, node, vmid, r)
	}
	if len(c.Null) > 0 {
		return nil, perl.Fail("unable to parse value of '%s' - got undefined value", c.Null[0])
	}
	set := c.In
	resolveCDROM(set)
	err := cmp.Or(
		mayUseStorages(c, vmid, set, storage), mayConfigure(c, vmid, pool, slices.Collect(maps.Keys(set))),
		mayUseDevices(c, vmid, pool, set, "set"), mayUseBridges(c, set), mayUseModel(c, set["cpu"], ""),
	)
	if err != nil {
		return nil, err
	}
	if err := tidy(c, set, false); err != nil {
		return nil, err
	}
	if err := guests.UnusedID(w, vmid); err != nil {
		return nil, perl.Fail("unable to create VM %d - %s", vmid, err)
	}
	g := core.NewGuest(node, "qemu", vmid)
	g.Conf["lock"] = "create"
	w.Add(g)
	drop := func(*core.Task) { w.Remove(g) }
	return w.Fork(c, node, core.Job{Kind: "qmcreate", ID: fmt.Sprint(vmid), Guest: g, Abort: drop, End: func(t *core.Task) error {
		if err := buildVM(c, g, set, storage, t.Logf); err != nil {
			w.Remove(g)
			return perl.Fail("unable to create VM %d - %s", vmid, core.TaskText(err))
		}
		if pool != "" {
			host.JoinPool(w, pool, vmid)
		}
		if managed {
			w.HA.Manage(g, map[bool]string{true: "started", false: "stopped"}[start])
		}
		if start {
			t.Logf("Execute autostart")
			w.Fork(c, node, StartJob(w, g, c))
		}
		return nil
	}}), nil
}

// buildVM writes the configuration of a new VM: what was asked for, and what
// PVE invents (create_vm in PVE/API2/Qemu.pm).
func buildVM(c *core.Call, g *core.Guest, set map[string]string, storage string, log func(string, ...any)) error {
	w := c.W
	made, err := makeDisks(w, g, set, storage, log)
	if err != nil {
		return err
	}
	conf := perl.Config(maps.Clone(set))
	maps.Copy(conf, made)
	conf["meta"] = fmt.Sprintf("creation-qemu=%s,ctime=%d", guests.QemuVersion(w), w.Now.Unix())
	if conf["boot"] == "" {
		conf["boot"] = defaultBoot(conf)
	}
	err = checkClipboard(conf["vga"])
	if conf["smbios1"] == "" {
		conf["smbios1"] = "uuid=" + w.Rng.UUID()
	}
	if conf["vmgenid"] == "" && conf["arch"] != "aarch64" {
		conf["vmgenid"] = w.Rng.UUID()
	}
	if err == nil {
		var pinned string
		if pinned, err = pinMachine(w, conf["machine"], conf["ostype"]); err == nil && pinned != "" {
			conf["machine"] = pinned
		}
	}
	if tags, tagged := conf["tags"]; tagged && err == nil && w.V92() {
		if err = guests.MayTag(c, g.Vmid, "", tags); err == nil {
			conf["tags"] = guests.UniqueTags(w, tags)
		}
	}
	if err != nil {
		for _, key := range perl.Config(made).DriveNames() {
			if d := perl.ParseDrive(key, made[key]); d.File != perl.ParseDrive(key, set[key]).File {
				_ = core.Free(w, g.Node, d.File)
			}
		}
		return err
	}
	g.Conf = conf
	w.Write(g)
	return nil
}

// apiDestroyVM is DELETE /nodes/{node}/qemu/{vmid}.
func apiDestroyVM(w *core.World, c *core.Call, g *core.Guest) (any, error) {
	purge, skipLock := c.Flag("purge"), c.Flag("skiplock")
	return guests.Destroy(c, g, func() error {
		switch {
		case g.Run != nil:
			return perl.Fail("VM %d is running - destroy failed", g.Vmid)
		case w.HA.State(g) != "" && !purge:
			return guests.UsedInHA(g)
		case !purge:
			return guests.NotReplicated(w, g)
		}
		return nil
	}, func(*core.Task) error {
		if skipLock || g.Conf["lock"] == "suspended" {
			return nil
		}
		return g.CheckLock()
	})
}

// defaultBoot is the order that create gives when none was asked for: the first
// disk, the first CD drive, the first network device (get_default_bootdevices
// in PVE/QemuServer.pm).
func defaultBoot(c perl.Config) string {
	var order []string
	for _, cdrom := range []bool{false, true} {
		for _, key := range c.DriveNames() {
			if key != "efidisk0" && key != "tpmstate0" && perl.ParseDrive(key, c[key]).Cdrom() == cdrom {
				order = append(order, key)
				break
			}
		}
	}
	if nets := c.IndexedKeys("net"); len(nets) > 0 {
		order = append(order, nets[0])
	}
	return perl.PrintBootOrder(order)
}
