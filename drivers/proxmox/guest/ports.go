package guest

import (
	"fmt"
	"net/netip"

	"github.com/homestak/homestak-gitops/engine/model"
)

// Port is a network card of a guest, by what it is plugged into.
type Port struct {
	Name, Bridge, MAC, IP, IP6 string
	VLAN                       int
	Trunks                     []string
}

func (p Port) label() string { return p.Name }

// Ports are its network cards.
func (v *VM) Ports() []Port { return portsOf(v.NICs) }

// Ports are its network cards.
func (c *CT) Ports() []Port { return portsOf(c.NICs) }

func (n NIC) port() Port   { return Port{n.Name, n.Bridge, n.MAC, n.IP, n.IP6, n.VLAN, n.Trunks} }
func (n CTNIC) port() Port { return Port{n.Name, n.Bridge, n.MAC, n.IP, n.IP6, n.VLAN, n.Trunks} }

func portsOf[N interface{ port() Port }](nics []N) []Port {
	var out []Port
	for _, n := range nics {
		out = append(out, n.port())
	}
	return out
}

// claims are what no second guest may have.
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

// network names what a card is plugged into.
func (p Port) network() string {
	if p.VLAN == 0 {
		return p.Bridge
	}
	return fmt.Sprintf("%s, VLAN %d", p.Bridge, p.VLAN)
}
