package proxmox

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/property"
	"github.com/homestak/homestak-gitops/engine/model"
)

// port is a network card of a guest, by what it is plugged into.
type port struct {
	name, bridge, mac, ip, ip6 string
	vlan                       int
	trunks                     []string
}

func (p port) label() string { return p.name }

func (v *VM) ports() []port { return portsOf(v.NICs) }
func (c *CT) ports() []port { return portsOf(c.NICs) }

func (n NIC) port() port   { return port{n.Name, n.Bridge, n.MAC, n.IP, n.IP6, n.VLAN, n.Trunks} }
func (n CTNIC) port() port { return port{n.Name, n.Bridge, n.MAC, n.IP, n.IP6, n.VLAN, n.Trunks} }

func portsOf[N interface{ port() port }](nics []N) []port {
	var out []port
	for _, n := range nics {
		out = append(out, n.port())
	}
	return out
}

// claims are what no second guest may have.
func claims(ports []port) []model.Claim {
	var out []model.Claim
	for _, p := range ports {
		path, on := "nic."+p.name, p.network()
		if p.mac != "" {
			out = append(out, model.Claim{What: "MAC address", Value: p.mac, Path: path + ".mac", On: on})
		}
		if ip, err := netip.ParsePrefix(p.ip); err == nil {
			out = append(out, model.Claim{What: "static address", Value: ip.Addr().String(), Path: path + ".ip", On: on})
		}
		if ip, err := netip.ParsePrefix(p.ip6); err == nil {
			out = append(out, model.Claim{What: "static address", Value: ip.Addr().String(), Path: path + ".ip6", On: on})
		}
	}
	return out
}

// network names what a card is plugged into.
func (p port) network() string {
	if p.vlan == 0 {
		return p.bridge
	}
	return fmt.Sprintf("%s, VLAN %d", p.bridge, p.vlan)
}

// asksHost: of a VM the options may ask for volumes, too.
func (v vmTarget) asksHost(other state) bool {
	have := other.(vmState)
	return len(v.newMedia(have.observe.Next)) > 0 || equips(v, have) ||
		slices.ContainsFunc([]string{"efidisk0", "tpmstate0"}, func(key string) bool {
			return v.Options[key] != "" && property.StorageOf(v.Options[key]) != property.StorageOf(have.observe.Next[key])
		})
}

func (c ctTarget) asksHost(have state) bool { return equips(c, have) }

// equips reports whether a guest is to start, a disk to lie where it does not, or a
// card to be plugged in, or addressed, as it is not.
func equips(want target, have state) bool {
	if want.common().power == "running" && have.common().power != "running" {
		return true
	}
	for _, w := range want.volumes().list {
		h, there := find(have.volumes().list, w.name)
		if !there || w.storage != "" && w.storage != h.storage {
			return true
		}
	}
	has := have.ports()
	return slices.ContainsFunc(want.ports(), func(w port) bool {
		h, there := find(has, w.name)
		return !there || w.bridge != h.bridge || w.mac != "" && !strings.EqualFold(w.mac, h.mac)
	})
}
