package pveapi

import (
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Formats of addresses and names on a network: pve-common (PVE/JSONSchema.pm,
// PVE/Tools.pm), pve-firewall (PVE/Firewall.pm), pve-storage (Storage/Plugin.pm)
// and pve-manager (PVE/NodeConfig.pm).

const (
	dnsLabel  = `[a-zA-Z0-9]([a-zA-Z0-9\-]*[a-zA-Z0-9])?`
	dnsName   = `(` + dnsLabel + `\.)*` + dnsLabel
	mailUser  = `[\w+\-~]+(\.[\w+\-~]+)*`
	mail      = mailUser + `@[a-zA-Z0-9\-]+(\.[a-zA-Z0-9\-]+)*`
	aliasName = `[A-Za-z][A-Za-z0-9\-_]+`
)

var (
	isInterface      = expression(`(?i:[a-z][a-z0-9_]{1,20}([:.][0-9]+)?)`)
	isNameAndPort    = expression(`[A-Za-z0-9\-.]+(?::[0-9]+)?`)
	isHostName       = expression(`[A-Za-z0-9\-.]+`)
	isPortSuffix     = expression(`(?::[0-9]+)?`)
	isRange          = expression(`[0-9]+(-[0-9]+)?`)
	isScopedAlias    = expression(`(?:(?:dc|guest)/)?` + aliasName)
	isAliasReference = expression(`(?:(?:dc|guest|sdn)/)?` + aliasName)
	isSetReference   = expression(`\+\S+`)
	isServiceName    = expression(`[A-Za-z][A-Za-z0-9.+_\-]*`)
)

func netShapes() map[string]shape {
	return map[string]shape{
		"dns-name":          {isDNSName, "value does not look like a valid DNS name"},
		"mac-addr":          {expression(`(?i:[a-f0-9][02468ace](?::[a-f0-9]{2}){5})`), "value does not look like a valid unicast MAC address"},
		"mac-prefix":        {expression(`(?i:[a-f0-9][02468ace](?::[a-f0-9]{2}){0,2}:?)`), "value is not a valid unicast MAC address prefix"},
		"email":             {expression(mail), "value does not look like a valid email address"},
		"email-or-username": {expression(`(?:` + mail + `|` + mailUser + `)`), "value does not look like a valid email address or user name"},
		"pve-iface":         {isInterface, "invalid network interface name '%s'"},
		"pve-bridge-id":     {expression(`[-_.\w]+`), "invalid bridge ID '%s'"},
		"pve-acme-domain":   {expression(`(?i:[a-z0-9][a-z0-9_-]*(?:\.[a-z0-9][a-z0-9_-]*)+)`), "value '%s' does not look like a valid domain name!"},
		"pve-acme-alias":    {expression(`(?i:[a-z0-9_][a-z0-9_-]*(?:\.[a-z0-9_][a-z0-9_-]*)+)`), "value '%s' does not look like a valid alias name!"},

		// The real rules ask /etc/protocols and tables of ICMP types; any name
		// that could stand there passes.
		"pve-fw-protocol-spec":    {expression(`(?:[A-Za-z0-9][A-Za-z0-9.+\-]*)?`), "unknown protocol '%s'"},
		"pve-fw-icmp-type-spec":   {expression(`[A-Za-z0-9\-/]*`), "invalid icmp-type value '%s'"},
		"pve-fw-conntrack-helper": {expression(`(?:amanda|ftp|irc|netbios-ns|pptp|sane|sip|snmp|tftp)`), "unknown helper '%s'"},
	}
}

func netFormats() map[string]func(word string) error {
	return map[string]func(word string) error{
		"ipv4":                 only("value does not look like a valid IPv4 address", isIPv4),
		"ipv6":                 only("value does not look like a valid IPv6 address", isIPv6),
		"ip":                   only("value does not look like a valid IP address", isIP),
		"ipv4mask":             only("value does not look like a valid IP netmask", isIPv4Mask),
		"address":              only("value does not look like a valid address: %s", isHost),
		"pve-storage-server":   only("value does not look like a valid server name or IP address", isHost),
		"CIDRv4":               only("value does not look like a valid IPv4 CIDR network", isCIDRv4),
		"CIDRv6":               only("value does not look like a valid IPv6 CIDR network", isCIDRv6),
		"CIDR":                 only("value does not look like a valid CIDR network", isCIDR),
		"IPorCIDR":             checkIPOrNet,
		"lxc-ip-with-ll-iface": only("value does not look like a valid IP address", isIPWithLink),
		"IPorCIDRorAlias": func(word string) error {
			if isScopedAlias(word) {
				return nil
			}
			return checkIPOrNet(word)
		},
		"pve-ipv4-config": only("value does not look like a valid ipv4 network configuration", func(word string) bool {
			return word == "dhcp" || word == "manual" || isCIDRv4(word)
		}),
		"pve-ipv6-config": only("value does not look like a valid ipv6 network configuration", func(word string) bool {
			return slices.Contains([]string{"auto", "dhcp", "manual"}, word) || isCIDRv6(word)
		}),
		"pve-storage-portal-dns": only("value does not look like a valid portal address", isHostAndPort),
		"pve-vlan-id-or-range":   checkVLANs,
		"pve-fw-addr-spec":       checkFirewallAddresses,
		"pve-fw-sport-spec":      checkFirewallPorts,
		"pve-fw-dport-spec":      checkFirewallPorts,
	}
}

// checkIPOrNet: what Net::IP says of a network that is too long is passed on
// (pve_verify_ip_or_cidr in PVE/Firewall.pm).
func checkIPOrNet(word string) error {
	ip, length, _ := strings.Cut(word, "/")
	switch addr, err := netip.ParseAddr(ip); {
	case isIPOrNet(word):
		return nil
	case err == nil && isDigits(length):
		return refuse(fmt.Sprintf("Prefix length %s is longer than IP address (%d)", length, addr.BitLen()), word)
	default:
		return refuse("value does not look like a valid IP address or CIDR network", word)
	}
}

// only makes a format of a yes-or-no test.
func only(message string, ok func(word string) bool) func(word string) error {
	return func(word string) error {
		if ok(word) {
			return nil
		}
		return refuse(message, word)
	}
}

func isIPv4(word string) bool {
	addr, err := netip.ParseAddr(word)
	return err == nil && addr.Is4()
}

func isIPv6(word string) bool {
	addr, err := netip.ParseAddr(word)
	return err == nil && addr.Is6() && addr.Zone() == ""
}

func isIP(word string) bool { return isIPv4(word) || isIPv6(word) }

func isHost(word string) bool { return isIP(word) || isDNSName(word) }

// isIPv4Mask: ones, then zeros.
func isIPv4Mask(word string) bool {
	addr, err := netip.ParseAddr(word)
	if err != nil || !addr.Is4() {
		return false
	}
	b := addr.As4()
	mask := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	return bits.LeadingZeros32(^mask)+bits.TrailingZeros32(mask) >= 32
}

// PVE takes networks from 8 bits on only, and host bits may be set.
func isCIDRv4(word string) bool { return isNet(word, isIPv4, 8, 32) }
func isCIDRv6(word string) bool { return isNet(word, isIPv6, 8, 128) }
func isCIDR(word string) bool   { return isCIDRv4(word) || isCIDRv6(word) }

func isNet(word string, isAddress func(string) bool, shortest, longest int) bool {
	address, length, ok := strings.Cut(word, "/")
	if !ok || !isAddress(address) || !isDigits(length) {
		return false
	}
	n, err := strconv.Atoi(length)
	return err == nil && n >= shortest && n <= longest
}

func isIPOrNet(word string) bool {
	return isIP(word) || isNet(word, isIPv4, 0, 32) || isNet(word, isIPv6, 0, 128)
}

// isIPWithLink: link-local IPv6 addresses may name an interface.
func isIPWithLink(word string) bool {
	if address, iface, ok := strings.Cut(word, "%"); ok {
		return strings.HasPrefix(address, "fe80:") && isIPv6(address) && isInterface(iface)
	}
	return isIP(word)
}

// isHostAndPort is parse_host_and_port in PVE/Tools.pm: host:port, [host]:port,
// or for IPv6 without brackets address.port.
func isHostAndPort(word string) bool {
	if isNameAndPort(word) {
		return true
	}
	if rest, ok := strings.CutPrefix(word, "["); ok {
		host, port, closed := strings.Cut(rest, "]")
		return closed && isPortSuffix(port) && (isIPv6(host) || isHostName(host))
	}
	if isIPv6(word) {
		return true
	}
	host, port, ok := cutLast(word, ".")
	return ok && isIPv6(host) && isDigits(port)
}

// cutLast cuts at the last separator.
func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

func checkVLANs(word string) error {
	if !isRange(word) {
		return refuse("invalid VLAN configuration '%s'", word)
	}
	first, last, isRange := strings.Cut(strings.TrimSuffix(word, "\n"), "-")
	from, err := strconv.Atoi(first)
	if err != nil || from < 2 || from > 4094 {
		return refuse("invalid VLAN tag '%s'", first)
	}
	if !isRange {
		return nil
	}
	to, err := strconv.Atoi(last)
	if err != nil || to < 2 || to > 4094 {
		return refuse("invalid VLAN tag '%s'", last)
	}
	if from >= to {
		return refuse("VLAN range must go from lower to higher tag '%s'", word)
	}
	return nil
}

// checkFirewallAddresses is parse_address_list in PVE/Firewall.pm: the name of
// an IP set or an alias, one range, or addresses and networks of one family. No text
// is a list of none, which takes the addresses out of a rule.
func checkFirewallAddresses(word string) error {
	if word == "" || isSetReference(word) || isAliasReference(word) {
		return nil
	}
	elements := strings.Split(word, ",")
	families := map[bool]bool{}
	for _, element := range elements {
		first, last, isRange := strings.Cut(element, "-")
		switch {
		case isRange && len(elements) > 1:
			return died("you can't use a range in a list")
		case isRange && isIP(first) && isIP(last), isIPOrNet(element):
			families[strings.Contains(first, ":")] = true
		default:
			return refuse("invalid IP address: '%s'", element)
		}
	}
	if len(families) > 1 {
		return refuse("detected mixed ipv4/ipv6 addresses in address list '%s'", word)
	}
	return nil
}

// checkFirewallPorts is parse_port_name_number_or_range in PVE/Firewall.pm: at
// most 15 ports, where a range counts as two. Names are looked up in
// /etc/services there; here any name that could stand there passes. No text is a list
// of none.
func checkFirewallPorts(word string) error {
	if word == "" {
		return nil
	}
	count := 0
	for item := range strings.SplitSeq(word, ",") {
		from, to, isRange := strings.Cut(item, ":")
		ports := []string{from}
		if isRange {
			ports = append(ports, to)
		}
		if !isRange && isServiceName(item) {
			continue
		}
		numbers := make([]int, len(ports))
		for i, port := range ports {
			n, err := strconv.Atoi(port)
			if err != nil || n < 0 {
				return refuse("invalid port '%s'", item)
			}
			if n > 65535 {
				return refuse("invalid port '%s'", port)
			}
			numbers[i] = n
		}
		if isRange && numbers[0] > numbers[1] {
			return died(fmt.Sprintf("backwards range '%s:%s' not allowed, did you mean '%s:%s'?", from, to, to, from))
		}
		count += len(ports)
	}
	if count > 15 {
		return died("too many entries in port list (> 15 numbers)")
	}
	return nil
}
