package pve

import (
	"net/netip"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
	"github.com/homestak/homestak-gitops/sim/pve/qemu"
)

// Reaches tells whether a guest has an address and is up, so that something could
// answer there. Guests have no network: this is all that can be known of it.
func (h *Host) Reaches(ip netip.Addr) bool {
	_, up := h.GuestAt(ip)
	return up
}

// GuestAt finds the guest that is up and has an address.
func (h *Host) GuestAt(ip netip.Addr) (key string, up bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.w.Advance(h.clock.now())
	for _, g := range h.w.Guests {
		if g.Run != nil && guests.Obeys(h.w, g) && has(h.w, g, ip.String()) {
			return g.Key(), true
		}
	}
	return "", false
}

// Address is that of the first interface of a guest that runs; "" without one.
func (h *Host) Address(vmid int) (text string) {
	h.withWorld(func(w *core.World) {
		if g := w.Guests[vmid]; g != nil && g.Run != nil {
			m := g.AsMachine(w)
			if ip, err := netip.ParsePrefix(m.Address); err == nil {
				text = ip.Addr().String()
			} else if m.Address != "" {
				text = m.Lease.Addr().String()
			}
		}
	})
	return text
}

// Systems returns the systems inside the guests, as configured.
func (h *Host) Systems() core.Systems { return h.cfg.Systems }

// has tells whether one of a guest's cards has an address.
func has(w *core.World, g *core.Guest, ip string) bool {
	for _, key := range g.Conf.IndexedKeys("net") {
		_, n := perl.SplitKey(key)
		p := perl.ParseProperty(key, g.Conf[key])
		if g.Kind == "lxc" {
			p = perl.CTProperty(key, g.Conf[key])
		}
		static, _, _ := strings.Cut(p["ip"], "/")
		static6, _, _ := strings.Cut(p["ip6"], "/")
		if ip == static || ip == static6 || p["ip"] == "dhcp" && g.Leased(w, n).Addr().String() == ip {
			return true
		}
		for _, a := range qemu.GuestAddresses(w, g, n, strings.ToLower(p["macaddr"])) {
			if g.Kind != "lxc" && a["ip-address"] == ip {
				return true
			}
		}
	}
	return false
}
