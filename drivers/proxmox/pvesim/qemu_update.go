package pvesim

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// change is what an update of a configuration asks for.
type change struct {
	set    map[string]string
	remove []string
	revert []string
	force  bool // Free the volumes of removed drives.
	null   []string
}

// apiSetConfig is PUT /nodes/{node}/qemu/{vmid}/config: at once.
func apiSetConfig(w *world, c *call) (any, error) { return nil, updateVM(w, c, nil) }

// apiUpdateConfig is POST on the same path: the same as a task.
func apiUpdateConfig(w *world, c *call) (any, error) {
	if c.req.forked != nil {
		return c.await("failed to update VM " + c.in["vmid"] + ": ")
	}
	var upid string
	patience := c.num("background_delay", 0)
	line := updateLine(c)
	err := updateVM(w, c, func(g *guest, work func(log func(string, ...any)) error) {
		upid = w.fork(c, g.node, job{kind: "qmconfig", id: fmt.Sprint(g.vmid), guest: g, begin: func(t *task) error {
			t.logf("%s", line)
			return work(t.logf)
		}})
	})
	if err != nil || patience == 0 {
		return upid, err
	}
	c.req.forked = w.tasks.byID[upid]
	return c.await("")
}

// updateLine is how the log tells what was asked for.
func updateLine(c *call) string {
	var b strings.Builder
	b.WriteString("update VM " + c.in["vmid"] + ":")
	for _, key := range slices.Sorted(maps.Keys(c.in)) {
		value := c.in[key]
		switch key {
		case "node", "vmid", "digest", "background_delay":
			continue
		case "cipassword":
			value = "<hidden>"
		}
		b.WriteString(" -" + key + " " + value)
	}
	return b.String()
}

// apiUnlink is PUT /nodes/{node}/qemu/{vmid}/unlink: a removal of drives by
// another name.
func apiUnlink(w *world, c *call) (any, error) {
	c.in["delete"] = c.take("idlist")
	return nil, updateVM(w, c, nil)
}

// updateVM follows $update_vm_api in PVE/API2/Qemu.pm. With later the work is
// handed over instead of done.
func updateVM(w *world, c *call, later func(*guest, func(func(string, ...any)) error)) error {
	node, vmid := c.take("node"), atoi(c.take("vmid"))
	digest := c.take("digest")
	c.take("background_delay")
	skipLock := c.take("skiplock") == "1"
	if skipLock && !c.root() {
		return badParam("skiplock", "Only root may use this option.")
	}
	ch := change{force: c.take("force") == "1", null: c.null}
	removed, reverted := c.take("delete"), c.take("revert")
	ch.set = c.in
	if err := c.checkKeys(ch.set); err != nil {
		return err
	}
	if removed == "" && reverted == "" && len(ch.set)+len(ch.null) == 0 {
		return fail("no options specified")
	}
	resolveCDROM(ch.set)
	if err := ch.names(removed, reverted); err != nil {
		return err
	}
	if err := c.tidy(ch.set); err != nil {
		return err
	}
	if err := c.mayConfigure(vmid, "", ch.remove); err != nil {
		return err
	}
	keys := slices.Collect(maps.Keys(ch.set))
	if err := c.mayConfigure(vmid, "", keys); err != nil {
		return err
	}
	if err := c.mayUseStorages(vmid, ch.set, ""); err != nil {
		return err
	}
	if err := c.mayUseBridges(ch.set); err != nil {
		return err
	}
	g := w.guest(node, "qemu", vmid)
	if g == nil {
		return missing(node, "qemu", vmid)
	}
	if err := c.lockFile(g); err != nil {
		return err
	}
	if digest != "" && digest != g.sum() {
		return fail("checksum mismatch (file change by other user?)")
	}
	if err := c.mayUseModel(ch.set["cpu"], g.conf["cpu"]); err != nil {
		return err
	}
	if !skipLock {
		if err := g.checkLock(); err != nil {
			return err
		}
	}
	if err := ch.finish(g); err != nil {
		return err
	}
	if err := w.needWritable(g); err != nil {
		return err
	}
	work := func(log func(string, ...any)) error { return c.applyChange(g, ch, log) }
	if later != nil {
		later(g, work)
		return nil
	}
	return work(func(string, ...any) {})
}

// names reads the lists of keys to delete and to revert.
func (ch *change) names(removed, reverted string) error {
	for _, key := range splitList(reverted) {
		switch {
		case keyType("qemu", key) == "" || key == "digest":
			return badParam("revert", "unknown option '"+key+"'")
		case ch.has(key):
			return badParam("delete", "you can't use '-"+key+"' and -revert "+key+"' at the same time")
		}
		ch.revert = append(ch.revert, key)
	}
	for _, key := range splitList(removed) {
		if key == "cdrom" {
			key = "ide2"
		}
		switch {
		case ch.has(key):
			return badParam("delete", "you can't use '-"+key+"' and -delete "+key+"' at the same time")
		case slices.Contains(ch.revert, key):
			return badParam("revert", "you can't use '-delete "+key+"' and -revert "+key+" at the same time")
		case !isOption(key):
			return badParam("delete", "unknown option '"+key+"'")
		}
		ch.remove = append(ch.remove, key)
	}
	return nil
}

func (ch *change) has(key string) bool {
	_, ok := ch.set[key]
	return ok
}

// isOption says whether a key can stand in a configuration (option_exists).
func isOption(key string) bool {
	switch key {
	case "digest", "node", "vmid", "pool", "storage", "archive", "start", "unique", "force", "bwlimit",
		"live-restore", "import-working-storage", "ha-managed", "cdrom":
		return false
	case "lock", "meta", "vmstate", "parent", "snaptime", "runningmachine", "runningcpu":
		return true
	}
	return keyType("qemu", key) != ""
}

// finish completes a change by what the configuration holds.
func (ch *change) finish(g *guest) error {
	for _, key := range ch.revert {
		if value, ok := g.conf[key]; ok {
			ch.set[key] = value
		} else if _, ok := g.pend[key]; ok {
			ch.remove = append(ch.remove, key)
		}
	}
	first := func(values ...string) string {
		for _, v := range values {
			if v != "" {
				return v
			}
		}
		return ""
	}
	memory, balloon := ch.set["memory"], ch.set["balloon"]
	if memory == "" && balloon == "" {
		return nil
	}
	most := memoryMiB(first(memory, g.pend["memory"], g.conf["memory"]))
	if atoi(first(balloon, g.pend["balloon"], g.conf["balloon"])) > most {
		return fail("balloon value too large (must be smaller than assigned memory)")
	}
	return nil
}

// memoryMiB reads the memory key; 512 is its default.
func memoryMiB(value string) int {
	if value == "" {
		return 512
	}
	return atoi(parseProperty("memory", value)["current"])
}

// checkKeys makes the checks on values that are in no table.
func (c *call) checkKeys(set map[string]string) error {
	if keys, ok := set["sshkeys"]; ok {
		if err := checkSSHKeys(keys); err != nil {
			return err
		}
	}
	if units, ok := set["cpuunits"]; ok {
		set["cpuunits"] = fmt.Sprint(min(max(atoi(units), 1), 10000)) // clamp_cpu_shares, cgroup v2.
	}
	if password, ok := set["cipassword"]; ok && !crypted.MatchString(password) {
		salt := c.w.hex(8)
		set["cipassword"] = fmt.Sprintf("$5$%s$%x", salt, sha256.Sum256([]byte(salt+password)))
	}
	return nil
}

var crypted = regexp.MustCompile(`^\$(?:[156]|2[ay])(\$.+){2}`)

// resolveCDROM knows cdrom as another word for ide2.
func resolveCDROM(set map[string]string) {
	if value, ok := set["cdrom"]; ok {
		set["ide2"] = value + ",media=cdrom"
		if strings.Contains(value, "media=") {
			set["ide2"] = value
		}
		delete(set, "cdrom")
	}
}

// tidy brings values into the form in which they are stored, as update and
// create do before they ask about rights.
func (c *call) tidy(set map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(set)) {
		family := familyOf(key)
		switch {
		case isDrive(key):
			d := parseDrive(key, set[key])
			if err := c.tidyDrive(key, &d); err != nil {
				return err
			}
			set[key] = printOrder(d)
		case family == "net" && key != family:
			set[key] = printNet(c.w.parseNet(set[key]))
		case key == "vmgenid" && set[key] == "1":
			set[key] = c.w.uuid()
		case key == "hookscript":
			storage, name, ok := volumeID(set[key])
			st := c.w.stores[storage]
			if !ok || st == nil || st.find(c.w.cfg.Node, name) == nil {
				return badParam(key, "script '"+set[key]+"' does not exist\n")
			}
		default:
			set[key] = canonical("qemu", key, set[key])
		}
	}
	return nil
}

// printOrder prints a drive with what only an order to allocate says.
func printOrder(d drive) string {
	parts := []string{d.String()}
	for _, key := range []string{"format", "import-from"} {
		if value := d.opts[key]; value != "" {
			parts = append(parts, key+"="+value)
		}
	}
	return strings.Join(parts, ",")
}

// tidyDrive is cleanup_drive_path in PVE/QemuServer/Drive.pm, with the checks
// around it.
func (c *call) tidyDrive(key string, d *drive) error {
	if d.opts["import-from"] != "" {
		if order := newDisk.FindStringSubmatch(d.file); order == nil || order[2] != "0" {
			return badParam(key, "'import-from' requires special syntax - use <storage ID>:0,import-from=<source>")
		}
	}
	storage, name, managed := volumeID(d.file)
	if strings.HasPrefix(d.file, "/") && !strings.HasPrefix(d.file, "/dev/") {
		return badParam(key, "unable to associate path '"+d.file+"' to any storage")
	}
	if d.opts["media"] == "" && (d.file == "none" || d.file == "cdrom") {
		d.opts["media"] = "cdrom"
	}
	if st := c.w.stores[storage]; managed && st != nil && !d.cdrom() {
		if parsed, err := st.parseName(name); err == nil && parsed.content == "iso" {
			return badParam(key, "explicit 'media=cdrom' is required for iso images")
		}
	}
	return nil
}
