package pvesim

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// applyChange is the worker of $update_vm_api: everything becomes a waiting
// change first, written key by key; then what can be is applied. A failure in
// between leaves the keys before it waiting, as PVE does.
func (c *call) applyChange(g *guest, ch change, log func(string, ...any)) error {
	if len(ch.null) > 0 {
		return fail("unable to parse value of '%s' - got undefined value", ch.null[0])
	}
	modified := map[string]bool{}
	order := bootOrder(g.conf["boot"])
	for _, key := range ch.remove {
		if err := c.removeKey(g, key, ch.force, &order, modified); err != nil {
			return err
		}
	}
	for _, key := range c.w.setOrder(g, ch.set) {
		if err := c.setKey(g, key, ch, &order, modified, log); err != nil {
			return err
		}
	}
	g.cleanupPending()
	c.w.write(g)
	if len(g.pend) == 0 {
		return nil
	}
	problems := map[string]string{}
	var err error
	if g.run != nil {
		err = c.hotplug(g, modified, problems)
	} else {
		err = c.coldplug(g, problems)
	}
	c.w.write(g)
	if err != nil {
		return err
	}
	if len(problems) > 0 {
		return &apiError{status: 400, errors: problems}
	}
	return nil
}

// setOrder is the order in which the keys of a change are dealt with: any, since PVE
// goes through a hash (PVE/API2/Qemu.pm, $update_vm_api, "keys %$param"). Each is
// written before the next is looked at, so one that fails leaves those before it
// waiting in the configuration, and nobody can say which these are.
func (w *world) setOrder(g *guest, set map[string]string) []string {
	at := map[string]int64{}
	for key := range set {
		at[key] = w.sized(fmt.Sprintf("turn of %s in %d %s", key, g.vmid, g.sum()), 0, 1<<62)
	}
	return slices.SortedFunc(maps.Keys(set), func(a, b string) int { return cmp.Or(cmp.Compare(at[a], at[b]), strings.Compare(a, b)) })
}

// removeKey lets a key wait for its deletion.
func (c *call) removeKey(g *guest, key string, force bool, order *[]string, modified map[string]bool) error {
	value, set := g.conf[key]
	waiting, isWaiting := g.pend[key]
	if !set {
		value = waiting
	}
	if !set && !isWaiting {
		return nil // PVE warns in its log.
	}
	family := familyOf(key)
	d := parseDrive(key, value)
	switch {
	case family == "unused":
		if g.conf["protection"] == "1" {
			return fail("can't remove unused disk '%s' - protection mode enabled", d.file)
		}
		if err := c.need(vmPath(g.vmid), "VM.Config.Disk"); err != nil {
			return err
		}
		if err := c.deallocate(g, key, d); err != nil {
			return err
		}
		delete(g.conf, key)
		c.w.write(g)
		modified[key] = true
		return nil
	case key == "vmstate":
		if g.conf["protection"] == "1" {
			return fail("can't remove vmstate '%s' - protection mode enabled", value)
		}
		if err := c.deallocate(g, key, drive{file: value}); err != nil {
			return err
		}
		delete(g.conf, key)
		c.w.write(g)
		modified[key] = true
		return nil
	case isDrive(key):
		if g.conf["protection"] == "1" {
			return fail("can't remove drive '%s' - protection mode enabled", key)
		}
		if err := c.mayChangeDrive(g.vmid, d); err != nil {
			return err
		}
		if isWaiting {
			c.w.unuse(g, parseDrive(key, waiting))
		}
	case family == "net" && set:
		if err := c.mayUseBridges(map[string]string{key: value}); err != nil {
			return err
		}
	case family == "serial", family == "usb", family == "hostpci", family == "virtiofs", family == "rng":
		if err := c.mayUseDevices(g.vmid, "", map[string]string{key: value}, "delete"); err != nil {
			return err
		}
	case key == "tags":
		if err := c.mayTag(g.vmid, value, ""); err != nil {
			return err
		}
		delete(g.conf, key)
		c.w.write(g)
		return nil
	}
	modified[key] = true
	delete(g.pend, key)
	if i := slices.Index(*order, key); i >= 0 {
		*order = slices.Delete(*order, i, i+1)
		g.pend["boot"] = printBootOrder(*order)
		modified["boot"] = true
	}
	going := g.deletions()
	going[key] = force
	g.setDeletions(going)
	c.w.write(g)
	return nil
}

// setKey lets a new value wait.
func (c *call) setKey(g *guest, key string, ch change, order *[]string, modified map[string]bool, log func(string, ...any)) error {
	value := ch.set[key]
	modified[key] = true
	if waiting, ok := g.pend[key]; ok && waiting == value {
		return nil
	}
	family := familyOf(key)
	switch {
	case isDrive(key):
		if err := c.setDrive(g, key, value, order, modified, log); err != nil {
			return err
		}
	case family == "serial", family == "usb", family == "hostpci", family == "virtiofs", family == "rng":
		for _, of := range []string{g.conf[key], value} {
			if of == "" {
				continue
			}
			if err := c.mayUseDevices(g.vmid, "", map[string]string{key: of}, "modify"); err != nil {
				return err
			}
		}
		g.pend[key] = value
	case key == "vga":
		if err := checkClipboard(value); err != nil {
			return err
		}
		g.pend[key] = value
	case key == "machine":
		if err := checkMachine(value); err != nil {
			return err
		}
		g.pend[key] = value
	case key == "ostype":
		if !ch.has("machine") && !modified["machine"] && g.pend["machine"] == "" {
			switch pinned, err := c.w.pinMachine(g.conf["machine"], value); {
			case err != nil:
				log("automatic pinning of machine version failed - %s", err)
			case pinned != "":
				g.pend["machine"] = pinned
			}
		}
		g.pend[key] = value
	case key == "cipassword":
		g.conf[key] = value
	case key == "tags":
		if err := c.mayTag(g.vmid, g.conf[key], value); err != nil {
			return err
		}
		g.pend[key] = c.w.uniqueTags(value)
	case family == "net" && g.conf[key] != "":
		if err := c.mayUseBridges(map[string]string{key: g.conf[key]}); err != nil {
			return err
		}
		g.pend[key] = value
	case key == "boot":
		devices := bootOrder(value)
		for _, device := range devices {
			if g.conf[device] == "" && g.pend[device] == "" && ch.set[device] == "" || slices.Contains(ch.remove, device) {
				return fail("invalid bootorder: device '%s' does not exist'", device)
			}
		}
		g.pend[key] = value // a CD drive that is dealt with later writes the old order over it, with itself at the end
		if len(devices) > 0 {
			g.pend[key] = printBootOrder(devices)
		}
	default:
		g.pend[key] = value
	}
	going := g.deletions()
	if _, old := g.conf["bootdisk"]; old && key == "boot" && len(bootOrder(value)) > 0 {
		going["bootdisk"] = false
	}
	delete(going, key)
	g.setDeletions(going)
	c.w.write(g)
	return nil
}

// setDrive allocates what a drive orders and lets the result wait.
func (c *call) setDrive(g *guest, key, value string, order *[]string, modified map[string]bool, log func(string, ...any)) error {
	if old := g.conf[key]; old != "" {
		if err := c.mayChangeDrive(g.vmid, parseDrive(key, old)); err != nil {
			return err
		}
	}
	d := parseDrive(key, value)
	if old := g.conf[key]; key == "tpmstate0" && old != "" {
		if err := keepVersion(parseDrive(key, old), d); err != nil {
			return err
		}
	}
	if err := c.mayChangeDrive(g.vmid, d); err != nil {
		return err
	}
	if waiting := g.pend[key]; waiting != "" {
		c.w.unuse(g, parseDrive(key, waiting))
	}
	made, err := c.w.makeDisks(g, map[string]string{key: value}, "", log)
	if err != nil {
		return err
	}
	g.pend[key] = made[key]
	// A new CD drive is made bootable. One for cloud-init is not.
	if d.cdrom() && !d.cloudinit() && len(*order) > 0 && !slices.Contains(*order, key) {
		*order = append(*order, key)
		g.pend["boot"] = printBootOrder(*order)
		modified["boot"] = true
	}
	return nil
}

// coldplug makes the waiting changes of a VM that does not run
// (vmconfig_apply_pending in PVE/QemuServer.pm). A new drive of cloud-init is written;
// the error is that of this.
func (c *call) coldplug(g *guest, problems map[string]string) error {
	if len(g.pend) == 0 {
		return nil
	}
	going := g.deletions()
	for _, key := range slices.Sorted(maps.Keys(going)) {
		if value, ok := g.conf[key]; ok && isDrive(key) {
			if err := c.dropDrive(g, key, value, going[key]); err != nil {
				problems[key] = "unable to apply pending change " + key + " : " + err.Error() + "\n"
				continue
			}
		}
		delete(going, key)
		delete(g.conf, key)
	}
	g.setDeletions(going)
	g.cleanupPending()
	generate := false
	for _, key := range slices.Sorted(maps.Keys(g.pend)) {
		if key == "delete" {
			continue
		}
		value := g.pend[key]
		if old, ok := g.conf[key]; ok && isDrive(key) {
			if before := parseDrive(key, old); before.file != parseDrive(key, value).file {
				c.w.unuse(g, before)
			}
		}
		generate = generate || isDrive(key) && parseDrive(key, value).cloudinit()
		g.conf[key] = value
		delete(g.pend, key)
	}
	if !generate {
		return nil
	}
	return c.w.writeCloudDrive(g, g.conf, func(string, ...any) {})
}

// dropDrive takes a drive off: its volume stays as unused, or goes by force.
func (c *call) dropDrive(g *guest, key, value string, force bool) error {
	d := parseDrive(key, value)
	if !force || d.cdrom() && !d.cloudinit() {
		c.w.unuse(g, d)
		return nil
	}
	return c.deallocate(g, key, d)
}

// unuse keeps the volume of a drive that goes, if it is the guest's own; one of
// cloud-init is freed.
func (w *world) unuse(g *guest, d drive) {
	switch {
	case d.cloudinit():
		_ = w.free(g.node, d.file) // PVE only warns.
		clear(g.cloud)
	case !d.cdrom() && w.owns(g, d.file):
		addUnused(g.conf, d.file)
	}
}

// deallocate frees the volume of a drive (try_deallocate_drive).
func (c *call) deallocate(g *guest, key string, d drive) error {
	if !c.w.owns(g, d.file) {
		return nil
	}
	storage, _, _ := volumeID(d.file)
	if err := c.need("/storage/"+storage, "Datastore.AllocateSpace"); err != nil {
		return err
	}
	for other, value := range g.conf {
		if other != key && isDrive(other) && parseDrive(other, value).file == d.file {
			return fail("unable to delete '%s' - volume is still in use (snapshot?)", d.file)
		}
	}
	for _, s := range g.snapshots {
		for _, volid := range g.disks(s.conf) {
			if volid == d.file {
				return fail("unable to delete '%s' - volume is still in use (snapshot?)", d.file)
			}
		}
	}
	return c.w.free(g.node, d.file)
}

// pinMachine is the machine of a guest as it is stored; empty: as it was. Windows gets
// upset when its machine changes, so its version is pinned (check_and_pin_machine_string
// in PVE/QemuServer/Machine.pm).
func (w *world) pinMachine(value, ostype string) (string, error) {
	machine := parseProperty("machine", value)
	kind := machine["type"]
	if chipset, bare := map[string]string{"": "i440fx", "pc": "i440fx", "q35": "q35"}[kind]; bare && isWindows(ostype) {
		kind = "pc-" + chipset + "-" + w.machineVersion()
	}
	if err := checkMachine(value); err != nil {
		return "", err
	}
	delete(machine, "type")
	return strings.Trim(kind+","+printOptions(machine), ","), nil
}
