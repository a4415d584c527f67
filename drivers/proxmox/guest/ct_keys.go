package guest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/drives"
	"github.com/homestak/homestak-gitops/drivers/proxmox/property"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
)

// The keys of a container's configuration: their text, and what it means
// (pve-container, PVE/LXC/Config.pm).

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

// The members of a card and of a mount point that have an attribute of their own.
var (
	CTNICMembers  = []string{"name", "hwaddr", "type", "bridge", "tag", "ip", "gw", "ip6", "gw6", "firewall", "mtu", "rate", "link_down", "trunks"}
	CTDiskMembers = []string{"volume", "mp", "backup", "size"}
)

// Text is a card as PVE takes it. The device inside is eth and the number of its slot;
// kept are members of the card that is there which the files say nothing of.
func (n CTNIC) Text(slot, mac string, kept map[string]string) string {
	parts := []string{"name=eth" + strings.TrimPrefix(slot, "net"), "bridge=" + n.Bridge, "hwaddr=" + cmp.Or(n.MAC, mac)}
	for _, m := range [][2]string{
		{"ip", n.IP},
		{"gw", n.Gateway},
		{"ip6", n.IP6},
		{"gw6", n.Gateway6},
		{"tag", countText(n.VLAN)},
		{"firewall", flagText(n.Firewall)},
		{"mtu", countText(n.MTU)},
		{"rate", RateText(n.Rate)},
		{"link_down", flagText(n.LinkDown)},
		{"trunks", strings.Join(n.Trunks, ";")},
	} {
		if m[1] != "" {
			parts = append(parts, m[0]+"="+m[1])
		}
	}
	further := maps.Clone(kept)
	if further == nil {
		further = map[string]string{}
	}
	maps.Copy(further, n.Options)
	return strings.Join(append(parts, memberTexts(further)...), ",")
}

// ReadCTNIC reads the value of a card.
func ReadCTNIC(name, value string) CTNIC {
	p := property.Parse(value).Values
	return CTNIC{
		Name: name, Bridge: p["bridge"], VLAN: readCount(p["tag"]), MAC: strings.ToUpper(p["hwaddr"]), IP: p["ip"], Gateway: p["gw"],
		IP6: shortIP6(p["ip6"]), Gateway6: shortIP6(p["gw6"]), Firewall: isOn(p["firewall"]), MTU: readCount(p["mtu"]), Rate: readRate(p["rate"]),
		LinkDown: isOn(p["link_down"]), Trunks: property.Trunks(p["trunks"]), Options: furtherMembers(p, CTNICMembers...),
	}
}

// Members of a card that have no attribute are ours as further keys of the container
// are: by being declared. The mark lists those, so that one that leaves the files goes.
// PVE sets some by itself, such as host-managed for a container of an OCI image
// (pve-container 6.0.15, PVE/LXC/Create.pm).

// memberOption is how the ownership tag lists a member of a card.
func memberOption(nic, member string) string { return "nic." + nic + "." + member }

// Declared are the keys of the container that the files set, and the further members of
// its cards.
func (c *CT) Declared() map[string]string {
	out := maps.Clone(c.Options)
	for _, n := range c.NICs {
		for member, val := range n.Options {
			if out == nil {
				out = map[string]string{}
			}
			out[memberOption(n.Name, member)] = val
		}
	}
	return out
}

// UnmanagedMembers are the members of an observed card that the files neither name nor named.
func (o *Observation) UnmanagedMembers(nic, observed string) map[string]string {
	out := ReadCTNIC(nic, observed).Options
	maps.DeleteFunc(out, func(member, _ string) bool { return slices.Contains(o.Tag.Options, memberOption(nic, member)) })
	return out
}

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

// Attach mounts a volume that is mounted nowhere.
func (d CTDisk) Attach(volume, _ string) string { return d.Text(volume) }

// Keep mounts the volume of an observed mount point. Its size is information only, but
// PVE shows none of a change that waits unless it is sent along.
func (d CTDisk) Keep(observed string) string {
	text := d.Text(property.VolumeOf(observed))
	if size := property.Parse(observed).Values["size"]; size != "" {
		text += ",size=" + size
	}
	return text
}

// Order asks for a new volume; 4 GiB is what PVE makes of a root disk without a size.
func (d CTDisk) Order(string) string {
	return d.Text(fmt.Sprintf("%s:%d", d.Storage, cmp.Or(d.Size, 4)))
}

// ReadCTDisk reads the value of a mount point.
func ReadCTDisk(name, value string) CTDisk {
	p := property.Parse(value).Values
	return CTDisk{
		Name: name, Size: property.GiB(p["size"]), Storage: property.StorageOf(value), Path: p["mp"], Backup: p["backup"] == "1", Options: furtherMembers(p, CTDiskMembers...),
	}
}

func memberTexts(m map[string]string) []string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, k+"="+m[k])
	}
	return out
}

// MountKey is a key by which PVE describes the members of a disk.
func MountKey(name string) string { return pick(name == "root", "rootfs", "mp0") }

// IsReservedCT reports whether a PVE key has an attribute of its own here, or is ours to write.
func IsReservedCT(key string) bool {
	if drives.IsMount(key) || CTAttributes().ByKey(key) != nil {
		return true
	}
	switch strings.TrimRight(key, "0123456789") {
	case "description", "net", "unused", "lock", "digest", "template", "vmid", "node", "ostemplate",
		"ssh-public-keys", "start", "pool", "storage", "force", "restore", "unique":
		return true
	default:
		return false
	}
}

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
