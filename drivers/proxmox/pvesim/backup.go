package pvesim

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// apiVZDump is POST /nodes/{node}/vzdump. Guests of other nodes are left out
// without a word; if none is left no task is started, and the answer is "OK".
func apiVZDump(w *world, c *call) (any, error) {
	node := c.in["node"]
	if err := c.mayDump(); err != nil {
		return nil, err
	}
	if c.flag("stop") {
		return nil, c.unimplemented("stopping the backups that run")
	}
	list, err := c.dumped(node)
	if err != nil {
		return nil, err
	}
	if len(list) == 0 && !c.flag("all") {
		return "OK", nil
	}
	if storage := c.in["storage"]; storage != "" {
		if err := c.need("/storage/"+storage, "Datastore.AllocateSpace"); err != nil {
			return nil, err
		}
	}
	id := ""
	if len(list) == 1 {
		id = list[0]
	}
	d := &dump{
		c: c, w: w, node: node, storage: c.in["storage"], mode: c.in["mode"], notes: c.in["notes-template"],
		compress: c.in["compress"], protected: c.flag("protected"), line: dumpLine(c),
	}
	for _, word := range list {
		d.vmids = append(d.vmids, atoi(word))
	}
	return w.fork(c, node, job{kind: "vzdump", id: id, begin: d.begin, end: d.end, abort: func(*task) { d.unlock() }}), nil
}

// mayDump checks the parameters that are not for everybody, and those that do not
// go together (verify_vzdump_parameters).
func (c *call) mayDump() error {
	for _, key := range []string{"bwlimit", "dumpdir", "ionice", "performance", "script", "tmpdir", "fleecing"} {
		if c.has(key) && !c.root() && (key == "dumpdir" || key == "script" || key == "tmpdir" || !c.can("/", "Sys.Modify")) {
			return badParam(key, "Only root may set this option.")
		}
	}
	if err := c.selection(); err != nil {
		return err
	}
	if !c.has("vmid") && !c.flag("all") && !c.has("pool") && !c.flag("stop") && !c.has("exclude") {
		return badParam("vmid", "property is missing")
	}
	return nil
}

// dumped are the ids of the guests that a call names and that are on the node, and
// those that do not exist: they fail for all to see.
func (c *call) dumped(node string) ([]string, error) {
	want := c.list("vmid")
	exclude := c.list("exclude")
	pool := c.w.pools[c.in["pool"]]
	if c.has("pool") && pool == nil {
		return nil, fail("pool '%s' does not exist", c.in["pool"])
	}
	for _, vmid := range c.w.vmids {
		id := fmt.Sprint(vmid)
		if pool != nil && pool.vms[vmid] || (c.flag("all") || c.has("exclude")) && !slices.Contains(exclude, id) && c.can(vmPath(vmid), "VM.Backup") {
			want = append(want, id)
		}
	}
	return slices.DeleteFunc(want, func(id string) bool {
		g := c.w.guests[atoi(id)]
		return g != nil && g.node != node
	}), nil
}

// dumpLine is how the log tells what was asked for.
func dumpLine(c *call) string {
	words := append([]string{"vzdump"}, c.list("vmid")...)
	for _, key := range slices.Sorted(maps.Keys(c.in)) {
		if key != "vmid" {
			words = append(words, "--"+key, c.in[key])
		}
	}
	return strings.Join(words, " ")
}

// dump is one run of vzdump.
type dump struct {
	c                     *call
	w                     *world
	node, storage, mode   string
	notes, compress, line string
	protected             bool
	vmids                 []int
	locked                []*guest
	failed                bool
}

// begin locks the guests. What keeps a guest from being backed up fails the job in
// the end, and does not keep the others from it.
func (d *dump) begin(t *task) error {
	t.logf("INFO: starting new backup job: %s", d.line)
	if d.storage == "" {
		d.storage = "local"
	}
	st, err := d.w.store(d.storage)
	switch {
	case err != nil:
		return fail("could not get storage information for '%s': %s", d.storage, err)
	case !st.holds("backup"):
		return fail("could not get storage information for '%s': can't use storage '%s' for backups - wrong content type", d.storage, d.storage)
	}
	for _, vmid := range d.vmids {
		g := d.w.guests[vmid]
		switch {
		case g == nil:
			d.fails(t, vmid, fail("unable to find VM '%d'", vmid))
			continue
		case d.c.need(vmPath(vmid), "VM.Backup") != nil:
			return d.c.need(vmPath(vmid), "VM.Backup")
		}
		if err := cmp.Or(d.stopsManaged(g), d.tooMany(st, g), g.checkLock()); err != nil {
			d.fails(t, vmid, err)
			continue
		}
		if err := d.w.needWritable(g); err != nil {
			d.fails(t, vmid, err)
			continue
		}
		g.conf["lock"] = "backup"
		d.w.write(g)
		d.locked = append(d.locked, g)
	}
	return nil
}

func (d *dump) fails(t *task, vmid int, err error) {
	d.failed = true
	t.logf("ERROR: Backup of VM %d failed - %s", vmid, err)
	t.logf("INFO: Failed at %s", d.w.now.UTC().Format(time.DateTime))
}

func (d *dump) unlock() {
	for _, g := range d.locked {
		if g.conf["lock"] == "backup" {
			delete(g.conf, "lock")
			d.w.write(g)
		}
	}
}

func (d *dump) end(t *task) error {
	defer d.unlock()
	for _, g := range d.locked {
		if err := d.archive(t, g); err != nil {
			d.fails(t, g.vmid, err)
		}
	}
	if d.failed {
		t.logf("INFO: Backup job finished with errors")
		return fail("job errors")
	}
	t.logf("INFO: Backup job finished successfully")
	return nil
}

// archive writes the backup of one guest.
func (d *dump) archive(t *task, g *guest) error {
	st, err := d.w.store(d.storage)
	if err != nil {
		return err
	}
	if d.w.guests[g.vmid] != g {
		return missing(g.node, g.kind, g.vmid)
	}
	b := &backup{kind: g.kind, conf: maps.Clone(g.conf), disks: map[string]saved{}}
	delete(b.conf, "lock")
	at := t.start.UTC()
	name := fmt.Sprintf("backup/vzdump-%s-%d-%s.%s", g.kind, g.vmid, at.Format("2006_01_02-15_04_05"), g.archiveForm(d.compress))
	t.logf("INFO: Starting Backup of VM %d (%s)", g.vmid, g.kind)
	t.logf("INFO: Backup started at %s", at.Format(time.DateTime))
	t.logf("INFO: status = %s", d.w.sample(g).status)
	size, disks := int64(4096), g.disks(g.conf)
	for _, key := range slices.Sorted(maps.Keys(disks)) {
		v := d.w.volume(g.node, disks[key])
		if v == nil {
			return fail("volume '%s' does not exist", disks[key])
		}
		if g.kind == "qemu" && parseDrive(key, g.conf[key]).opts["backup"] == "0" {
			t.logf("INFO: exclude disk '%s' '%s' (backup=no)", key, disks[key])
			continue
		}
		if g.kind == "qemu" {
			t.logf("INFO: include disk '%s' '%s' %s", key, disks[key], formatSize(v.size))
		}
		b.disks[key] = saved{disks[key], v.format, v.size, v.used, v.system}
		size += v.used / 2
	}
	t.logf("INFO: creating vzdump archive '%s'", st.path(name))
	if err := st.room(d.node, size); err != nil {
		return err
	}
	v := &volume{
		name: name, content: "backup", format: g.archiveForm(d.compress), size: size, length: size, used: size,
		vmid: g.vmid, ctime: at.Unix(), protected: d.protected, backup: b, notes: d.note(g),
	}
	st.put(d.node, v)
	t.logf("INFO: archive file size: %dMB", size>>20)
	d.prune(t, st, g)
	t.logf("INFO: Finished Backup of VM %d (00:00:01)", g.vmid)
	return nil
}

// archiveForm is how archives of a guest end.
func (g *guest) archiveForm(compress string) string {
	form := "vma"
	if g.kind == "lxc" {
		form = "tar"
	}
	return form + map[string]string{"zstd": ".zst", "gzip": ".gz", "lzo": ".lzo", "1": ".lzo"}[compress]
}

// note fills in a template of notes (generate_notes in PVE/VZDump.pm).
func (d *dump) note(g *guest) string {
	return strings.NewReplacer("{{guestname}}", d.w.sample(g).name, "{{node}}", d.node, "{{vmid}}", fmt.Sprint(g.vmid),
		"{{cluster}}", "", `\n`, "\n", `\\`, `\`).Replace(d.notes)
}

// prune deletes the oldest backups of a guest, but for those that are protected.
func (d *dump) prune(t *task, st *store, g *guest) {
	var own []*volume
	for _, v := range st.list(d.node) {
		if v.content == "backup" && v.vmid == g.vmid {
			own = append(own, v)
		}
	}
	marks := d.c.keeps(st.Name).marks(own)
	for _, v := range own {
		if marks[v] == "remove" {
			t.logf("INFO: removing backup '%s:%s'", st.Name, v.name)
			delete(st.volumes, st.key(d.node, v.name))
		}
	}
}

// apiExtractConfig is GET /nodes/{node}/vzdump/extractconfig.
func apiExtractConfig(w *world, c *call) (any, error) {
	volid := c.in["volume"]
	if _, err := c.mayReadVolume(0, volid, "backup"); err != nil {
		return nil, err
	}
	if storage, name, ok := volumeID(volid); ok {
		if s, err := w.store(storage); err != nil {
			return nil, err
		} else if _, err := s.parseName(name); err != nil {
			return nil, err
		}
	}
	v := w.volume(c.in["node"], volid)
	if v == nil || v.backup == nil {
		return nil, fail("volume '%s' does not exist", volid)
	}
	var b strings.Builder
	writeSection(&b, v.backup.conf, false)
	for _, key := range slices.Sorted(maps.Keys(v.backup.disks)) {
		s := v.backup.disks[key]
		storage, _, _ := volumeID(s.volid)
		if v.backup.kind == "qemu" && !cloudFile.MatchString(s.volid) {
			fmt.Fprintf(&b, "#qmdump#map:%s:drive-%s:%s:%s:\n", key, key, storage, s.format)
		}
	}
	return b.String(), nil
}
