package pvesim

import (
	"fmt"
	"maps"
	"slices"
)

// apiCloneVM is POST /nodes/{node}/qemu/{vmid}/clone. It checks early, but the
// new configuration appears only in the task: of two clones to one id the
// second task fails.
func apiCloneVM(w *world, c *call) (any, error) {
	g := w.guest(c.in["node"], "qemu", c.vmid())
	if g == nil {
		return nil, fail("unable to find configuration file for VM %d on node '%s'", c.vmid(), c.in["node"])
	}
	cl := cloning{
		newid: atoi(c.in["newid"]), name: c.in["name"], description: c.in["description"], pool: c.in["pool"],
		storage: c.in["storage"], format: c.in["format"], target: c.in["target"], full: c.in["full"], snapshot: c.in["snapname"],
		running: g.run != nil,
	}
	if cl.target == g.node || cl.target == "localhost" {
		cl.target = ""
	}
	if err := c.checkClone(g, cl); err != nil {
		return nil, err
	}
	var copied *guest
	forget := func(*task) {
		if copied != nil {
			w.remove(copied)
		}
	}
	return w.fork(c, g.node, job{
		kind: "qmclone", id: fmt.Sprint(g.vmid), abort: forget,
		begin: func(t *task) error {
			if err := c.checkClone(g, cl); err != nil {
				return err
			}
			if w.guests[cl.newid] != nil { // That of a container, or on another node.
				return fail("close (rename) atomic file '/etc/pve/nodes/%s/qemu-server/%d.conf' failed: File exists", g.node, cl.newid)
			}
			copied = newGuest(g.node, "qemu", cl.newid)
			copied.conf["lock"] = "clone"
			copied.file = t
			t.guest = copied // The lock file of the new guest; the source's is shared.
			w.add(copied)
			return nil
		},
		end: func(t *task) error {
			if w.v92() {
				t.logf("creating a clone of VM %d with ID %d", g.vmid, cl.newid)
			}
			if err := w.cloneVM(g, copied, cl, t.logf); err != nil {
				w.remove(copied)
				return fail("clone failed: %s", taskText(err))
			}
			if cl.pool != "" {
				w.joinPool(cl.pool, cl.newid)
			}
			return nil
		},
	}), nil
}

// notCloned are keys of the source alone.
var notCloned = []string{"template", "lock", "parent", "snaptime", "vmstate", "runningmachine", "runningcpu", "running-nets-host-mtu"}

// cloneVM copies configuration and disks. Identity is never copied: hardware
// addresses, uuid and generation id are new.
func (w *world) cloneVM(g, copied *guest, cl cloning, log func(string, ...any)) error {
	source := g.conf
	if s := g.snapshot(cl.snapshot); s != nil {
		source = s.conf
	}
	conf := maps.Clone(source)
	for _, key := range slices.Sorted(maps.Keys(source)) { // In order, for what is invented follows it.
		family, value := familyOf(key), source[key]
		switch {
		case family == "unused" || slices.Contains(notCloned, key):
			delete(conf, key)
		case family == "net" && key != family:
			n := parseProperty(key, value)
			n["macaddr"] = w.mac()
			conf[key] = printNet(n)
		}
	}
	smbios := parseProperty("smbios1", conf["smbios1"])
	smbios["uuid"] = w.uuid()
	conf["smbios1"] = printOptions(smbios)
	if conf["vmgenid"] != "" {
		conf["vmgenid"] = w.uuid()
	}
	conf["name"] = cl.name
	if cl.name == "" {
		name := source["name"]
		if name == "" {
			name = fmt.Sprint(g.vmid)
		}
		conf["name"] = "Copy-of-VM-" + name
	}
	if cl.description != "" {
		conf["description"] = cl.description
	}
	var made []string
	keys := driveNames(source)
	slices.Sort(keys)
	for _, key := range keys {
		d := parseDrive(key, conf[key])
		if d.cdrom() && !d.cloudinit() {
			continue
		}
		volid, err := w.cloneDisk(g, copied, key, &d, cl, log)
		if err != nil {
			for _, volid := range made {
				_ = w.free(copied.node, volid)
			}
			return err
		}
		made = append(made, volid)
		conf[key] = d.String()
	}
	copied.conf = conf
	w.cloned(g, copied)
	if cl.target != "" {
		copied.node = cl.target
	}
	w.write(copied)
	return nil
}

// cloneDisk makes the drive's volume anew for another guest, by link or by copy
// (clone_disk in PVE/QemuServer.pm), and points the drive to it.
func (w *world) cloneDisk(g, copied *guest, key string, d *drive, cl cloning, log func(string, ...any)) (string, error) {
	storage, name, _ := volumeID(d.file)
	st, err := w.store(storage)
	if err != nil {
		return "", err
	}
	source := st.find(g.node, name)
	if source == nil {
		return "", fail("volume '%s' does not exist", d.file)
	}
	var v *volume
	if !cl.isFull(g) && !d.cloudinit() && key != "tpmstate0" {
		log("create linked clone of drive %s (%s)", key, d.file)
		v, err = w.linkDisk(st, g.node, source, copied.vmid, log)
	} else {
		log("create full clone of drive %s (%s)", key, d.file)
		if cl.storage != "" {
			storage = cl.storage
			if st, err = w.store(storage); err != nil {
				return "", err
			}
		}
		format := st.formatFor(cl.format, source.format)
		if d.cloudinit() {
			v, err = w.copyCloudinit(st, g.node, copied.vmid, format, log)
		} else {
			v, err = w.copyDisk(g.node, source, st, copied.vmid, format, log)
		}
	}
	if err != nil {
		return "", err
	}
	d.file = storage + ":" + v.name
	d.opts["size"] = formatSize(v.size)
	delete(d.opts, "format")
	return d.file, nil
}

func (w *world) copyCloudinit(st *store, node string, vmid int, format string, log func(string, ...any)) (*volume, error) {
	name := fmt.Sprintf("vm-%d-cloudinit", vmid)
	if st.files() {
		name = fmt.Sprintf("%d/%s.%s", vmid, name, format)
	}
	return w.allocateAs(node, st, name, vmid, format, cloudinitSize, log)
}
