package qemu

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// apiSetConfig is PUT /nodes/{node}/qemu/{vmid}/config: at once.
func apiSetConfig(w *core.World, c *core.Call) (any, error) { return nil, updateVM(w, c, nil) }

// apiUpdateConfig is POST on the same path: the same as a task.
func apiUpdateConfig(w *core.World, c *core.Call) (any, error) {
	if c.Req.Forked != nil {
		return c.Await("failed to update VM " + c.In["vmid"] + ": ")
	}
	var upid string
	patience := c.Num("background_delay", 0)
	err := updateVM(w, c, func(g *core.Guest, work func(*core.Task) error) {
		upid = w.Fork(c, g.Node, core.Job{Kind: "qmconfig", ID: fmt.Sprint(g.Vmid), Guest: g, Begin: work})
	})
	if err != nil || patience == 0 {
		return upid, err
	}
	c.Req.Forked = w.Tasks.ByID[upid]
	return c.Await("")
}

// updateLine returns the line about the request in the logs of its task and of the cluster (qemu-server,
// API2/Qemu.pm, update_vm_api).
func updateLine(c *core.Call) string {
	var b strings.Builder
	b.WriteString("update VM " + c.In["vmid"] + ":")
	for key, value := range perl.Sorted(c.In) {
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
func apiUnlink(w *core.World, c *core.Call) (any, error) {
	c.In["delete"] = c.Take("idlist")
	return nil, updateVM(w, c, nil)
}

// updateVM follows $update_vm_api in PVE/API2/Qemu.pm. With later the work is
// handed over instead of done.
func updateVM(w *core.World, c *core.Call, later func(*core.Guest, func(*core.Task) error)) error {
	line := updateLine(c)
	node, vmid := c.Take("node"), perl.Atoi(c.Take("vmid"))
	digest := c.Take("digest")
	c.Take("background_delay")
	skipLock := c.Take("skiplock") == "1"
	ch := guests.Change{Force: c.Take("force") == "1", Null: c.Null}
	removed, reverted := c.Take("delete"), c.Take("revert")
	ch.Set = c.In
	if err := checkKeys(c, ch.Set); err != nil {
		return err
	}
	if removed == "" && reverted == "" && len(ch.Set)+len(ch.Null) == 0 {
		return perl.Fail("no options specified")
	}
	resolveCDROM(ch.Set)
	if err := names(&ch, removed, reverted); err != nil {
		return err
	}
	if err := tidy(c, ch.Set, true); err != nil {
		return err
	}
	if err := mayConfigure(c, vmid, "", ch.Remove); err != nil {
		return err
	}
	keys := slices.Collect(maps.Keys(ch.Set))
	if err := cmp.Or(mayConfigure(c, vmid, "", keys), mayUseStorages(c, vmid, ch.Set, ""), mayUseBridges(c, ch.Set)); err != nil {
		return err
	}
	g := w.Guest(node, "qemu", vmid)
	if g == nil {
		return core.Missing(node, "qemu", vmid)
	}
	check := func() error {
		switch {
		case w.Guests[vmid] != g:
			return core.Missing(node, "qemu", vmid)
		case digest != "" && digest != g.Sum():
			return perl.Fail("checksum mismatch (file change by other user?)")
		}
		if err := mayUseModel(c, ch.Set["cpu"], g.Conf["cpu"]); err != nil {
			return err
		}
		if !skipLock && !forgets(&ch, g) {
			if err := g.CheckLock(); err != nil {
				return err
			}
		}
		return fits(&ch, g)
	}
	if w.V92() { // Since qemu-server 9.1.19 it looks before it waits for the lock file, too, and a task waits for it itself.
		if err := check(); err != nil {
			return err
		}
	}
	if later == nil || !w.V92() {
		if err := cmp.Or(c.LockFile(g), check()); err != nil {
			return err
		}
	}
	if err := w.NeedWritable(g); err != nil {
		return err
	}
	work := func(t *core.Task) error {
		entry, log := core.Message{At: w.Now, Node: g.Node, Who: c.Who, Text: line}, func(string, ...any) {}
		if t != nil {
			entry.Pid, log = t.Pid, t.Logf
			log("%s", line)
		}
		if later != nil && w.V92() {
			if err := check(); err != nil {
				return err
			}
		}
		w.Messages.Add(entry)
		finish(&ch, g)
		return applyChange(c, g, ch, log)
	}
	if later != nil {
		later(g, work)
		return nil
	}
	return work(nil)
}

// names reads the lists of keys to delete and to revert.
func names(ch *guests.Change, removed, reverted string) error {
	for _, key := range perl.SplitList(reverted) {
		switch {
		case !isOption(key):
			return perl.BadParam("revert", "unknown option '"+key+"'")
		case ch.Has(key):
			return perl.BadParam("delete", "you can't use '-"+key+"' and -revert "+key+"' at the same time")
		}
		ch.Revert = append(ch.Revert, key)
	}
	for _, key := range perl.SplitList(removed) {
		if key == "cdrom" {
			key = "ide2"
		}
		switch {
		case ch.Has(key):
			return perl.BadParam("delete", "you can't use '-"+key+"' and -delete "+key+"' at the same time")
		case slices.Contains(ch.Revert, key):
			return perl.BadParam("revert", "you can't use '-delete "+key+"' and -revert "+key+" at the same time")
		case !isOption(key):
			return perl.BadParam("delete", "unknown option '"+key+"'")
		}
		ch.Remove = append(ch.Remove, key)
	}
	return nil
}

// isOption reports whether a key can be in a configuration (option_exists).
func isOption(key string) bool {
	switch key {
	case "digest", "node", "vmid", "pool", "storage", "archive", "start", "unique", "force", "bwlimit",
		"live-restore", "import-working-storage", "ha-managed":
		return false
	case "cdrom", "lock", "meta", "vmstate", "parent", "snaptime", "runningmachine", "runningcpu", "running-nets-host-mtu":
		return true
	}
	return perl.KeyType("qemu", key) != ""
}

// forgets says whether the state goes from which a suspended VM would come back.
func forgets(ch *guests.Change, g *core.Guest) bool {
	return g.Conf["lock"] == "suspended" && slices.Contains(ch.Remove, "vmstate")
}

// finish completes a change by what the configuration holds.
func finish(ch *guests.Change, g *core.Guest) {
	if slices.Contains(ch.Remove, "vmstate") {
		if forgets(ch, g) {
			ch.Remove = append(ch.Remove, "lock")
		}
		for _, key := range []string{"runningmachine", "runningcpu", "running-nets-host-mtu"} {
			if g.Conf[key] != "" {
				ch.Remove = append(ch.Remove, key)
			}
		}
	}
	for _, key := range ch.Revert {
		if value, ok := g.Conf[key]; ok {
			ch.Set[key] = value
		} else if _, ok := g.Pend[key]; ok {
			ch.Remove = append(ch.Remove, key)
		}
	}
}

// fits fails when a guest would get back more memory than it has. A reverted key counts with its present value.
func fits(ch *guests.Change, g *core.Guest) error {
	will := maps.Clone(ch.Set)
	for _, key := range ch.Revert {
		if value, ok := g.Conf[key]; ok {
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
		balloon = first(g.Pend["balloon"], g.Conf["balloon"])
	}
	if perl.Atoi(balloon) > perl.MemoryMiB(first(will["memory"], g.Pend["memory"], g.Conf["memory"])) {
		return perl.Fail("balloon value too large (must be smaller than assigned memory)")
	}
	return nil
}

// checkKeys makes the checks on values that are in no table.
func checkKeys(c *core.Call, set map[string]string) error {
	if keys, ok := set["sshkeys"]; ok {
		if err := checkSSHKeys(keys); err != nil {
			return err
		}
	}
	if units, ok := set["cpuunits"]; ok {
		set["cpuunits"] = fmt.Sprint(min(max(perl.Atoi(units), 1), 10000)) // clamp_cpu_shares, cgroup v2.
	}
	if password, ok := set["cipassword"]; ok && !crypted.MatchString(password) {
		salt := c.W.Rng.Hex(8)
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
func tidy(c *core.Call, set map[string]string, update bool) error {
	for _, key := range slices.Sorted(maps.Keys(set)) {
		if !perl.IsDrive(key) {
			continue
		}
		d := perl.ParseDrive(key, set[key])
		if err := tidyDrive(c, key, &d); err != nil {
			return err
		}
		set[key] = printOrder(d)
	}
	for _, key := range slices.Sorted(maps.Keys(set)) {
		family := perl.FamilyOf(key)
		switch {
		case perl.IsDrive(key):
		case family == "net" && key != family:
			set[key] = printNet(parseNet(c.W, set[key]))
		case key == "vmgenid" && set[key] == "1":
			set[key] = c.W.Rng.UUID()
		case key == "hookscript" && update:
			if err := guests.CheckHookscript(c.W, set[key]); err != nil {
				return perl.BadParam(key, err.Error()+"\n")
			}
		default:
			set[key] = perl.Canonical("qemu", key, set[key])
		}
	}
	return nil
}

// printOrder prints a drive with what only an order to allocate says.
func printOrder(d perl.Drive) string {
	if source := d.Opts["import-from"]; source != "" {
		return d.String() + ",import-from=" + source
	}
	return d.String()
}
