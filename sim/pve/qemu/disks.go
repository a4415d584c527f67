package qemu

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// cloudinitSize is that of the drive for cloud-init.
const cloudinitSize = 4 << 20

// makeDisks turns drives as ordered into drives as configured (create_disks in
// PVE/API2/Qemu.pm): it allocates, imports, and looks up the size of what is
// there. When it fails it frees what it had allocated.
func makeDisks(w *core.World, g *core.Guest, settings map[string]string, defaultStorage string, log func(string, ...any)) (made map[string]string, err error) {
	made = map[string]string{}
	var allocated []string
	for _, key := range slices.Sorted(maps.Keys(settings)) { // $foreach_volume_with_alloc: not the order of the buses.
		if !perl.IsDrive(key) {
			continue
		}
		var volid string
		made[key], volid, err = makeDisk(w, g, key, perl.ParseDrive(key, settings[key]), making{settings, made, defaultStorage, log})
		if volid != "" {
			allocated = append(allocated, volid)
		}
		if err != nil {
			for _, volid := range allocated {
				_ = core.Free(w, g.Node, volid)
			}
			return nil, err
		}
	}
	return made, nil
}

// making has the context of a drive that is created.
type making struct {
	settings map[string]string // All that was ordered; of a new VM that is its configuration.
	made     map[string]string // The drives that were made before.
	storage  string            // Default storage of an order.
	log      func(string, ...any)
}

func makeDisk(w *core.World, g *core.Guest, key string, d perl.Drive, m making) (value, allocated string, err error) {
	storage, name, managed := core.VolumeID(d.File)
	order := perl.NewDisk.FindStringSubmatch(d.File)
	switch {
	case d.File == "none" || d.File == "cdrom":
		delete(d.Opts, "size")
		return d.String(), "", nil
	case managed && name == "cloudinit":
		return makeCloudinit(w, g, key, d, storage, m)
	case order != nil:
		storage = cmp.Or(order[1], m.storage)
		if storage == "" {
			return "", "", perl.Fail("no storage ID specified (and no default storage)")
		}
		return makeNew(w, g, key, d, storage, order[2], m)
	}
	if !managed { // A path of the host; only root@pam gets here.
		return d.String(), "", nil
	}
	n, err := core.Locate(w, d.File)
	parsed := n.Parsed
	switch format := d.Opts["format"]; {
	case err != nil:
		return "", "", err
	case parsed.Content != "images" && parsed.Content != "iso":
		return "", "", perl.Fail("cannot use volume %s - content type needs to be 'images' or 'iso'", d.File)
	case format != "" && perl.IsDrive(key) && format != parsed.QemuFormat():
		return "", "", perl.Fail("drive '%s' - volume '%s' - 'format=%s' option different from storage format '%s'", key, d.File, format, parsed.QemuFormat())
	case d.Cloudinit():
		if err := onlyCloudDrive(g, key, m); err != nil {
			return "", "", err
		}
	case key == "tpmstate0" && parsed.Format != "raw" && !w.V9():
		return "", "", perl.Fail("tpmstate0: volume format is '%s', only 'raw' is supported!", parsed.Format)
	}
	v := n.Find(g.Node, name)
	if v == nil {
		return "", "", perl.Fail("volume '%s' does not exist", d.File)
	}
	d.Opts["size"] = perl.FormatSize(v.Size)
	return d.String(), "", nil
}

// onlyCloudDrive fails when another drive is one for cloud-init.
func onlyCloudDrive(g *core.Guest, key string, m making) error {
	for _, section := range []perl.Config{g.Conf, m.settings, g.Pend, m.made} {
		for _, other := range section.DriveNames() {
			if other != key && perl.ParseDrive(other, section[other]).Cloudinit() {
				return perl.Fail("%s - cloud-init drive is already attached at '%s'", key, other)
			}
		}
	}
	return nil
}

func makeCloudinit(w *core.World, g *core.Guest, key string, d perl.Drive, storage string, m making) (value, allocated string, err error) {
	if err := onlyCloudDrive(g, key, m); err != nil {
		return "", "", err
	}
	st, err := w.Store(storage)
	if err != nil {
		return "", "", err
	}
	format := "raw"
	if st.Files() {
		format = cmp.Or(d.Opts["format"], "qcow2")
	}
	volume := st.NameOf(g.Vmid, fmt.Sprintf("vm-%d-cloudinit", g.Vmid), format)
	if st.Find(g.Node, volume) != nil {
		return "", "", st.Taken(volume)
	}
	if _, err := st.AllocateAs(w, g.Node, volume, g.Vmid, format, cloudinitSize, m.log); err != nil {
		return "", "", err
	}
	d.File = storage + ":" + volume
	d.Opts["media"] = "cdrom"
	delete(d.Opts, "format")
	m.log("%s: successfully created disk '%s'", key, d)
	return d.String(), d.File, nil
}

// makeNew allocates a disk, empty or with what it imports.
func makeNew(w *core.World, g *core.Guest, key string, d perl.Drive, storage, gib string, m making) (value, allocated string, err error) {
	st, err := w.Store(storage)
	if err != nil {
		return "", "", err
	}
	if !st.Holds("images") {
		return "", "", perl.Fail("storage '%s' does not support content-type 'images'", storage)
	}
	var v *core.Volume
	if source := d.Opts["import-from"]; source != "" {
		v, err = importDisk(w, g, st, source, d.Opts["format"], m.log)
	} else {
		n, _ := strconv.ParseFloat(gib, 64) // The pattern let only numbers through.
		size := int64(math.Round(n*(1<<20))) << 10
		format := st.FormatFor(d.Opts["format"], "raw")
		switch key {
		case "efidisk0":
			size = 528 << 10
		case "tpmstate0":
			if size = 4 << 20; !w.V9() { // swtpm knows no other.
				format = "raw"
			}
		}
		v, err = st.Allocate(w, g.Node, g.Vmid, format, size, m.log)
	}
	if err != nil {
		return "", "", err
	}
	d.File = storage + ":" + v.Name
	d.Opts["size"] = perl.FormatSize(v.Size)
	delete(d.Opts, "import-from")
	delete(d.Opts, "format")
	m.log("%s: successfully created disk '%s'", key, d)
	return d.String(), d.File, nil
}

// importDisk copies a volume into a new disk.
func importDisk(w *core.World, g *core.Guest, st *core.Store, source, format string, log func(string, ...any)) (*core.Volume, error) {
	from := w.Volume(g.Node, source)
	storage, name, managed := core.VolumeID(source)
	if s := w.Stores[storage]; from == nil {
		switch {
		case managed && s == nil:
			return nil, perl.Fail("storage '%s' does not exist", storage)
		case managed && s.Files() && strings.HasPrefix(name, "import/"):
			return nil, perl.Fail("failed to stat '%s'", s.FilePath(name)) // The first check of an untrusted file.
		case managed && s.Files():
			log("failed to stat '%s'", s.FilePath(name))
			return nil, perl.Fail("cannot import from '%s' - could not get size of %s", source, source)
		default:
			return nil, perl.Fail("cannot import from '%s' - volume '%s' does not exist", source, source)
		}
	}
	if (perl.Drive{File: source}).Cloudinit() {
		return nil, perl.Fail("cannot import from '%s' - cannot import from cloudinit disk", source)
	}
	if key := attachedAs(w, from.Vmid, source); key != "" {
		log("create full clone of drive %s (%s)", key, source)
	} else {
		log("create full clone of drive (%s)", source)
	}
	v, err := from.Copy(w, g.Node, st, g.Vmid, st.FormatFor(format, from.Format), log)
	if err != nil {
		return nil, perl.Fail("cannot import from '%s' - %s", source, core.TaskText(err))
	}
	v.System = v.System || from.Content == "import"
	return v, nil
}

// attachedAs is the drive of a VM that has a volume; empty if there is none.
func attachedAs(w *core.World, vmid int, volid string) string {
	if g := w.Guests[vmid]; g != nil && g.Kind == "qemu" {
		for _, key := range g.Conf.DriveNames() {
			if perl.ParseDrive(key, g.Conf[key]).File == volid {
				return key
			}
		}
	}
	return ""
}

// apiResize is PUT /nodes/{node}/qemu/{vmid}/resize. All its checks are the
// task's, also whether there is such a VM.
func apiResize(w *core.World, c *core.Call) (any, error) {
	node, vmid := c.In["node"], c.Vmid()
	g := w.Guest(node, "qemu", vmid)
	disk, size, digest := c.In["disk"], c.In["size"], c.In["digest"]
	var grow func(*core.Task)
	return w.Fork(c, node, core.Job{Kind: "resize", ID: fmt.Sprint(vmid), Guest: g, Begin: func(t *core.Task) error {
		if g == nil {
			return core.Missing(node, "qemu", vmid)
		}
		if digest != "" && digest != g.Sum() {
			return perl.Fail("checksum mismatch (file change by other user?)")
		}
		if !c.Flag("skiplock") {
			if err := g.CheckLock(); err != nil {
				return err
			}
		}
		var err error
		grow, err = resizing(w, c, g, disk, size, t.Logf)
		return err
	}, End: func(t *core.Task) error {
		if grow != nil {
			grow(t)
		}
		return nil
	}}), nil
}

// resizing checks a change of size and returns what makes it; nil if there is
// nothing to do.
func resizing(w *core.World, c *core.Call, g *core.Guest, disk, size string, log func(string, ...any)) (func(*core.Task), error) {
	value, ok := g.Conf[disk]
	if !ok {
		return nil, perl.Fail("disk '%s' does not exist", disk)
	}
	d := perl.ParseDrive(disk, value)
	storage, name, managed := core.VolumeID(d.File)
	if !managed {
		return nil, perl.Fail("unable to parse volume ID '%s'", d.File)
	}
	st := w.Stores[storage]
	if st == nil {
		return nil, perl.Fail("storage '%s' does not exist", storage)
	}
	if _, err := st.ParseName(name); err != nil {
		return nil, err
	}
	if d.Cdrom() {
		return nil, perl.Fail("you can't resize a cdrom")
	}
	if err := c.Need("/storage/"+storage, "Datastore.AllocateSpace"); err != nil {
		return nil, err
	}
	if _, err := w.Store(storage); err != nil {
		return nil, err
	}
	v := w.Volume(g.Node, d.File)
	if v == nil {
		return nil, perl.Fail("volume '%s' does not exist", d.File)
	}
	text, relative := strings.CutPrefix(size, "+")
	bytes, _ := perl.ParseSize(text)
	if relative {
		bytes += v.Size
	}
	switch {
	case bytes < v.Size:
		return nil, perl.Fail("shrinking disks is not supported")
	case bytes == v.Size:
		return nil, nil
	}
	if st.Files() && v.Format != "raw" && v.Format != "qcow2" {
		return nil, perl.Fail("can't resize this image format")
	}
	if file := st.FilePath(name); st.Files() && g.Run == nil && strings.HasPrefix(path.Base(name), "base-") {
		log("qemu-img: Could not open '%s': Could not open '%s': Operation not permitted", file, file)
		return nil, perl.Fail("command '/usr/bin/qemu-img resize %s-f %s %s %d' failed: exit code 1", preallocation(w, st, v.Format), v.Format, file, (bytes+1023)>>10<<10)
	}
	return func(t *core.Task) {
		v.Size = bytes
		switch {
		case g.Run != nil:
		case st.Files():
			t.Logf("Image resized.")
		case st.Type == "lvmthin" || st.Type == "lvm":
			t.Logf("  Logical volume pve/%s successfully resized.", v.Name)
		}
		d.Opts["size"] = perl.FormatSize(bytes)
		if g.Conf[disk] != "" {
			g.Conf[disk] = d.String()
		}
		w.Write(g)
	}, nil
}

// preallocation is what an order to resize an image says of it; before 9.0 nothing
// (volume_resize in PVE/Storage/Plugin.pm).
func preallocation(w *core.World, st *core.Store, format string) string {
	if !w.V9() {
		return ""
	}
	mode := st.Extra["preallocation"]
	switch {
	case mode == "" && format == "qcow2":
		mode = "metadata"
	case mode == "" || mode == "metadata" && format == "raw":
		mode = "off"
	}
	return "'--preallocation=" + mode + "' "
}
