package qemu

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/host"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// restoring says from what a VM is restored, and how.
type restoring struct {
	archive, storage, pool string
	force, unique, start   bool
	set                    map[string]string // Keys that replace those of the backup.
}

// restoreVM goes on with POST /nodes/{node}/qemu when it names an archive.
func restoreVM(w *core.World, c *core.Call, node string, vmid int, r restoring) (any, error) {
	for key := range r.set {
		if perl.IsDrive(key) {
			return nil, perl.BadParam(key, "option conflicts with option 'archive'")
		}
	}
	if r.archive == "-" {
		return nil, perl.Fail("pipe requires cli environment")
	}
	if _, err := guests.MayReadVolume(c, vmid, r.archive, "backup"); err != nil {
		return nil, err
	}
	if err := mayConfigure(c, vmid, r.pool, slices.Collect(maps.Keys(r.set))); err != nil {
		return nil, err
	}
	v := w.Volume(node, r.archive)
	if v == nil || v.Backup == nil || v.Backup.Kind != "qemu" {
		return nil, perl.Fail("volume '%s' does not exist", r.archive)
	}
	g, err := claimVM(w, node, vmid, r.force)
	if err != nil {
		return nil, perl.Fail("unable to restore VM %d - %s", vmid, err)
	}
	w.SetLock(g, "create")
	unlock := func(*core.Task) { w.SetLock(g, "") }
	return w.Fork(c, node, core.Job{Kind: "qmrestore", ID: fmt.Sprint(vmid), Guest: g, Abort: unlock, End: func(t *core.Task) error {
		err := torn(w, v, r)
		if err == nil {
			err = restoreInto(w, g, v.Backup, r, t.Logf)
		}
		if err != nil {
			unlock(t)
			t.Logf("error before or during data restore, some or all disks were not completely restored. VM %d state is NOT cleaned up.", vmid)
			return err
		}
		if r.pool != "" {
			host.JoinPool(w, r.pool, vmid)
		}
		if r.start {
			t.Logf("Execute autostart")
			w.Fork(c, node, StartJob(w, g, c))
		}
		return nil
	}}), nil
}

// torn is the error of an archive that ends too early or cannot be unpacked. PVE frees the disks that it made for it
// (restore_vma_archive in PVE/QemuServer.pm).
func torn(w *core.World, v *core.Volume, r restoring) error {
	if !v.Broken {
		return nil
	}
	storage, name, _ := core.VolumeID(r.archive)
	if st := w.Stores[storage]; st.Type == "pbs" { // restore_proxmox_backup_archive
		return perl.Fail("command '/usr/bin/pbs-restore --repository root@pam@%s:%s %s drive-scsi0.img.fidx' failed: exit code 255", st.Extra["server"], st.Extra["datastore"], strings.TrimPrefix(name, "backup/"))
	}
	file, pipe := w.Stores[storage].FilePath(name), fmt.Sprintf("/var/tmp/vzdumptmp%d", w.Pid())
	return perl.Fail("command 'set -o pipefail && zstd -q -d -c %s | vma extract -v -r %s.fifo - %s' failed: exit code 1", file, pipe, pipe)
}

// restoreInto is the task of a restore. Only the task notices whether a
// VM that is there may be overwritten (create_vm in PVE/API2/Qemu.pm).
func restoreInto(w *core.World, g *core.Guest, b *core.Backup, r restoring, log func(string, ...any)) error {
	switch {
	case g.Conf["protection"] == "1":
		return perl.Fail("unable to restore VM %d - - protection mode enabled", g.Vmid)
	case g.Run != nil:
		return perl.Fail("unable to restore VM %d - vm is running", g.Vmid)
	default:
		return unpackVM(w, g, b, r, log)
	}
}

// claimVM takes an id, with force also that of a VM that is there.
func claimVM(w *core.World, node string, vmid int, force bool) (*core.Guest, error) {
	g := w.Guest(node, "qemu", vmid)
	if g != nil && force {
		return g, g.CheckLock()
	}
	if err := guests.UnusedID(w, vmid); err != nil {
		return nil, err
	}
	g = core.NewGuest(node, "qemu", vmid)
	w.Add(g)
	return g, nil
}

// unpackVM recreates the disks of a backup and writes its configuration. The id
// of the generation is new in any case, addresses and uuid only when they have to
// be unique.
func unpackVM(w *core.World, g *core.Guest, b *core.Backup, r restoring, log func(string, ...any)) error {
	conf := maps.Clone(b.Conf)
	storageOf := func(s core.Saved) string {
		name, _, _ := core.VolumeID(s.Volid)
		if r.storage != "" {
			return r.storage
		}
		return name
	}
	unpackLog(w, g, b, r.archive, log)
	freeRestored(w, g, b, log)
	made := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(b.Disks)) {
		volid, err := restoreDisk(w, g, key, storageOf(b.Disks[key]), b.Disks[key], log)
		if err != nil {
			for _, volid := range made {
				_ = core.Free(w, g.Node, volid)
			}
			return err
		}
		made[key] = volid
		log("new volume ID is '%s'", volid)
	}
	for key, value := range b.Conf {
		switch family := perl.FamilyOf(key); {
		case key == "lock", key == "parent", family == "unused":
			delete(conf, key)
		case key == "vmgenid" && value != "0":
			conf[key] = w.Rng.UUID()
		case made[key] != "":
			d := perl.ParseDrive(key, value)
			d.File = made[key]
			conf[key] = d.String()
		case perl.IsDrive(key) && perl.ParseDrive(key, value).Opts["backup"] == "0":
			// Its line becomes a comment, and comments are the description.
			delete(conf, key)
			conf["description"] = strings.TrimPrefix(conf["description"]+"\n"+key+": "+value, "\n")
		}
	}
	if r.unique {
		makeUnique(w, conf)
	}
	for key, value := range r.set {
		conf[key] = perl.Canonical("qemu", key, value)
		if family := perl.FamilyOf(key); family == "net" && key != family {
			conf[key] = printNet(parseNet(w, value))
		}
	}
	g.Conf, g.Pend, g.Cloud, g.Snapshots = conf, perl.Config{}, perl.Config{}, nil
	if conf["template"] == "1" {
		templateVM(w, g, "")
	}
	findUnused(w, g, log)
	w.Write(g)
	return nil
}

// freeRestored frees those disks of a VM that is overwritten that the backup has, too,
// and the memory of its snapshots ($restore_cleanup_oldconf in PVE/QemuServer.pm).
func freeRestored(w *core.World, g *core.Guest, b *core.Backup, log func(string, ...any)) {
	disks := guests.Disks(g, g.Conf)
	var gone []string
	for _, key := range slices.Sorted(maps.Keys(disks)) {
		if _, again := b.Disks[key]; again && guests.Owns(w, g, disks[key]) {
			gone = append(gone, disks[key])
		}
	}
	for _, s := range g.Snapshots {
		if state := s.Conf["vmstate"]; state != "" {
			gone = append(gone, state)
		}
	}
	g.Snapshots = nil
	for _, volid := range gone {
		delete(g.Conf, keyOf(disks, volid))
		if err := core.Free(w, g.Node, volid); err != nil {
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
func findUnused(w *core.World, g *core.Guest, log func(string, ...any)) {
	log("rescan volumes...")
	var named []string
	for _, key := range g.Conf.DriveNames() {
		named = append(named, perl.ParseDrive(key, g.Conf[key]).File)
	}
	for _, storage := range w.StoreNames() {
		for _, v := range w.Stores[storage].List(g.Node) {
			volid := storage + ":" + v.Name
			if v.Vmid != g.Vmid || v.Content != "images" || slices.Contains(named, volid) || strings.Contains(v.Name, "-state-") {
				continue
			}
			g.Conf.AddUnused(volid)
			log("VM %d add unreferenced volume '%s' as '%s' to config", g.Vmid, volid, keyOf(g.Conf, volid))
		}
	}
}

// unpackLog is the output of the tools that read an archive (restore_vma_archive in
// PVE/QemuServer.pm and vma of pve-qemu).
func unpackLog(w *core.World, g *core.Guest, b *core.Backup, archive string, log func(string, ...any)) {
	storage, name, _ := core.VolumeID(archive)
	st := w.Stores[storage]
	if st == nil {
		return
	}
	pipe := fmt.Sprintf("/var/tmp/vzdumptmp%d", w.Pid())
	vma := fmt.Sprintf("vma extract -v -r %s.fifo %s %s", pipe, st.FilePath(name), pipe)
	for end, reader := range map[string]string{".zst": "zstd -q -d -c", ".gz": "zcat", ".lzo": "lzop -d -c"} {
		if strings.HasSuffix(name, end) {
			vma = fmt.Sprintf("%s %s | vma extract -v -r %s.fifo - %s", reader, st.FilePath(name), pipe, pipe)
		}
	}
	log("restore vma archive: %s", vma)
	stopped := &core.Guest{Vmid: g.Vmid, Node: g.Node, Kind: "qemu", Conf: b.Conf}
	log("CFG: size: %d name: qemu-server.conf", len(stopped.Text()))
	n := 0
	for _, key := range slices.Sorted(maps.Keys(b.Disks)) {
		if perl.CloudFile.MatchString(b.Disks[key].Volid) {
			continue
		}
		n++
		log("DEV: dev_id=%d size: %d devname: drive-%s", n, b.Disks[key].Size, key)
	}
	if v := w.Volume(g.Node, archive); v != nil {
		log("CTIME: %s", time.Unix(v.Ctime, 0).UTC().Format("Mon Jan  2 15:04:05 2006"))
	}
}

// makeUnique replaces the values of a configuration that no two guests may share.
func makeUnique(w *core.World, conf perl.Config) {
	for _, key := range conf.IndexedKeys("net") {
		n := perl.ParseProperty(key, conf[key])
		n["macaddr"] = w.MAC()
		conf[key] = printNet(n)
	}
	if conf["smbios1"] != "" {
		smbios := perl.ParseProperty("smbios1", conf["smbios1"])
		smbios["uuid"] = w.Rng.UUID()
		conf["smbios1"] = printOptions(smbios)
	}
}

// restoreDisk makes one disk of a backup.
func restoreDisk(w *core.World, g *core.Guest, key, storage string, s core.Saved, log func(string, ...any)) (string, error) {
	st, err := w.Store(storage)
	if err != nil {
		return "", err
	}
	if !st.Holds("images") {
		return "", perl.Fail("Content type 'images' is not available on storage '%s'", storage)
	}
	format := st.FormatFor("", s.Format)
	if perl.CloudFile.MatchString(s.Volid) {
		name := st.NameOf(g.Vmid, fmt.Sprintf("vm-%d-cloudinit", g.Vmid), format)
		_, err := st.AllocateAs(w, g.Node, name, g.Vmid, format, s.Size, log)
		return storage + ":" + name, err
	}
	v, err := st.Allocate(w, g.Node, g.Vmid, format, s.Size, log)
	if err != nil {
		return "", err
	}
	v.Used, v.System = max(v.Used, s.Used), s.System
	log("map 'drive-%s' to '%s' (write zeros = 0)", key, st.FilePath(v.Name))
	return storage + ":" + v.Name, nil
}

// printNet prints a network device: model and address first.
func printNet(n map[string]string) string {
	var b strings.Builder
	b.WriteString(n["model"] + "=" + n["macaddr"])
	for _, key := range slices.Sorted(maps.Keys(n)) {
		if key != "model" && key != "macaddr" {
			b.WriteString("," + key + "=" + n[key])
		}
	}
	return b.String()
}

// parseNet reads a network device; without a hardware address it gets one.
func parseNet(w *core.World, value string) map[string]string {
	n := perl.ParseProperty("net0", value)
	if n["macaddr"] == "" {
		n["macaddr"] = w.MAC()
	}
	return n
}
