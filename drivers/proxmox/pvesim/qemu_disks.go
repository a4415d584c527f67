package pvesim

import (
	"fmt"
	"math"
	"strconv"
)

// cloudinitSize is that of the drive for cloud-init.
const cloudinitSize = 4 << 20

// makeDisks turns drives as ordered into drives as configured (create_disks in
// PVE/API2/Qemu.pm): it allocates, imports, and looks up the size of what is
// there. When it fails it frees what it had allocated.
func (w *world) makeDisks(g *guest, settings map[string]string, defaultStorage string, log func(string, ...any)) (made map[string]string, err error) {
	made = map[string]string{}
	var allocated []string
	for _, key := range driveOrder(settings) {
		var volid string
		made[key], volid, err = w.makeDisk(g, key, parseDrive(key, settings[key]), defaultStorage, log)
		if volid != "" {
			allocated = append(allocated, volid)
		}
		if err != nil {
			for _, volid := range allocated {
				_ = w.free(g.node, volid)
			}
			return nil, err
		}
	}
	return made, nil
}

// driveOrder lists drives as PVE goes through them, unused ones at the end.
func driveOrder(settings map[string]string) []string {
	return append(driveNames(settings), indexedKeys(settings, "unused")...)
}

func (w *world) makeDisk(g *guest, key string, d drive, defaultStorage string, log func(string, ...any)) (value, allocated string, err error) {
	storage, name, managed := volumeID(d.file)
	order := newDisk.FindStringSubmatch(d.file)
	switch {
	case d.file == "none" || d.file == "cdrom":
		delete(d.opts, "size")
		return d.String(), "", nil
	case managed && name == "cloudinit" || d.file == "cloudinit":
		return w.makeCloudinit(g, key, d, storage, defaultStorage, log)
	case order != nil && !d.cdrom() && isDrive(key):
		if storage = order[1]; storage == "" {
			storage = defaultStorage
		}
		return w.makeNew(g, key, d, storage, order[2], log)
	}
	if !managed { // A path of the host; only root@pam gets here.
		return d.String(), "", nil
	}
	st, err := w.store(storage)
	if err != nil {
		return "", "", err
	}
	if _, err := st.parseName(name); err != nil {
		return "", "", err
	}
	v := st.find(g.node, name)
	if v == nil {
		return "", "", fail("volume '%s' does not exist", d.file)
	}
	d.opts["size"] = formatSize(v.size)
	if !isDrive(key) {
		return d.file, "", nil
	}
	return d.String(), "", nil
}

func (w *world) makeCloudinit(g *guest, key string, d drive, storage, defaultStorage string, log func(string, ...any)) (value, allocated string, err error) {
	if storage == "" {
		storage = defaultStorage
	}
	if storage == "" {
		return "", "", fail("no storage ID specified (and no default storage)")
	}
	for _, section := range []config{g.conf, g.pend} {
		for _, other := range driveNames(section) {
			if other != key && parseDrive(other, section[other]).cloudinit() {
				return "", "", fail("%s - cloud-init drive is already attached at '%s'", key, other)
			}
		}
	}
	st, err := w.store(storage)
	if err != nil {
		return "", "", err
	}
	format, volume := "raw", fmt.Sprintf("vm-%d-cloudinit", g.vmid)
	if st.files() {
		if format = d.opts["format"]; format == "" {
			format = "qcow2"
		}
		volume = fmt.Sprintf("%d/%s.%s", g.vmid, volume, format)
	}
	if st.find(g.node, volume) != nil {
		return "", "", st.taken(volume)
	}
	if _, err := w.allocateAs(g.node, st, volume, g.vmid, format, cloudinitSize, log); err != nil {
		return "", "", err
	}
	d.file = storage + ":" + volume
	d.opts["media"] = "cdrom"
	log("%s: successfully created disk '%s'", key, d)
	return d.String(), d.file, nil
}

// makeNew allocates a disk, empty or with what it imports.
func (w *world) makeNew(g *guest, key string, d drive, storage, gib string, log func(string, ...any)) (value, allocated string, err error) {
	st, err := w.store(storage)
	if err != nil {
		return "", "", err
	}
	if !st.holds("images") {
		return "", "", fail("storage '%s' does not support content-type 'images'", storage)
	}
	var v *volume
	if source := d.opts["import-from"]; source != "" {
		v, err = w.importDisk(g, st, source, d.opts["format"], log)
	} else {
		n, _ := strconv.ParseFloat(gib, 64) // The pattern let only numbers through.
		size := int64(math.Round(n*(1<<20))) << 10
		format := st.formatFor(d.opts["format"], "raw")
		switch key {
		case "efidisk0":
			size = 528 << 10
		case "tpmstate0":
			size, format = 4<<20, "raw"
		}
		v, err = w.allocate(g.node, st, g.vmid, format, size, log)
	}
	if err != nil {
		return "", "", err
	}
	d.file = storage + ":" + v.name
	d.opts["size"] = formatSize(v.size)
	delete(d.opts, "import-from")
	delete(d.opts, "format")
	log("%s: successfully created disk '%s'", key, d)
	return d.String(), d.file, nil
}

// importDisk copies a volume into a new disk.
func (w *world) importDisk(g *guest, st *store, source, format string, log func(string, ...any)) (*volume, error) {
	from := w.volume(g.node, source)
	if from == nil {
		storage, name, managed := volumeID(source)
		switch s := w.stores[storage]; {
		case managed && s == nil:
			return nil, fail("storage '%s' does not exist", storage)
		case managed && s.files():
			return nil, fail("failed to stat '%s'", s.path(name))
		default:
			return nil, fail("volume '%s' does not exist", source)
		}
	}
	log("create full clone of drive (%s)", source)
	v, err := w.copyDisk(g.node, from, st, g.vmid, st.formatFor(format, from.format), log)
	if err != nil {
		return nil, err
	}
	v.system = v.system || from.content == "import"
	return v, nil
}
