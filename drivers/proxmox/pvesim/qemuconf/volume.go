package qemuconf

import (
	"fmt"
	"path"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/property"
)

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
	d := property.ParseDrive(disk, value)
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
	bytes, _ := property.ParseSize(text)
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
		d.Opts["size"] = property.FormatSize(bytes)
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
