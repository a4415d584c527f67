// Package push applies specs to guests from outside. It wraps the driver of a host, and adds the inside of guests
// to what that observes.
//
// Read in this order: Over (how it wraps the other driver), node.go (the desired state of a node, and how to reach
// it), child.go (the agent of a child), reconnect.go (an agent that left the site), observe.go, apply.go, line.go
// (a reused connection), hostkeys.go (how a guest proves its identity).
package push

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/homestak/homestak-gitops/drivers/local"
	"github.com/homestak/homestak-gitops/drivers/ssh"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/asroot"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// Config says how guests are entered. Zero durations and numbers have the default beside them.
type Config struct {
	// hostKeys keeps the host keys of guests, and of a host that connections go through. They are
	// used from several goroutines. Nil keeps them in memory.
	HostKeys hostKeys
	// PrivateKeys are offered after that of the host's block, as ssh-keygen writes them, and those of
	// the ssh-agent(1) at AgentSocket after them.
	PrivateKeys []string
	AgentSocket string

	// Runs reports whether a guest that is made from something has a system that can be entered: names and
	// addresses of its image or template. Nil: every guest may.
	Runs func(origin string) bool
	// Direct enters guests without a detour through their host, whatever its block says: in a simulated network every guest is
	// reached directly, and the host of the site is never contacted.
	Direct bool
	// Dial opens connections of SSH; that of net.Dialer unless set.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// Children gives the server for the agents of children; it is called when a pass needs it. Nil: there is none, and no
	// agent is installed.
	Children func() Children
	Unserved string        // why there is none; "": none is expected
	Upgrade  time.Duration // how long a new program may take until it reports: five minutes

	Inside  inside        // how a spec is compared and applied; package converge unless set
	Connect time.Duration // how long connecting to a guest and logging in may take: 10 s
	Observe time.Duration // how long looking at one guest may take: 30 s
	Confirm time.Duration // how long a login may fail after a change of the way in before it is taken back: a minute
	Width   int           // how many guests are looked at side by side: 16
	Locally guest.Machine // this machine, for containers of it and for its own spec: drivers/local
	Helper  hostHelper    // applies the spec of the host to this machine, which is the host; nil if that is not known

	Parent  parent // of nodes in mode pull; nil without a server
	Program string // that they run, a file of this machine; the one that runs unless set
}

const (
	defaultConnect = 10 * time.Second
	defaultObserve = 30 * time.Second
	defaultWidth   = 16
)

// inside compares a machine with its spec, and makes it that. It is package converge.
type inside interface {
	// Observe reads a machine and changes nothing there.
	Observe(ctx context.Context, m guest.Machine, want *spec.Spec) (state, error)
	// Apply makes the machine what the spec says. After an error some of it may be done, and
	// doing it again goes on.
	Apply(ctx context.Context, m guest.Machine, want *spec.Spec, o converge.Options) error
}

// hostHelper applies the spec of the host to the machine that the agent runs on, as root.
type hostHelper interface {
	Ready() error // why it is not there, and what to do; nil if it is
	Observe(ctx context.Context, want *spec.Spec) (*asroot.Seen, error)
	Apply(ctx context.Context, want *spec.Spec, o converge.Options) error
}

// state is the observed state of a machine's inside.
type state interface {
	// Observed is it as a part of the observation of a host.
	Observed() model.Observed
	// Unplanned finds a difference that is not among the changes of a plan.
	Unplanned(planned []plan.Change) (plan.Change, bool)
}

// Over adds what specs say inside the guests of a host to its driver. The site may be nil: it has no guests.
func (c Config) Over(host engine.Driver, site *model.Site, h *model.Host) *Driver {
	c.Connect, c.Observe, c.Width = cmp.Or(c.Connect, defaultConnect), cmp.Or(c.Observe, defaultObserve), cmp.Or(c.Width, defaultWidth)
	if c.Inside == nil {
		c.Inside = converging{}
	}
	if c.HostKeys == nil {
		c.HostKeys = &KnownHosts{}
	}
	if c.Locally == nil {
		c.Locally = local.New()
	}
	d := &Driver{Driver: host, cfg: c, host: h, ways: map[model.Address]*way{}, lines: map[lineKey]*line{}, sending: make(chan struct{}, 1)}
	if site != nil {
		d.site, d.moved = site.Name, site.Moved
	}
	return d
}

// Kinds are those of what is inside guests.
func (c Config) Kinds() model.Kinds { return model.Kinds{c.Kind(), c.AgentKind()} }

// Kind is that of what a spec says inside a node that is pushed.
func (c Config) Kind() *model.Kind {
	k := converge.Kind()
	k.Inside = c.inside
	return k
}

// Driver is the driver of a host with what is inside of its guests. Connections to guests last as
// long as a pass: Release closes them.
type Driver struct {
	engine.Driver // of the host
	cfg           Config
	site          string
	moved         map[model.Address]model.Address // as in the site
	host          *model.Host

	// mu is for a moment only: steps come from many goroutines, and each looks up how its guest is
	// entered.
	mu    sync.Mutex
	ways  map[model.Address]*way // of the last observation, by the address of what is inside
	lines map[lineKey]*line
	jump  *ssh.Machine // the host, where connections go through it; nil before the first
	own   *ssh.Machine // the host, to apply its own spec; nil before the first

	sending chan struct{} // full while the program is sent to a machine

	learned func() error // keeps the host key that the host showed; nil if it was known, or is kept
}

// Machine is the way into a guest: for steps inside of it the one that its spec names.
func (d *Driver) Machine(addr model.Address, at model.Guest, near []netip.Addr) guest.Machine {
	switch {
	case addr.Kind == model.HostKind && !d.cfg.Direct:
		return unprivileged{ownMachine{d: d}}
	case !isInside(addr):
		return d.Driver.Machine(addr, at, near)
	}
	w := d.wayOf(addr)
	if w == nil {
		return nil
	}
	switch w.via {
	case model.ViaAgent:
		return d.Driver.Machine(w.guest, at, w.near)
	case model.ViaExec:
		return newContainer(d.cfg.Locally, at.VMID)
	default:
		return d.line(w, at)
	}
}

// Dial is as engine.dialer has it: guests that are entered through their host are checked through it.
func (d *Driver) Dial() (func(ctx context.Context, network, address string) (net.Conn, error), error) {
	jump, err := d.through()
	if jump == nil {
		return nil, err
	}
	return jump.Dial, nil
}

// Release closes the connections to guests.
func (d *Driver) Release() {
	d.mu.Lock()
	lines, hosts := d.lines, []*ssh.Machine{d.jump, d.own}
	d.lines, d.jump, d.own = map[lineKey]*line{}, nil, nil
	d.mu.Unlock()
	for _, l := range lines {
		l.close()
	}
	for _, m := range hosts {
		if m != nil {
			_ = m.Close() // it has no error to give
		}
	}
	if r, ok := d.Driver.(engine.Releaser); ok {
		r.Release()
	}
}

// converging is package converge.
type converging struct{}

func (converging) Observe(ctx context.Context, m guest.Machine, want *spec.Spec) (state, error) {
	s, err := converge.Observe(ctx, m, want)
	if err != nil {
		return nil, err // a nil *State in an interface would not be nil
	}
	return s, nil
}

func (converging) Apply(ctx context.Context, m guest.Machine, want *spec.Spec, o converge.Options) error {
	_, err := converge.Apply(ctx, m, want, o)
	return err
}

// lostError is a step with an unknown outcome.
type lostError struct{ error }

// Unwrap gives it.
func (e *lostError) Unwrap() error { return e.error }

// OutcomeUnknown is true; see apply.Repeat.
func (*lostError) OutcomeUnknown() bool { return true }

// outcome says of an error of a machine what passes understand.
func outcome(err error) error {
	if errors.Is(err, guest.ErrOutcomeLost) {
		return &lostError{err}
	}
	return err
}
