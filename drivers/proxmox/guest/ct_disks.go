package guest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/property"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
)

// CTDiskMembers are the members of a mount point's key that are attributes, or the program's own.
var CTDiskMembers = []string{"volume", "mp", "backup", "size"}

// Text is a mount point on a volume that exists, or an order for one.
func (d CTDisk) Text(volume string) string {
	parts := []string{volume}
	if d.Path != "" {
		parts = append(parts, "mp="+d.Path)
	}
	if d.Backup {
		parts = append(parts, "backup=1")
	}
	return strings.Join(append(parts, memberTexts(d.Options)...), ",")
}

// NewValue asks for a new volume; 4 GiB is what PVE makes of a root disk without a size.
func (d CTDisk) NewValue(string) string {
	return d.Text(fmt.Sprintf("%s:%d", d.Storage, cmp.Or(d.Size, 4)))
}

// AttachValue mounts a volume that is mounted nowhere.
func (d CTDisk) AttachValue(volume, _ string) string { return d.Text(volume) }

// KeepValue mounts the volume of an observed mount point. Its size is information only, but
// PVE shows none of a change that waits unless it is sent along.
func (d CTDisk) KeepValue(observed string) string {
	text := d.Text(property.VolumeOf(observed))
	if size := property.Parse(observed).Values["size"]; size != "" {
		text += ",size=" + size
	}
	return text
}

// ReadCTDisk reads the value of a mount point.
func ReadCTDisk(name, value string) CTDisk {
	p := property.Parse(value).Values
	return CTDisk{
		Name: name, Size: property.GiB(p["size"]), Storage: property.StorageOf(value), Path: p["mp"], Backup: p["backup"] == "1", Options: furtherMembers(p, CTDiskMembers...),
	}
}

// MountKey is a key by which PVE describes the members of a disk.
func MountKey(name string) string { return pick(name == "root", "rootfs", "mp0") }

// Slots is as Target has it. The root disk always has its own.
func (c CTTarget) Slots(cfg view.Config, old map[string]string) map[string]string {
	fixed := rootSlot()
	maps.Copy(fixed, old)
	fixed["disk.root"] = "rootfs"
	return slots(c.devices(), cfg, fixed)
}

// devices are what has a slot.
func (c *CT) devices() []device {
	var out []device
	for _, d := range c.Disks {
		out = append(out, device{"disk." + d.Name, "mp"})
	}
	for _, n := range c.NICs {
		out = append(out, device{"nic." + n.Name, "net"})
	}
	return out
}

// rootSlot is where the root disk is, of every container.
func rootSlot() map[string]string { return map[string]string{"disk.root": "rootfs"} }

// furtherMembers are the members of a property string that have no attribute of their own.
func furtherMembers(values map[string]string, typed ...string) map[string]string {
	out := map[string]string{}
	for k, v := range values {
		if !slices.Contains(typed, k) {
			out[k] = v
		}
	}
	return out
}

func memberTexts(m map[string]string) []string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, k+"="+m[k])
	}
	return out
}
