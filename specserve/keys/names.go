package keys

import (
	"net"
	"os"
	"slices"
	"strings"
)

// mostIPs bounds a certificate on a machine with very many bridges.
const mostIPs = 64

// HostNames are the names and addresses of this machine. Failures are ignored: clients pin the key, so names only
// help people and tools that check them.
func HostNames() Names {
	out := Names{DNS: []string{"localhost"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}}
	if name, err := os.Hostname(); err == nil {
		short, _, _ := strings.Cut(name, ".")
		for _, n := range []string{name, short} {
			if isName(n) && !slices.Contains(out.DNS, n) {
				out.DNS = append(out.DNS, n)
			}
		}
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return out
	}
	for _, a := range addresses {
		network, ok := a.(*net.IPNet)
		if ok && network.IP.IsGlobalUnicast() && !slices.ContainsFunc(out.IPs, network.IP.Equal) && len(out.IPs) < mostIPs {
			out.IPs = append(out.IPs, network.IP)
		}
	}
	return out
}

// isName reports whether a host name can be in a certificate.
func isName(s string) bool {
	return s != "" && len(s) <= 253 && !strings.ContainsFunc(s, func(r rune) bool {
		return r != '-' && r != '.' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	})
}
