package pvesim

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// cloudinitSize is that of the drive for cloud-init.
const cloudinitSize = 4 << 20

// makeDisks turns drives as ordered into drives as configured (create_disks in
// PVE/API2/Qemu.pm): it allocates, imports, and looks up the size of what is
// there. When it fails it frees what it had allocated.
func (w *world) makeDisks(g *guest, settings map[string]string, defaultStorage string, log func(string, ...any)) (made map[string]string, err error) {
	made = map[string]string{}
	var allocated []string
	for _, key := range slices.Sorted(maps.Keys(settings)) { // $foreach_volume_with_alloc: not the order of the buses.
		if !isDrive(key) {
			continue
		}
		var volid string
		made[key], volid, err = w.makeDisk(g, key, parseDrive(key, settings[key]), making{settings, made, defaultStorage, log})
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

// making is what is around a drive that is made.
type making struct {
	settings map[string]string // All that was ordered; of a new VM that is its configuration.
	made     map[string]string // The drives that were made before.
	storage  string            // Where an order says none.
	log      func(string, ...any)
}

// driveOrder lists drives as PVE goes through them, unused ones at the end.
func driveOrder(settings map[string]string) []string {
	return append(driveNames(settings), indexedKeys(settings, "unused")...)
}

func (w *world) makeDisk(g *guest, key string, d drive, m making) (value, allocated string, err error) {
	storage, name, managed := volumeID(d.file)
	order := newDisk.FindStringSubmatch(d.file)
	switch {
	case d.file == "none" || d.file == "cdrom":
		delete(d.opts, "size")
		return d.String(), "", nil
	case managed && name == "cloudinit":
		return w.makeCloudinit(g, key, d, storage, m)
	case order != nil:
		if storage = order[1]; storage == "" {
			storage = m.storage
		}
		if storage == "" {
			return "", "", fail("no storage ID specified (and no default storage)")
		}
		return w.makeNew(g, key, d, storage, order[2], m)
	}
	if !managed { // A path of the host; only root@pam gets here.
		return d.String(), "", nil
	}
	st, err := w.store(storage)
	if err != nil {
		return "", "", err
	}
	parsed, err := st.parseName(name)
	switch format := d.opts["format"]; {
	case err != nil:
		return "", "", err
	case parsed.content != "images" && parsed.content != "iso":
		return "", "", fail("cannot use volume %s - content type needs to be 'images' or 'iso'", d.file)
	case format != "" && isDrive(key) && format != parsed.qemuFormat():
		return "", "", fail("drive '%s' - volume '%s' - 'format=%s' option different from storage format '%s'", key, d.file, format, parsed.qemuFormat())
	case d.cloudinit():
		if err := onlyCloudDrive(g, key, m); err != nil {
			return "", "", err
		}
	case key == "tpmstate0" && parsed.format != "raw" && !w.v9():
		return "", "", fail("tpmstate0: volume format is '%s', only 'raw' is supported!", parsed.format)
	}
	v := st.find(g.node, name)
	if v == nil {
		return "", "", fail("volume '%s' does not exist", d.file)
	}
	d.opts["size"] = formatSize(v.size)
	return d.String(), "", nil
}

// onlyCloudDrive fails when another drive is one for cloud-init.
func onlyCloudDrive(g *guest, key string, m making) error {
	for _, section := range []config{g.conf, m.settings, g.pend, m.made} {
		for _, other := range driveNames(section) {
			if other != key && parseDrive(other, section[other]).cloudinit() {
				return fail("%s - cloud-init drive is already attached at '%s'", key, other)
			}
		}
	}
	return nil
}

func (w *world) makeCloudinit(g *guest, key string, d drive, storage string, m making) (value, allocated string, err error) {
	if err := onlyCloudDrive(g, key, m); err != nil {
		return "", "", err
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
	if _, err := w.allocateAs(g.node, st, volume, g.vmid, format, cloudinitSize, m.log); err != nil {
		return "", "", err
	}
	d.file = storage + ":" + volume
	d.opts["media"] = "cdrom"
	delete(d.opts, "format")
	m.log("%s: successfully created disk '%s'", key, d)
	return d.String(), d.file, nil
}

// makeNew allocates a disk, empty or with what it imports.
func (w *world) makeNew(g *guest, key string, d drive, storage, gib string, m making) (value, allocated string, err error) {
	st, err := w.store(storage)
	if err != nil {
		return "", "", err
	}
	if !st.holds("images") {
		return "", "", fail("storage '%s' does not support content-type 'images'", storage)
	}
	var v *volume
	if source := d.opts["import-from"]; source != "" {
		v, err = w.importDisk(g, st, source, d.opts["format"], m.log)
	} else {
		n, _ := strconv.ParseFloat(gib, 64) // The pattern let only numbers through.
		size := int64(math.Round(n*(1<<20))) << 10
		format := st.formatFor(d.opts["format"], "raw")
		switch key {
		case "efidisk0":
			size = 528 << 10
		case "tpmstate0":
			if size = 4 << 20; !w.v9() { // swtpm knows no other.
				format = "raw"
			}
		}
		v, err = w.allocate(g.node, st, g.vmid, format, size, m.log)
	}
	if err != nil {
		return "", "", err
	}
	d.file = storage + ":" + v.name
	d.opts["size"] = formatSize(v.size)
	delete(d.opts, "import-from")
	delete(d.opts, "format")
	m.log("%s: successfully created disk '%s'", key, d)
	return d.String(), d.file, nil
}

// importDisk copies a volume into a new disk.
func (w *world) importDisk(g *guest, st *store, source, format string, log func(string, ...any)) (*volume, error) {
	from := w.volume(g.node, source)
	storage, name, managed := volumeID(source)
	if s := w.stores[storage]; from == nil {
		switch {
		case managed && s == nil:
			return nil, fail("storage '%s' does not exist", storage)
		case managed && s.files() && strings.HasPrefix(name, "import/"):
			return nil, fail("failed to stat '%s'", s.path(name)) // The first look at a file that nobody trusts.
		case managed && s.files():
			log("failed to stat '%s'", s.path(name))
			return nil, fail("cannot import from '%s' - could not get size of %s", source, source)
		default:
			return nil, fail("cannot import from '%s' - volume '%s' does not exist", source, source)
		}
	}
	if (drive{file: source}).cloudinit() {
		return nil, fail("cannot import from '%s' - cannot import from cloudinit disk", source)
	}
	if key := w.attachedAs(from.vmid, source); key != "" {
		log("create full clone of drive %s (%s)", key, source)
	} else {
		log("create full clone of drive (%s)", source)
	}
	v, err := w.copyDisk(g.node, from, st, g.vmid, st.formatFor(format, from.format), log)
	if err != nil {
		return nil, fail("cannot import from '%s' - %s", source, taskText(err))
	}
	v.system = v.system || from.content == "import"
	return v, nil
}

// attachedAs is the drive of a VM that has a volume; empty if there is none.
func (w *world) attachedAs(vmid int, volid string) string {
	if g := w.guests[vmid]; g != nil && g.kind == "qemu" {
		for _, key := range driveNames(g.conf) {
			if parseDrive(key, g.conf[key]).file == volid {
				return key
			}
		}
	}
	return ""
}
