package qemu

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// applyChange is the worker of $update_vm_api: everything becomes a waiting
// change first, written key by key; then what can be is applied. A failure in
// between leaves the keys before it waiting, as PVE does.
func applyChange(c *core.Call, g *core.Guest, ch guests.Change, log func(string, ...any)) error {
	if len(ch.Null) > 0 {
		return perl.Fail("unable to parse value of '%s' - got undefined value", ch.Null[0])
	}
	modified := map[string]bool{}
	order := perl.BootOrder(g.Conf["boot"])
	for _, key := range ch.Remove {
		if err := removeKey(c, g, key, ch.Force, &order, modified); err != nil {
			return err
		}
	}
	for _, key := range setOrder(c.W, g, ch.Set) {
		if err := setKey(c, g, key, ch, &order, modified, log); err != nil {
			return err
		}
	}
	guests.CleanupPending(g)
	c.W.Write(g)
	if len(g.Pend) == 0 {
		return nil
	}
	problems := map[string]string{}
	var err error
	if g.Run != nil {
		err = hotplug(c, g, modified, problems)
	} else {
		err = coldplug(c, g, problems)
	}
	c.W.Write(g)
	if err != nil {
		return err
	}
	if len(problems) > 0 {
		return &perl.APIError{Status: 400, Errors: problems}
	}
	return nil
}

// setOrder is the order in which the keys of a change are handled: any, since PVE iterates over a hash
// (PVE/API2/Qemu.pm, $update_vm_api, "keys %$param"). Each is written before the next is handled, so a failing one
// leaves an unknown set of others pending in the configuration.
func setOrder(w *core.World, g *core.Guest, set map[string]string) []string {
	at := map[string]int64{}
	for key := range set {
		at[key] = w.Sized(fmt.Sprintf("turn of %s in %d %s", key, g.Vmid, g.Sum()), 0, 1<<62)
	}
	return slices.SortedFunc(maps.Keys(set), func(a, b string) int { return cmp.Or(cmp.Compare(at[a], at[b]), strings.Compare(a, b)) })
}

// removeKey lets a key wait for its deletion.
func removeKey(c *core.Call, g *core.Guest, key string, force bool, order *[]string, modified map[string]bool) error {
	value, set := g.Conf[key]
	waiting, isWaiting := g.Pend[key]
	if !set {
		value = waiting
	}
	if !set && !isWaiting {
		return nil // PVE warns in its log.
	}
	family := perl.FamilyOf(key)
	d := perl.ParseDrive(key, value)
	switch {
	case family == "unused", key == "vmstate":
		if err := dropVolume(c, g, key, value); err != nil {
			return err
		}
		modified[key] = true
		return nil
	case perl.IsDrive(key):
		if g.Conf["protection"] == "1" {
			return perl.Fail("can't remove drive '%s' - protection mode enabled", key)
		}
		if err := mayChangeDrive(c, g.Vmid, d); err != nil {
			return err
		}
		if isWaiting {
			unuse(c.W, g, perl.ParseDrive(key, waiting))
		}
	case family == "net" && set:
		if err := mayUseBridges(c, map[string]string{key: value}); err != nil {
			return err
		}
	case family == "serial", family == "usb", family == "hostpci", family == "virtiofs", family == "rng":
		if err := mayUseDevices(c, g.Vmid, "", map[string]string{key: value}, "delete"); err != nil {
			return err
		}
	case key == "tags":
		if err := guests.MayTag(c, g.Vmid, value, ""); err != nil {
			return err
		}
		delete(g.Conf, key)
		c.W.Write(g)
		return nil
	}
	modified[key] = true
	delete(g.Pend, key)
	if i := slices.Index(*order, key); i >= 0 {
		*order = slices.Delete(*order, i, i+1)
		g.Pend["boot"] = perl.PrintBootOrder(*order)
		modified["boot"] = true
	}
	going := g.Deletions()
	going[key] = force
	g.SetDeletions(going)
	c.W.Write(g)
	return nil
}

// dropVolume removes a volume that is not in use at once.
func dropVolume(c *core.Call, g *core.Guest, key, value string) error {
	d, what := perl.Drive{File: value}, "vmstate"
	if key != "vmstate" {
		d, what = perl.ParseDrive(key, value), "unused disk"
	}
	if g.Conf["protection"] == "1" {
		return perl.Fail("can't remove %s '%s' - protection mode enabled", what, d.File)
	}
	if key != "vmstate" {
		if err := c.Need(core.VMPath(g.Vmid), "VM.Config.Disk"); err != nil {
			return err
		}
	}
	if err := deallocate(c, g, key, d); err != nil {
		return err
	}
	delete(g.Conf, key)
	c.W.Write(g)
	return nil
}

// setKey lets a new value wait.
func setKey(c *core.Call, g *core.Guest, key string, ch guests.Change, order *[]string, modified map[string]bool, log func(string, ...any)) error {
	value := ch.Set[key]
	modified[key] = true
	if waiting, ok := g.Pend[key]; ok && waiting == value {
		return nil
	}
	family, pend := perl.FamilyOf(key), value
	var err error
	switch {
	case perl.IsDrive(key):
		pend, err = setDrive(c, g, key, value, order, modified, log)
	case family == "serial", family == "usb", family == "hostpci", family == "virtiofs", family == "rng":
		for _, of := range []string{g.Conf[key], value} {
			if of != "" && err == nil {
				err = mayUseDevices(c, g.Vmid, "", map[string]string{key: of}, "modify")
			}
		}
	case key == "vga":
		err = checkClipboard(value)
	case key == "machine":
		err = checkMachine(value)
	case key == "ostype":
		if !ch.Has("machine") && !modified["machine"] && g.Pend["machine"] == "" {
			switch pinned, err := pinMachine(c.W, g.Conf["machine"], value); {
			case err != nil:
				log("automatic pinning of machine version failed - %s", err)
			case pinned != "":
				g.Pend["machine"] = pinned
			}
		}
	case key == "tags":
		err, pend = guests.MayTag(c, g.Vmid, g.Conf[key], value), guests.UniqueTags(c.W, value)
	case family == "net" && g.Conf[key] != "":
		err = mayUseBridges(c, map[string]string{key: g.Conf[key]})
	case key == "boot": // a CD drive that is dealt with later writes the old order over it, with itself at the end
		devices := perl.BootOrder(value)
		for _, device := range devices {
			if g.Conf[device] == "" && g.Pend[device] == "" && ch.Set[device] == "" || slices.Contains(ch.Remove, device) {
				return perl.Fail("invalid bootorder: device '%s' does not exist'", device)
			}
		}
		if len(devices) > 0 {
			pend = perl.PrintBootOrder(devices)
		}
	}
	if err != nil {
		return err
	}
	if key == "cipassword" {
		g.Conf[key] = value
	} else {
		g.Pend[key] = pend
	}
	going := g.Deletions()
	if _, old := g.Conf["bootdisk"]; old && key == "boot" && len(perl.BootOrder(value)) > 0 {
		going["bootdisk"] = false
	}
	delete(going, key)
	g.SetDeletions(going)
	c.W.Write(g)
	return nil
}

// setDrive allocates what a drive orders; the result waits.
func setDrive(c *core.Call, g *core.Guest, key, value string, order *[]string, modified map[string]bool, log func(string, ...any)) (string, error) {
	d := perl.ParseDrive(key, value)
	if old := g.Conf[key]; old != "" {
		before := perl.ParseDrive(key, old)
		err := mayChangeDrive(c, g.Vmid, before)
		if err == nil && key == "tpmstate0" {
			err = keepVersion(before, d)
		}
		if err != nil {
			return "", err
		}
	}
	if err := mayChangeDrive(c, g.Vmid, d); err != nil {
		return "", err
	}
	if waiting := g.Pend[key]; waiting != "" {
		unuse(c.W, g, perl.ParseDrive(key, waiting))
	}
	made, err := makeDisks(c.W, g, map[string]string{key: value}, "", log)
	if err != nil {
		return "", err
	}
	// A new CD drive is made bootable. One for cloud-init is not.
	if d.Cdrom() && !d.Cloudinit() && len(*order) > 0 && !slices.Contains(*order, key) {
		*order = append(*order, key)
		g.Pend["boot"] = perl.PrintBootOrder(*order)
		modified["boot"] = true
	}
	return made[key], nil
}

// coldplug makes the waiting changes of a VM that does not run
// (vmconfig_apply_pending in PVE/QemuServer.pm). A new drive of cloud-init is written;
// the error is that of this.
func coldplug(c *core.Call, g *core.Guest, problems map[string]string) error {
	if len(g.Pend) == 0 {
		return nil
	}
	going := g.Deletions()
	for _, key := range slices.Sorted(maps.Keys(going)) {
		if value, ok := g.Conf[key]; ok && perl.IsDrive(key) {
			if err := dropDrive(c, g, key, value, going[key]); err != nil {
				problems[key] = "unable to apply pending change " + key + " : " + err.Error() + "\n"
				continue
			}
		}
		delete(going, key)
		delete(g.Conf, key)
	}
	g.SetDeletions(going)
	guests.CleanupPending(g)
	generate := false
	for _, key := range slices.Sorted(maps.Keys(g.Pend)) {
		if key == "delete" {
			continue
		}
		value := g.Pend[key]
		if old, ok := g.Conf[key]; ok && perl.IsDrive(key) {
			if before := perl.ParseDrive(key, old); before.File != perl.ParseDrive(key, value).File {
				unuse(c.W, g, before)
			}
		}
		generate = generate || perl.IsDrive(key) && perl.ParseDrive(key, value).Cloudinit()
		g.Conf[key] = value
		delete(g.Pend, key)
	}
	if !generate {
		return nil
	}
	return writeCloudDrive(c.W, g, g.Conf, func(string, ...any) {})
}

// dropDrive takes a drive off: its volume stays as unused, or goes by force.
func dropDrive(c *core.Call, g *core.Guest, key, value string, force bool) error {
	d := perl.ParseDrive(key, value)
	if !force || d.Cdrom() && !d.Cloudinit() {
		unuse(c.W, g, d)
		return nil
	}
	return deallocate(c, g, key, d)
}

// unuse keeps the volume of a drive that goes, if it is the guest's own; one of
// cloud-init is freed.
func unuse(w *core.World, g *core.Guest, d perl.Drive) {
	switch {
	case d.Cloudinit():
		_ = core.Free(w, g.Node, d.File) // PVE only warns.
		clear(g.Cloud)
	case !d.Cdrom() && guests.Owns(w, g, d.File):
		g.Conf.AddUnused(d.File)
	}
}

// deallocate frees the volume of a drive (try_deallocate_drive).
func deallocate(c *core.Call, g *core.Guest, key string, d perl.Drive) error {
	if !guests.Owns(c.W, g, d.File) {
		return nil
	}
	storage, _, _ := core.VolumeID(d.File)
	if err := c.Need("/storage/"+storage, "Datastore.AllocateSpace"); err != nil {
		return err
	}
	for other, value := range g.Conf {
		if other != key && perl.IsDrive(other) && perl.ParseDrive(other, value).File == d.File {
			return perl.Fail("unable to delete '%s' - volume is still in use (snapshot?)", d.File)
		}
	}
	for _, s := range g.Snapshots {
		for _, volid := range guests.Disks(g, s.Conf) {
			if volid == d.File {
				return perl.Fail("unable to delete '%s' - volume is still in use (snapshot?)", d.File)
			}
		}
	}
	return core.Free(c.W, g.Node, d.File)
}

// pinMachine is the machine of a guest as it is stored; empty: as it was. Windows gets
// upset when its machine changes, so its version is pinned (check_and_pin_machine_string
// in PVE/QemuServer/Machine.pm).
func pinMachine(w *core.World, value, ostype string) (string, error) {
	machine := perl.ParseProperty("machine", value)
	kind := machine["type"]
	if chipset, unversioned := map[string]string{"": "i440fx", "pc": "i440fx", "q35": "q35"}[kind]; unversioned && isWindows(ostype) {
		kind = "pc-" + chipset + "-" + guests.MachineVersion(w)
	}
	if err := checkMachine(value); err != nil {
		return "", err
	}
	delete(machine, "type")
	return strings.Trim(kind+","+printOptions(machine), ","), nil
}
