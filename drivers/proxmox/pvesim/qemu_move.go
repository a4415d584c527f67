package pvesim

import (
	"fmt"
	"slices"
)

// apiMoveDisk is POST /nodes/{node}/qemu/{vmid}/move_disk: to another storage or
// format, or to another VM.
func apiMoveDisk(w *world, c *call) (any, error) {
	switch target, storage := c.num("target-vmid", 0), c.in["storage"]; {
	case target != 0 && storage != "":
		return nil, movingWhere("either set 'storage' or 'target-vmid', but not both")
	case target != 0:
		return w.reassignDisk(c, target)
	case storage == "":
		return nil, movingWhere("both 'storage' and 'target-vmid' missing, either needs to be set")
	}
	return w.moveDisk(c)
}

func (w *world) moveDisk(c *call) (any, error) {
	disk, storage, format, digest, remove := c.in["disk"], c.in["storage"], c.in["format"], c.in["digest"], c.flag("delete")
	if err := c.need("/storage/"+storage, "Datastore.AllocateSpace"); err != nil {
		return nil, err
	}
	g, err := c.vm()
	if err != nil {
		return nil, err
	}
	check := func() error {
		if err := g.checkLock(); err != nil {
			return err
		}
		if digest != "" && digest != g.sum() {
			return fail("detected modified configuration - file changed by other user? Try again.")
		}
		value, ok := g.conf[disk]
		if !ok {
			return fail("disk '%s' does not exist", disk)
		}
		d := parseDrive(disk, value)
		if d.cdrom() && !d.cloudinit() {
			return fail("you can't move a cdrom")
		}
		from, _, _ := volumeID(d.file)
		v := w.volume(g.node, d.file)
		if st := w.stores[storage]; v != nil && from == storage && (format == "" || format == v.format || !st.files()) {
			return fail("you can't move to the same storage with same format")
		}
		st, err := w.store(storage)
		if err != nil {
			return err
		}
		switch {
		case !st.holds("images"):
			return badParam("storage", "storage '"+storage+"' does not support vm images")
		case remove && g.inSnapshot(d.file):
			return fail("you can't move a disk with snapshots and delete the source")
		case v == nil:
			return fail("volume '%s' does not exist", d.file)
		}
		return nil
	}
	if err := check(); err != nil {
		return nil, err
	}
	return w.fork(c, g.node, job{kind: "qmmove", id: fmt.Sprint(g.vmid), guest: g, begin: func(*task) error {
		return check()
	}, end: func(t *task) error {
		d := parseDrive(disk, g.conf[disk])
		old := d.file
		if from, _, _ := volumeID(old); w.v92() {
			t.logf("copying volume '%s' from current storage '%s' to target storage '%s'", old, from, storage)
		}
		if _, err := w.cloneDisk(g, g, disk, &d, cloning{full: "1", storage: storage, format: format}, t.logf); err != nil {
			return fail("storage migration failed: %s", taskText(err))
		}
		g.conf[disk] = d.String()
		w.leave(g, old, remove, t)
		w.write(g)
		return nil
	}}), nil
}

// reassignDisk gives a disk of a VM to another one of the same node
// ($load_and_check_reassign_configs and $disk_reassignfn in PVE/API2/Qemu.pm).
func (w *world) reassignDisk(c *call, target int) (any, error) {
	disk, as := c.in["disk"], c.in["target-disk"]
	if as == "" {
		as = disk
	}
	if !c.root() {
		if err := c.needVM(target, "", "VM.Config.Disk"); err != nil {
			return nil, err
		}
	}
	if c.vmid() == target {
		return nil, badParam("target-vmid", "must be different than source VMID to reassign disk")
	}
	digest, targetDigest := c.in["digest"], c.in["target-digest"]
	check := func() (from, to *guest, err error) {
		if from, to, err = w.bothGuests("VM", "qemu", c.vmid(), target); err != nil {
			return nil, nil, err
		}
		if from.conf["template"] == "1" || to.conf["template"] == "1" {
			return nil, nil, fail("Can't move disks from or to template VMs")
		}
		if err := sameDigests("VM", from, digest, to, targetDigest); err != nil {
			return nil, nil, err
		}
		return from, to, w.mayReassignDisk(from, to, disk, as)
	}
	from, _, err := check()
	if err != nil {
		return nil, err
	}
	storage, _, _ := volumeID(parseDrive(disk, from.conf[disk]).file)
	if err := c.need("/storage/"+storage, "Datastore.AllocateSpace"); err != nil {
		return nil, err
	}
	return w.fork(c, from.node, job{kind: "qmmove", id: fmt.Sprintf("%d-%s>%d-%s", from.vmid, disk, target, as), guest: from, end: func(t *task) error {
		from, to, err := check()
		if err != nil {
			return err
		}
		if w.v92() {
			t.logf("reassign disk '%s' from VM '%d' as '%s' to VM '%d'", disk, from.vmid, as, to.vmid)
		} else {
			t.logf("moving disk '%s' from VM '%d' to '%d'", disk, from.vmid, to.vmid)
		}
		d := parseDrive(as, from.conf[disk])
		v := w.rename(from, to, d.file)
		d.file = storage + ":" + v.name
		if order := bootOrder(from.conf["boot"]); slices.Contains(order, disk) {
			t.logf("removing disk '%s' from boot order config", disk)
			from.conf["boot"] = printBootOrder(slices.DeleteFunc(order, func(key string) bool { return key == disk }))
		}
		delete(from.conf, disk)
		t.logf("removing disk '%s' from VM '%d' config", disk, from.vmid)
		w.write(from)
		if !isDrive(as) {
			to.conf[as] = d.file
		} else {
			d.opts["size"] = formatSize(v.size)
			to.conf[as] = d.String()
			t.logf("update VM %d: -%s %s", to.vmid, as, d)
		}
		w.write(to)
		return nil
	}}), nil
}

func (w *world) mayReassignDisk(from, to *guest, disk, as string) error {
	value, ok := from.conf[disk]
	if !ok {
		return fail("Disk '%s' for VM '%d' does not exist", disk, from.vmid)
	}
	if to.conf[as] != "" {
		return fail("Target disk key '%s' is already in use for VM '%d'", as, to.vmid)
	}
	d := parseDrive(disk, value)
	storage, _, managed := volumeID(d.file)
	switch {
	case d.cdrom() && !d.cloudinit():
		return fail("CD drive contents can't be moved to another VM")
	case !managed:
		return fail("Volume '%s' not managed by PVE", d.file)
	case from.inSnapshot(d.file):
		return fail("Can't move disk used by a snapshot to another VM")
	case w.stores[storage] == nil:
		return fail("storage '%s' does not exist", storage)
	case w.volume(from.node, d.file) == nil || w.based(d.file):
		return fail("Storage does not support moving of this disk to another VM")
	case from.run != nil && isDrive(disk):
		return fail("Cannot move disk to another VM while the source VM is running - detach first")
	}
	return nil
}
