package sim

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// Hosts are the simulators of one run, by the name of the host that each stands for. The
// map belongs to the goroutine of the run; see Transport.
type Hosts map[string]*pve.Host

// Transport is the way to the simulator of a host, and its token: see drivers.Transport.
// It makes a simulator where the host has none.
func (s Hosts) Transport(site *model.Site, h *model.Host) (way http.RoundTripper, token string) {
	return s.TransportWith(func(c *pve.Config) { c.Systems = &Guests{} })(site, h)
}

// TransportWith is Transport for hosts that are as change makes each of them.
func (s Hosts) TransportWith(change func(*pve.Config)) func(*model.Site, *model.Host) (http.RoundTripper, string) {
	return func(site *model.Site, h *model.Host) (http.RoundTripper, string) {
		if s[h.Name] == nil {
			c := configOf(site, h)
			change(&c)
			s[h.Name] = pve.New(c)
		}
		return s[h.Name], s[h.Name].Token()
	}
}

// Each calls a function with all hosts, those inside of guests too, each after the one that it is in, until that
// says no.
func (s Hosts) Each(do func(*pve.Host) bool) {
	all := slices.Collect(maps.Values(s))
	for i := 0; i < len(all); i++ {
		if !do(all[i]) {
			return
		}
		if systems, simulated := all[i].Systems().(*Guests); simulated {
			all = append(all, systems.Hosts()...)
		}
	}
}

// Find returns the host with this name of its first node, which may be inside of a guest; nil if there is none.
func (s Hosts) Find(node string) (found *pve.Host) {
	s.Each(func(h *pve.Host) bool {
		if h.Node() == node {
			found = h
		}
		return found == nil
	})
	return found
}

// Reaches returns nil if a simulated guest with this address is up. It replaces
// the network, which has none of them: see health.Prober.
func (s Hosts) Reaches(ip netip.Addr) error {
	err := errors.New("no simulated guest with this address is up")
	s.Each(func(h *pve.Host) bool {
		if systems, simulated := h.Systems().(*Guests); h.Reaches(ip) || simulated && systems.At(ip) != "" {
			err = nil
		}
		return err != nil
	})
	return err
}

// Dial connects to a simulated guest that has the address, if it runs a simulated system. It takes the
// place of the network: see push.Config.
func (s Hosts) Dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	to, err := target(address)
	if err != nil {
		return nil, err
	}
	err = &net.OpError{Op: "dial", Net: network, Addr: net.TCPAddrFromAddrPort(to), Err: syscall.EHOSTUNREACH}
	s.Each(func(h *pve.Host) bool {
		systems, simulated := h.Systems().(*Guests)
		if !simulated {
			return true
		}
		key, up := h.GuestAt(to.Addr())
		if inside := systems.At(to.Addr()); inside != "" {
			key, up = inside, true
		}
		if up {
			conn, err = systems.Dial(ctx, key, to, s.Dial)
		}
		return !up
	})
	return conn, err
}

// JumpTo is an SSH server that stands for a host, by which its simulated guests are reached from the network
// of this machine.
func JumpTo(h *pve.Host) *Jump {
	return newJump(h.Node(), Hosts{h.Node(): h}.Dial)
}

// Close halts all simulated guests.
func (s Hosts) Close() {
	for _, h := range s {
		if systems, simulated := h.Systems().(*Guests); simulated {
			systems.Close()
		}
	}
}

// configOf describes the simulator that stands for a host of a site: it has the nodes,
// storages and bridges that the site names there, and those of a fresh installation.
func configOf(site *model.Site, h *model.Host) pve.Config {
	c := pve.Config{Node: h.PVENode(), Storages: pve.DefaultStorages(), Bridges: []string{"vmbr0"}}
	for _, n := range h.Nodes {
		if n != c.Node {
			c.Nodes = append(c.Nodes, n)
		}
	}
	if h.Storage != nil {
		c.Storages = holding(c.Storages, h.Storage.Disks, "lvmthin", "images", "rootdir")
		c.Storages = holding(c.Storages, h.Storage.Images, "dir", "import")
		c.Storages = holding(c.Storages, h.Storage.ISO, "dir", "iso")
		c.Storages = holding(c.Storages, h.Storage.Backups, "dir", "backup")
		c.Storages = holding(c.Storages, h.Storage.Snippets, "dir", "snippets")
	}
	want, _ := site.Want(h.Name)
	for _, addr := range want.State.Addresses() {
		r := want.State[addr]
		for _, attr := range model.Attrs(r.Spec) {
			name, _ := attr.Value.(string)
			switch last := attr.Path[strings.LastIndexByte(attr.Path, '.')+1:]; {
			case name == "":
			case last == "bridge" && !slices.Contains(c.Bridges, name):
				c.Bridges = append(c.Bridges, name)
			case last == "storage":
				c.Storages = holding(c.Storages, name, "lvmthin", "images", "rootdir")
			case last == "volume": // STORAGE:CONTENT/FILE
				storage, file, _ := strings.Cut(name, ":")
				content, _, _ := strings.Cut(file, "/")
				c.Storages = holding(c.Storages, storage, "dir", content)
			}
		}
	}
	return c
}

// holding adds a storage, unless it exists, and the types of content that it takes. It ignores an empty name.
func holding(list []pve.Storage, name, kind string, content ...string) []pve.Storage {
	if name == "" {
		return list
	}
	i := slices.IndexFunc(list, func(s pve.Storage) bool { return s.Name == name })
	if i < 0 {
		list = append(list, pve.Storage{Name: name, Type: kind})
		i = len(list) - 1
	}
	for _, c := range content {
		if !slices.Contains(list[i].Content, c) {
			list[i].Content = append(slices.Clone(list[i].Content), c)
		}
	}
	return list
}
