package transfer

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// apiVZDump is POST /nodes/{node}/vzdump. Guests of other nodes are left out
// without a word; if none is left no task is started, and the answer is "OK".
func apiVZDump(w *core.World, c *core.Call) (any, error) {
	node := c.In["node"]
	if err := mayDump(c); err != nil {
		return nil, err
	}
	if c.Flag("stop") {
		return nil, c.Unimplemented("stopping the backups that run")
	}
	list, err := dumped(c, node)
	if err != nil {
		return nil, err
	}
	if len(list) == 0 && !c.Flag("all") {
		return "OK", nil
	}
	if storage := c.In["storage"]; storage != "" {
		if err := c.Need("/storage/"+storage, "Datastore.AllocateSpace"); err != nil {
			return nil, err
		}
	}
	id := ""
	if len(list) == 1 {
		id = list[0]
	}
	d := &dump{
		c: c, w: w, node: node, storage: c.In["storage"], mode: c.In["mode"], notes: c.In["notes-template"],
		compress: c.In["compress"], protected: c.Flag("protected"), line: dumpLine(c),
	}
	for _, word := range list {
		d.vmids = append(d.vmids, perl.Atoi(word))
	}
	return w.Fork(c, node, core.Job{Kind: "vzdump", ID: id, Begin: d.begin, End: d.end, Abort: func(*core.Task) { d.unlock() }}), nil
}

// mayDump checks the parameters that need further privileges, and those that do not
// go together (verify_vzdump_parameters).
func mayDump(c *core.Call) error {
	for _, key := range []string{"bwlimit", "dumpdir", "ionice", "performance", "script", "tmpdir", "fleecing"} {
		if c.Has(key) && !c.Root() && (key == "dumpdir" || key == "script" || key == "tmpdir" || !c.Can("/", "Sys.Modify")) {
			return perl.BadParam(key, "Only root may set this option.")
		}
	}
	if err := selection(c); err != nil {
		return err
	}
	if !c.Has("vmid") && !c.Flag("all") && !c.Has("pool") && !c.Flag("stop") && !c.Has("exclude") {
		return perl.BadParam("vmid", "property is missing")
	}
	return nil
}

// dumped are the ids of the guests that a call names and that are on the node, and
// those that do not exist: they fail for all to see.
func dumped(c *core.Call, node string) ([]string, error) {
	want := c.List("vmid")
	exclude := c.List("exclude")
	pool := c.W.Access.Pools[c.In["pool"]]
	if c.Has("pool") && pool == nil {
		return nil, perl.Fail("pool '%s' does not exist", c.In["pool"])
	}
	for _, vmid := range c.W.Vmids {
		id := fmt.Sprint(vmid)
		if pool != nil && pool.Vms[vmid] || (c.Flag("all") || c.Has("exclude")) && !slices.Contains(exclude, id) && c.Can(core.VMPath(vmid), "VM.Backup") {
			want = append(want, id)
		}
	}
	return slices.DeleteFunc(want, func(id string) bool {
		g := c.W.Guests[perl.Atoi(id)]
		return g != nil && g.Node != node
	}), nil
}

// dumpLine returns the log's line about the request.
func dumpLine(c *core.Call) string {
	words := append([]string{"vzdump"}, c.List("vmid")...)
	for _, key := range slices.Sorted(maps.Keys(c.In)) {
		if key != "vmid" {
			words = append(words, "--"+key, c.In[key])
		}
	}
	return strings.Join(words, " ")
}

// dump is one run of vzdump.
type dump struct {
	c                     *core.Call
	w                     *core.World
	node, storage, mode   string
	notes, compress, line string
	protected             bool
	vmids                 []int
	locked                []*core.Guest
	failed                bool
}

// begin locks the guests. A guest that cannot be backed up fails the job in the end, but not the others.
func (d *dump) begin(t *core.Task) error {
	t.Logf("INFO: starting new backup job: %s", d.line)
	d.storage = cmp.Or(d.storage, "local")
	st, err := d.w.Store(d.storage)
	switch {
	case err != nil:
		return perl.Fail("could not get storage information for '%s': %s", d.storage, err)
	case !st.Holds("backup"):
		return perl.Fail("could not get storage information for '%s': can't use storage '%s' for backups - wrong content type", d.storage, d.storage)
	}
	for _, vmid := range d.vmids {
		g := d.w.Guests[vmid]
		switch {
		case g == nil:
			d.fails(t, vmid, perl.Fail("unable to find VM '%d'", vmid))
			continue
		case d.c.Need(core.VMPath(vmid), "VM.Backup") != nil:
			return d.c.Need(core.VMPath(vmid), "VM.Backup")
		}
		if err := cmp.Or(d.stopsManaged(g), d.tooMany(st, g), g.CheckLock()); err != nil {
			d.fails(t, vmid, err)
			continue
		}
		if err := d.w.NeedWritable(g); err != nil {
			d.fails(t, vmid, err)
			continue
		}
		d.w.SetLock(g, "backup")
		d.locked = append(d.locked, g)
	}
	return nil
}

func (d *dump) fails(t *core.Task, vmid int, err error) {
	d.failed = true
	t.Logf("ERROR: Backup of VM %d failed - %s", vmid, err)
	t.Logf("INFO: Failed at %s", d.w.Now.UTC().Format(time.DateTime))
}

func (d *dump) unlock() {
	for _, g := range d.locked {
		if g.Conf["lock"] == "backup" {
			d.w.SetLock(g, "")
		}
	}
}

func (d *dump) end(t *core.Task) error {
	defer d.unlock()
	for _, g := range d.locked {
		if err := d.archive(t, g); err != nil {
			d.fails(t, g.Vmid, err)
		}
	}
	if d.failed {
		t.Logf("INFO: Backup job finished with errors")
		return perl.Fail("job errors")
	}
	t.Logf("INFO: Backup job finished successfully")
	return nil
}

// archive writes the backup of one guest.
func (d *dump) archive(t *core.Task, g *core.Guest) error {
	st, err := d.w.Store(d.storage)
	if err != nil {
		return err
	}
	if d.w.Guests[g.Vmid] != g {
		return core.Missing(g.Node, g.Kind, g.Vmid)
	}
	b := &core.Backup{Kind: g.Kind, Conf: maps.Clone(g.Conf), Disks: map[string]core.Saved{}}
	delete(b.Conf, "lock")
	at := t.Start.UTC()
	name, form := fmt.Sprintf("backup/vzdump-%s-%d-%s.%s", g.Kind, g.Vmid, at.Format("2006_01_02-15_04_05"), archiveForm(g, d.compress)), archiveForm(g, d.compress)
	if st.Type == "pbs" {
		kind := map[string]string{"qemu": "vm", "lxc": "ct"}[g.Kind]
		name, form = fmt.Sprintf("backup/%s/%d/%s", kind, g.Vmid, at.Format(time.RFC3339)), "pbs-"+kind
	}
	t.Logf("INFO: Starting Backup of VM %d (%s)", g.Vmid, g.Kind)
	t.Logf("INFO: Backup started at %s", at.Format(time.DateTime))
	t.Logf("INFO: status = %s", guests.Sample(d.w, g).Status)
	size, disks := int64(4096), guests.Disks(g, g.Conf)
	for _, key := range slices.Sorted(maps.Keys(disks)) {
		v := d.w.Volume(g.Node, disks[key])
		if v == nil {
			return perl.Fail("volume '%s' does not exist", disks[key])
		}
		if g.Kind == "qemu" && perl.ParseDrive(key, g.Conf[key]).Opts["backup"] == "0" {
			t.Logf("INFO: exclude disk '%s' '%s' (backup=no)", key, disks[key])
			continue
		}
		if g.Kind == "qemu" {
			t.Logf("INFO: include disk '%s' '%s' %s", key, disks[key], perl.FormatSize(v.Size))
		}
		b.Disks[key] = core.Saved{Volid: disks[key], Format: v.Format, Size: v.Size, Used: v.Used, System: v.System}
		size += v.Used / 2
	}
	t.Logf("INFO: creating vzdump archive '%s'", st.FilePath(name))
	if err := st.Room(d.node, size); err != nil {
		return err
	}
	v := &core.Volume{
		Name: name, Content: "backup", Format: form, Size: size, Length: size, Used: size,
		Vmid: g.Vmid, Ctime: at.Unix(), Protected: d.protected, Backup: b, Notes: d.note(g),
	}
	st.Put(d.node, v)
	t.Logf("INFO: archive file size: %dMB", size>>20)
	d.prune(t, st, g)
	t.Logf("INFO: Finished Backup of VM %d (00:00:01)", g.Vmid)
	return nil
}

// archiveForm returns the ending of a guest's archives.
func archiveForm(g *core.Guest, compress string) string {
	form := "vma"
	if g.Kind == "lxc" {
		form = "tar"
	}
	return form + map[string]string{"zstd": ".zst", "gzip": ".gz", "lzo": ".lzo", "1": ".lzo"}[compress]
}

// note fills in a template of notes (generate_notes in PVE/VZDump.pm).
func (d *dump) note(g *core.Guest) string {
	return strings.NewReplacer("{{guestname}}", guests.Sample(d.w, g).Name, "{{node}}", d.node, "{{vmid}}", fmt.Sprint(g.Vmid),
		"{{cluster}}", "", `\n`, "\n", `\\`, `\`).Replace(d.notes)
}

// prune deletes the oldest backups of a guest, but for those that are protected.
func (d *dump) prune(t *core.Task, st *core.Store, g *core.Guest) {
	var own []*core.Volume
	for _, v := range st.List(d.node) {
		if v.Content == "backup" && v.Vmid == g.Vmid {
			own = append(own, v)
		}
	}
	verdicts := keeps(d.c, st.Name).Verdicts(own)
	for _, v := range own {
		if verdicts[v] == "remove" {
			t.Logf("INFO: removing backup '%s:%s'", st.Name, v.Name)
			delete(st.Volumes, st.Key(d.node, v.Name))
		}
	}
}

// apiExtractConfig is GET /nodes/{node}/vzdump/extractconfig.
func apiExtractConfig(w *core.World, c *core.Call) (any, error) {
	volid := c.In["volume"]
	if _, err := guests.MayReadVolume(c, 0, volid, "backup"); err != nil {
		return nil, err
	}
	if _, _, managed := core.VolumeID(volid); managed {
		if _, err := core.Locate(w, volid); err != nil {
			return nil, err
		}
	}
	v := w.Volume(c.In["node"], volid)
	if v == nil || v.Backup == nil {
		return nil, perl.Fail("volume '%s' does not exist", volid)
	}
	var b strings.Builder
	v.Backup.Conf.Write(&b, false)
	for key, s := range perl.Sorted(v.Backup.Disks) {
		storage, _, _ := core.VolumeID(s.Volid)
		if v.Backup.Kind == "qemu" && !perl.CloudFile.MatchString(s.Volid) {
			fmt.Fprintf(&b, "#qmdump#map:%s:drive-%s:%s:%s:\n", key, key, storage, s.Format)
		}
	}
	return b.String(), nil
}

// stopsManaged refuses to stop a guest that the HA manager keeps running, be it running
// or not (exec_backup_task in PVE/VZDump.pm).
func (d *dump) stopsManaged(g *core.Guest) error {
	if d.mode == "stop" && d.w.HA.State(g) == "started" {
		return perl.Fail("Cannot execute a backup with stop mode on a HA managed and enabled Service. Use snapshot mode or disable the Service.")
	}
	return nil
}

// tooMany refuses a backup beyond those that a storage may keep of a guest: where it is to
// be protected those that are, else without pruning those that would be pruned
// (exec_backup_task in PVE/VZDump.pm).
func (d *dump) tooMany(st *core.Store, g *core.Guest) error {
	all, protected := backupsOf(st, d.node, g)
	limit := 0
	for _, n := range retentionOf(st.Extra["prune-backups"]) {
		limit += n
	}
	switch {
	case d.protected:
		return mayProtect(d.c, st, protected)
	case d.c.Has("remove") && !d.c.Flag("remove") && limit > 0 && all-protected >= limit:
		return perl.Fail("There is a max backup limit of %d enforced by the target storage or the vzdump parameters. Either increase the limit or delete old backups.", limit)
	}
	return nil
}

// backupsOf counts the backups of a guest of its kind, and of these the protected ones.
func backupsOf(s *core.Store, node string, g *core.Guest) (all, protected int) {
	for _, v := range s.List(node) {
		if v.Content == "backup" && v.Vmid == g.Vmid && core.BackupKind(v.Name) == g.Kind {
			all++
			if v.Protected {
				protected++
			}
		}
	}
	return all, protected
}

// mayProtect refuses one more protected backup where there are as many as there may be:
// five, unless the storage says otherwise, for who may not allocate in it whatever he
// wants (get_max_protected_backups in PVE/Storage.pm).
func mayProtect(c *core.Call, s *core.Store, have int) error {
	most := 5
	switch said := s.Extra["max-protected-backups"]; {
	case said != "":
		most = perl.Atoi(said)
	case c.Can("/storage/"+s.Name, "Datastore.Allocate"):
		return nil
	}
	if most >= 0 && have >= most {
		return perl.Fail("The number of protected backups per guest is limited to %d on storage '%s'", most, s.Name)
	}
	return nil
}

// protectedLike counts the protected backups of the same guest and kind as another backup
// (update_volume_attribute in PVE/Storage.pm).
func protectedLike(s *core.Store, node string, like *core.Volume) int {
	_, protected := backupsOf(s, node, &core.Guest{Vmid: like.Vmid, Kind: core.BackupKind(like.Name)})
	return protected
}

// apiUpdateVolume is PUT …/content/{volume}: notes and protection, of backups.
func apiUpdateVolume(_ *core.World, c *core.Call, n core.Named) (any, error) {
	s, name, parsed := n.Store, n.Volume, n.Parsed
	if c.Has("notes") && parsed.Content != "backup" {
		return nil, perl.Fail("only backups can have notes")
	}
	if c.Has("protected") && parsed.Content != "backup" {
		return nil, perl.Fail("only backups support attribute 'protected'")
	}
	v := s.Find(c.In["node"], name)
	if v == nil {
		return nil, nil // Files beside one that is not there: nothing shows them.
	}
	if c.Has("notes") {
		v.Notes = c.In["notes"]
	}
	if c.Flag("protected") && !v.Protected {
		if err := mayProtect(c, s, protectedLike(s, c.In["node"], v)); err != nil {
			return nil, err
		}
	}
	if c.Has("protected") {
		v.Protected = c.Flag("protected")
	}
	return nil, nil
}
