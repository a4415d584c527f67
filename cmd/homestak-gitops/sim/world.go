package sim

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/drivers"
	"github.com/homestak/homestak-gitops/drivers/push"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/service"
	"github.com/homestak/homestak-gitops/sim"
	"github.com/homestak/homestak-gitops/sim/machine"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// World is simulated hosts, their guests at any depth, and the network between them. Its methods may be called from
// any goroutine.
type World struct {
	Hosts sim.Hosts
	// Others leads to what is neither a guest nor an agent; nil: there is nothing else.
	Others dial

	o      WorldOptions
	own    string // where the server of this program listens on this machine; "": none does
	key    string
	lan    machine.Net
	agents *agents
	guests func() *sim.Guests
}

// bootTime is the time that a simulated VM takes to boot until its guest agent answers.
const bootTime = time.Millisecond

// Hosts are simulated hosts by their names in the site.
type Hosts = sim.Hosts

// WorldOptions configure a world.
type WorldOptions struct {
	Hosts   sim.Hosts    // existing ones; others are created when they are opened
	Log     *slog.Logger // of the agents
	Version string       // of the program, as reports have it
	// Record sees the requests to all hosts, at any depth; see pve.Config. May be nil.
	Record func(r *http.Request, body []byte, status int)
}

// dial opens a connection.
type dial = func(ctx context.Context, network, address string) (net.Conn, error)

// NewWorld makes a world around hosts.
func NewWorld(o WorldOptions) (*World, error) {
	if o.Hosts == nil {
		o.Hosts = sim.Hosts{}
	}
	w := &World{Hosts: o.Hosts, o: o}
	var err error
	if _, w.key, err = sim.GuestKey(); err != nil {
		return nil, err
	}
	w.agents = &agents{world: w, version: o.Version, running: map[string]*service.Service{}}
	joined, installed := &sim.Network{Dial: w.Dial}, programsOf(w.agents)
	w.guests = func() *sim.Guests {
		return &sim.Guests{Installed: installed, Network: joined, Inner: pve.Config{BootTime: bootTime, Record: o.Record}}
	}
	return w, nil
}

// Guests are new systems for the guests of a host of the world.
func (w *World) Guests() *sim.Guests { return w.guests() }

// Transport is the way to the simulator of a host, which is made where there is none; see drivers.Transport.
func (w *World) Transport(site *model.Site, h *model.Host) (http.RoundTripper, string) {
	return w.Hosts.TransportWith(func(c *pve.Config) { c.Systems, c.BootTime, c.Record = w.guests(), bootTime, w.o.Record })(site, h)
}

// Key is the user's key for guests.
func (w *World) Key() string { return w.key }

// Dial connects to an agent, to a guest, or to something else.
func (w *World) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	if to, err := netip.ParseAddrPort(address); err == nil {
		if conn, err := w.lan.Dial(ctx, to, to); err == nil {
			return conn, nil
		}
	}
	if w.own != "" && address == parentAddress {
		return new(net.Dialer).DialContext(ctx, network, w.own)
	}
	if w.Others != nil && address == parentAddress {
		return w.Others(ctx, network, address)
	}
	return w.Hosts.Dial(ctx, network, address)
}

// Agent makes the agent of a host, which serves at the address that its configuration says, in this network.
func (w *World) Agent(cfg *service.Config) (*service.Service, error) {
	return w.service(cfg, w.agents.released(), vantage{transport: w.Transport, reaches: w.Hosts.Reaches, dial: w.Dial, listen: func(at netip.AddrPort) (net.Listener, error) { return w.lan.Listen(at, at) }, keys: []string{w.key}})
}

// Release makes another version of the program that of the agents of hosts which are made from now on. They hand it down.
func (w *World) Release(version string) error { return w.agents.release(version) }

// Running is the agent of a child that runs now; nil if none does.
func (w *World) Running(identity string) *service.Service {
	w.agents.mu.Lock()
	defer w.agents.mu.Unlock()
	return w.agents.running[identity]
}

// Address is that of a guest on a PVE node; "" where it is not known.
func (w *World) Address(node string, vmid int) string {
	if h := w.Hosts.Find(node); h != nil {
		return h.Address(vmid)
	}
	return ""
}

// Leave removes what agents of this world have kept; hosts that others made, and their guests, go on.
func (w *World) Leave() { _ = w.agents.close() } // it is a temporary folder

// Close ends what runs in guests, and removes what agents have kept.
func (w *World) Close() error {
	w.Hosts.Close()
	return w.agents.close()
}

// vantage is the location of an agent: on the machine of a host, or in a guest.
type vantage struct {
	transport drivers.Transport
	reaches   func(netip.Addr) error
	dial      dial
	listen    func(netip.AddrPort) (net.Listener, error)
	keys      []string // that log in to guests, beside that of the agent
}

// service makes an agent.
func (w *World) service(cfg *service.Config, version string, at vantage) (*service.Service, error) {
	dir, err := w.agents.folder()
	if err != nil {
		return nil, err
	}
	guests := w.ways(at.dial, at.keys...)
	network := session.Network{Transport: at.transport, Reaches: at.reaches, Guests: &guests}
	return network.Agent(service.Options{
		Config: cfg, Program: version, Log: w.o.Log.With("agent", cfg.Identity), File: programIn(dir), Pace: pace,
		Network: service.Network{
			Dial: at.dial,
			Listen: func(_ context.Context, address string) (net.Listener, error) {
				to, err := netip.ParseAddrPort(address)
				if err != nil {
					return nil, fmt.Errorf("listen: an address of the simulated network is needed: %w", err)
				}
				return at.listen(to)
			},
		},
	}, push.Config{})
}
