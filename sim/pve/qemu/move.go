package qemu

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// apiMoveDisk is POST /nodes/{node}/qemu/{vmid}/move_disk: to another storage or
// format, or to another VM.
func apiMoveDisk(w *core.World, c *core.Call) (any, error) {
	switch target, storage := c.Num("target-vmid", 0), c.In["storage"]; {
	case target != 0 && storage != "":
		return nil, guests.MovingWhere("either set 'storage' or 'target-vmid', but not both")
	case target != 0:
		return reassignDisk(w, c, target)
	case storage == "":
		return nil, guests.MovingWhere("both 'storage' and 'target-vmid' missing, either needs to be set")
	}
	return moveDisk(w, c)
}

func moveDisk(w *core.World, c *core.Call) (any, error) {
	disk, storage, format, digest, remove := c.In["disk"], c.In["storage"], c.In["format"], c.In["digest"], c.Flag("delete")
	if err := c.Need("/storage/"+storage, "Datastore.AllocateSpace"); err != nil {
		return nil, err
	}
	g, err := c.Guest()
	if err != nil {
		return nil, err
	}
	check := func() error {
		if err := g.CheckLock(); err != nil {
			return err
		}
		if digest != "" && digest != g.Sum() {
			return perl.Fail("detected modified configuration - file changed by other user? Try again.")
		}
		value, ok := g.Conf[disk]
		if !ok {
			return perl.Fail("disk '%s' does not exist", disk)
		}
		d := perl.ParseDrive(disk, value)
		if d.Cdrom() && !d.Cloudinit() {
			return perl.Fail("you can't move a cdrom")
		}
		from, _, _ := core.VolumeID(d.File)
		v := w.Volume(g.Node, d.File)
		if st := w.Stores[storage]; v != nil && from == storage && (format == "" || format == v.Format || !st.Files()) {
			return perl.Fail("you can't move to the same storage with same format")
		}
		st, err := w.Store(storage)
		if err != nil {
			return err
		}
		switch {
		case !st.Holds("images"):
			return perl.BadParam("storage", "storage '"+storage+"' does not support vm images")
		case remove && guests.InSnapshot(g, d.File):
			return perl.Fail("you can't move a disk with snapshots and delete the source")
		case v == nil:
			return perl.Fail("volume '%s' does not exist", d.File)
		}
		return nil
	}
	if err := check(); err != nil {
		return nil, err
	}
	return w.Fork(c, g.Node, core.Job{Kind: "qmmove", ID: fmt.Sprint(g.Vmid), Guest: g, Begin: func(*core.Task) error {
		return check()
	}, End: func(t *core.Task) error {
		d := perl.ParseDrive(disk, g.Conf[disk])
		old := d.File
		if from, _, _ := core.VolumeID(old); w.V92() {
			t.Logf("copying volume '%s' from current storage '%s' to target storage '%s'", old, from, storage)
		}
		if err := cloneDisk(w, g, g, disk, &d, guests.Cloning{Full: "1", Storage: storage, Format: format}, t.Logf); err != nil {
			return perl.Fail("storage migration failed: %s", core.TaskText(err))
		}
		g.Conf[disk] = d.String()
		guests.Leave(w, g, old, remove, t)
		w.Write(g)
		return nil
	}}), nil
}

// reassignDisk gives a disk of a VM to another one of the same node
// ($load_and_check_reassign_configs and $disk_reassignfn in PVE/API2/Qemu.pm).
func reassignDisk(w *core.World, c *core.Call, target int) (any, error) {
	disk, as := c.In["disk"], cmp.Or(c.In["target-disk"], c.In["disk"])
	r := guests.Reassigning{
		Kind: "qemu", Task: "qmmove", Owner: "VM", Key: disk, As: as, Templates: "Can't move disks from or to template VMs",
		Volume: func(from *core.Guest) string { return perl.ParseDrive(disk, from.Conf[disk]).File },
		May:    func(from, to *core.Guest) error { return mayReassignDisk(w, from, to, disk, as) },
	}
	if c.Vmid() == target {
		r.Wrong = perl.BadParam("target-vmid", "must be different than source VMID to reassign disk")
	}
	r.Do = func(t *core.Task, from, to *core.Guest) {
		if w.V92() {
			t.Logf("reassign disk '%s' from VM '%d' as '%s' to VM '%d'", disk, from.Vmid, as, to.Vmid)
		} else {
			t.Logf("moving disk '%s' from VM '%d' to '%d'", disk, from.Vmid, to.Vmid)
		}
		d := perl.ParseDrive(as, from.Conf[disk])
		storage, _, _ := core.VolumeID(d.File)
		v := guests.Rename(w, from, to, d.File)
		d.File = storage + ":" + v.Name
		if order := perl.BootOrder(from.Conf["boot"]); slices.Contains(order, disk) {
			t.Logf("removing disk '%s' from boot order config", disk)
			from.Conf["boot"] = perl.PrintBootOrder(slices.DeleteFunc(order, func(key string) bool { return key == disk }))
		}
		delete(from.Conf, disk)
		t.Logf("removing disk '%s' from VM '%d' config", disk, from.Vmid)
		w.Write(from)
		if !perl.IsDrive(as) {
			to.Conf[as] = d.File
		} else {
			d.Opts["size"] = perl.FormatSize(v.Size)
			to.Conf[as] = d.String()
			t.Logf("update VM %d: -%s %s", to.Vmid, as, d)
		}
		w.Write(to)
	}
	return r.Start(c, target)
}

func mayReassignDisk(w *core.World, from, to *core.Guest, disk, as string) error {
	value, ok := from.Conf[disk]
	if !ok {
		return perl.Fail("Disk '%s' for VM '%d' does not exist", disk, from.Vmid)
	}
	if to.Conf[as] != "" {
		return perl.Fail("Target disk key '%s' is already in use for VM '%d'", as, to.Vmid)
	}
	d := perl.ParseDrive(disk, value)
	storage, _, managed := core.VolumeID(d.File)
	switch {
	case d.Cdrom() && !d.Cloudinit():
		return perl.Fail("CD drive contents can't be moved to another VM")
	case !managed:
		return perl.Fail("Volume '%s' not managed by PVE", d.File)
	case guests.InSnapshot(from, d.File):
		return perl.Fail("Can't move disk used by a snapshot to another VM")
	case w.Stores[storage] == nil:
		return perl.Fail("storage '%s' does not exist", storage)
	case w.Volume(from.Node, d.File) == nil || guests.Based(w, d.File):
		return perl.Fail("Storage does not support moving of this disk to another VM")
	case from.Run != nil && perl.IsDrive(disk):
		return perl.Fail("Cannot move disk to another VM while the source VM is running - detach first")
	}
	return nil
}

// apiTemplate is POST /nodes/{node}/qemu/{vmid}/template.
func apiTemplate(w *core.World, c *core.Call, g *core.Guest) (any, error) {
	only := c.In["disk"]
	check := func() error {
		if err := g.CheckLock(); err != nil {
			return err
		}
		if len(g.Snapshots) > 0 {
			return perl.Fail("unable to create template, because VM contains snapshots")
		}
		if g.Conf["template"] == "1" && only == "" {
			return perl.Fail("you can't convert a template to a template")
		}
		if g.Run != nil {
			return perl.Fail("you can't convert a VM to template if VM is running")
		}
		return nil
	}
	if err := check(); err != nil {
		return nil, err
	}
	return w.Fork(c, g.Node, core.Job{Kind: "qmtemplate", ID: fmt.Sprint(g.Vmid), Guest: g, Begin: func(*core.Task) error {
		if err := check(); err != nil {
			return err
		}
		g.Conf["template"] = "1"
		w.Write(g)
		return nil
	}, End: func(*core.Task) error {
		templateVM(w, g, only)
		w.Write(g)
		return nil
	}}), nil
}

// templateVM makes bases of the disks of a VM, or of one of them.
func templateVM(w *core.World, g *core.Guest, only string) {
	for _, key := range g.Conf.DriveNames() {
		d := perl.ParseDrive(key, g.Conf[key])
		if d.Cdrom() || only != "" && only != key {
			continue
		}
		d.File = guests.BaseOf(w, g, d.File)
		g.Conf[key] = d.String()
	}
}
