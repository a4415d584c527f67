package proxmox

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// The keys of a container's configuration: their text, and what it means
// (pve-container, PVE/LXC/Config.pm).

// others are the members of a property string that have no attribute of their own.
func others(values map[string]string, typed ...string) map[string]string {
	out := map[string]string{}
	for k, v := range values {
		if !slices.Contains(typed, k) {
			out[k] = v
		}
	}
	return out
}

var (
	cardMembers  = []string{"name", "hwaddr", "type", "bridge", "tag", "ip", "gw", "ip6", "gw6", "firewall"}
	mountMembers = []string{"volume", "mp", "backup", "size"}
)

// text is a card as PVE takes it. The device inside is eth and the number of its slot.
func (n CTNIC) text(slot, mac string) string {
	parts := []string{"name=eth" + strings.TrimPrefix(slot, "net"), "bridge=" + n.Bridge, "hwaddr=" + or(n.MAC, mac)}
	for _, m := range [][2]string{{"ip", n.IP}, {"gw", n.Gateway}, {"ip6", n.IP6}, {"gw6", n.Gateway6}} {
		if m[1] != "" {
			parts = append(parts, m[0]+"="+m[1])
		}
	}
	if n.VLAN != 0 {
		parts = append(parts, fmt.Sprintf("tag=%d", n.VLAN))
	}
	if n.Firewall {
		parts = append(parts, "firewall=1")
	}
	return strings.Join(append(parts, memberTexts(n.Options)...), ",")
}

func readCTNIC(name, value string) CTNIC {
	p := parseProperty(value).values
	return CTNIC{
		Name: name, Bridge: p["bridge"], VLAN: atoi(p["tag"], 0), MAC: strings.ToUpper(p["hwaddr"]), IP: p["ip"], Gateway: p["gw"],
		IP6: p["ip6"], Gateway6: p["gw6"], Firewall: p["firewall"] == "1", Options: others(p, cardMembers...),
	}
}

// text is a mount point on a volume that exists, or an order for one.
func (d CTDisk) text(volume string) string {
	parts := []string{volume}
	if d.Path != "" {
		parts = append(parts, "mp="+d.Path)
	}
	if d.Backup {
		parts = append(parts, "backup=1")
	}
	return strings.Join(append(parts, memberTexts(d.Options)...), ",")
}

// attach mounts a volume that is mounted nowhere.
func (d CTDisk) attach(volume, _ string) string { return d.text(volume) }

// keep mounts the volume of an observed mount point. Its size is information only, but
// PVE shows none of a change that waits unless it is sent along.
func (d CTDisk) keep(observed string) string {
	text := d.text(volumeOf(observed))
	if size := parseProperty(observed).values["size"]; size != "" {
		text += ",size=" + size
	}
	return text
}

// order asks for a new volume; 4 GiB is what PVE makes of a root disk without a size.
func (d CTDisk) order(string) string {
	return d.text(fmt.Sprintf("%s:%d", d.Storage, or(d.Size, 4)))
}

func readCTDisk(name, value string) CTDisk {
	p := parseProperty(value).values
	return CTDisk{
		Name: name, Size: gib(p["size"]), Storage: storageOf(value), Path: p["mp"], Backup: p["backup"] == "1", Options: others(p, mountMembers...),
	}
}

func memberTexts(m map[string]string) []string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, k+"="+m[k])
	}
	return out
}

// isMount reports whether a key is that of the root disk or a mount point.
func isMount(key string) bool {
	no, ok := strings.CutPrefix(key, "mp")
	_, err := strconv.Atoi(no)
	return key == "rootfs" || ok && err == nil
}

// mountKey is a key by which PVE describes the members of a disk.
func mountKey(name string) string { return pick(name == "root", "rootfs", "mp0") }

// isTypedCT reports whether a PVE key has an attribute of its own here, or is ours to write.
func isTypedCT(key string) bool {
	if isMount(key) {
		return true
	}
	switch strings.TrimRight(key, "0123456789") {
	case "hostname", "cores", "memory", "swap", "tags", "description", "onboot", "startup", "protection", "unprivileged", "features",
		"nameserver", "searchdomain", "timezone", "net", "unused", "lock", "digest", "template", "vmid", "node", "ostemplate",
		"password", "ssh-public-keys", "start", "pool", "storage", "force", "restore", "unique":
		return true
	default:
		return false
	}
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
