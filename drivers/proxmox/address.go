package proxmox

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/guest"
)

// nic is a network card of a guest, as configured on its host.
type nic struct {
	Name     string         // net0
	MAC      string         // in any case
	Static   []netip.Prefix // configured addresses of the guest
	Gateways []netip.Addr
}

// seenInterface is a network interface, as the guest reports it.
type seenInterface struct {
	MAC string
	IPs []netip.Prefix
}

// declaredAddress returns the static address of the first card, IPv4 before IPv6; false if it has none.
func declaredAddress(nics []nic) (guest.Address, bool) {
	if len(nics) == 0 || len(nics[0].Static) == 0 {
		return guest.Address{}, false
	}
	n := nics[0]
	ip := slices.MinFunc(n.Static, func(a, b netip.Prefix) int { return cmp.Compare(family(a), family(b)) }).Addr()
	return guest.Address{IP: ip, Why: fmt.Sprintf("%s on %s, as declared", ip, n.Name), Declared: true}, true
}

// chooseAddress selects one of the addresses that a guest reports. Only interfaces with the MAC of one of
// its cards count, so a docker bridge does not. An address in a subnet that is declared, by a
// static address or around a gateway (those of the cards and near), comes before others, then the
// first card, then IPv4. False if there is none to be reached at, as early in boot.
func chooseAddress(nics []nic, seen []seenInterface, near []netip.Addr, by string) (guest.Address, bool) {
	type candidate struct {
		at          netip.Prefix
		nic         int
		close, turn int
	}
	var all []candidate
	for i, n := range nics {
		for _, s := range seen {
			if n.MAC == "" || !strings.EqualFold(n.MAC, s.MAC) {
				continue
			}
			for _, ip := range s.IPs {
				if usable(ip.Addr()) {
					c := candidate{at: ip, nic: i, close: 1, turn: len(all)}
					if inside(ip, n, near) {
						c.close = 0
					}
					all = append(all, c)
				}
			}
		}
	}
	if len(all) == 0 {
		return guest.Address{}, false
	}
	best := slices.MinFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.close, b.close), cmp.Compare(a.nic, b.nic), cmp.Compare(family(a.at), family(b.at)), cmp.Compare(a.turn, b.turn))
	})
	ip := best.at.Addr()
	return guest.Address{IP: ip, Why: fmt.Sprintf("%s on %s by %s", ip, nics[best.nic].Name, by)}, true
}

// usable: what others can reach. A link-local address needs a zone that only the
// guest's neighbours know.
func usable(ip netip.Addr) bool {
	return ip.IsValid() && !ip.IsUnspecified() && !ip.IsLoopback() && !ip.IsMulticast() && !ip.IsLinkLocalUnicast()
}

// inside reports whether an address is in a subnet that the files name.
func inside(ip netip.Prefix, n nic, near []netip.Addr) bool {
	for _, s := range n.Static {
		if s.Masked().Contains(ip.Addr()) {
			return true
		}
	}
	for _, g := range slices.Concat(n.Gateways, near) {
		if ip.Masked().Contains(g) {
			return true
		}
	}
	return false
}

func family(p netip.Prefix) int {
	if p.Addr().Unmap().Is4() {
		return 4
	}
	return 6
}
