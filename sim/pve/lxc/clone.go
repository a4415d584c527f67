package lxc

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/host"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// apiCloneCT is POST /nodes/{node}/lxc/{vmid}/clone. Unlike that of a VM the new
// container is there, with a lock, before the answer goes back.
func apiCloneCT(w *core.World, c *core.Call, g *core.Guest) (any, error) {
	cl := guests.CloningOf(c, g)
	source, err := checkCloneCT(c, g, cl)
	if err != nil {
		return nil, err
	}
	if err := c.LockFile(g); err != nil {
		return nil, err
	}
	conf, err := clonedConfig(c, source, cl, cl.IsFull(g))
	if err != nil {
		return nil, err
	}
	copied := core.NewGuest(g.Node, "lxc", cl.Newid)
	copied.Conf = maps.Clone(conf) // All but the volumes stands there before the task begins.
	copied.Conf["lock"] = "create"
	w.Add(copied)
	w.SetLock(g, "disk")
	unlock := func() { w.SetLock(g, "") }
	return w.Fork(c, g.Node, core.Job{
		Kind: "vzclone", ID: fmt.Sprint(g.Vmid), Guest: copied,
		Abort: func(*core.Task) { unlock(); w.Remove(copied) },
		End: func(t *core.Task) error {
			defer unlock()
			if w.V92() { // since pve-container 6.1.3
				t.Logf("creating a clone of container %d with ID %d", g.Vmid, cl.Newid)
			}
			if err := cloneCT(w, source, conf, g, copied, cl, t.Logf); err != nil {
				w.Remove(copied)
				return perl.Fail("clone failed: %s", core.TaskText(err))
			}
			if cl.Pool != "" {
				host.JoinPool(w, cl.Pool, cl.Newid)
			}
			return nil
		},
	}), nil
}

// checkCloneCT makes the checks that come before the lock, and returns the
// configuration to copy: that in force or a snapshot's.
func checkCloneCT(c *core.Call, g *core.Guest, cl guests.Cloning) (perl.Config, error) {
	if err := cmp.Or(cl.Check(c.W, g), guests.UnusedID(c.W, cl.Newid)); err != nil {
		return nil, err
	}
	if !cl.IsFull(g) && cl.Storage != "" {
		return nil, perl.Fail("parameter 'storage' not allowed for linked clones")
	}
	return cl.Source(g)
}

// clonedConfig is the configuration of a clone: all but its volumes, with hardware
// addresses of its own.
func clonedConfig(c *core.Call, source perl.Config, cl guests.Cloning, full bool) (perl.Config, error) {
	conf, shared := perl.Config{}, true
	for _, key := range slices.Sorted(maps.Keys(source)) {
		value, family := source[key], perl.FamilyOf(key)
		switch {
		case family == "unused", key == "template", key == "lock", key == "parent", key == "snaptime":
		case perl.IsMount(key):
			m := perl.ParseMount(key, value)
			storage, err := mayCloneMount(c, m, cl, full)
			if err != nil {
				return nil, err
			}
			shared = shared && storage.Shared
		case family == "net" && key != family:
			n := perl.CTProperty(key, value)
			n["hwaddr"] = c.W.MAC()
			conf[key] = printCTNet(n)
			if err := mayUseCTBridge(c, value); err != nil {
				return nil, err
			}
		default:
			conf[key] = value
		}
	}
	if cl.Target != "" && !shared {
		return nil, perl.Fail("can't clone CT to node '%s' (CT uses local storage)", cl.Target)
	}
	if cl.Name != "" {
		conf["hostname"] = cl.Name
	}
	if cl.Description != "" {
		conf["description"] = cl.Description
	}
	return conf, nil
}

func mayCloneMount(c *core.Call, m perl.Mount, cl guests.Cloning, full bool) (*core.Store, error) {
	if m.Kind() != "volume" {
		return nil, perl.Fail("unable to clone mountpoint '%s' (type %s)", m.Key, m.Kind())
	}
	name, _, _ := core.VolumeID(m.Volume)
	if cl.Storage != "" {
		name = cl.Storage
	}
	st, err := c.W.Store(name)
	if err != nil {
		return nil, err
	}
	if err := c.Need("/storage/"+name, "Datastore.AllocateSpace"); err != nil {
		return nil, err
	}
	switch {
	case full && cl.Running && cl.Snapshot == "" && c.W.V92(): // since pve-container 6.1.0
		return nil, perl.Fail("Full clone of a running container is only possible from a snapshot")
	case full && cl.Running && cl.Snapshot == "":
		return nil, perl.Fail("Cannot do full clones on a running container without snapshots")
	case !full && (st.Files() || !clonable(c.W, m.Volume)): // Raw files have no backing file.
		return nil, perl.Fail("Linked clone feature for '%s' is not available", m.Volume)
	}
	return st, nil
}

// cloneCT makes the volumes of the clone and writes its configuration.
func cloneCT(w *core.World, source, conf perl.Config, g, copied *core.Guest, cl guests.Cloning, log func(string, ...any)) error {
	return cl.Finish(w, g, copied, conf, source.MountNames(), func(key string) (volid, value string, err error) {
		m := perl.ParseMount(key, source[key])
		volid, v, err := cl.Copy(w, g.Node, "mount point", key, m.Volume, copied.Vmid, !cl.IsFull(g), log, func(st *core.Store, from *core.Volume) (*core.Volume, error) {
			return copyMount(w, g.Node, from, st, copied.Vmid, log)
		})
		if err != nil {
			return "", "", err
		}
		m.Volume, m.Opts["size"] = volid, perl.FormatSize(v.Size)
		return volid, m.String(), nil
	})
}

// copyMount copies the files of one volume to a new one (copy_volume in PVE/LXC.pm).
func copyMount(w *core.World, node string, from *core.Volume, st *core.Store, vmid int, log func(string, ...any)) (*core.Volume, error) {
	v, err := allocateMount(w, node, st, vmid, from.Size, log)
	if err != nil {
		return nil, err
	}
	v.Used = max(v.Used, from.Used)
	log("Number of files: 57 (reg: 15, dir: 24, link: 18)")
	log("total size is 1,983,340  speedup is 1.00")
	return v, nil
}

// apiTemplateCT is POST /nodes/{node}/lxc/{vmid}/template. It starts a task and
// does not tell its name.
func apiTemplateCT(w *core.World, c *core.Call, g *core.Guest) (any, error) {
	if err := cmp.Or(c.LockFile(g), g.CheckLock()); err != nil {
		return nil, err
	}
	switch {
	case len(g.Snapshots) > 0:
		return nil, perl.Fail("unable to create template, because CT contains snapshots")
	case g.Conf["template"] == "1":
		return nil, perl.Fail("you can't convert a template to a template")
	case g.Run != nil:
		return nil, perl.Fail("you can't convert a CT to template if the CT is running")
	}
	// Its worker keeps the lock file that the call took. Its end is not signalled, so a client that asks at once
	// sees the container as it was.
	takes := max(w.Cfg.TaskTimeOf("vztemplate"), templateTime)
	w.Fork(c, g.Node, core.Job{Kind: "vztemplate", ID: fmt.Sprint(g.Vmid), Guest: g, Takes: takes, End: func(*core.Task) error {
		if err := templateCT(w, g); err != nil {
			return err
		}
		w.Write(g)
		return nil
	}})
	return nil, nil
}

// templateTime is the least that the worker takes to make a container a template.
const templateTime = 50 * time.Millisecond

// templateCT makes bases of the volumes of a container, and it a template (template_create
// in PVE/LXC.pm).
func templateCT(w *core.World, g *core.Guest) error {
	for _, key := range g.Conf.MountNames() {
		if volid := perl.ParseMount(key, g.Conf[key]).Volume; !canBeBase(w, volid) {
			return perl.Fail("Template feature is not available for '%s'", volid)
		}
	}
	for _, key := range g.Conf.MountNames() {
		m := perl.ParseMount(key, g.Conf[key])
		if w.Volume(g.Node, m.Volume) == nil {
			return perl.Fail("volume '%s' does not exist", m.Volume)
		}
		m.Volume = guests.BaseOf(w, g, m.Volume)
		g.Conf[key] = m.String()
	}
	g.Conf["template"] = "1"
	return nil
}

// canBeBase says whether a volume can become the base of clones: one of a storage that has
// such, and that is none yet (volume_has_feature in the plugins of PVE/Storage).
func canBeBase(w *core.World, volid string) bool {
	storage, _, managed := core.VolumeID(volid)
	st := w.Stores[storage]
	return managed && st != nil && st.Type != "lvm" && st.Type != "iscsi" && !guests.Based(w, volid)
}
