package pvesim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// restoring is what a VM is to be restored from, and how.
type restoring struct {
	archive, storage, pool string
	force, unique, start   bool
	set                    map[string]string // Keys that replace those of the backup.
}

// restoreVM goes on with POST /nodes/{node}/qemu when it names an archive.
func (w *world) restoreVM(c *call, node string, vmid int, r restoring) (any, error) {
	for key := range r.set {
		if isDrive(key) {
			return nil, badParam(key, "option conflicts with option 'archive'")
		}
	}
	if r.archive == "-" {
		return nil, fail("pipe requires cli environment")
	}
	if _, err := c.mayReadVolume(vmid, r.archive, "backup"); err != nil {
		return nil, err
	}
	if err := c.mayConfigure(vmid, r.pool, slices.Collect(maps.Keys(r.set))); err != nil {
		return nil, err
	}
	v := w.volume(node, r.archive)
	if v == nil || v.backup == nil || v.backup.kind != "qemu" {
		return nil, fail("volume '%s' does not exist", r.archive)
	}
	g, err := w.claimVM(node, vmid, r.force)
	if err != nil {
		return nil, fail("unable to restore VM %d - %s", vmid, err)
	}
	g.conf["lock"] = "create"
	w.write(g)
	unlock := func(*task) {
		delete(g.conf, "lock")
		w.write(g)
	}
	return w.fork(c, node, job{kind: "qmrestore", id: fmt.Sprint(vmid), guest: g, abort: unlock, end: func(t *task) error {
		if err := w.restoreInto(g, v.backup, r, t.logf); err != nil {
			unlock(t)
			t.logf("error before or during data restore, some or all disks were not completely restored. VM %d state is NOT cleaned up.", vmid)
			return err
		}
		if r.pool != "" {
			w.joinPool(r.pool, vmid)
		}
		if r.start {
			t.logf("Execute autostart")
			w.fork(c, node, w.startJob(g, c))
		}
		return nil
	}}), nil
}

// restoreInto is what the task of a restore does: only there it is found out whether a
// VM that is there may be overwritten (create_vm in PVE/API2/Qemu.pm).
func (w *world) restoreInto(g *guest, b *backup, r restoring, log func(string, ...any)) error {
	switch {
	case g.conf["protection"] == "1":
		return fail("unable to restore VM %d - - protection mode enabled", g.vmid)
	case g.run != nil:
		return fail("unable to restore VM %d - vm is running", g.vmid)
	default:
		return w.unpackVM(g, b, r, log)
	}
}

// claimVM takes an id, with force also that of a VM that is there.
func (w *world) claimVM(node string, vmid int, force bool) (*guest, error) {
	g := w.guest(node, "qemu", vmid)
	if g != nil && force {
		return g, g.checkLock()
	}
	if err := w.unusedID(vmid); err != nil {
		return nil, err
	}
	g = newGuest(node, "qemu", vmid)
	w.add(g)
	return g, nil
}

// unpackVM makes the disks of a backup anew and writes its configuration. The id
// of the generation is new in any case, addresses and uuid only when they have to
// be unique.
func (w *world) unpackVM(g *guest, b *backup, r restoring, log func(string, ...any)) error {
	conf := maps.Clone(b.conf)
	storageOf := func(s saved) string {
		name, _, _ := volumeID(s.volid)
		if r.storage != "" {
			return r.storage
		}
		return name
	}
	w.unpackLog(g, b, r.archive, log)
	w.freeRestored(g, b, log)
	made := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(b.disks)) {
		volid, err := w.restoreDisk(g, key, storageOf(b.disks[key]), b.disks[key], log)
		if err != nil {
			for _, volid := range made {
				_ = w.free(g.node, volid)
			}
			return err
		}
		made[key] = volid
		log("new volume ID is '%s'", volid)
	}
	for key, value := range b.conf {
		switch family := familyOf(key); {
		case key == "lock", key == "parent", family == "unused":
			delete(conf, key)
		case key == "vmgenid" && value != "0":
			conf[key] = w.uuid()
		case made[key] != "":
			d := parseDrive(key, value)
			d.file = made[key]
			conf[key] = d.String()
		case isDrive(key) && parseDrive(key, value).opts["backup"] == "0":
			// Its line becomes a comment, and comments are the description.
			delete(conf, key)
			conf["description"] = strings.TrimPrefix(conf["description"]+"\n"+key+": "+value, "\n")
		}
	}
	if r.unique {
		w.makeUnique(conf)
	}
	for key, value := range r.set {
		conf[key] = canonical("qemu", key, value)
		if family := familyOf(key); family == "net" && key != family {
			conf[key] = printNet(w.parseNet(value))
		}
	}
	g.conf, g.pend, g.cloud, g.snapshots = conf, config{}, config{}, nil
	if conf["template"] == "1" {
		w.templateVM(g, "")
	}
	w.findUnused(g, log)
	w.write(g)
	return nil
}

// freeRestored frees those disks of a VM that is overwritten that the backup has, too,
// and the memory of its snapshots ($restore_cleanup_oldconf in PVE/QemuServer.pm).
func (w *world) freeRestored(g *guest, b *backup, log func(string, ...any)) {
	disks := g.disks(g.conf)
	var gone []string
	for _, key := range slices.Sorted(maps.Keys(disks)) {
		if _, again := b.disks[key]; again && w.owns(g, disks[key]) {
			gone = append(gone, disks[key])
		}
	}
	for _, s := range g.snapshots {
		if state := s.conf["vmstate"]; state != "" {
			gone = append(gone, state)
		}
	}
	g.snapshots = nil
	for _, volid := range gone {
		delete(g.conf, keyOf(disks, volid))
		if err := w.free(g.node, volid); err != nil {
			log("%s", err)
		}
	}
}

func keyOf(disks map[string]string, volid string) string {
	for key, other := range disks {
		if other == volid {
			return key
		}
	}
	return ""
}

// findUnused adds the disks of a VM that its configuration does not name (rescan in
// PVE/QemuServer.pm).
func (w *world) findUnused(g *guest, log func(string, ...any)) {
	log("rescan volumes...")
	var named []string
	for _, key := range driveNames(g.conf) {
		named = append(named, parseDrive(key, g.conf[key]).file)
	}
	for _, storage := range w.storeNames() {
		for _, v := range w.stores[storage].list(g.node) {
			volid := storage + ":" + v.name
			if v.vmid != g.vmid || v.content != "images" || slices.Contains(named, volid) || strings.Contains(v.name, "-state-") {
				continue
			}
			addUnused(g.conf, volid)
			log("VM %d add unreferenced volume '%s' as '%s' to config", g.vmid, volid, keyOf(g.conf, volid))
		}
	}
}

// unpackLog is what the tools that read an archive say of it (restore_vma_archive in
// PVE/QemuServer.pm and vma of pve-qemu).
func (w *world) unpackLog(g *guest, b *backup, archive string, log func(string, ...any)) {
	storage, name, _ := volumeID(archive)
	st := w.stores[storage]
	if st == nil {
		return
	}
	pipe := fmt.Sprintf("/var/tmp/vzdumptmp%d", w.pid())
	vma := fmt.Sprintf("vma extract -v -r %s.fifo %s %s", pipe, st.path(name), pipe)
	for end, reader := range map[string]string{".zst": "zstd -q -d -c", ".gz": "zcat", ".lzo": "lzop -d -c"} {
		if strings.HasSuffix(name, end) {
			vma = fmt.Sprintf("%s %s | vma extract -v -r %s.fifo - %s", reader, st.path(name), pipe, pipe)
		}
	}
	log("restore vma archive: %s", vma)
	stopped := &guest{vmid: g.vmid, node: g.node, kind: "qemu", conf: b.conf}
	log("CFG: size: %d name: qemu-server.conf", len(stopped.text()))
	n := 0
	for _, key := range slices.Sorted(maps.Keys(b.disks)) {
		if cloudFile.MatchString(b.disks[key].volid) {
			continue
		}
		n++
		log("DEV: dev_id=%d size: %d devname: drive-%s", n, b.disks[key].size, key)
	}
	if v := w.volume(g.node, archive); v != nil {
		log("CTIME: %s", time.Unix(v.ctime, 0).UTC().Format("Mon Jan  2 15:04:05 2006"))
	}
}

// makeUnique gives a configuration what no two guests may have in common.
func (w *world) makeUnique(conf config) {
	for _, key := range indexedKeys(conf, "net") {
		n := parseProperty(key, conf[key])
		n["macaddr"] = w.mac()
		conf[key] = printNet(n)
	}
	if conf["smbios1"] != "" {
		smbios := parseProperty("smbios1", conf["smbios1"])
		smbios["uuid"] = w.uuid()
		conf["smbios1"] = printOptions(smbios)
	}
}

// restoreDisk makes one disk of a backup.
func (w *world) restoreDisk(g *guest, key, storage string, s saved, log func(string, ...any)) (string, error) {
	st, err := w.store(storage)
	if err != nil {
		return "", err
	}
	if !st.holds("images") {
		return "", fail("Content type 'images' is not available on storage '%s'", storage)
	}
	format := st.formatFor("", s.format)
	if cloudFile.MatchString(s.volid) {
		name := fmt.Sprintf("vm-%d-cloudinit", g.vmid)
		if st.files() {
			name = fmt.Sprintf("%d/%s.%s", g.vmid, name, format)
		}
		_, err := w.allocateAs(g.node, st, name, g.vmid, format, s.size, log)
		return storage + ":" + name, err
	}
	v, err := w.allocate(g.node, st, g.vmid, format, s.size, log)
	if err != nil {
		return "", err
	}
	v.used, v.system = max(v.used, s.used), s.system
	log("map 'drive-%s' to '%s' (write zeros = 0)", key, st.path(v.name))
	return storage + ":" + v.name, nil
}
