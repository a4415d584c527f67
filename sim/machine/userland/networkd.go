package userland

import (
	"cmp"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/machine"
)

// unitOf is the file by which systemd-networkd configures an interface, and what it says (systemd.network(5)); "" if
// none matches.
func (n *Network) unitOf(name string) (file string, s settings) {
	var all []string
	for _, dir := range []string{"/etc/systemd/network", "/run/systemd/network", "/usr/lib/systemd/network"} {
		list, _ := n.fs.ReadDir(machine.Cred{}, dir)
		for _, i := range list {
			if path.Ext(i.Name) == ".network" {
				all = append(all, dir+"/"+i.Name)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b string) int { return cmp.Compare(path.Base(a), path.Base(b)) })
	for _, file := range all {
		text, _ := n.fs.ReadFile(file)
		section, matches, s := "", false, settings{}
		for line := range strings.Lines(text) {
			line = strings.TrimSpace(line)
			if strings.HasPrefix(line, "[") {
				section = strings.Trim(line, "[]")
				continue
			}
			key, value, _ := strings.Cut(line, "=")
			value = strings.TrimSpace(value)
			switch section + "." + strings.TrimSpace(key) {
			case "Match.Name":
				matches, _ = path.Match(value, name)
			case "Network.DHCP":
				s.dhcp = value == "yes" || value == "ipv4" || value == "true"
			case "Network.Address", "Address.Address":
				if addr, err := netip.ParsePrefix(value); err == nil && !s.addr.IsValid() {
					s.addr = addr
				}
			case "Network.Gateway", "Route.Gateway":
				s.gateway, _ = netip.ParseAddr(value)
			}
		}
		if matches {
			return file, s
		}
	}
	return "", s
}

// networkd configures all interfaces that files match when it starts.
func (n *Network) networkd(p *machine.Process) int {
	for _, name := range n.names() {
		if file, s := n.unitOf(name); file != "" {
			if err := n.configure(name, s); err != nil {
				p.Failf("%s: %v", name, err)
			}
		}
	}
	p.Ready()
	<-p.Killed()
	return 0
}

func (n *Network) networkctl(p *machine.Process, o Options) int {
	if o.Args[0] == "reload" {
		return 0 // the files are read whenever they are needed
	}
	for _, name := range o.Args[1:] {
		l := n.link(name)
		if l == nil {
			return p.Failf("Interface \"%s\" not found.", name)
		}
		file, s := n.unitOf(name)
		switch o.Args[0] {
		case "status":
			state := "unmanaged"
			if file != "" {
				state = "configured"
			}
			p.Printf("● %d: %s\n                   Link File: n/a\n                Network File: %s\n                       State: routable (%s)\n", l.index, name, cmp.Or(file, "n/a"), state)
		case "reconfigure":
			if file == "" {
				continue
			}
			if err := n.configure(name, s); err != nil {
				p.Failf("%s: %v", name, err) // it goes on in the background, in vain
			}
		default:
			return p.Failf("Unknown command verb %s.", o.Args[0])
		}
	}
	return 0
}
