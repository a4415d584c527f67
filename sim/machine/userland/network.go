package userland

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/homestak/homestak-gitops/sim/machine"
)

// LAN is the network at the other end of a machine's network card.
type LAN struct {
	Routers []netip.Prefix // the addresses of the router, each in its subnet; none: the machine has no card
	Lease   netip.Prefix   // what a DHCP server gives, with the router of its subnet as gateway; the zero value: there is none
}

// Card is the network card of a machine.
const Card = "eth0"

// Network is the network of a machine that runs, for IPv4. Safe for concurrent use.
type Network struct {
	fs      *machine.FS
	lan     LAN
	virtual bool // the card is that of a container, which has no hardware

	// mu is for a moment only: programs of the machine and connections to it come side by side.
	mu    sync.Mutex
	links map[string]*link
}

type link struct {
	index   int
	bridge  bool
	master  string // the bridge that it is a port of
	taken   bool   // ifupdown has configured it
	addrs   []netip.Prefix
	dynamic bool // the addresses are those of a lease
	gateway netip.Addr
}

// Programs are those that read and change the network, and those that configure it by files.
func (n *Network) Programs() map[string]machine.Program {
	const failed = 1
	return map[string]machine.Program{
		"ip":               n.ip,
		"ifup":             Program("a no-act force i:", 0, failed, n.ifup),
		"ifdown":           Program("", 1, failed, n.ifdown),
		"ifreload":         Program("a", 0, failed, n.ifreload),
		"networkctl":       Program("no-pager lines:", 1, failed, n.networkctl),
		"systemd-networkd": n.networkd,
	}
}

// Boot shows the network of a machine. That of a container has no hardware.
func (n *Network) Boot(fs *machine.FS, lan LAN, container bool) error {
	n.fs, n.lan, n.virtual, n.links = fs, lan, container, map[string]*link{}
	if err := n.add("lo", &link{addrs: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/8")}}); err != nil || len(lan.Routers) == 0 {
		return err
	}
	return n.add(Card, &link{})
}

// add shows a new interface in /sys.
func (n *Network) add(name string, l *link) error {
	n.mu.Lock()
	for _, other := range n.links {
		l.index = max(l.index, other.index)
	}
	l.index++
	n.links[name] = l
	n.mu.Unlock()
	dir := "/sys/class/net/" + name
	sys := map[string]string{"type": "1\n", "ifindex": fmt.Sprintf("%d\n", l.index), "uevent": fmt.Sprintf("INTERFACE=%s\nIFINDEX=%d\n", name, l.index)}
	switch {
	case name == "lo":
		sys["type"] = "772\n"
	case l.bridge:
		sys["uevent"] = "DEVTYPE=bridge\n" + sys["uevent"]
		sys["bridge/stp_state"] = "0\n"
		if err := n.fs.MkdirAll(dir+"/brif", 0o755); err != nil {
			return err
		}
	case !n.virtual:
		sys["device/uevent"] = "DRIVER=virtio_net\n"
	}
	for file, text := range sys {
		if err := n.fs.WriteFile(dir+"/"+file, text, 0o444, 0, 0); err != nil {
			return err
		}
	}
	return nil
}

// enslave makes an interface a port of a bridge, or of none.
func (n *Network) enslave(name, bridge string) error {
	n.mu.Lock()
	l := n.links[name]
	before := ""
	if l != nil {
		before, l.master = l.master, bridge
	}
	n.mu.Unlock()
	switch {
	case l == nil:
		return noDevice(name)
	case before == bridge:
		return nil
	case before != "":
		if err := errors.Join(n.fs.RemoveAll(machine.Cred{}, "/sys/class/net/"+name+"/master"), n.fs.RemoveAll(machine.Cred{}, "/sys/class/net/"+before+"/brif/"+name)); err != nil {
			return err
		}
	}
	if bridge == "" {
		return nil
	}
	n.set(name, settings{})
	return errors.Join(n.fs.Symlink(machine.Cred{}, "../"+bridge, "/sys/class/net/"+name+"/master"), n.fs.MkdirAll("/sys/class/net/"+bridge+"/brif/"+name, 0o755))
}

// remove removes a bridge.
func (n *Network) remove(name string) error {
	n.mu.Lock()
	l := n.links[name]
	var ports []string
	for port, other := range n.links {
		if other.master == name {
			ports = append(ports, port)
		}
	}
	n.mu.Unlock()
	switch {
	case l == nil:
		return noDevice(name)
	case !l.bridge:
		return errors.New("RTNETLINK answers: Operation not supported")
	}
	for _, port := range ports {
		if err := n.enslave(port, ""); err != nil {
			return err
		}
	}
	n.mu.Lock()
	delete(n.links, name)
	n.mu.Unlock()
	return n.fs.RemoveAll(machine.Cred{}, "/sys/class/net/"+name)
}

func noDevice(name string) error { return fmt.Errorf("Cannot find device %q", name) } //nolint:staticcheck // as ip says it

// settings are the configuration of an interface.
type settings struct {
	dhcp    bool
	addr    netip.Prefix // the zero value: none
	gateway netip.Addr
	bridge  bool
	ports   []string
	taken   bool
}

// set replaces the addresses of an interface that is there, and gives false if it is not.
func (n *Network) set(name string, s settings) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.links[name]
	if l == nil {
		return false
	}
	l.addrs, l.dynamic, l.gateway, l.taken = nil, s.dhcp, s.gateway, s.taken
	if s.addr.IsValid() {
		l.addrs = []netip.Prefix{s.addr}
	}
	return true
}

// configure applies settings to an interface or a bridge.
func (n *Network) configure(name string, s settings) error {
	if n.link(name) == nil && s.bridge {
		if err := n.add(name, &link{bridge: true}); err != nil {
			return err
		}
	}
	for _, port := range s.ports {
		if err := n.enslave(port, name); err != nil {
			return err
		}
	}
	if s.dhcp {
		if !n.lan.Lease.IsValid() || !n.attached(name) {
			return errors.New("No DHCPOFFERS received.") //nolint:staticcheck,revive // as dhclient says it
		}
		s.addr = n.lan.Lease
		for _, r := range n.lan.Routers {
			if s.addr.Contains(r.Addr()) {
				s.gateway = r.Addr()
			}
		}
	}
	gateway := s.gateway
	if !s.addr.Contains(gateway) {
		s.gateway = netip.Addr{}
	}
	switch {
	case !n.set(name, s):
		return noDevice(name)
	case gateway != s.gateway:
		return errors.New("Error: Nexthop has invalid gateway.") //nolint:staticcheck,revive // as ip says it
	}
	return nil
}

// link is the state of an interface; nil if it does not exist.
func (n *Network) link(name string) *link {
	n.mu.Lock()
	defer n.mu.Unlock()
	if l := n.links[name]; l != nil {
		c := *l
		return &c
	}
	return nil
}

// attached reports whether what leaves an interface leaves the machine.
func (n *Network) attached(name string) bool {
	card := n.link(Card)
	return card != nil && (card.master == name || card.master == "" && name == Card)
}

func (n *Network) names() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.SortedFunc(maps.Keys(n.links), func(a, b string) int { return n.links[a].index - n.links[b].index })
}

// Address is the first address of the machine that others can reach; not valid if it has none.
func (n *Network) Address() netip.Addr {
	for _, name := range n.names() {
		if l := n.link(name); l != nil && n.attached(name) {
			for _, a := range l.addrs {
				if n.Answers(a.Addr()) {
					return a.Addr()
				}
			}
		}
	}
	return netip.Addr{}
}

// Answers reports whether the machine can be reached at an address: it has it, and its subnet is one of the network
// that it is attached to.
func (n *Network) Answers(ip netip.Addr) bool {
	routed := slices.ContainsFunc(n.lan.Routers, func(r netip.Prefix) bool { return r.Addr() != ip && r.Masked().Contains(ip) })
	return routed && slices.ContainsFunc(n.names(), func(name string) bool {
		l := n.link(name)
		return l != nil && n.attached(name) && slices.ContainsFunc(l.addrs, func(a netip.Prefix) bool { return a.Addr() == ip })
	})
}

// ip is the program of iproute2, as far as scripts call it, without IPv6.
func (n *Network) ip(p *machine.Process) int {
	args := p.Args[1:]
	six, short := false, false
	for ; len(args) > 0 && strings.HasPrefix(args[0], "-"); args = args[1:] {
		switch args[0] {
		case "-6":
			six = true
		case "-o":
			short = true
		case "-4":
		default:
			p.Failf("Option %q is unknown, try \"ip -help\".", args[0])
			return 255
		}
	}
	words, named := []string{}, map[string]string{}
	for i := 0; i < len(args); i++ {
		if slices.Contains([]string{"dev", "to", "scope", "type"}, args[i]) && i+1 < len(args) {
			named[args[i]] = args[i+1]
			i++
			continue
		}
		words = append(words, args[i])
	}
	words = append(words, "", "", "")
	dev := named["dev"]
	if dev != "" && n.link(dev) == nil {
		return p.Failf("Device %q does not exist.", dev)
	}
	var err error
	switch what := words[0] + " " + words[1]; {
	case six:
	case what == "addr show" && short:
		n.showAddresses(p, dev)
	case what == "addr flush" && dev != "":
		l := n.link(dev)
		n.set(dev, settings{taken: l.taken})
	case what == "route show" && words[2] == "default":
		n.showRoutes(p, dev)
	case what == "route get":
		for _, name := range n.names() {
			if l := n.link(name); l != nil && l.gateway.IsValid() {
				p.Printf("%s via %s dev %s src %s uid 0 \\    cache \n", words[2], l.gateway, name, l.addrs[0].Addr())
				return 0
			}
		}
		p.Failf("RTNETLINK answers: Network is unreachable")
		return 2
	case what == "link show":
		if l := n.link(dev); l != nil && (named["type"] == "" || named["type"] == "veth" && n.virtual && dev == Card) {
			p.Printf("%d: %s: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500\n", l.index, dev)
		}
	case what == "link delete":
		err = n.remove(words[2])
	case what == "neigh flush":
	case what == "neigh show":
		n.showNeighbour(p, words[2], dev)
	default:
		p.Failf("this is not simulated: ip %s", strings.Join(args, " "))
		return 255
	}
	if err != nil {
		return p.Failf("%v", err)
	}
	return 0
}

func (n *Network) showAddresses(p *machine.Process, dev string) {
	for _, name := range n.names() {
		l := n.link(name)
		if l == nil || dev != "" && name != dev || name == "lo" {
			continue
		}
		word, valid := "", "forever"
		if l.dynamic {
			word, valid = "dynamic ", "600sec"
		}
		for _, a := range l.addrs {
			p.Printf("%d: %-7s inet %s scope global %s%s\\       valid_lft %s preferred_lft %[6]s\n", l.index, name, a, word, name, valid)
		}
	}
}

func (n *Network) showRoutes(p *machine.Process, dev string) {
	for _, name := range n.names() {
		if l := n.link(name); l != nil && l.gateway.IsValid() && (dev == "" || dev == name) {
			p.Printf("default via %s dev %s \n", l.gateway, name)
		}
	}
}

// showNeighbour shows whether a router answers to ARP.
func (n *Network) showNeighbour(p *machine.Process, ip, dev string) {
	state := "FAILED"
	l := n.link(dev)
	for _, r := range n.lan.Routers {
		if l != nil && r.Addr().String() == ip && n.attached(dev) && slices.ContainsFunc(l.addrs, func(a netip.Prefix) bool { return a.Contains(r.Addr()) }) {
			state = "lladdr 02:00:00:00:00:01 REACHABLE"
		}
	}
	p.Printf("%s dev %s %s\n", ip, dev, state)
}
