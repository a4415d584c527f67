package qemu

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/host"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// apiCloneVM is POST /nodes/{node}/qemu/{vmid}/clone. It checks early, but the
// new configuration appears only in the task: of two clones to one id the
// second task fails.
func apiCloneVM(w *core.World, c *core.Call) (any, error) {
	g := called(c)
	if g == nil {
		return nil, lost(c)
	}
	cl := guests.CloningOf(c, g)
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
				host.JoinPool(w, cl.Pool, cl.Newid)
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
	source, err := cl.Source(g)
	if err != nil { // The snapshot went meanwhile.
		source = g.Conf
	}
	conf := maps.Clone(source)
	for _, key := range slices.Sorted(maps.Keys(source)) { // In order, for what is invented follows it.
		family, value := perl.FamilyOf(key), source[key]
		switch {
		case family == "unused" || slices.Contains(notCloned, key):
			delete(conf, key)
		case family == "net" && key != family:
			n := perl.ParseProperty(key, value)
			n["macaddr"] = w.MAC()
			conf[key] = printNet(n)
		}
	}
	smbios := perl.ParseProperty("smbios1", conf["smbios1"])
	smbios["uuid"] = w.Rng.UUID()
	conf["smbios1"] = printOptions(smbios)
	if conf["vmgenid"] != "" {
		conf["vmgenid"] = w.Rng.UUID()
	}
	conf["name"] = cl.Name
	if cl.Name == "" {
		conf["name"] = "Copy-of-VM-" + cmp.Or(source["name"], fmt.Sprint(g.Vmid))
	}
	if cl.Description != "" {
		conf["description"] = cl.Description
	}
	disks := slices.DeleteFunc(source.DriveNames(), func(key string) bool {
		d := perl.ParseDrive(key, conf[key])
		return d.Cdrom() && !d.Cloudinit()
	})
	return cl.Finish(w, g, copied, conf, disks, func(key string) (volid, value string, err error) {
		d := perl.ParseDrive(key, conf[key])
		err = cloneDisk(w, g, copied, key, &d, cl, log)
		return d.File, d.String(), err
	})
}

// cloneDisk makes the volume of a drive again for another guest, by link or by copy
// (clone_disk in PVE/QemuServer.pm), and points the drive to it.
func cloneDisk(w *core.World, g, copied *core.Guest, key string, d *perl.Drive, cl guests.Cloning, log func(string, ...any)) error {
	linked := !cl.IsFull(g) && !d.Cloudinit() && key != "tpmstate0"
	volid, v, err := cl.Copy(w, g.Node, "drive", key, d.File, copied.Vmid, linked, log, func(st *core.Store, source *core.Volume) (*core.Volume, error) {
		format := st.FormatFor(cl.Format, source.Format)
		if d.Cloudinit() {
			return copyCloudinit(w, st, g.Node, copied.Vmid, format, log)
		}
		return source.Copy(w, g.Node, st, copied.Vmid, format, log)
	})
	if err != nil {
		return err
	}
	d.File = volid
	d.Opts["size"] = perl.FormatSize(v.Size)
	delete(d.Opts, "format")
	return nil
}

func copyCloudinit(w *core.World, st *core.Store, node string, vmid int, format string, log func(string, ...any)) (*core.Volume, error) {
	name := st.NameOf(vmid, fmt.Sprintf("vm-%d-cloudinit", vmid), format)
	return st.AllocateAs(w, node, name, vmid, format, cloudinitSize, log)
}

// checkClone makes the checks that come before and again inside the task
// ($load_and_check of clone_vm in PVE/API2/Qemu.pm).
func checkClone(c *core.Call, g *core.Guest, cl guests.Cloning) error {
	w := c.W
	if err := cl.Check(w, g); err != nil {
		return err
	}
	if (g.Run != nil) != cl.Running {
		return perl.Fail("unexpected state change")
	}
	source, err := cl.Source(g)
	if err != nil {
		return err
	}
	full := cl.IsFull(g)
	if !full && cl.Storage != "" {
		return perl.Fail("parameter 'storage' not allowed for linked clones")
	}
	if !full && cl.Format != "" {
		return perl.Fail("parameter 'format' not allowed for linked clones")
	}
	shared, err := mayClone(c, source, cl.Storage)
	if err != nil {
		return err
	}
	if cl.Target != "" && !shared {
		return perl.Fail("can't clone VM to node '%s' (VM uses local storage)", cl.Target)
	}
	if w.Guest(g.Node, "qemu", cl.Newid) != nil { // Of other guests only the cluster file system knows.
		return perl.Fail("unable to create VM %d: config file already exists", cl.Newid)
	}
	return checkCopies(w, source, cl, full)
}

// checkCopies fails when a drive can be cloned neither as asked for nor at all.
func checkCopies(w *core.World, source perl.Config, cl guests.Cloning, full bool) error {
	keys := source.DriveNames()
	slices.Sort(keys)
	for _, key := range keys {
		d := perl.ParseDrive(key, source[key])
		if key == "tpmstate0" && full && cl.Running && cl.Snapshot == "" {
			return perl.Fail("cannot clone TPM state while VM is running")
		}
		if d.Cdrom() && !d.Cloudinit() {
			continue
		}
		kind, feature := "Linked", "clone"
		if full || d.Cloudinit() || key == "tpmstate0" {
			kind, feature = "Full", "copy"
		}
		if !volumeCan(w, feature, d.File, cl.Snapshot != "") {
			of := ""
			if cl.Snapshot != "" {
				of = " a snapshot of"
			}
			return perl.Fail("%s clone feature is not supported for%s '%s' (%s)", kind, of, d.File, key)
		}
	}
	return nil
}

// volumeCan says whether a storage can do something with a volume or with a snapshot of
// it: clone is a linked one, copy a full one (volume_has_feature of the plugins in
// PVE/Storage).
func volumeCan(w *core.World, feature, volid string, snapshot bool) bool {
	storage, name, managed := core.VolumeID(volid)
	st := w.Stores[storage]
	if !managed || st == nil {
		return false
	}
	parsed, err := st.ParseName(name)
	if err != nil {
		return false
	}
	what := "current"
	switch {
	case snapshot:
		what = "snap"
	case parsed.Base:
		what = "base"
	}
	switch st.Type + " " + feature {
	case "lvm clone":
		return false
	case "lvm copy", "zfspool copy", "zfs copy", "iscsi copy":
		return what != "snap"
	case "lvmthin clone", "rbd clone":
		return what != "current"
	case "lvmthin copy", "rbd copy":
		return true
	case "btrfs clone":
		return what == "base" || path.Ext(name) == ".raw"
	case "btrfs copy":
		return what != "snap" || parsed.Format != "vmdk"
	default:
		if feature == "clone" {
			return what == "base"
		}
		return what != "snap" || parsed.Format == "qcow2"
	}
}

// mayClone checks the storages, devices, networks and the model of the processor of a
// source; shared says whether all of its storages are there on every node
// ($check_storage_access_clone and what comes behind it).
func mayClone(c *core.Call, source perl.Config, storage string) (shared bool, err error) {
	shared = true
	for _, key := range source.DriveNames() {
		d := perl.ParseDrive(key, source[key])
		sid, _, managed := core.VolumeID(d.File)
		switch {
		case d.File == "none":
			continue
		case d.Cdrom() && d.File == "cdrom":
			if err := c.Need("/", "Sys.Console"); err != nil {
				return false, err
			}
			continue
		case !managed:
			return false, perl.Fail("unable to parse volume ID '%s'", d.File)
		}
		st := c.W.Stores[sid]
		if st == nil {
			return false, perl.Fail("storage '%s' does not exist", sid)
		}
		shared = shared && st.Shared
		if d.Cdrom() {
			continue
		}
		if storage != "" {
			sid = storage
		}
		if err := c.Need("/storage/"+sid, "Datastore.AllocateSpace"); err != nil {
			return false, err
		}
	}
	if state := source["vmstatestorage"]; state != "" {
		if err := c.Need("/storage/"+state, "Datastore.AllocateSpace"); err != nil {
			return false, err
		}
	}
	if err := cmp.Or(mayUseMappings(c, source), mayUseBridges(c, source)); err != nil {
		return false, err
	}
	if c.W.V92() {
		err = mayUseModel(c, source["cpu"], "")
	}
	return shared, err
}

// mayUseMappings checks the right to the devices of the host in a configuration
// (check_mapping_access in PVE/QemuServer.pm).
func mayUseMappings(c *core.Call, conf perl.Config) error {
	if c.Root() {
		return nil
	}
	for _, family := range []string{"hostpci", "rng", "usb", "virtiofs"} {
		for _, key := range conf.IndexedKeys(family) {
			device := perl.ParseProperty(key, conf[key])
			host, mapped := device["host"], "/mapping/dir/"+device["dirid"]
			switch family {
			case "hostpci":
				mapped = "/mapping/pci/" + device["mapping"]
				if host != "" {
					return perl.Fail("only root can set '%s' config for non-mapped devices", key)
				}
			case "usb":
				mapped = "/mapping/usb/" + device["mapping"]
				if strings.EqualFold(host, "spice") {
					continue
				}
				if host != "" {
					return perl.Fail("only root can set '%s' config for real devices", key)
				}
			case "rng":
				if mapped = "/mapping/hwrng"; device["source"] != "/dev/hwrng" {
					continue
				}
			}
			if err := c.Need(mapped, "Mapping.Use"); err != nil {
				return err
			}
		}
	}
	return nil
}

// printOptions prints a property string of which no member stands bare.
func printOptions(options map[string]string) string {
	parts := make([]string, 0, len(options))
	for _, key := range slices.Sorted(maps.Keys(options)) {
		parts = append(parts, key+"="+options[key])
	}
	return strings.Join(parts, ",")
}
