package pvesim

import (
	"fmt"
	"strings"
)

// apiResizeCT is PUT /nodes/{node}/lxc/{vmid}/resize. It checks at once, unlike
// that of a VM.
func apiResizeCT(w *world, c *call) (any, error) {
	g, err := c.ct()
	if err != nil {
		return nil, err
	}
	disk, text, digest := c.in["disk"], c.in["size"], c.in["digest"]
	check := func() (*volume, int64, error) {
		if err := g.checkLock(); err != nil {
			return nil, 0, err
		}
		// PVE asks for the parameter "disk" as for a key that it does not know.
		if err := c.needVM(g.vmid, "", "VM.Config.Options"); err != nil {
			return nil, 0, err
		}
		if digest != "" && digest != g.sum() {
			return nil, 0, fail("detected modified configuration - file changed by other user? Try again.")
		}
		return c.newSize(g, disk, text)
	}
	if _, _, err := check(); err != nil {
		return nil, err
	}
	return w.fork(c, g.node, job{kind: "resize", id: fmt.Sprint(g.vmid), guest: g, begin: func(*task) error {
		_, _, err := check()
		return err
	}, end: func(t *task) error {
		v, size, err := check()
		if err != nil {
			return err
		}
		m := parseMount(disk, g.conf[disk])
		if err := w.growMount(g, m.volume, v, size, t.logf); err != nil {
			return err
		}
		m.opts["size"] = formatSize(size)
		g.conf[disk] = m.String()
		w.write(g)
		return nil
	}}), nil
}

// growMount grows a volume and what is on it (resize_vm in PVE/API2/LXC.pm, volume_resize in
// PVE/Storage/Plugin.pm). Nobody can write to the file that is the base of clones.
func (w *world) growMount(g *guest, volid string, v *volume, size int64, log func(string, ...any)) error {
	storage, _, _ := volumeID(volid)
	st := w.stores[storage]
	file := st.path(v.name)
	switch {
	case st.files() && v.format != "raw":
		return fail("can't resize this image format")
	case st.files() && w.based(volid):
		log("qemu-img: Could not open '%s': Could not open '%s': Operation not permitted", file, file)
		command := "/usr/bin/qemu-img resize"
		if w.v9() {
			command += " '--preallocation=off'"
		}
		return fail("command '%s -f raw %s %d' failed: exit code 1", command, file, size)
	case st.files():
		log("Image resized.")
	}
	v.size = size
	if v.format == "raw" && v.made > 0 {
		newExt4(v.made).logGrown(file, size, g.run != nil, log)
	}
	return nil
}

// newSize reads the size that a mount point shall have.
func (c *call) newSize(g *guest, disk, text string) (*volume, int64, error) {
	value, ok := g.conf[disk]
	if !ok {
		return nil, 0, noMount(disk)
	}
	m := parseMount(disk, value)
	storage, name, _ := volumeID(m.volume)
	st, err := c.w.store(storage)
	if err != nil {
		return nil, 0, err
	}
	if parsed, err := st.parseName(name); err != nil || parsed.vmid != g.vmid {
		line := map[bool]int{false: 2205, true: 2386}[c.w.v9()]
		return nil, 0, fail("can't resize mount point owned by another container (%d) at /usr/share/perl5/PVE/API2/LXC.pm line %d.", parsed.vmid, line)
	}
	if err := c.need("/storage/"+storage, "Datastore.AllocateSpace"); err != nil {
		return nil, 0, err
	}
	v := c.w.volume(g.node, m.volume)
	if v == nil {
		return nil, 0, fail("Could not determine current size of volume '%s'", m.volume)
	}
	plain, relative := strings.CutPrefix(text, "+")
	size, _ := parseSize(plain)
	if relative {
		size += v.size
	}
	switch {
	case size < v.size:
		return nil, 0, fail("unable to shrink disk size")
	case size == v.size:
		return nil, 0, fail("disk is already at specified size")
	}
	return v, size, nil
}
