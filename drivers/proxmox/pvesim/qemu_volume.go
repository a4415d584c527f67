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
			return fail("checksum missmatch (file change by other user?)") // PVE's own spelling.
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
	if d.cdrom() {
		return nil, fail("you can't resize a cdrom")
	}
	storage, name, managed := volumeID(d.file)
	if !managed {
		return nil, fail("disk '%s' has no associated volume", disk)
	}
	if err := c.need("/storage/"+storage, "Datastore.AllocateSpace"); err != nil {
		return nil, err
	}
	v := w.volume(g.node, d.file)
	if v == nil {
		return nil, fail("Could not determine current size of volume '%s'", d.file)
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
	st := w.stores[storage]
	if file := st.path(name); st.files() && strings.HasPrefix(path.Base(name), "base-") {
		log("qemu-img: Could not open '%s': Could not open '%s': Operation not permitted", file, file)
		return nil, fail("command '/usr/bin/qemu-img resize -f %s %s %d' failed: exit code 1", v.format, file, bytes)
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
