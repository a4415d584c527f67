package lxc

import (
	"fmt"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/guests"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/property"
)

// apiResizeCT is PUT /nodes/{node}/lxc/{vmid}/resize. It checks at once, unlike
// that of a VM.
func apiResizeCT(w *core.World, c *core.Call, g *core.Guest) (any, error) {
	disk, text, digest := c.In["disk"], c.In["size"], c.In["digest"]
	check := func() (*core.Volume, int64, error) {
		if err := g.CheckLock(); err != nil {
			return nil, 0, err
		}
		// PVE asks for the parameter "disk" as for a key that it does not know.
		if err := c.NeedVM(g.Vmid, "", "VM.Config.Options"); err != nil {
			return nil, 0, err
		}
		if digest != "" && digest != g.Sum() {
			return nil, 0, perl.Fail("detected modified configuration - file changed by other user? Try again.")
		}
		return newSize(c, g, disk, text)
	}
	if _, _, err := check(); err != nil {
		return nil, err
	}
	return w.Fork(c, g.Node, core.Job{Kind: "resize", ID: fmt.Sprint(g.Vmid), Guest: g, Begin: func(*core.Task) error {
		_, _, err := check()
		return err
	}, End: func(t *core.Task) error {
		v, size, err := check()
		if err != nil {
			return err
		}
		m := property.ParseMount(disk, g.Conf[disk])
		if err := growMount(w, g, m.Volume, v, size, t.Logf); err != nil {
			return err
		}
		m.Opts["size"] = property.FormatSize(size)
		g.Conf[disk] = m.String()
		w.Write(g)
		return nil
	}}), nil
}

// growMount grows a volume and what is on it (resize_vm in PVE/API2/LXC.pm, volume_resize in
// PVE/Storage/Plugin.pm). Nobody can write to the file that is the base of clones.
func growMount(w *core.World, g *core.Guest, volid string, v *core.Volume, size int64, log func(string, ...any)) error {
	storage, _, _ := core.VolumeID(volid)
	st := w.Stores[storage]
	file := st.FilePath(v.Name)
	switch {
	case st.Files() && v.Format != "raw":
		return perl.Fail("can't resize this image format")
	case st.Files() && guests.Based(w, volid):
		log("qemu-img: Could not open '%s': Could not open '%s': Operation not permitted", file, file)
		command := "/usr/bin/qemu-img resize"
		if w.V9() {
			command += " '--preallocation=off'"
		}
		return perl.Fail("command '%s -f raw %s %d' failed: exit code 1", command, file, size)
	case st.Files():
		log("Image resized.")
	}
	v.Size = size
	if v.Format == "raw" && v.Made > 0 {
		guests.NewExt4(v.Made).LogGrown(file, size, g.Run != nil, log)
	}
	return nil
}

// newSize reads the size that a mount point shall have.
func newSize(c *core.Call, g *core.Guest, disk, text string) (*core.Volume, int64, error) {
	value, ok := g.Conf[disk]
	if !ok {
		return nil, 0, noMount(disk)
	}
	m := property.ParseMount(disk, value)
	storage, name, _ := core.VolumeID(m.Volume)
	st, err := c.W.Store(storage)
	if err != nil {
		return nil, 0, err
	}
	if parsed, err := st.ParseName(name); err != nil || parsed.Vmid != g.Vmid {
		line := map[bool]int{false: 2205, true: 2386}[c.W.V9()]
		return nil, 0, perl.Fail("can't resize mount point owned by another container (%d) at /usr/share/perl5/PVE/API2/LXC.pm line %d.", parsed.Vmid, line)
	}
	if err := c.Need("/storage/"+storage, "Datastore.AllocateSpace"); err != nil {
		return nil, 0, err
	}
	v := c.W.Volume(g.Node, m.Volume)
	if v == nil {
		return nil, 0, perl.Fail("Could not determine current size of volume '%s'", m.Volume)
	}
	plain, relative := strings.CutPrefix(text, "+")
	size, _ := property.ParseSize(plain)
	if relative {
		size += v.Size
	}
	switch {
	case size < v.Size:
		return nil, 0, perl.Fail("unable to shrink disk size")
	case size == v.Size:
		return nil, 0, perl.Fail("disk is already at specified size")
	}
	return v, size, nil
}
