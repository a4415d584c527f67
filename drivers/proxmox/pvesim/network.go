package pvesim

import (
	"net/netip"
	"strings"
)

// Reaches tells whether a guest has an address and is up, so that something could
// answer there. Guests have no network: this is all that can be known of it.
func (h *Host) Reaches(ip netip.Addr) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.w.advance(h.clock.now())
	for _, g := range h.w.guests {
		if g.run != nil && h.w.obeys(g) && h.w.has(g, ip.String()) {
			return true
		}
	}
	return false
}

// has tells whether one of a guest's cards has an address.
func (w *world) has(g *guest, ip string) bool {
	for _, key := range indexedKeys(g.conf, "net") {
		_, n := splitKey(key)
		p := parseProperty(key, g.conf[key])
		if g.kind == "lxc" {
			p = ctProperty(key, g.conf[key])
		}
		static, _, _ := strings.Cut(p["ip"], "/")
		static6, _, _ := strings.Cut(p["ip6"], "/")
		if ip == static || ip == static6 || p["ip"] == "dhcp" && w.leased(g, n).Addr().String() == ip {
			return true
		}
		for _, a := range w.addresses(g, n, strings.ToLower(p["macaddr"])) {
			if g.kind != "lxc" && a["ip-address"] == ip {
				return true
			}
		}
	}
	return false
}
