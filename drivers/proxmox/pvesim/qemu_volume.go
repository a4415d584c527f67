package pvesim

import (
	"fmt"
	"path"
	"strings"
)

// apiResize is PUT /nodes/{node}/qemu/{vmid}/resize. All its checks are the
// task's, also whether there is such a VM.
func apiResize(w *world, c *call) (any, error) {
	if c.flag("skiplock") && !c.root() {
		return nil, badParam("skiplock", "Only root may use this option.")
	}
	node, vmid := c.in["node"], c.vmid()
	g := w.guest(node, "qemu", vmid)
	disk, size, digest := c.in["disk"], c.in["size"], c.in["digest"]
	var grow func(*task)
	return w.fork(c, node, job{kind: "resize", id: fmt.Sprint(vmid), guest: g, begin: func(t *task) error {
		if g == nil {
			return missing(node, "qemu", vmid)
		}
		if digest != "" && digest != g.sum() {
			return fail("checksum mismatch (file change by other user?)")
		}
		if !c.flag("skiplock") {
			if err := g.checkLock(); err != nil {
				return err
			}
		}
		var err error
		grow, err = w.resizing(c, g, disk, size, t.logf)
		return err
	}, end: func(t *task) error {
		if grow != nil {
			grow(t)
		}
		return nil
	}}), nil
}

// resizing checks a change of size and returns what makes it; nil if there is
// nothing to do.
func (w *world) resizing(c *call, g *guest, disk, size string, log func(string, ...any)) (func(*task), error) {
	value, ok := g.conf[disk]
	if !ok {
		return nil, fail("disk '%s' does not exist", disk)
	}
	d := parseDrive(disk, value)
	storage, name, managed := volumeID(d.file)
	if !managed {
		return nil, fail("unable to parse volume ID '%s'", d.file)
	}
	st := w.stores[storage]
	if st == nil {
		return nil, fail("storage '%s' does not exist", storage)
	}
	if _, err := st.parseName(name); err != nil {
		return nil, err
	}
	if d.cdrom() {
		return nil, fail("you can't resize a cdrom")
	}
	if err := c.need("/storage/"+storage, "Datastore.AllocateSpace"); err != nil {
		return nil, err
	}
	if _, err := w.store(storage); err != nil {
		return nil, err
	}
	v := w.volume(g.node, d.file)
	if v == nil {
		return nil, fail("volume '%s' does not exist", d.file)
	}
	text, relative := strings.CutPrefix(size, "+")
	bytes, _ := parseSize(text)
	if relative {
		bytes += v.size
	}
	switch {
	case bytes < v.size:
		return nil, fail("shrinking disks is not supported")
	case bytes == v.size:
		return nil, nil
	}
	if st.files() && v.format != "raw" && v.format != "qcow2" {
		return nil, fail("can't resize this image format")
	}
	if file := st.path(name); st.files() && g.run == nil && strings.HasPrefix(path.Base(name), "base-") {
		log("qemu-img: Could not open '%s': Could not open '%s': Operation not permitted", file, file)
		return nil, fail("command '/usr/bin/qemu-img resize %s-f %s %s %d' failed: exit code 1", w.preallocation(st, v.format), v.format, file, (bytes+1023)>>10<<10)
	}
	return func(t *task) {
		v.size = bytes
		switch {
		case g.run != nil:
		case st.files():
			t.logf("Image resized.")
		case st.Type == "lvmthin" || st.Type == "lvm":
			t.logf("  Logical volume pve/%s successfully resized.", v.name)
		}
		d.opts["size"] = formatSize(bytes)
		if g.conf[disk] != "" {
			g.conf[disk] = d.String()
		}
		w.write(g)
	}, nil
}

// preallocation is what an order to resize an image says of it; before 9.0 nothing
// (volume_resize in PVE/Storage/Plugin.pm).
func (w *world) preallocation(st *store, format string) string {
	if !w.v9() {
		return ""
	}
	mode := st.extra["preallocation"]
	switch {
	case mode == "" && format == "qcow2":
		mode = "metadata"
	case mode == "" || mode == "metadata" && format == "raw":
		mode = "off"
	}
	return "'--preallocation=" + mode + "' "
}
