package proxmox

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/property"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
)

// The settings of network cards: what VMs (qemu-server, PVE/QemuServer/Network.pm) and
// containers (pve-container, PVE/LXC/Config.pm) have in common. In both an absent member
// of the property string means the same as 0.

// defaultModel is the card that a VM gets unless the files name another one.
const defaultModel = "virtio"

// readNIC reads a card of a VM; its addresses stand in a key of their own.
func readNIC(name, value string) NIC {
	p := property.Parse(value)
	model, mac := property.CardModel(p)
	return NIC{
		Name: name, Bridge: p.Values["bridge"], VLAN: readCount(p.Values["tag"]), MAC: strings.ToUpper(mac), Model: model,
		Firewall: isOn(p.Values["firewall"]), MTU: readCount(p.Values["mtu"]), Queues: readCount(p.Values["queues"]),
		Rate: readRate(p.Values["rate"]), LinkDown: isOn(p.Values["link_down"]), Trunks: readTrunks(p.Values["trunks"]),
	}
}

// members are the members of a card's property string that have an attribute; "" for
// the default.
func (n NIC) members() map[string]string {
	return map[string]string{
		"bridge": n.Bridge, "tag": countText(n.VLAN), "firewall": flagText(n.Firewall), "mtu": countText(n.MTU), "queues": countText(n.Queues),
		"rate": rateText(n.Rate), "link_down": flagText(n.LinkDown), "trunks": strings.Join(n.Trunks, ";"),
	}
}

// card writes a nic's property string. What the old one holds without an attribute for
// it is kept, first of all the MAC address that PVE made up: without it every write
// would invent a new one. So is the text of what does not change in meaning, since PVE
// takes queues=0 and no queues for two different cards.
func card(old string, n NIC) string {
	p := property.Parse(old)
	model, mac := property.CardModel(p)
	if n.MAC != "" && !strings.EqualFold(n.MAC, mac) {
		mac = n.MAC
	}
	head := cmp.Or(n.Model, model)
	if mac != "" {
		head += "=" + mac
	}
	have := readNIC("", old).members()
	for key, val := range n.members() {
		if val != have[key] {
			p.Values[key] = val
		}
	}
	parts := []string{head}
	for _, key := range slices.Sorted(maps.Keys(p.Values)) {
		if val := p.Values[key]; val != "" && key != "macaddr" && key != "model" && !slices.Contains(property.CardModels, key) {
			parts = append(parts, key+"="+val)
		}
	}
	return strings.Join(parts, ",")
}

// replugged reports whether PVE unplugs a card of a running VM and plugs in another
// one, and does not just change its cable (qemu-server, PVE/QemuServer.pm,
// vmconfig_update_net).
func replugged(now, then string) bool {
	a, b := readNIC("", now), readNIC("", then)
	return a.Model != b.Model || a.MAC != b.MAC || a.Queues != b.Queues || a.MTU != b.MTU || a.Bridge == "" || b.Bridge == ""
}

func isOn(word string) bool { return pveapi.BooleanWord(word) == "1" }

func flagText(on bool) string { return pick(on, "1", "") }

func countText(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// readCount reads a number; 0 for what is none.
func readCount(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0
	}
	return n
}

// rateText is a limit in MB/s; "" for none.
func rateText(rate float64) string {
	if rate == 0 {
		return ""
	}
	return strconv.FormatFloat(rate, 'f', -1, 64)
}

func readRate(s string) float64 {
	rate, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0
	}
	return rate
}

// shortIP6 gives an IPv6 address, with or without prefix length, in its shortest form;
// a word such as dhcp as it is.
func shortIP6(s string) string {
	if p, err := netip.ParsePrefix(s); err == nil {
		return p.String()
	}
	if a, err := netip.ParseAddr(s); err == nil {
		return a.String()
	}
	return s
}

// sortVLANs brings the entries of a trunk into one form: sorted, each VLAN once. Ranges
// that touch become one, if there may be ranges.
func sortVLANs(list []property.VLANs, ranges bool) []string {
	slices.SortFunc(list, func(a, b property.VLANs) int { return a.First - b.First })
	var out []string
	for i := 0; i < len(list); {
		v := list[i]
		for i++; i < len(list) && (list[i].First <= v.Last || ranges && list[i].First == v.Last+1); i++ {
			v.Last = max(v.Last, list[i].Last)
		}
		out = append(out, v.String())
	}
	return out
}

// readTrunks reads the trunk of a card. What cannot be read stays as it is.
func readTrunks(s string) []string {
	if s == "" {
		return nil
	}
	parts := strings.Split(s, ";")
	var list []property.VLANs
	ranges := strings.Contains(s, "-")
	for _, part := range parts {
		v, ok := property.ParseVLANs(part)
		if !ok {
			return parts
		}
		list = append(list, v)
	}
	return sortVLANs(list, ranges)
}

// limits checks what a card of VMs and of containers is limited to, and gives its trunk
// in the one form. Containers have no ranges in theirs (pve-container, PVE/LXC/Config.pm).
func (r *guestResolver) limits(path string, rate float64, trunks []string, ranges bool) []string {
	if rate < 0 {
		r.errorf(path+".rate", "rate out of range", "%s MB/s is less than none", rateText(rate))
	}
	var list []property.VLANs
	for _, t := range trunks {
		v, ok := property.ParseVLANs(t)
		switch {
		case !ok && ranges:
			r.errorf(path+".trunks", fmt.Sprintf("%q is no VLAN and no range of them", t), "write a VLAN tag between 1 and %d, or a range such as 10-20", property.MaxVLAN)
		case !ok:
			r.errorf(path+".trunks", fmt.Sprintf("%q is no VLAN", t), "write a VLAN tag between 1 and %d", property.MaxVLAN)
		case !ranges && v.First != v.Last:
			r.errorf(path+".trunks", fmt.Sprintf("range %q in the trunk of a container", t), "PVE takes single VLAN tags there: list them one by one")
		default:
			list = append(list, v)
		}
	}
	return sortVLANs(list, ranges)
}
