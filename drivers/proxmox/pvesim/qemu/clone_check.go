package qemu

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/guests"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/property"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/qemuconf"
)

// checkClone makes the checks that come before and again inside the task
// ($load_and_check of clone_vm in PVE/API2/Qemu.pm).
func checkClone(c *core.Call, g *core.Guest, cl guests.Cloning) error {
	w := c.W
	if cl.Pool != "" && w.Access.Pools[cl.Pool] == nil {
		return perl.Forbidden("pool '" + cl.Pool + "' does not exist")
	}
	if cl.Target != "" && w.Nodes[cl.Target] == nil {
		return perl.Fail("no such cluster node '%s'", cl.Target)
	}
	if cl.Storage != "" {
		st, err := w.Store(cl.Storage)
		switch {
		case err != nil:
			return err
		case !st.Holds("images"):
			return perl.BadParam("storage", "storage '"+cl.Storage+"' does not support vm images")
		case cl.Target != "" && !st.Shared:
			return perl.Fail("can't clone to non-shared storage '%s'", cl.Storage)
		}
	}
	if err := w.NeedQuorum(); err != nil {
		return err
	}
	if w.Guests[g.Vmid] != g {
		return core.Missing(g.Node, "qemu", g.Vmid)
	}
	if err := g.CheckLock(); err != nil {
		return err
	}
	if (g.Run != nil) != cl.Running {
		return perl.Fail("unexpected state change")
	}
	source := g.Conf
	if cl.Snapshot != "" {
		s := g.Snapshot(cl.Snapshot)
		if s == nil {
			return perl.Fail("snapshot '%s' does not exist", cl.Snapshot)
		}
		source = s.Conf
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
func checkCopies(w *core.World, source property.Config, cl guests.Cloning, full bool) error {
	keys := property.DriveNames(source)
	slices.Sort(keys)
	for _, key := range keys {
		d := property.ParseDrive(key, source[key])
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
func mayClone(c *core.Call, source property.Config, storage string) (shared bool, err error) {
	shared = true
	for _, key := range property.DriveNames(source) {
		d := property.ParseDrive(key, source[key])
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
	if err := cmp.Or(mayUseMappings(c, source), qemuconf.MayUseBridges(c, source)); err != nil {
		return false, err
	}
	if c.W.V92() {
		err = qemuconf.MayUseModel(c, source["cpu"], "")
	}
	return shared, err
}

// mayUseMappings checks the right to the devices of the host in a configuration
// (check_mapping_access in PVE/QemuServer.pm).
func mayUseMappings(c *core.Call, conf property.Config) error {
	if c.Root() {
		return nil
	}
	for _, family := range []string{"hostpci", "rng", "usb", "virtiofs"} {
		for _, key := range property.IndexedKeys(conf, family) {
			device := property.ParseProperty(key, conf[key])
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
