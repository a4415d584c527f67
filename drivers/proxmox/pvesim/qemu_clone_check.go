package pvesim

import (
	"path"
	"slices"
	"strings"
)

// checkClone makes the checks that come before and again inside the task
// ($load_and_check of clone_vm in PVE/API2/Qemu.pm).
func (c *call) checkClone(g *guest, cl cloning) error {
	w := c.w
	if cl.pool != "" && w.pools[cl.pool] == nil {
		return forbidden("pool '" + cl.pool + "' does not exist")
	}
	if cl.target != "" && w.nodes[cl.target] == nil {
		return fail("no such cluster node '%s'", cl.target)
	}
	if cl.storage != "" {
		st, err := w.store(cl.storage)
		switch {
		case err != nil:
			return err
		case !st.holds("images"):
			return badParam("storage", "storage '"+cl.storage+"' does not support vm images")
		case cl.target != "" && !st.Shared:
			return fail("can't clone to non-shared storage '%s'", cl.storage)
		}
	}
	if err := w.needQuorum(); err != nil {
		return err
	}
	if w.guests[g.vmid] != g {
		return missing(g.node, "qemu", g.vmid)
	}
	if err := g.checkLock(); err != nil {
		return err
	}
	if (g.run != nil) != cl.running {
		return fail("unexpected state change")
	}
	source := g.conf
	if cl.snapshot != "" {
		s := g.snapshot(cl.snapshot)
		if s == nil {
			return fail("snapshot '%s' does not exist", cl.snapshot)
		}
		source = s.conf
	}
	full := cl.isFull(g)
	if !full && cl.storage != "" {
		return fail("parameter 'storage' not allowed for linked clones")
	}
	if !full && cl.format != "" {
		return fail("parameter 'format' not allowed for linked clones")
	}
	shared, err := c.mayClone(source, cl.storage)
	if err != nil {
		return err
	}
	if cl.target != "" && !shared {
		return fail("can't clone VM to node '%s' (VM uses local storage)", cl.target)
	}
	if w.guest(g.node, "qemu", cl.newid) != nil { // Of other guests only the cluster file system knows.
		return fail("unable to create VM %d: config file already exists", cl.newid)
	}
	return w.checkCopies(source, cl, full)
}

// checkCopies fails when a drive can be cloned neither as asked for nor at all.
func (w *world) checkCopies(source config, cl cloning, full bool) error {
	keys := driveNames(source)
	slices.Sort(keys)
	for _, key := range keys {
		d := parseDrive(key, source[key])
		if key == "tpmstate0" && full && cl.running && cl.snapshot == "" {
			return fail("cannot clone TPM state while VM is running")
		}
		if d.cdrom() && !d.cloudinit() {
			continue
		}
		kind, feature := "Linked", "clone"
		if full || d.cloudinit() || key == "tpmstate0" {
			kind, feature = "Full", "copy"
		}
		if !w.volumeCan(feature, d.file, cl.snapshot != "") {
			of := ""
			if cl.snapshot != "" {
				of = " a snapshot of"
			}
			return fail("%s clone feature is not supported for%s '%s' (%s)", kind, of, d.file, key)
		}
	}
	return nil
}

// volumeCan says whether a storage can do something with a volume or with a snapshot of
// it: clone is a linked one, copy a full one (volume_has_feature of the plugins in
// PVE/Storage).
func (w *world) volumeCan(feature, volid string, snapshot bool) bool {
	storage, name, managed := volumeID(volid)
	st := w.stores[storage]
	if !managed || st == nil {
		return false
	}
	parsed, err := st.parseName(name)
	if err != nil {
		return false
	}
	what := "current"
	switch {
	case snapshot:
		what = "snap"
	case parsed.base:
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
		return what != "snap" || parsed.format != "vmdk"
	default:
		if feature == "clone" {
			return what == "base"
		}
		return what != "snap" || parsed.format == "qcow2"
	}
}

// mayClone checks the storages, devices, networks and the model of the processor of a
// source; shared says whether all of its storages are there on every node
// ($check_storage_access_clone and what comes behind it).
func (c *call) mayClone(source config, storage string) (shared bool, err error) {
	shared = true
	for _, key := range driveNames(source) {
		d := parseDrive(key, source[key])
		sid, _, managed := volumeID(d.file)
		switch {
		case d.file == "none":
			continue
		case d.cdrom() && d.file == "cdrom":
			if err := c.need("/", "Sys.Console"); err != nil {
				return false, err
			}
			continue
		case !managed:
			return false, fail("unable to parse volume ID '%s'", d.file)
		}
		st := c.w.stores[sid]
		if st == nil {
			return false, fail("storage '%s' does not exist", sid)
		}
		shared = shared && st.Shared
		if d.cdrom() {
			continue
		}
		if storage != "" {
			sid = storage
		}
		if err := c.need("/storage/"+sid, "Datastore.AllocateSpace"); err != nil {
			return false, err
		}
	}
	if state := source["vmstatestorage"]; state != "" {
		if err := c.need("/storage/"+state, "Datastore.AllocateSpace"); err != nil {
			return false, err
		}
	}
	if err := c.mayUseMappings(source); err != nil {
		return false, err
	}
	if err := c.mayUseBridges(source); err != nil {
		return false, err
	}
	if c.w.v92() {
		err = c.mayUseModel(source["cpu"], "")
	}
	return shared, err
}

// mayUseMappings checks the right to the devices of the host in a configuration
// (check_mapping_access in PVE/QemuServer.pm).
func (c *call) mayUseMappings(conf config) error {
	if c.root() {
		return nil
	}
	for _, family := range []string{"hostpci", "rng", "usb", "virtiofs"} {
		for _, key := range indexedKeys(conf, family) {
			device := parseProperty(key, conf[key])
			host, mapped := device["host"], "/mapping/dir/"+device["dirid"]
			switch family {
			case "hostpci":
				mapped = "/mapping/pci/" + device["mapping"]
				if host != "" {
					return fail("only root can set '%s' config for non-mapped devices", key)
				}
			case "usb":
				mapped = "/mapping/usb/" + device["mapping"]
				if strings.EqualFold(host, "spice") {
					continue
				}
				if host != "" {
					return fail("only root can set '%s' config for real devices", key)
				}
			case "rng":
				if mapped = "/mapping/hwrng"; device["source"] != "/dev/hwrng" {
					continue
				}
			}
			if err := c.need(mapped, "Mapping.Use"); err != nil {
				return err
			}
		}
	}
	return nil
}
