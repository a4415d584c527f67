package guest

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
)

// CTNICMembers are the members of a card's key that are attributes, or that the program sets. Further members are
// managed like further options of the container: once the files declare them. The ownership tag lists those, so
// that one that leaves the files is removed. PVE sets some on its own, such as host-managed for a container of an
// OCI image (pve-container 6.0.15, PVE/LXC/Create.pm).
var CTNICMembers = []string{"name", "hwaddr", "type", "bridge", "tag", "ip", "gw", "ip6", "gw6", "firewall", "mtu", "rate", "link_down", "trunks"}

// Text is the value of the card's key. The device in the container is eth and the number of the
// slot, unless kept has its name. mac counts if the files name no address; kept are further members to
// write.
func (n CTNIC) Text(slot, mac string, kept map[string]string) string {
	further := map[string]string{"name": "eth" + strings.TrimPrefix(slot, "net")}
	maps.Copy(further, kept)
	maps.Copy(further, n.Options)
	parts := []string{"name=" + further["name"], "bridge=" + n.Bridge, "hwaddr=" + cmp.Or(n.MAC, mac)}
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
	delete(further, "name")
	return strings.Join(append(parts, memberTexts(further)...), ",")
}

// ReadCTNIC reads the value of a card's key.
func ReadCTNIC(name, value string) CTNIC {
	p := api.ParseProperty(value).Values
	return CTNIC{
		Name: name, Bridge: p["bridge"], VLAN: readCount(p["tag"]), MAC: strings.ToUpper(p["hwaddr"]), IP: p["ip"], Gateway: p["gw"],
		IP6: shortIP6(p["ip6"]), Gateway6: shortIP6(p["gw6"]), Firewall: isOn(p["firewall"]), MTU: readCount(p["mtu"]), Rate: readRate(p["rate"]),
		LinkDown: isOn(p["link_down"]), Trunks: parseTrunks(p["trunks"]), Options: furtherMembers(p, CTNICMembers...),
	}
}

// UnmanagedMembers are the further members of a card's value that the files have not declared since
// the last write.
func (o *Observation) UnmanagedMembers(nic, observed string) map[string]string {
	out := ReadCTNIC(nic, observed).Options
	if name := api.ParseProperty(observed).Values["name"]; name != "" {
		out["name"] = name
	}
	maps.DeleteFunc(out, func(member, _ string) bool { return slices.Contains(o.Tag.Options, memberOption(nic, member)) })
	return out
}

// memberOption is the name in the ownership tag of a member of a card.
func memberOption(nic, member string) string { return "nic." + nic + "." + member }
