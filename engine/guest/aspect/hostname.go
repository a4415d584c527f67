package aspect

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/guest/record"
	"github.com/homestak/homestak-gitops/engine/guest/shell"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
)

// hostname is the name of the machine: /etc/hostname, the name in the kernel, and the
// line of /etc/hosts by which the machine finds its own address.
var hostname = Of[hostnameFound]{
	Name: "hostname", Doc: "Name of the machine, and its line in /etc/hosts.",
	Paths: []string{"identity.hostname", "identity.hosts"},
	Probe: func(*Query) string {
		return script(`uname -n | row kernel`, `if [ -f /etc/hostname ]; then row file </etc/hostname; fi`, `if [ -f /etc/hosts ]; then row hosts </etc/hosts; fi`)
	},
	Parse: func(_ *Query, rows [][]string) (hostnameFound, error) {
		var f hostnameFound
		for _, r := range rows {
			switch r[0] {
			case "kernel":
				f.kernel = strings.TrimSpace(r[1])
			case "file":
				f.file = firstLine(r[1])
			case "hosts":
				f.hosts, f.hasHosts = r[1], true
			}
		}
		return f, nil
	},
	Fill: func(q *Query, f hostnameFound, have *spec.Spec) {
		if q.Want.Identity.Hostname == "" {
			return // a machine keeps its name when nobody asks for another
		}
		have.Identity.Hostname = f.file
		if f.kernel != f.file {
			have.Identity.Hostname = strings.TrimSpace(f.file + " (running as " + f.kernel + ")")
		}
		have.Identity.Hosts = q.Want.Identity.Hosts
		if f.wanted(q.Want.Identity) != f.hosts {
			have.Identity.Hosts = ownLine(f.hosts)
		}
	},
	Steps: func(q *Query, f hostnameFound) []Step {
		i := q.Want.Identity
		s := Step{Stage: StageIdentity, Text: "name the machine " + i.FQDN()}
		var lines []string
		if hosts := f.wanted(i); hosts != f.hosts {
			lines = append(lines, shell.Unchanged("/etc/hosts", record.Sum(f.hosts), f.hasHosts), shell.Put("/etc/hosts", hosts, "0644", "root", "root"))
		}
		lines = append(lines, shell.Put("/etc/hostname", i.Hostname+"\n", "0644", "root", "root"), "hostname "+shell.Quote(i.Hostname))
		s.Script = script(lines...)
		return []Step{s}
	},
}

type hostnameFound struct {
	file, kernel string
	hosts        string // the whole of /etc/hosts
	hasHosts     bool
}

// wanted is /etc/hosts with the line of the node. Where another line gives the name an
// address of the network, as Proxmox VE needs it on its nodes, the file is right already.
func (f hostnameFound) wanted(i *spec.Identity) string {
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
