package proxmox

import (
	"cmp"
	"fmt"

	"github.com/homestak/homestak-gitops/drivers/proxmox/drives"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
)

// buses are where a disk may be attached, with how many slots each has
// (qemu-server, PVE/QemuServer/Drive.pm, MAX_*_DISKS).
var buses = map[string]int{"scsi": 31, "virtio": 16, "sata": 6}

// drive joins a volume, or the order for one, with the settings that all disks of
// ours have, as far as the bus of their slot knows them.
func drive(volume, slot string) string {
	switch drives.Bus(slot) {
	case "virtio":
		return volume + ",discard=on,iothread=1"
	case "sata":
		return volume + ",discard=on,ssd=1"
	default:
		return volume + ",discard=on,iothread=1,ssd=1"
	}
}

// fromBlank is what the ownership tag says of a machine whose root disk was made of nothing.
const fromBlank = "blank"

// blank reports whether the root disk is made empty.
func (v vmTarget) blank() bool {
	root, _ := find(v.Disks, "root")
	return root.Blank
}

// attach puts a volume into a slot that is free.
func (Disk) attach(volume, slot string) string { return drive(volume, slot) }

// keep leaves a drive as it is.
func (Disk) keep(drive string) string { return drive }

// Order asks for a new volume of the disk's size.
func (d Disk) Order(slot string) string {
	return drive(fmt.Sprintf("%s:%d", d.Storage, max(d.Size, 1)), slot)
}

// slots: no disk gets a slot that the files give to a CD drive.
func (v vmTarget) slots(cfg view.Config, old map[string]string) map[string]string {
	return slots(v.devices(), v.beside(cfg), old)
}

// devices are what has a slot.
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
