package aspect

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
)

// hostname is the name of the machine: /etc/hostname, the name in the kernel, and the
// line of /etc/hosts by which the machine finds its own address.
var hostname = Of[hostnameFound]{
	Name: "hostname", Doc: "Name of the machine, and its line in /etc/hosts.",
	Paths: []string{"identity.hostname", "identity.hosts"},
	Probe: func(q *Query) string {
		lines := []string{`uname -n | row kernel`, `if [ -f /etc/hostname ]; then row file </etc/hostname; fi`, `if [ -f /etc/hosts ]; then row hosts </etc/hosts; fi`}
		if q.Want.Identity.Routable { // the address that others see; nothing is sent to these of documentation
			lines = append(lines, `{ ip -o route get 192.0.2.1 || ip -o route get 2001:db8::1; } 2>/dev/null | sed -n 's/.* src \([0-9a-f.:]*\).*/\1/p' | head -n 1 | row address`)
		}
		return script(lines...)
	},
	Parse: func(_ *Query, rows [][]string) (hostnameFound, error) {
		var f hostnameFound
		for _, r := range rows {
			switch r[0] {
			case "kernel":
				f.kernel = strings.TrimSpace(r[1])
			case "file":
				f.file = firstLine(r[1])
			case "address":
				f.address = strings.TrimSpace(r[1])
			case "hosts":
				f.hosts, f.hasHosts = r[1], true
			}
		}
		return f, nil
	},
	Fill: func(q *Query, f hostnameFound, have *spec.Spec) {
		if q.Want.Identity.Hostname == "" {
			return // the spec does not change the name
		}
		have.Identity.Hostname = f.file
		if f.kernel != f.file {
			have.Identity.Hostname = strings.TrimSpace(f.file + " (running as " + f.kernel + ")")
		}
		have.Identity.Hosts = q.Want.Identity.Hosts
		if f.wanted(q.Want.Identity) != f.hosts {
			have.Identity.Hosts = ownLine(f.hosts)
		} else if i := q.Want.Identity; i.Routable && f.address == "" && !f.routed(i) {
			have.Identity.Hosts = "no address of the network"
		}
	},
	Steps: func(q *Query, f hostnameFound) []Step {
		i := q.Want.Identity
		s := Step{Stage: StageIdentity, Text: "name the machine " + i.FQDN()}
		var lines []string
		if i.Routable && f.address == "" && !f.routed(i) {
			lines = append(lines, "die 'this machine has no route to a network, so its name has no address: set up its network first'")
		}
		if hosts := f.wanted(i); hosts != f.hosts {
			lines = append(lines, guest.FileUnchanged("/etc/hosts", guest.ContentSum(f.hosts), f.hasHosts), guest.PutFile("/etc/hosts", hosts, "0644", "root", "root"))
		}
		lines = append(lines, guest.PutFile("/etc/hostname", i.Hostname+"\n", "0644", "root", "root"), "hostname "+guest.Quote(i.Hostname))
		s.Script = script(lines...)
		return []Step{s}
	},
}

type hostnameFound struct {
	file, kernel string
	hosts        string // the whole of /etc/hosts
	hasHosts     bool
	address      string // by which the machine goes to the network
}

// routed reports whether the name is at an address of the network.
func (f hostnameFound) routed(i *spec.Identity) bool {
	for line := range strings.Lines(f.hosts) {
		if addr, names := hostsLine(line); addr.IsValid() && !addr.IsLoopback() && slices.Contains(names, i.FQDN()) && slices.Contains(names, i.Hostname) {
			return true
		}
	}
	return false
}

// routable is /etc/hosts with the name at an address of the network only.
func (f hostnameFound) routable(i *spec.Identity) string {
	var out strings.Builder
	after, own := 0, "" // behind the line of localhost
	for line := range strings.Lines(f.hosts) {
		addr, names := hostsLine(line)
		if addr.IsLoopback() && slices.Contains(names, i.Hostname) && !slices.Contains(names, "localhost") {
			continue // the first line of a name counts
		}
		out.WriteString(strings.TrimSuffix(line, "\n") + "\n")
		if addr == netip.AddrFrom4([4]byte{127, 0, 0, 1}) {
			after = out.Len()
		}
	}
	if !f.routed(i) && f.address != "" {
		own = strings.Replace(i.Hosts, spec.OwnAddress, f.address, 1) + "\n"
	}
	return out.String()[:after] + own + out.String()[after:]
}

// wanted is /etc/hosts with the line of the node. If another line gives the name an address of the network, as
// Proxmox VE needs it on its nodes, the file is right already.
func (f hostnameFound) wanted(i *spec.Identity) string {
	if i.Routable {
		return f.routable(i)
	}
	lines := strings.SplitAfter(f.hosts, "\n")
	at := -1
	for n, line := range lines {
		addr, names := hostsLine(line)
		if !addr.IsValid() {
			continue
		}
		if !addr.IsLoopback() && slices.Contains(names, i.FQDN()) && slices.Contains(names, i.Hostname) {
			return f.hosts
		}
		if addr == ownAddress {
			if at >= 0 {
				lines[n] = "" // one line is enough
				continue
			}
			at = n
			if !slices.Equal(names, strings.Fields(i.Hosts)[1:]) {
				lines[n] = i.Hosts + "\n"
			}
		}
	}
	if at < 0 {
		// Behind the line of localhost, where Debian has it.
		after := slices.IndexFunc(lines, func(l string) bool {
			addr, _ := hostsLine(l)
			return addr == netip.AddrFrom4([4]byte{127, 0, 0, 1})
		})
		if after >= 0 && !strings.HasSuffix(lines[after], "\n") {
			lines[after] += "\n"
		}
		lines = slices.Insert(lines, after+1, i.Hosts+"\n")
	}
	return strings.Join(lines, "")
}

var ownAddress = netip.AddrFrom4([4]byte{127, 0, 1, 1})

// hostsLine reads a line of /etc/hosts (hosts(5)); the address is not valid if it is none.
func hostsLine(line string) (addr netip.Addr, names []string) {
	line, _, _ = strings.Cut(line, "#")
	fields := strings.Fields(line)
	if len(fields) < 2 {
		return netip.Addr{}, nil
	}
	addr, err := netip.ParseAddr(fields[0])
	if err != nil {
		return netip.Addr{}, nil
	}
	return addr, fields[1:]
}

// ownLine is the line of the machine's own name, "" if the file has none.
func ownLine(hosts string) string {
	for line := range strings.Lines(hosts) {
		if addr, names := hostsLine(line); addr == ownAddress {
			return addr.String() + " " + strings.Join(names, " ")
		}
	}
	return ""
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return strings.TrimSpace(line)
}
