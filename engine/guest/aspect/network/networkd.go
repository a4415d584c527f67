package network

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/aspect"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
)

// networkdFile comes before those of netplan and cloud-init, which begin with 10-: the first file that
// matches an interface counts, wherever it is (systemd.network(5)).
const networkdFile = "/etc/systemd/network/00-homestak-gitops.network"

// networkdProbe reads what systemd-networkd knows of the interface, and the file that it uses.
const networkdProbe = `if command -v networkctl >/dev/null && systemctl is-active --quiet systemd-networkd 2>/dev/null; then
  _st=$(networkctl --no-pager --lines=0 status -- "$_dev" 2>/dev/null) || _st=$(networkctl --no-pager status -- "$_dev" 2>/dev/null) || _st=
  printf '%s\n' "$_st" | row networkd
  _f=$(printf '%s\n' "$_st" | sed -n 's/^ *Network File: *//p' | head -n 1)
  if [ -f "$_f" ]; then row unit "$_f" <"$_f"; fi
  for _d in "/etc/systemd/network/${_f##*/}.d" "/run/systemd/network/${_f##*/}.d"; do
    for _c in "$_d"/*.conf; do if [ -f "$_c" ]; then row unit "$_c" <"$_c"; fi; done
  done
fi`

// networkdHas reports whether systemd-networkd configures the interface, by what networkctl says.
func networkdHas(status string) bool {
	for line := range strings.Lines(status) {
		if key, value, _ := strings.Cut(strings.TrimSpace(line), ": "); key == "State" {
			return !strings.Contains(value, "unmanaged")
		}
	}
	return false
}

// unitSection is one section of a .network file.
type unitSection struct {
	name  string
	lines []string
}

func (s unitSection) get(key string) string {
	for _, l := range s.lines {
		if k, v, ok := strings.Cut(l, "="); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// readUnit takes a .network file apart. Sections of one name are one, but those that may occur
// several times.
func readUnit(text string) []unitSection {
	var out []unitSection
	at := -1
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || strings.HasPrefix(line, "#") || strings.HasPrefix(line, ";"):
		case strings.HasPrefix(line, "[") && strings.HasSuffix(line, "]"):
			name := strings.Trim(line, "[]")
			at = slices.IndexFunc(out, func(s unitSection) bool { return s.name == name })
			if at < 0 || slices.Contains([]string{"Address", "Route", "Neighbor", "NextHop", "RoutingPolicyRule"}, name) {
				out = append(out, unitSection{name: name})
				at = len(out) - 1
			}
		case at >= 0:
			out[at].lines = append(out[at].lines, line)
		}
	}
	return out
}

// unitConfig returns the IPv4 configuration of a .network file.
func unitConfig(text string) (c netConfig, dns []string) {
	for _, s := range readUnit(text) {
		for _, l := range s.lines {
			key, value, _ := strings.Cut(l, "=")
			key, value = strings.TrimSpace(key), strings.TrimSpace(value)
			switch s.name + "." + key {
			case "Network.DHCP":
				if slices.Contains([]string{"yes", "true", "1", "on", "both", "ipv4", "v4"}, value) {
					c.ip = spec.DHCP
				}
			case "Network.Address", "Address.Address":
				if isIPv4(value) && c.ip == "" {
					c.ip = value
				}
			case "Network.Gateway":
				if isIPv4(value) {
					c.gateway = value
				}
			case "Route.Gateway":
				if isIPv4(value) && isDefault(s) {
					c.gateway = value
				}
			case "Network.DNS":
				dns = append(dns, strings.Fields(value)...)
			}
		}
	}
	return c, dns
}

func isIPv4(text string) bool {
	addr, _, _ := strings.Cut(text, "/")
	ip, err := netip.ParseAddr(addr)
	return err == nil && ip.Is4()
}

// isDefault reports whether a section is the default route of IPv4.
func isDefault(s unitSection) bool {
	to := s.get("Destination")
	return to == "0.0.0.0/0" || to == "" && isIPv4(s.get("Gateway"))
}

// networkdFiles is our file: that which is used otherwise, with another address for this interface.
func (f netFound) networkdFiles(goal netGoal, e *guest.RecordEntry) netFile {
	if goal.back {
		return f.replace(networkdFile, "", true)
	}
	base := f.unit
	if e != nil && e.Found["unit"] != "" {
		base = e.Found["unit"]
	}
	return f.replace(networkdFile, unitText(f.dev, base, goal), false)
}

// unitText is a .network file for one interface with an address, and all the rest of a base.
func unitText(dev, base string, goal netGoal) string {
	own := []string{}
	dhcp := "no"
	var sections []unitSection
	first := true // only the first address is replaced, as those beside it belong to others
	for _, s := range readUnit(base) {
		var kept []string
		drop := s.name == "Match" || s.name == "Route" && isDefault(s)
		if s.name == "Address" && isIPv4(s.get("Address")) && first {
			drop, first = true, false
		}
		for _, l := range s.lines {
			key, value, _ := strings.Cut(l, "=")
			key, value = strings.TrimSpace(key), strings.TrimSpace(value)
			switch {
			case s.name == "Network" && key == "DHCP":
				if slices.Contains([]string{"yes", "true", "1", "on", "both", "ipv6", "v6"}, value) {
					dhcp = "ipv6"
				}
			case s.name == "Network" && key == "Address" && isIPv4(value) && first:
				first = false
			case s.name == "Network" && key == "Gateway" && isIPv4(value):
			case s.name == "Network" && key == "DNS" && len(goal.dns) > 0:
			case key == "UseDNS" && goal.own:
			default:
				kept = append(kept, l)
			}
		}
		switch {
		case drop:
		case s.name == "Network":
			own = kept
		default:
			sections = append(sections, unitSection{s.name, kept})
		}
	}
	if goal.ip == spec.DHCP {
		dhcp = map[string]string{"no": "ipv4", "ipv6": "yes"}[dhcp]
	}
	var b strings.Builder
	b.WriteString(aspect.Heading + "[Match]\nName=" + dev + "\n\n[Network]\nDHCP=" + dhcp + "\n")
	if goal.ip != spec.DHCP && goal.ip != "" {
		b.WriteString("Address=" + goal.ip + "\n")
		if goal.gateway != "" {
			b.WriteString("Gateway=" + goal.gateway + "\n")
		}
	}
	for _, server := range goal.dns {
		b.WriteString("DNS=" + server + "\n")
	}
	for _, l := range own {
		b.WriteString(l + "\n")
	}
	if goal.own { // theirs would be asked, too
		for _, name := range []string{"DHCPv4", "DHCPv6", "IPv6AcceptRA"} {
			if i := slices.IndexFunc(sections, func(s unitSection) bool { return s.name == name }); i >= 0 {
				sections[i].lines = append(sections[i].lines, "UseDNS=no")
			} else {
				sections = append(sections, unitSection{name, []string{"UseDNS=no"}})
			}
		}
	}
	for _, s := range sections {
		if len(s.lines) > 0 {
			b.WriteString("\n[" + s.name + "]\n" + strings.Join(s.lines, "\n") + "\n")
		}
	}
	return b.String()
}
