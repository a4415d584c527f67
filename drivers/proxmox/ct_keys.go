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

// rest are the members of a property string that have no attribute of their own.
func rest(values map[string]string, typed ...string) map[string]string {
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
		IP6: p["ip6"], Gateway6: p["gw6"], Firewall: p["firewall"] == "1", Options: rest(p, cardMembers...),
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

// on mounts the volume of an observed mount point. Its size is information only, but
// PVE shows none of a change that waits unless it is sent along.
func (d CTDisk) on(observed string) string {
	p := parseProperty(observed)
	text := d.text(p.first("volume"))
	if size := p.values["size"]; size != "" {
		text += ",size=" + size
	}
	return text
}

// order asks for a new volume; 4 GiB is what PVE makes of a root disk without a size.
func (d CTDisk) order() string {
	return d.text(fmt.Sprintf("%s:%d", d.Storage, or(d.Size, 4)))
}

func readCTDisk(name, value string) CTDisk {
	p := parseProperty(value)
	volume := p.first("volume")
	storage, _, _ := strings.Cut(volume, ":")
	return CTDisk{
		Name: name, Size: gib(p.values["size"]), Storage: storage, Path: p.values["mp"], Backup: p.values["backup"] == "1",
		Options: rest(p.values, mountMembers...),
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

// slotsCT assigns a slot to every disk and nic: those that have one keep it, the
// others take the lowest free one. A clone has its root disk and cards already.
func slotsCT(want *CT, cfg config, old map[string]string) map[string]string {
	out, used := map[string]string{}, map[string]bool{}
	for _, c := range []map[string]string{cfg.next, cfg.now} {
		for k := range c {
			used[k] = true
		}
	}
	assign := func(name, family string) {
		slot, known := old[name]
		for i := 0; !known; i++ {
			slot = fmt.Sprintf("%s%d", family, i)
			known = !used[slot] || old == nil && family == "net"
			known = known && !slices.Contains(slices.Collect(maps.Values(out)), slot)
		}
		out[name], used[slot] = slot, true
	}
	for _, d := range want.Disks { // a slot that is empty since somebody took its device out is still spoken for
		used[old["disk."+d.Name]] = true
	}
	for _, n := range want.NICs {
		used[old["nic."+n.Name]] = true
	}
	for _, d := range want.Disks {
		if d.Name == "root" {
			out["disk.root"] = "rootfs"
			continue
		}
		assign("disk."+d.Name, "mp")
	}
	for _, n := range want.NICs {
		assign("nic."+n.Name, "net")
	}
	return out
}
