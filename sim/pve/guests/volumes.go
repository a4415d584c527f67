package guests

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// Owns says whether a volume belongs to a guest.
func Owns(w *core.World, g *core.Guest, volid string) bool {
	name, ok := nameOf(w, volid)
	return ok && name.Vmid == g.Vmid
}

// nameOf takes the name of a volume apart; ok is false if its storage has no such names.
func nameOf(w *core.World, volid string) (name core.ParsedName, ok bool) {
	storage, text, ok := core.VolumeID(volid)
	if !ok || w.Stores[storage] == nil {
		return name, false
	}
	name, err := w.Stores[storage].ParseName(text)
	return name, err == nil
}

// Owned are all volumes that the file of a guest names and that are its own, in
// force, waiting, unused or in a snapshot.
func Owned(w *core.World, g *core.Guest) []string {
	var list []string
	for _, section := range g.Sections() {
		found := maps.Clone(Disks(g, section))
		for _, key := range section.IndexedKeys("unused") {
			found[key] = section[key]
		}
		if state := section["vmstate"]; state != "" {
			found["vmstate"] = state
		}
		keys := slices.Sorted(maps.Keys(found))
		if g.Kind == "qemu" { // By their buses, behind them the state and what is not used (foreach_volume_full).
			behind := slices.DeleteFunc(slices.Clone(keys), perl.IsDrive)
			keys = append(perl.Config(found).DriveNames(), behind...)
		}
		for _, key := range keys {
			if volid := found[key]; Owns(w, g, volid) && !slices.Contains(list, volid) {
				list = append(list, volid)
			}
		}
	}
	return list
}

// Based says whether a volume is the base of linked clones, as those of templates are.
func Based(w *core.World, volid string) bool {
	name, ok := nameOf(w, volid)
	return ok && name.Base
}

// BaseOf turns a volume into a base of clones: it gets another name
// (vdisk_create_base in PVE/Storage.pm). The new one is returned.
func BaseOf(w *core.World, g *core.Guest, volid string) string {
	storage, name, _ := core.VolumeID(volid)
	st := w.Stores[storage]
	if st == nil || st.Type == "lvm" {
		return volid
	}
	v, last := st.Find(g.Node, name), path.Base(name)
	for plain, base := range map[string]string{"vm-": "base-", "subvol-": "basevol-"} {
		rest, found := strings.CutPrefix(last, plain)
		if v == nil || !found {
			continue
		}
		delete(st.Volumes, st.Key(g.Node, name))
		v.Name = strings.TrimSuffix(name, last) + base + rest
		v.Ctime = w.Now.Unix()
		st.Put(g.Node, v)
		return storage + ":" + v.Name
	}
	return volid
}

// Leave frees the volume that a move left behind, or keeps it as an unused one: also where
// it cannot be freed.
func Leave(w *core.World, g *core.Guest, old string, remove bool, t *core.Task) {
	if remove {
		err := core.Free(w, g.Node, old)
		if err == nil {
			return
		}
		t.Logf("%s", err)
	}
	g.Conf.AddUnused(old)
}

// FreeDisks frees the volumes of a guest that goes: those its configuration
// names, and with unreferenced also those that only carry its id.
func FreeDisks(w *core.World, g *core.Guest, unreferenced bool, log func(string, ...any)) {
	release := func(volid string) {
		if err := core.Free(w, g.Node, volid); err != nil {
			log("Could not remove disk '%s', check manually: %s", volid, err)
		}
	}
	for _, volid := range Owned(w, g) {
		storage, name, _ := core.VolumeID(volid)
		switch st := w.Stores[storage]; {
		case w.Volume(g.Node, volid) != nil:
			release(volid)
		case st != nil && st.Files():
			log("disk image '%s' does not exist", st.FilePath(name))
		}
	}
	if !unreferenced {
		return
	}
	for _, name := range w.StoreNames() {
		for _, v := range w.Stores[name].List(g.Node) {
			if v.Vmid == g.Vmid && v.Content == "images" {
				release(name + ":" + v.Name)
			}
		}
	}
}

// mayFree fails while linked clones need a base of this guest.
func mayFree(w *core.World, g *core.Guest) error {
	if g.Conf["template"] != "1" {
		return nil
	}
	for _, volid := range Owned(w, g) {
		storage, name, _ := core.VolumeID(volid)
		if w.Stores[storage].InUse(g.Node, name) {
			return perl.Fail("base volume '%s' is still in use by linked cloned", volid)
		}
	}
	return nil
}

// Rename gives a volume the name of a new disk of another guest (rename_volume of the
// storage plugins). A linked clone stays one.
func Rename(w *core.World, from, to *core.Guest, volid string) *core.Volume {
	storage, name, _ := core.VolumeID(volid)
	st := w.Stores[storage]
	v := st.Find(from.Node, name)
	delete(st.Volumes, st.Key(from.Node, name))
	own := 1
	if st.Files() {
		own = 2 // A folder by the guest, then the file.
	}
	parts := strings.Split(name, "/")
	base := parts[:max(len(parts)-own, 0)] // Of a linked clone, its base comes first.
	v.Name, v.Vmid = strings.Join(append(base, st.FreeDisk(to.Node, to.Vmid, v.Format)), "/"), to.Vmid
	st.Put(to.Node, v)
	return v
}

// linkDisk makes a linked clone of a base (clone_image of the storage plugins).
func linkDisk(w *core.World, st *core.Store, node string, base *core.Volume, vmid int, log func(string, ...any)) (*core.Volume, error) {
	format := base.Format
	if st.Files() {
		format = "qcow2"
	}
	fresh := st.FreeDisk(node, vmid, format)
	name := fresh
	v := &core.Volume{Content: "images", Format: format, Size: base.Size, Used: 200704, Vmid: vmid, System: base.System, Image: base.Image, Ctime: w.Now.Unix(), Parent: base.Name}
	switch {
	case st.Files():
		own := strings.Split(base.Name, "/") // Of a base that is a clone itself only its own part counts.
		short := strings.Join(own[len(own)-2:], "/")
		name = short + "/" + fresh
		log("clone %s: images, %s, %d to %s (base=../%s)", base.Name, path.Base(fresh), vmid, path.Base(fresh), short)
		log("Formatting '%s', fmt=qcow2 cluster_size=65536 extended_l2=off compression_type=zlib size=%d backing_file=../%s backing_fmt=%s lazy_refcounts=off refcount_bits=16",
			st.FilePath(name), base.Size, short, base.Format)
	case st.Type == "lvmthin":
		v.Parent = "" // A thin snapshot is independent.
		log("  Logical volume \"%s\" created.", name)
	default:
		name = path.Base(base.Name) + "/" + fresh
	}
	v.Name = name
	if err := st.Room(node, v.Used); err != nil {
		return nil, err
	}
	st.Put(node, v)
	return v, nil
}

// InSnapshot says whether a snapshot of a guest needs a volume.
func InSnapshot(g *core.Guest, volid string) bool {
	return slices.ContainsFunc(g.Snapshots, func(s *core.Snapshot) bool {
		return slices.Contains(slices.Collect(maps.Values(Disks(g, s.Conf))), volid)
	})
}

// MayReadVolume checks the right to use a volume (check_volume_access in
// PVE/Storage.pm), and returns its content type.
func MayReadVolume(c *core.Call, vmid int, volid, want string) (content string, err error) {
	if _, _, managed := core.VolumeID(volid); !managed {
		if !c.Root() {
			return "", perl.Fail("Only root can pass arbitrary filesystem paths. at /usr/share/perl5/PVE/Storage.pm line %d.", map[bool]int{false: 581, true: 651}[c.W.V9()])
		}
		return "", nil
	}
	n, err := core.Locate(c.W, volid)
	if err != nil {
		return "", err
	}
	parsed, path := n.Parsed, "/storage/"+n.Name
	switch {
	case want != "" && parsed.Content != want && (want != "rootdir" || parsed.Content != "images"):
		return "", perl.Fail("unable to use volume %s - content type needs to be '%s'", volid, want)
	case c.Can(path, "Datastore.Allocate"):
	case parsed.Content == "iso" || parsed.Content == "vztmpl" || parsed.Content == "import":
		err = c.NeedAny(path, "Datastore.AllocateSpace", "Datastore.Audit")
	case parsed.Vmid != 0 && parsed.Vmid == vmid:
	case parsed.Content == "images" && parsed.Vmid != 0:
		err = cmp.Or(c.Need(path, "Datastore.Audit"), c.Need(core.VMPath(parsed.Vmid), "VM.Config.Disk"))
	case parsed.Content == "backup" && parsed.Vmid != 0:
		err = cmp.Or(c.Need(path, "Datastore.AllocateSpace"), c.Need(core.VMPath(parsed.Vmid), "VM.Backup"))
	default:
		err = perl.Fail("missing privileges to access %s", volid)
	}
	return parsed.Content, err
}

// Destroy removes a guest and its volumes in a task. early is checked before the task, and again when it begins;
// then begin does what a kind of guest needs first.
func Destroy(c *core.Call, g *core.Guest, early func() error, begin func(*core.Task) error) (any, error) {
	w, purge, unreferenced := c.W, c.Flag("purge"), c.Flag("destroy-unreferenced-disks")
	refused := func() error {
		if g.Conf["protection"] == "1" {
			return perl.Fail("can't remove %s %d - protection mode enabled", g.Title(), g.Vmid)
		}
		return early()
	}
	if err := refused(); err != nil {
		return nil, err
	}
	return w.Fork(c, g.Node, core.Job{Kind: Word(g) + "destroy", ID: fmt.Sprint(g.Vmid), Guest: g, Begin: func(t *core.Task) error {
		err := refused()
		if err == nil {
			err = begin(t)
		}
		return cmp.Or(err, mayFree(w, g), w.NeedWritable(g))
	}, End: func(t *core.Task) error {
		FreeDisks(w, g, unreferenced, t.Logf)
		if purge {
			t.Logf("purging %s %d from related configurations..", g.Title(), g.Vmid)
			Purge(w, g)
		}
		w.Remove(g)
		return nil
	}}), nil
}

// UsedInHA returns the error of removing a guest under high availability.
func UsedInHA(g *core.Guest) error {
	return perl.Fail("unable to remove %s %d - used in HA resources and purge parameter not set.", g.Title(), g.Vmid)
}
