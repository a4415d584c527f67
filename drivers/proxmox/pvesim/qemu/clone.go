package qemu

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/access"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/guests"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/property"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/qemuconf"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/volumes"
)

// apiCloneVM is POST /nodes/{node}/qemu/{vmid}/clone. It checks early, but the
// new configuration appears only in the task: of two clones to one id the
// second task fails.
func apiCloneVM(w *core.World, c *core.Call) (any, error) {
	g := called(c)
	if g == nil {
		return nil, lost(c)
	}
	cl := guests.Cloning{
		Newid: perl.Atoi(c.In["newid"]), Name: c.In["name"], Description: c.In["description"], Pool: c.In["pool"],
		Storage: c.In["storage"], Format: c.In["format"], Target: c.In["target"], Full: c.In["full"], Snapshot: c.In["snapname"],
		Running: g.Run != nil,
	}
	if cl.Target == g.Node || cl.Target == "localhost" {
		cl.Target = ""
	}
	if err := checkClone(c, g, cl); err != nil {
		return nil, err
	}
	var copied *core.Guest
	forget := func(*core.Task) {
		if copied != nil {
			w.Remove(copied)
		}
	}
	return w.Fork(c, g.Node, core.Job{
		Kind: "qmclone", ID: fmt.Sprint(g.Vmid), Abort: forget,
		Begin: func(t *core.Task) error {
			if err := checkClone(c, g, cl); err != nil {
				return err
			}
			if w.Guests[cl.Newid] != nil { // That of a container, or on another node.
				return perl.Fail("close (rename) atomic file '/etc/pve/nodes/%s/qemu-server/%d.conf' failed: File exists", g.Node, cl.Newid)
			}
			copied = core.NewGuest(g.Node, "qemu", cl.Newid)
			copied.Conf["lock"] = "clone"
			copied.File = t
			t.Guest = copied // The lock file of the new guest; the source's is shared.
			w.Add(copied)
			return nil
		},
		End: func(t *core.Task) error {
			if w.V92() {
				t.Logf("creating a clone of VM %d with ID %d", g.Vmid, cl.Newid)
			}
			if err := cloneVM(w, g, copied, cl, t.Logf); err != nil {
				w.Remove(copied)
				return perl.Fail("clone failed: %s", core.TaskText(err))
			}
			if cl.Pool != "" {
				access.JoinPool(w, cl.Pool, cl.Newid)
			}
			return nil
		},
	}), nil
}

// notCloned are keys of the source alone.
var notCloned = []string{"template", "lock", "parent", "snaptime", "vmstate", "runningmachine", "runningcpu", "running-nets-host-mtu"}

// cloneVM copies configuration and disks. Identity is never copied: hardware
// addresses, uuid and generation id are new.
func cloneVM(w *core.World, g, copied *core.Guest, cl guests.Cloning, log func(string, ...any)) error {
	source := g.Conf
	if s := g.Snapshot(cl.Snapshot); s != nil {
		source = s.Conf
	}
	conf := maps.Clone(source)
	for _, key := range slices.Sorted(maps.Keys(source)) { // In order, for what is invented follows it.
		family, value := property.FamilyOf(key), source[key]
		switch {
		case family == "unused" || slices.Contains(notCloned, key):
			delete(conf, key)
		case family == "net" && key != family:
			n := property.ParseProperty(key, value)
			n["macaddr"] = w.MAC()
			conf[key] = property.PrintNet(n)
		}
	}
	smbios := property.ParseProperty("smbios1", conf["smbios1"])
	smbios["uuid"] = w.Rng.UUID()
	conf["smbios1"] = perl.PrintOptions(smbios)
	if conf["vmgenid"] != "" {
		conf["vmgenid"] = w.Rng.UUID()
	}
	conf["name"] = cl.Name
	if cl.Name == "" {
		name := cmp.Or(source["name"], fmt.Sprint(g.Vmid))
		conf["name"] = "Copy-of-VM-" + name
	}
	if cl.Description != "" {
		conf["description"] = cl.Description
	}
	var made []string
	keys := property.DriveNames(source)
	slices.Sort(keys)
	for _, key := range keys {
		d := property.ParseDrive(key, conf[key])
		if d.Cdrom() && !d.Cloudinit() {
			continue
		}
		volid, err := cloneDisk(w, g, copied, key, &d, cl, log)
		if err != nil {
			for _, volid := range made {
				_ = volumes.Free(w, copied.Node, volid)
			}
			return err
		}
		made = append(made, volid)
		conf[key] = d.String()
	}
	copied.Conf = conf
	w.Cloned(g, copied)
	if cl.Target != "" {
		copied.Node = cl.Target
	}
	w.Write(copied)
	return nil
}

// cloneDisk makes the drive's volume anew for another guest, by link or by copy
// (clone_disk in PVE/QemuServer.pm), and points the drive to it.
func cloneDisk(w *core.World, g, copied *core.Guest, key string, d *property.Drive, cl guests.Cloning, log func(string, ...any)) (string, error) {
	storage, name, _ := core.VolumeID(d.File)
	st, err := w.Store(storage)
	if err != nil {
		return "", err
	}
	source := st.Find(g.Node, name)
	if source == nil {
		return "", perl.Fail("volume '%s' does not exist", d.File)
	}
	var v *core.Volume
	if !cl.IsFull(g) && !d.Cloudinit() && key != "tpmstate0" {
		log("create linked clone of drive %s (%s)", key, d.File)
		v, err = guests.LinkDisk(w, st, g.Node, source, copied.Vmid, log)
	} else {
		log("create full clone of drive %s (%s)", key, d.File)
		if cl.Storage != "" {
			storage = cl.Storage
			if st, err = w.Store(storage); err != nil {
				return "", err
			}
		}
		format := st.FormatFor(cl.Format, source.Format)
		if d.Cloudinit() {
			v, err = copyCloudinit(w, st, g.Node, copied.Vmid, format, log)
		} else {
			v, err = volumes.CopyDisk(w, g.Node, source, st, copied.Vmid, format, log)
		}
	}
	if err != nil {
		return "", err
	}
	d.File = storage + ":" + v.Name
	d.Opts["size"] = property.FormatSize(v.Size)
	delete(d.Opts, "format")
	return d.File, nil
}

func copyCloudinit(w *core.World, st *core.Store, node string, vmid int, format string, log func(string, ...any)) (*core.Volume, error) {
	name := fmt.Sprintf("vm-%d-cloudinit", vmid)
	if st.Files() {
		name = fmt.Sprintf("%d/%s.%s", vmid, name, format)
	}
	return volumes.AllocateAs(w, node, st, name, vmid, format, qemuconf.CloudinitSize, log)
}
