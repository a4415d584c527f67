package userland

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/machine"
)

const interfacesFile = "/etc/network/interfaces"

// stanza is an IPv4 stanza of an interface (interfaces(5)).
type stanza struct {
	name, method string
	options      map[string][]string // the values of each
}

// interfaces reads a file of ifupdown and those that it includes: the stanzas, and the interfaces that come up at boot.
// Stanzas of IPv6 are left out.
func (n *Network) interfaces(file string) (list []stanza, auto []string, err error) {
	text, err := n.fs.ReadFile(file)
	if err != nil {
		return nil, nil, fmt.Errorf("couldn't open interfaces file %q", file)
	}
	in := map[string][]string{} // of IPv6, and what is before a stanza
	for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", " ")) {
		f := strings.Fields(line)
		switch {
		case len(f) == 0 || strings.HasPrefix(f[0], "#"):
		case f[0] == "auto", strings.HasPrefix(f[0], "allow-"):
			auto = append(auto, f[1:]...)
		case f[0] == "source" && len(f) > 1:
			dir := path.Dir(path.Join("/etc/network", strings.TrimPrefix(f[1], "/etc/network")))
			all, _ := n.fs.ReadDir(machine.Cred{}, dir)
			for _, i := range all {
				if matched, _ := path.Match(path.Base(f[1]), i.Name); matched && i.Kind == machine.PlainFile {
					more, up, err := n.interfaces(dir + "/" + i.Name)
					if err != nil {
						return nil, nil, err
					}
					list, auto = append(list, more...), append(auto, up...)
				}
			}
		case f[0] == "iface" && (len(f) < 4 || !slices.Contains([]string{"static", "dhcp", "manual", "loopback"}, f[3])):
			return nil, nil, fmt.Errorf("%s: unknown or no method and no inherits keyword specified", file)
		case f[0] == "iface":
			in = map[string][]string{}
			if f[2] == "inet" {
				list = append(list, stanza{f[1], f[3], in})
			}
		default:
			in[f[0]] = append(in[f[0]], strings.Join(f[1:], " "))
		}
	}
	return list, auto, nil
}

// settings are the options of the stanza.
func (s stanza) settings() (out settings, err error) {
	value := func(names ...string) string {
		for _, name := range names {
			if len(s.options[name]) > 0 {
				return s.options[name][0]
			}
		}
		return ""
	}
	out = settings{dhcp: s.method == "dhcp", taken: true}
	if ports := value("bridge-ports", "bridge_ports"); ports != "" {
		out.bridge, out.ports = true, slices.DeleteFunc(strings.Fields(ports), func(p string) bool { return p == "none" })
	}
	if s.method != "static" {
		return out, nil
	}
	address := value("address")
	if mask := net.ParseIP(value("netmask")); mask != nil && !strings.Contains(address, "/") {
		ones, _ := net.IPMask(mask.To4()).Size()
		address = fmt.Sprintf("%s/%d", address, ones)
	}
	if out.addr, err = netip.ParsePrefix(address); err != nil {
		return out, errors.New("missing required variable: address")
	}
	if text := value("gateway"); text != "" {
		if out.gateway, err = netip.ParseAddr(text); err != nil {
			return out, fmt.Errorf("no valid gateway: %s", text)
		}
	}
	return out, nil
}

// second reports whether ifupdown2 is there, which configures again what is configured.
func (n *Network) second() bool {
	_, err := n.fs.Stat(machine.Cred{}, "/usr/share/ifupdown2")
	return err == nil
}

func (n *Network) ifup(p *machine.Process, o Options) int {
	file := interfacesFile
	if o.Has("i") {
		file = o.Text("i")
	}
	list, auto, err := n.interfaces(file)
	if err != nil {
		return p.Failf("%v", err)
	}
	names := o.Args
	if o.Has("a") {
		names = auto
	}
	for _, name := range names {
		i := slices.IndexFunc(list, func(s stanza) bool { return s.name == name })
		if i < 0 {
			return p.Failf("unknown interface %s", name)
		}
		s, err := list[i].settings()
		now := n.link(name)
		switch {
		case err != nil:
		case o.Has("no-act"):
			continue
		case list[i].method == "loopback", now != nil && now.taken && !o.Has("force") && !n.second():
			continue // it is configured
		default:
			err = n.configure(name, s)
		}
		if err != nil {
			p.Failf("%v", err)
			return p.Failf("failed to bring up %s", name)
		}
		for _, command := range list[i].options["up"] {
			if code, err := p.Run([]string{"sh", "-c", command}); code != 0 || err != nil {
				return p.Failf("failed to bring up %s", name)
			}
		}
	}
	return 0
}

func (n *Network) ifdown(p *machine.Process, o Options) int {
	for _, name := range o.Args {
		l := n.link(name)
		switch {
		case l == nil || !l.taken:
			p.Failf("interface %s not configured", name)
		case l.bridge:
			if err := n.remove(name); err != nil {
				return p.Failf("%v", err)
			}
		default:
			n.set(name, settings{})
		}
	}
	return 0
}

// ifreload is that of ifupdown2: interfaces that come up at boot are made as the files say, and those that left the files go down.
func (n *Network) ifreload(p *machine.Process, _ Options) int {
	list, _, err := n.interfaces(interfacesFile)
	if err != nil {
		return p.Failf("%v", err)
	}
	for _, name := range n.names() {
		if l := n.link(name); l != nil && l.taken && !slices.ContainsFunc(list, func(s stanza) bool { return s.name == name }) {
			n.ifdown(p, Options{Args: []string{name}})
		}
	}
	text, err := n.fs.ReadFile(interfacesFile)
	if err != nil {
		return p.Failf("%v", err)
	}
	for line := range strings.Lines(text) { // allow-hotplug is left alone
		if f := strings.Fields(line); len(f) > 1 && f[0] == "auto" {
			if code := n.ifup(p, Options{Args: f[1:]}); code != 0 {
				return code
			}
		}
	}
	return 0
}
