package pvesim

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

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
	if err := c.tidy(ch.set, true); err != nil {
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
	check := func() error {
		switch {
		case w.guests[vmid] != g:
			return missing(node, "qemu", vmid)
		case digest != "" && digest != g.sum():
			return fail("checksum mismatch (file change by other user?)")
		}
		if err := c.mayUseModel(ch.set["cpu"], g.conf["cpu"]); err != nil {
			return err
		}
		if !skipLock && !ch.forgets(g) {
			if err := g.checkLock(); err != nil {
				return err
			}
		}
		return ch.fits(g)
	}
	if w.v92() { // Since qemu-server 9.1.19 it looks before it waits for the lock file, too, and a task waits for it itself.
		if err := check(); err != nil {
			return err
		}
	}
	if later == nil || !w.v92() {
		if err := c.lockFile(g); err != nil {
			return err
		}
		if err := check(); err != nil {
			return err
		}
	}
	if err := w.needWritable(g); err != nil {
		return err
	}
	work := func(log func(string, ...any)) error {
		if later != nil && w.v92() {
			if err := check(); err != nil {
				return err
			}
		}
		ch.finish(g)
		return c.applyChange(g, ch, log)
	}
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
		case !isOption(key):
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

// isOption says whether a key can stand in a configuration (option_exists).
func isOption(key string) bool {
	switch key {
	case "digest", "node", "vmid", "pool", "storage", "archive", "start", "unique", "force", "bwlimit",
		"live-restore", "import-working-storage", "ha-managed":
		return false
	case "cdrom", "lock", "meta", "vmstate", "parent", "snaptime", "runningmachine", "runningcpu", "running-nets-host-mtu":
		return true
	}
	return keyType("qemu", key) != ""
}

// forgets says whether the state goes from which a suspended VM would come back.
func (ch *change) forgets(g *guest) bool {
	return g.conf["lock"] == "suspended" && slices.Contains(ch.remove, "vmstate")
}

// finish completes a change by what the configuration holds.
func (ch *change) finish(g *guest) {
	if slices.Contains(ch.remove, "vmstate") {
		if ch.forgets(g) {
			ch.remove = append(ch.remove, "lock")
		}
		for _, key := range []string{"runningmachine", "runningcpu", "running-nets-host-mtu"} {
			if g.conf[key] != "" {
				ch.remove = append(ch.remove, key)
			}
		}
	}
	for _, key := range ch.revert {
		if value, ok := g.conf[key]; ok {
			ch.set[key] = value
		} else if _, ok := g.pend[key]; ok {
			ch.remove = append(ch.remove, key)
		}
	}
}

// fits fails when a guest would get back more memory than it has. What is reverted counts
// as it will be.
func (ch *change) fits(g *guest) error {
	will := maps.Clone(ch.set)
	for _, key := range ch.revert {
		if value, ok := g.conf[key]; ok {
			will[key] = value
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
	balloon, asked := will["balloon"]
	if will["memory"] == "" && !asked {
		return nil
	}
	if !asked {
		balloon = first(g.pend["balloon"], g.conf["balloon"])
	}
	if atoi(balloon) > memoryMiB(first(will["memory"], g.pend["memory"], g.conf["memory"])) {
		return fail("balloon value too large (must be smaller than assigned memory)")
	}
	return nil
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
// create do before they ask about rights. Only an update looks whether a hookscript is
// there (check_hookscript in pve-guest-common, PVE/GuestHelpers.pm).
func (c *call) tidy(set map[string]string, update bool) error {
	for _, key := range slices.Sorted(maps.Keys(set)) {
		if !isDrive(key) {
			continue
		}
		d := parseDrive(key, set[key])
		if err := c.tidyDrive(key, &d); err != nil {
			return err
		}
		set[key] = printOrder(d)
	}
	for _, key := range slices.Sorted(maps.Keys(set)) {
		family := familyOf(key)
		switch {
		case isDrive(key):
		case family == "net" && key != family:
			set[key] = printNet(c.w.parseNet(set[key]))
		case key == "vmgenid" && set[key] == "1":
			set[key] = c.w.uuid()
		case key == "hookscript" && update:
			if err := c.w.checkHookscript(set[key]); err != nil {
				return badParam(key, err.Error()+"\n")
			}
		default:
			set[key] = canonical("qemu", key, set[key])
		}
	}
	return nil
}

// printOrder prints a drive with what only an order to allocate says.
func printOrder(d drive) string {
	if source := d.opts["import-from"]; source != "" {
		return d.String() + ",import-from=" + source
	}
	return d.String()
}
