package guest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/engine/model"
)

// BusSlots has the buses that a disk may be attached to, with the number of slots of each
// (qemu-server, PVE/QemuServer/Drive.pm, MAX_*_DISKS).
var BusSlots = map[string]int{"scsi": 31, "virtio": 16, "sata": 6}

// Drive is the value of a disk's key: volume, a volume or the order for one, with the settings that
// every managed disk has, as far as the bus of the slot supports them.
func Drive(volume, slot string) string {
	switch api.BusOf(slot) {
	case "virtio":
		return volume + ",discard=on,iothread=1"
	case "sata":
		return volume + ",discard=on,ssd=1"
	default:
		return volume + ",discard=on,iothread=1,ssd=1"
	}
}

// Blank reports whether the root disk is created empty.
func (v VMTarget) Blank() bool {
	root, _ := Find(v.Disks, "root")
	return root.Blank
}

// mostSerial is the maximum length of a serial number (qemu-server, PVE/QemuServer/Drive.pm).
const mostSerial = 20

// drive is the value of the disk's key. The name of a further disk is its serial number, by
// which the machine finds it while it is empty: the slot may be another after a move.
func (d Disk) drive(volume, slot string) string {
	value := Drive(volume, slot)
	if d.Name != "root" && len(d.Name) <= mostSerial {
		value += ",serial=" + d.Name
	}
	return value
}

// AttachValue attaches an unused volume at a slot.
func (d Disk) AttachValue(volume, slot string) string { return d.drive(volume, slot) }

// KeepValue keeps the present value.
func (Disk) KeepValue(drive string) string { return drive }

// NewValue orders a new volume of the disk's size.
func (d Disk) NewValue(slot string) string {
	return d.drive(fmt.Sprintf("%s:%d", d.Storage, max(d.Size, 1)), slot)
}

// Slots implements Target. No disk gets the slot of a declared CD drive.
func (v VMTarget) Slots(cfg api.GuestConfig, old map[string]string) map[string]string {
	return slots(v.devices(), v.withCDs(cfg), old)
}

// devices returns the disks or nics that have a slot.
func (v *VM) devices() []device {
	var out []device
	for _, d := range v.Disks {
		out = append(out, device{"disk." + d.Name, cmp.Or(d.Bus, "scsi")})
	}
	for _, n := range v.NICs {
		out = append(out, device{"nic." + n.Name, "net"})
	}
	return out
}

// BootDisk is the slot of the disk that a VM boots from.
func BootDisk(c map[string]string) string {
	order := api.ParseProperty(c["boot"]).Values["order"]
	for slot := range strings.SplitSeq(order, ";") {
		if api.IsDrive(slot) && c[slot] != "" && !strings.Contains(c[slot], "media=cdrom") {
			return slot
		}
	}
	for _, slot := range []string{"scsi0", "virtio0", "sata0", "ide0"} {
		if c[slot] != "" {
			return slot
		}
	}
	return "scsi0"
}

// refuseBus lists the disks that cannot go to another bus.
func refuseBus(v VMState, want VMTarget, have *model.Resource) []model.Problem {
	var out []model.Problem
	for _, w := range want.Disks {
		h, there := Find(v.Disks, w.Name)
		if !there || w.Bus == "" || w.Bus == h.Bus {
			continue
		}
		refuse := func(path, summary, detail string) {
			out = append(out, model.Problem{Path: path, Summary: summary, Detail: detail})
		}
		path, from := "disk."+w.Name+".bus", v.Tag.Slots["disk."+w.Name]
		boot := strings.Split(api.ParseProperty(want.Options["boot"]).Values["order"], ";")
		switch {
		case v.Protection:
			refuse(path, "it is protected, and so is its disk "+w.Name, "set protection = false in the files, apply it, then change the bus")
		case have.Guest.Hibernated != "" && want.Power == "running":
			refuse(path, fmt.Sprintf("the machine is hibernated, and expects disk %s where it is", w.Name), "keep the bus, start the machine, then change the bus")
		case have.Guest.Running && want.Power == "running" && want.Restart != "allowed":
			refuse(path, fmt.Sprintf("disk %s cannot go from bus %s to %s while the machine runs", w.Name, h.Bus, w.Bus),
				`set restart = "allowed", or power = "stopped" for as long as it takes; the machine then sees the disk under another name (/dev/vda, /dev/sda), so mount by UUID`)
		case slices.Contains(boot, from):
			refuse("options.boot", fmt.Sprintf("options.boot names %s, which disk %s leaves for bus %s", from, w.Name, w.Bus), "take boot out of options, or declare it without that slot, and put it back when the disk has its new place")
		}
	}
	return out
}
