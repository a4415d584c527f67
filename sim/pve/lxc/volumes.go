package lxc

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// newMount is the configuration of a mount point after its new volume is created (create_disks in PVE/LXC.pm). One
// that names an existing volume is unchanged, and the volume is not checked. The created volume is returned beside
// it.
func newMount(w *core.World, g *core.Guest, m perl.Mount, log func(string, ...any)) (value, made string, err error) {
	storage, gib, order := m.Order()
	if m.Kind() != "volume" || !order {
		return m.String(), "", nil
	}
	st, err := w.Store(storage)
	if err != nil {
		return "", "", err
	}
	amount, _ := strconv.ParseFloat(gib, 64) // The pattern of orders only matches numbers.
	v, err := allocateMount(w, g.Node, st, g.Vmid, int64(amount*1024)<<20, log)
	if err != nil {
		return "", "", err
	}
	m.Volume = storage + ":" + v.Name
	m.Opts["size"] = perl.FormatSize(v.Size)
	return m.String(), m.Volume, nil
}

// allocateMount makes a file system for a container: a disk image with ext4 on
// it, or a subvolume where the storage has such (alloc_disk in PVE/LXC.pm).
func allocateMount(w *core.World, node string, st *core.Store, vmid int, size int64, log func(string, ...any)) (*core.Volume, error) {
	format := "raw"
	switch {
	case st.Type == "zfspool" || st.Files() && st.Holds("rootdir") && size == 0:
		format = "subvol"
	case !st.Holds("rootdir"):
		return nil, perl.Fail("content type 'rootdir' is not available or configured on storage '%s'", st.Name)
	}
	v, err := st.Allocate(w, node, vmid, format, size, log)
	if err != nil {
		return nil, err
	}
	v.System, v.Made = true, size
	if format == "raw" {
		v.Used = min(size, 36405248)
		guests.NewExt4(size).LogMade(w.Rng.UUID(), log)
	}
	return v, nil
}

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
		m := perl.ParseMount(disk, g.Conf[disk])
		if err := growMount(w, g, m.Volume, v, size, t.Logf); err != nil {
			return err
		}
		m.Opts["size"] = perl.FormatSize(size)
		g.Conf[disk] = m.String()
		w.Write(g)
		return nil
	}}), nil
}

// growMount grows a volume and its file system (resize_vm in PVE/API2/LXC.pm, volume_resize in
// PVE/Storage/Plugin.pm). The base of clones is read-only.
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
	m := perl.ParseMount(disk, value)
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
	size, _ := perl.ParseSize(plain)
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

// apiMoveVolume is POST /nodes/{node}/lxc/{vmid}/move_volume: to another storage, or
// to another container.
func apiMoveVolume(w *core.World, c *core.Call) (any, error) {
	switch target, storage := c.Num("target-vmid", 0), c.In["storage"]; {
	case target != 0 && storage != "":
		return nil, perl.Fail("either set storage or target-vmid, but not both")
	case target != 0:
		return reassignVolume(w, c, target)
	case storage == "":
		return nil, guests.MovingWhere("both 'storage' and 'target-vmid' missing, either needs to be set")
	}
	return moveVolume(w, c)
}

func moveVolume(w *core.World, c *core.Call) (any, error) {
	key, storage, remove, digest := c.In["volume"], c.In["storage"], c.Flag("delete"), c.In["digest"]
	if err := c.Need("/storage/"+storage, "Datastore.AllocateSpace"); err != nil {
		return nil, err
	}
	g, err := c.Guest()
	if err != nil {
		return nil, err
	}
	if err := mayMoveVolume(g, key, digest, remove); err != nil {
		return nil, err
	}
	w.SetLock(g, "disk")
	unlock := func(*core.Task) { w.SetLock(g, "") }
	return w.Fork(c, g.Node, core.Job{Kind: "move_volume", ID: fmt.Sprint(g.Vmid), Guest: g, Abort: unlock, End: func(t *core.Task) error {
		unlock(t)
		m := perl.ParseMount(key, g.Conf[key])
		old := m.Volume
		from := w.Volume(g.Node, old)
		if from == nil {
			return perl.Fail("volume '%s' does not exist", old)
		}
		st, err := w.Store(storage)
		if err != nil {
			return err
		}
		v, err := copyMount(w, g.Node, from, st, g.Vmid, t.Logf)
		if err != nil {
			return err
		}
		m.Volume = storage + ":" + v.Name
		if g.Conf["template"] == "1" {
			m.Volume = guests.BaseOf(w, g, m.Volume)
		}
		m.Opts["size"] = perl.FormatSize(v.Size)
		g.Conf[key] = m.String()
		guests.Leave(w, g, old, remove, t)
		w.Write(g)
		return nil
	}}), nil
}

// mayMoveVolume is $move_to_storage_checks in PVE/API2/LXC.pm. The storage may be the
// one where the volume is: it is copied there.
func mayMoveVolume(g *core.Guest, key, digest string, remove bool) error {
	if err := g.CheckLock(); err != nil {
		return err
	}
	if g.Run != nil {
		return perl.Fail("cannot move volumes of a running container")
	}
	if perl.FamilyOf(key) == "unused" {
		return perl.Fail("cannot move volume '%s', only configured volumes can be moved to another storage", key)
	}
	value, ok := g.Conf[key]
	if !ok {
		return noMount(key)
	}
	m := perl.ParseMount(key, value)
	switch {
	case remove && guests.InSnapshot(g, m.Volume):
		return perl.Fail("you can't move a volume with snapshots and delete the source")
	case digest != "" && digest != g.Sum():
		return perl.Fail("detected modified configuration - file changed by other user? Try again.")
	}
	return nil
}

// noMount returns PVE's error about a mount point that does not exist: it parses nothing.
func noMount(key string) error {
	missing := "property is missing and it is not optional"
	wrong := map[string]string{"volume": missing, "mp": missing}
	if key == "rootfs" {
		delete(wrong, "mp")
	}
	return &perl.APIError{Status: 500, Message: "format error", Errors: wrong}
}

// reassignVolume moves a mount point of a container to another one of the same node
// ($load_and_check_reassign_configs and $volume_reassignfn in PVE/API2/LXC.pm).
func reassignVolume(w *core.World, c *core.Call, target int) (any, error) {
	key, as := c.In["volume"], cmp.Or(c.In["target-volume"], c.In["volume"])
	r := guests.Reassigning{
		Kind: "lxc", Task: "move_volume", Owner: "Container", Key: key, As: as, Templates: "Can't move volumes from or to template CT",
		Volume: func(from *core.Guest) string { return perl.ParseMount(key, from.Conf[key]).Volume },
		May:    func(from, to *core.Guest) error { return mayReassignVolume(w, from, to, key, as) },
	}
	switch {
	case key == "rootfs" || as == "rootfs":
		r.Wrong = perl.Fail("Cannot move to/from 'rootfs'")
	case perl.FamilyOf(key) == "unused" && perl.FamilyOf(as) != "unused":
		r.Wrong = perl.Fail("Moving an unused volume to a used one is not possible")
	}
	r.Do = func(t *core.Task, from, to *core.Guest) {
		t.Logf("moving volume '%s' from container '%d' to '%d'", key, from.Vmid, to.Vmid)
		m := perl.ParseMount(key, from.Conf[key])
		storage, _, _ := core.VolumeID(m.Volume)
		m.Key, m.Volume = as, storage+":"+guests.Rename(w, from, to, m.Volume).Name
		delete(from.Conf, key)
		t.Logf("removing volume '%s' from container '%d' config", key, from.Vmid)
		w.Write(from)
		if to.Conf[as] = m.String(); perl.FamilyOf(as) == "unused" { // Another is plugged into a container that runs, too.
			to.Conf[as] = m.Volume
		}
		w.Write(to)
		t.Logf("target container '%d' updated with '%s'", to.Vmid, as)
	}
	return r.Start(c, target)
}

func mayReassignVolume(w *core.World, from, to *core.Guest, key, as string) error {
	value, ok := from.Conf[key]
	if !ok {
		return perl.Fail("volume '%s' for container '%d' does not exist", key, from.Vmid)
	}
	if _, taken := to.Conf[as]; taken {
		return perl.Fail("Target volume key '%s' is already in use for container '%d'", as, to.Vmid)
	}
	m := perl.ParseMount(key, value)
	switch {
	case guests.InSnapshot(from, m.Volume):
		return perl.Fail("Cannot move volume used by a snapshot to another container")
	case m.Kind() != "volume" || w.Volume(from.Node, m.Volume) == nil || guests.Based(w, m.Volume):
		return perl.Fail("Storage does not support moving of this disk to another container")
	case from.Run != nil && perl.FamilyOf(key) != "unused":
		return perl.Fail("Cannot move in-use volume while the source CT is running - detach or shutdown first")
	}
	return nil
}
