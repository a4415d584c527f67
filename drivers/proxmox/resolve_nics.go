package proxmox

import (
	"cmp"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
)

// bridge is the bridge of cards that do not name one.
func (r *resolver) bridge() string {
	bridge := cmp.Or(r.in.Site.Bridge, "vmbr0")
	if h := r.in.Host; h != nil && h.Bridge != "" {
		bridge = h.Bridge
	}
	return bridge
}

// mac checks the VLAN tag and the MAC address of a card, and returns the address in PVE's form.
func (r *resolver) mac(path string, vlan int, mac string) string {
	mac = strings.ToUpper(mac)
	if vlan < 0 || vlan > 4094 {
		r.errorf(path+".vlan", "VLAN tag out of range", "%d is not between 1 and 4094", vlan)
	}
	if mac != "" && !macPattern.MatchString(mac) {
		r.errorf(path+".mac", fmt.Sprintf("%q is not the MAC address of a single card", mac), "write six bytes such as BC:24:11:00:00:01; the second digit must be even")
	}
	return mac
}

var macPattern = regexp.MustCompile(`(?i)^[0-9a-f][02468ace](:[0-9a-f]{2}){5}$`)

// firstAddress completes the address of the first card: the spec's, else dhcp. A static address
// also gets the site's gateway. words stand for other addresses than static ones.
func (r *resolver) firstAddress(ip, gateway string, words ...string) (fullIP, fullGateway string) {
	if spec := r.spec(); spec != nil && spec.Network != nil {
		ip, gateway = cmp.Or(ip, spec.Network.IP), cmp.Or(gateway, spec.Network.Gateway)
	}
	if r.bare {
		return ip, gateway
	}
	if ip = cmp.Or(ip, "dhcp"); !slices.Contains(words, ip) {
		gateway = cmp.Or(gateway, r.in.Site.Gateway)
	}
	return ip, gateway
}

// address checks an address and its gateway, and returns both in their shortest form. suffix is "6"
// for IPv6; a word may replace an address.
func (r *resolver) address(path, suffix, ip, gateway string, words ...string) (shortIP, shortGateway string) {
	if ip == "" || slices.Contains(words, ip) {
		switch {
		case gateway != "" && ip == "":
			r.errorf(path+".gateway"+suffix, "gateway without a static address", "set ip%s to an address, or remove the gateway", suffix)
		case gateway != "":
			r.errorf(path+".gateway"+suffix, "gateway without a static address", "with %q the gateway comes from elsewhere: remove it, or set an address", ip)
		}
		return ip, gateway
	}
	prefix, err := netip.ParsePrefix(ip)
	if err != nil || prefix.Addr().Is6() != (suffix == "6") {
		example := map[string]string{"": "10.0.12.5/24", "6": "fd00::5/64"}[suffix]
		r.errorf(path+".ip"+suffix, fmt.Sprintf("%q is not an address with prefix length", ip), "write an address such as %s, or one of %s", example, strings.Join(words, ", "))
		return ip, gateway
	}
	if h := r.in.Host; h != nil && hostAddress(h.API) == prefix.Addr() {
		r.warnf(path+".ip"+suffix, fmt.Sprintf("static address %s is that of host %s", prefix.Addr(), h.Name), "the api of the host block has it: give the guest another one, unless it is in another network, or passes connections on to the host")
	}
	if gateway == "" {
		return prefix.String(), ""
	}
	gw, err := netip.ParseAddr(gateway)
	switch {
	case err != nil:
		r.errorf(path+".gateway"+suffix, fmt.Sprintf("%q is not an address", gateway), "write the address alone, without prefix length")
	case gw.Is6() != prefix.Addr().Is6():
		r.errorf(path+".gateway"+suffix, fmt.Sprintf("%q is not an %s address", gateway, map[string]string{"": "IPv4", "6": "IPv6"}[suffix]),
			"gateway is for ip, gateway6 for ip6")
	case !prefix.Contains(gw) && !gw.IsLinkLocalUnicast():
		r.errorf(path+".ip"+suffix, fmt.Sprintf("gateway %s is not in the network of %s", gw, ip), "a gateway must be reachable directly: check the prefix length, or set gateway%s on the nic", suffix)
	case gw == prefix.Addr():
		r.warnf(path+".ip"+suffix, fmt.Sprintf("static address %s is that of its gateway", gw), "give the guest another one, or name the gateway that it uses in gateway%s of the nic", suffix)
		fallthrough
	default:
		gateway = gw.String()
	}
	return prefix.String(), gateway
}

// hostAddress is the address in the URL of an API; zero if a name is there.
func hostAddress(api string) netip.Addr {
	u, err := url.Parse(api)
	if err != nil {
		return netip.Addr{}
	}
	a, _ := netip.ParseAddr(u.Hostname())
	return a
}

// trunks checks the rate and the trunks of a card, and returns the trunks sorted and merged.
// Containers have no ranges in theirs (pve-container, PVE/LXC/Config.pm).
func (r *resolver) trunks(path string, rate float64, trunks []string, ranges bool) []string {
	if rate < 0 {
		r.errorf(path+".rate", "rate out of range", "%s MB/s is negative", guest.RateText(rate))
	}
	var list []api.VLANs
	for _, t := range trunks {
		v, ok := api.ParseVLANs(t)
		switch {
		case !ok && ranges:
			r.errorf(path+".trunks", fmt.Sprintf("%q is not a VLAN or a range of VLANs", t), "write a VLAN tag between 1 and %d, or a range such as 10-20", api.MaxVLAN)
		case !ok:
			r.errorf(path+".trunks", fmt.Sprintf("%q is not a VLAN", t), "write a VLAN tag between 1 and %d", api.MaxVLAN)
		case !ranges && v.First != v.Last:
			r.errorf(path+".trunks", fmt.Sprintf("range %q in the trunk of a container", t), "PVE takes single VLAN tags there: list them one by one")
		default:
			list = append(list, v)
		}
	}
	return api.SortVLANs(list, ranges)
}
