package guest

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/engine/model"
)

// The settings of network cards that VMs (qemu-server, PVE/QemuServer/Network.pm) and containers
// (pve-container, PVE/LXC/Config.pm) have in common. In both, a missing member of the property
// string means the same as 0.

// readNIC reads a card of a VM. Its addresses are in another key, see IPConfigKey.
func readNIC(name, value string) NIC {
	p := api.ParseProperty(value)
	model, mac := p.CardModel()
	return NIC{
		Name: name, Bridge: p.Values["bridge"], VLAN: readCount(p.Values["tag"]), MAC: strings.ToUpper(mac), Model: model,
		Firewall: isOn(p.Values["firewall"]), MTU: readCount(p.Values["mtu"]), Queues: readCount(p.Values["queues"]),
		Rate: readRate(p.Values["rate"]), LinkDown: isOn(p.Values["link_down"]), Trunks: parseTrunks(p.Values["trunks"]),
	}
}

// members are the members of the card's key that have an attribute; "" for the default.
func (n NIC) members() map[string]string {
	return map[string]string{
		"bridge": n.Bridge, "tag": countText(n.VLAN), "firewall": flagText(n.Firewall), "mtu": countText(n.MTU), "queues": countText(n.Queues),
		"rate": RateText(n.Rate), "link_down": flagText(n.LinkDown), "trunks": strings.Join(n.Trunks, ";"),
	}
}

// Text is the value of the card's key. Members of old, the present value, that are not attributes are kept, above
// all the MAC address that PVE generated: without it every write would generate another one. Members whose meaning
// does not change keep their text, since PVE takes queues=0 and an absent queues for two different cards.
func (n NIC) Text(old string) string {
	p := api.ParseProperty(old)
	model, mac := p.CardModel()
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
		if val := p.Values[key]; val != "" && key != "macaddr" && key != "model" && !slices.Contains(api.CardModels, key) {
			parts = append(parts, key+"="+val)
		}
	}
	return strings.Join(parts, ",")
}

// replugged reports whether PVE replaces a card of a running VM instead of changing it in place
// (qemu-server, PVE/QemuServer.pm, vmconfig_update_net).
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

// readCount reads a number; 0 if it is none.
func readCount(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0
	}
	return n
}

// RateText is a limit in MB/s as PVE writes it; "" for none.
func RateText(rate float64) string {
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

// shortIP6 is an IPv6 address, with or without prefix length, in its shortest form. A word such as
// dhcp stays as it is.
func shortIP6(s string) string {
	if p, err := netip.ParsePrefix(s); err == nil {
		return p.String()
	}
	if a, err := netip.ParseAddr(s); err == nil {
		return a.String()
	}
	return s
}

// BridgeMTU as the MTU of a card means that of its bridge (qemu-server, PVE/QemuServer/Network.pm).
const BridgeMTU = 1

// Port is a network card of a VM or a container: what it is connected to, and its addresses.
type Port struct {
	Name, Bridge, MAC, IP, IP6 string
	VLAN                       int
	Trunks                     []string
}

// Ports implements Guest.
func (v *VM) Ports() []Port { return portsOf(v.NICs) }

// Ports implements Guest.
func (c *CT) Ports() []Port { return portsOf(c.NICs) }

func (n NIC) port() Port { return Port{n.Name, n.Bridge, n.MAC, n.IP, n.IP6, n.VLAN, n.Trunks} }

func (n CTNIC) port() Port { return Port{n.Name, n.Bridge, n.MAC, n.IP, n.IP6, n.VLAN, n.Trunks} }

// FirstAddress returns what the first card declares of its address; the spec completes it.
func (v *VM) FirstAddress() (ip, gateway string) {
	if len(v.NICs) == 0 {
		return "", ""
	}
	return v.NICs[0].IP, v.NICs[0].Gateway
}

// FirstAddress is that of VM.FirstAddress.
func (c *CT) FirstAddress() (ip, gateway string) {
	if len(c.NICs) == 0 {
		return "", ""
	}
	return c.NICs[0].IP, c.NICs[0].Gateway
}

func portsOf[N interface{ port() Port }](nics []N) []Port {
	var out []Port
	for _, n := range nics {
		out = append(out, n.port())
	}
	return out
}

// claims are the addresses that no other guest may have.
func claims(ports []Port) []model.Claim {
	var out []model.Claim
	for _, p := range ports {
		path, on := "nic."+p.Name, p.network()
		if p.MAC != "" {
			out = append(out, model.Claim{What: "MAC address", Value: p.MAC, Path: path + ".mac", On: on})
		}
		if ip, err := netip.ParsePrefix(p.IP); err == nil {
			out = append(out, model.Claim{What: "static address", Value: ip.Addr().String(), Path: path + ".ip", On: on})
		}
		if ip, err := netip.ParsePrefix(p.IP6); err == nil {
			out = append(out, model.Claim{What: "static address", Value: ip.Addr().String(), Path: path + ".ip6", On: on})
		}
	}
	return out
}

// network is the bridge and the VLAN of a card, in words.
func (p Port) network() string {
	if p.VLAN == 0 {
		return p.Bridge
	}
	return fmt.Sprintf("%s, VLAN %d", p.Bridge, p.VLAN)
}

// IPConfig is the value of the key with the card's addresses; "" for none. Further members of old,
// the present value, are kept.
func (n NIC) IPConfig(old string) string {
	return api.ParseProperty(old).With(map[string]string{"ip": n.IP, "gw": n.Gateway, "ip6": n.IP6, "gw6": n.Gateway6}, "")
}

// IPConfigKey is the key with the addresses of the card at a slot.
func IPConfigKey(slot string) string { return "ipconfig" + strings.TrimPrefix(slot, "net") }

// parseTrunks converts the trunk of a network card, separated by semicolons, into the form of SortVLANs. Invalid
// parts are kept unchanged.
func parseTrunks(s string) []string {
	if s == "" {
		return nil
	}
	parts := strings.Split(s, ";")
	var list []api.VLANs
	ranges := strings.Contains(s, "-")
	for _, part := range parts {
		v, ok := api.ParseVLANs(part)
		if !ok {
			return parts
		}
		list = append(list, v)
	}
	return api.SortVLANs(list, ranges)
}
