package guest

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/model"
)

// A CD drive is an option of its slot, "local:iso/x.iso,media=cdrom". Like every option it is
// managed once a file names it. docs/decisions/0002-how-guests-are-read-and-compared.md says why.

// IsCD reports whether a key with a value is a CD drive that the files may declare: any except the
// cloud-init drive.
func IsCD(key, value string) bool {
	return api.MayHoldCD(key) && key != api.CloudInitSlot && api.HoldsCD(value) && !api.IsCloudInit(api.VolumeOf(value))
}

// sameCD reports whether two values mean the same CD drive. Their sizes do not count: PVE reads the
// size from the image.
func sameCD(key, a, b string) bool {
	return VMKeys().Same(key, withoutSize(a), withoutSize(b))
}

// withoutSize is a value without its member size.
func withoutSize(drive string) string {
	parts := slices.DeleteFunc(strings.Split(drive, ","), func(p string) bool { return strings.HasPrefix(p, "size=") })
	return strings.Join(parts, ",")
}

// CDSlots are the slots of the declared CD drives, sorted.
func (v VMTarget) CDSlots() []string {
	var out []string
	for key, value := range v.Options {
		if IsCD(key, value) {
			out = append(out, key)
		}
	}
	slices.Sort(out)
	return out
}

// withCDs is a configuration in which the slots of the declared CD drives are taken, so that no
// disk gets one of them.
func (v VMTarget) withCDs(cfg api.GuestConfig) api.GuestConfig {
	next := maps.Clone(cfg.Next)
	if next == nil {
		next = map[string]string{}
	}
	for _, slot := range v.CDSlots() {
		next[slot] = v.Options[slot]
	}
	cfg.Next = next
	return cfg
}

// plugCD is the class of a change of a CD drive. PVE changes the medium of a running VM at once on
// any bus; it adds and removes a drive as it does a disk (PVE/QemuServer.pm, vmconfig_update_disk
// and vmconfig_hotplug_pending).
func (v VMState) plugCD(key, value string) model.Class {
	fresh := value != "" && !api.HoldsCD(v.Config.Now[key])
	if file := api.VolumeOf(value); fresh && (file == api.EmptyMedium || file == "cdrom") {
		return model.ClassRestart // PVE activates the volume before it adds the drive, and there is none
	}
	if value != "" && !fresh || api.BusOf(key) == "scsi" && v.hotplugs("disk") {
		return model.ClassHot
	}
	return model.ClassRestart
}

// refuseCDs lists the declared CD drives whose slot has something else. PVE does not make a CD
// drive of a disk, and the cloud-init drive would be lost.
func refuseCDs(w VMTarget, h VMState) []model.Problem {
	var out []model.Problem
	for _, slot := range w.CDSlots() {
		there, name := h.Config.Next[slot], h.deviceAt(slot)
		if there == "" && name == "" || IsCD(slot, there) {
			continue
		}
		what := "a drive that was attached by hand"
		if name != "" {
			what = strings.Replace(name, ".", " ", 1)
		} else if api.HoldsCD(there) {
			what = "a cloud-init drive"
		}
		out = append(out, model.Problem{
			Path: "options." + slot, Summary: fmt.Sprintf("slot %s has no room for a CD drive: it is that of %s", slot, what),
			Detail: "take another slot for it: one that is free, on ide, sata or scsi",
		})
	}
	return out
}

// BootOrder is the boot order of a new VM if no file declares one: the root disk, then the CD
// drives. A VM with a blank root disk also tries its first card, as PVE does by default. m has the
// slots.
func (v VMTarget) BootOrder(m owner.Tag) string {
	order := append([]string{m.Slots["disk.root"]}, v.CDSlots()...)
	if v.Blank() && len(v.NICs) > 0 {
		order = append(order, m.Slots["nic."+v.NICs[0].Name])
	}
	return "order=" + strings.Join(order, ";") + v.bootTail()
}

// behind reports whether longer is order with further devices at its end, all of which meet also.
func behind(order, longer string, also func(dev string) bool) bool {
	rest, ok := strings.CutPrefix(api.ParseProperty(longer).Values["order"], api.ParseProperty(order).Values["order"])
	if !ok || rest == "" || rest[0] != ';' {
		return false
	}
	for dev := range strings.SplitSeq(rest[1:], ";") {
		if !also(dev) {
			return false
		}
	}
	return true
}

// ignoreBootUpkeep is a configuration in which a pending boot order does not count if PVE caused the change: it
// appends a CD drive of a running VM when its medium changes, and removes a drive that is deleted
// (PVE/API2/Qemu.pm, $update_vm_api). That needs neither a restart nor a revert.
func ignoreBootUpkeep(c api.GuestConfig) api.GuestConfig {
	there := func(dev string) bool { return c.Next[dev] != "" }
	c.BootUpkeep = c.IsPending("boot") && BootOrderFollows(c.Now["boot"], c.Next["boot"], there, func(dev string) bool { return api.HoldsCD(c.Next[dev]) })
	return c
}

// BootOrderFollows reports whether PVE itself changes a boot order to then: it removes missing devices, and appends
// CD drives.
func BootOrderFollows(order, then string, there, disc func(dev string) bool) bool {
	was, now := api.ParseProperty(order).Values["order"], api.ParseProperty(then).Values["order"]
	left := slices.DeleteFunc(strings.Split(was, ";"), func(dev string) bool { return !there(dev) })
	devices := strings.Split(now, ";")
	if was == "" || now == "" || len(devices) < len(left) || !slices.Equal(left, devices[:len(left)]) {
		return false
	}
	return !slices.ContainsFunc(devices[len(left):], func(dev string) bool { return !disc(dev) })
}

// cdNeeds adds the privileges for a CD drive (pve-storage, PVE/Storage.pm, check_volume_access).
func cdNeeds(n *kind.Needs, key, value string) {
	storage := api.StorageOf(value)
	if api.VolumeOf(value) == api.EmptyMedium {
		return
	}
	attr := "options." + key
	n.Uses = append(n.Uses, kind.StorageUse{Storage: storage, Content: "iso", GiB: 0, By: n.From, Attr: attr})
	path := "/storage/" + storage
	n.Add(kind.Need{
		Grant: kind.Grant{Path: path, Priv: "Datastore.Audit"}, Role: kind.RoleISOs, For: "putting an ISO image into CD drive " + key,
		Or: [][]kind.Grant{{{Path: path, Priv: "Datastore.AllocateSpace"}}},
	}, attr)
}
