package pvesim

import (
	"maps"
	"path"
	"slices"
	"strings"
)

// owns says whether a volume belongs to a guest.
func (w *world) owns(g *guest, volid string) bool {
	storage, name, ok := volumeID(volid)
	if !ok || w.stores[storage] == nil {
		return false
	}
	parsed, err := w.stores[storage].parseName(name)
	return err == nil && parsed.vmid == g.vmid
}

// owned are all volumes that the file of a guest names and that are its own, in
// force, waiting, unused or in a snapshot.
func (w *world) owned(g *guest) []string {
	var list []string
	sections := []config{g.conf, g.pend}
	for _, s := range g.snapshots {
		sections = append(sections, s.conf)
	}
	for _, section := range sections {
		found := maps.Clone(g.disks(section))
		for _, key := range indexedKeys(section, "unused") {
			found[key] = section[key]
		}
		if state := section["vmstate"]; state != "" {
			found["vmstate"] = state
		}
		keys := slices.Sorted(maps.Keys(found))
		if g.kind == "qemu" { // By their buses, behind them the state and what is not used (foreach_volume_full).
			behind := slices.DeleteFunc(slices.Clone(keys), isDrive)
			keys = append(driveNames(found), behind...)
		}
		for _, key := range keys {
			if volid := found[key]; w.owns(g, volid) && !slices.Contains(list, volid) {
				list = append(list, volid)
			}
		}
	}
	return list
}

// based says whether a volume is the base of linked clones, as those of templates are.
func (w *world) based(volid string) bool {
	storage, name, ok := volumeID(volid)
	if !ok || w.stores[storage] == nil {
		return false
	}
	parsed, err := w.stores[storage].parseName(name)
	return err == nil && parsed.base
}

// clonable says whether linked clones of a volume can be made: it must be a
// base, on a storage that knows clones.
func (w *world) clonable(volid string) bool {
	storage, _, ok := volumeID(volid)
	st := w.stores[storage]
	return ok && st != nil && st.Type != "lvm" && w.based(volid)
}

// baseOf turns a volume into a base of clones: it gets another name
// (vdisk_create_base in PVE/Storage.pm). The new one is returned.
func (w *world) baseOf(g *guest, volid string) string {
	storage, name, _ := volumeID(volid)
	st := w.stores[storage]
	if st == nil || st.Type == "lvm" {
		return volid
	}
	v, last := st.find(g.node, name), path.Base(name)
	for plain, base := range map[string]string{"vm-": "base-", "subvol-": "basevol-"} {
		rest, found := strings.CutPrefix(last, plain)
		if v == nil || !found {
			continue
		}
		delete(st.volumes, st.key(g.node, name))
		v.name = strings.TrimSuffix(name, last) + base + rest
		v.ctime = w.now.Unix()
		st.put(g.node, v)
		return storage + ":" + v.name
	}
	return volid
}

// leave frees the volume that a move left behind, or keeps it as an unused one: also where
// it cannot be freed.
func (w *world) leave(g *guest, old string, remove bool, t *task) {
	if remove {
		err := w.free(g.node, old)
		if err == nil {
			return
		}
		t.logf("%s", err)
	}
	addUnused(g.conf, old)
}

// freeDisks frees the volumes of a guest that goes: those its configuration
// names, and with unreferenced also those that only carry its id.
func (w *world) freeDisks(g *guest, unreferenced bool, log func(string, ...any)) {
	release := func(volid string) {
		if err := w.free(g.node, volid); err != nil {
			log("Could not remove disk '%s', check manually: %s", volid, err)
		}
	}
	for _, volid := range w.owned(g) {
		storage, name, _ := volumeID(volid)
		switch st := w.stores[storage]; {
		case w.volume(g.node, volid) != nil:
			release(volid)
		case st != nil && st.files():
			log("disk image '%s' does not exist", st.path(name))
		}
	}
	if !unreferenced {
		return
	}
	for _, name := range w.storeNames() {
		for _, v := range w.stores[name].list(g.node) {
			if v.vmid == g.vmid && v.content == "images" {
				release(name + ":" + v.name)
			}
		}
	}
}

// mayFree fails while linked clones need a base of this guest.
func (w *world) mayFree(g *guest) error {
	if g.conf["template"] != "1" {
		return nil
	}
	for _, volid := range w.owned(g) {
		storage, name, _ := volumeID(volid)
		if w.stores[storage].inUse(g.node, name) {
			return fail("base volume '%s' is still in use by linked cloned", volid)
		}
	}
	return nil
}

// rename gives a volume the name of a new disk of another guest (rename_volume of the
// storage plugins). A linked clone stays one.
func (w *world) rename(from, to *guest, volid string) *volume {
	storage, name, _ := volumeID(volid)
	st := w.stores[storage]
	v := st.find(from.node, name)
	delete(st.volumes, st.key(from.node, name))
	own := 1
	if st.files() {
		own = 2 // A folder by the guest, then the file.
	}
	parts := strings.Split(name, "/")
	base := parts[:max(len(parts)-own, 0)] // Of a linked clone, its base comes first.
	v.name, v.vmid = strings.Join(append(base, st.freeDisk(to.node, to.vmid, v.format)), "/"), to.vmid
	st.put(to.node, v)
	return v
}

// linkDisk makes a linked clone of a base (clone_image of the storage plugins).
func (w *world) linkDisk(st *store, node string, base *volume, vmid int, log func(string, ...any)) (*volume, error) {
	format := base.format
	if st.files() {
		format = "qcow2"
	}
	fresh := st.freeDisk(node, vmid, format)
	name := fresh
	v := &volume{content: "images", format: format, size: base.size, used: 200704, vmid: vmid, system: base.system, ctime: w.now.Unix(), parent: base.name}
	switch {
	case st.files():
		own := strings.Split(base.name, "/") // Of a base that is a clone itself only its own part counts.
		short := strings.Join(own[len(own)-2:], "/")
		name = short + "/" + fresh
		log("clone %s: images, %s, %d to %s (base=../%s)", base.name, path.Base(fresh), vmid, path.Base(fresh), short)
		log("Formatting '%s', fmt=qcow2 cluster_size=65536 extended_l2=off compression_type=zlib size=%d backing_file=../%s backing_fmt=%s lazy_refcounts=off refcount_bits=16",
			st.path(name), base.size, short, base.format)
	case st.Type == "lvmthin":
		v.parent = "" // A thin snapshot stands on its own.
		log("  Logical volume \"%s\" created.", name)
	default:
		name = path.Base(base.name) + "/" + fresh
	}
	v.name = name
	if err := st.room(node, v.used); err != nil {
		return nil, err
	}
	st.put(node, v)
	return v, nil
}

// inSnapshot says whether a snapshot of a guest needs a volume.
func (g *guest) inSnapshot(volid string) bool {
	return slices.ContainsFunc(g.snapshots, func(s *snapshot) bool {
		return slices.Contains(slices.Collect(maps.Values(g.disks(s.conf))), volid)
	})
}

// movingWhere is what both move_disk and move_volume answer to a call that does not say,
// or says twice, where to.
func movingWhere(wrong string) error {
	return &apiError{status: 400, errors: map[string]string{"target-vmid": wrong, "storage": wrong}}
}

// sameDigests fails when one of two guests is not what its digest says.
func sameDigests(title string, from *guest, digest string, to *guest, targetDigest string) error {
	for g, want := range map[*guest]string{from: digest, to: targetDigest} {
		if want != "" && want != g.sum() {
			return fail("%s %d: detected modified configuration - file changed by other user? Try again.", title, g.vmid)
		}
	}
	return nil
}

// bothGuests are the guest that gives a volume and the one that gets it, neither locked.
func (w *world) bothGuests(title, kind string, giver, taker int) (from, to *guest, err error) {
	found := [2]*guest{}
	for i, vmid := range []int{giver, taker} {
		if found[i] = w.guests[vmid]; found[i] == nil && i == 0 {
			return nil, nil, fail("could not find %s %d", title, vmid)
		} else if found[i] == nil {
			return nil, nil, fail("could not find %s %d", map[string]string{"VM": "target VM", "CT": "CT"}[title], vmid)
		}
	}
	from, to = found[0], found[1]
	if from.node != to.node {
		return nil, nil, fail("Both %s need to be on the same node (%s != %s)", map[string]string{"VM": "VMs", "CT": "containers"}[title], from.node, to.node)
	}
	for _, g := range found {
		if g.kind != kind {
			return nil, nil, missing(g.node, kind, g.vmid)
		}
		if err := g.checkLock(); err != nil {
			return nil, nil, err
		}
	}
	return from, to, nil
}

// cloning is what one clone is to do.
type cloning struct {
	newid                         int
	name, description             string
	pool, storage, format, target string
	full                          string // As given: "", "0" or "1".
	snapshot                      string
	running                       bool
}

// isFull: a template is cloned by links unless told otherwise, a VM is copied.
func (cl cloning) isFull(g *guest) bool {
	if cl.full == "" {
		return g.conf["template"] != "1"
	}
	return cl.full == "1"
}
