package guest

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
)

// CTDiskMembers are the members of a mount point's key that are attributes, or that the program
// sets.
var CTDiskMembers = []string{"volume", "mp", "backup", "size"}

// Text is the value of a mount point's key: volume is a volume, or the order for one.
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

// NewValue requests a new volume. Without a size the root disk gets 4 GiB, PVE's default.
func (d CTDisk) NewValue(string) string {
	return d.Text(fmt.Sprintf("%s:%d", d.Storage, cmp.Or(d.Size, 4)))
}

// AttachValue mounts an unused volume.
func (d CTDisk) AttachValue(volume, _ string) string { return d.Text(volume) }

// KeepValue mounts the present volume. Its size is only information, but PVE does not show the size
// of a pending mount point unless the request has it.
func (d CTDisk) KeepValue(observed string) string {
	text := d.Text(api.VolumeOf(observed))
	if size := api.ParseProperty(observed).Values["size"]; size != "" {
		text += ",size=" + size
	}
	return text
}

// ReadCTDisk reads the value of a mount point's key.
func ReadCTDisk(name, value string) CTDisk {
	p := api.ParseProperty(value).Values
	return CTDisk{
		Name: name, Size: api.ParseGiB(p["size"]), Storage: api.StorageOf(value), Path: cleanPath(p["mp"]), Backup: p["backup"] == "1", Options: furtherMembers(p, CTDiskMembers...),
	}
}

// cleanPath is a path as the files have it.
func cleanPath(p string) string {
	if p == "" {
		return ""
	}
	return path.Clean(p)
}

// MountKey is the key under which PVE's API describes a disk.
func MountKey(name string) string { return pick(name == "root", "rootfs", "mp0") }

// Slots implements Target. The root disk is always at rootfs.
func (c CTTarget) Slots(cfg api.GuestConfig, old map[string]string) map[string]string {
	fixed := rootSlot()
	maps.Copy(fixed, old)
	fixed["disk.root"] = "rootfs"
	return slots(c.devices(), cfg, fixed)
}

// devices returns the disks or nics that have a slot.
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

// rootSlot has the slot of the root disk of every container.
func rootSlot() map[string]string { return map[string]string{"disk.root": "rootfs"} }

// furtherMembers are the members of a property string without those that are typed.
func furtherMembers(values map[string]string, typed ...string) map[string]string {
	out := map[string]string{}
	for k, v := range values {
		if !slices.Contains(typed, k) {
			out[k] = v
		}
	}
	return out
}

// memberTexts are members as "name=value", sorted.
func memberTexts(m map[string]string) []string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, k+"="+m[k])
	}
	return out
}
