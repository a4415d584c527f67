package forest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"github.com/homestak/homestak-gitops/sim/machine"
)

// network is the links between the machines of a forest. Its methods may be called from any goroutine.
type network struct {
	mu        sync.Mutex // agents dial and listen while a schedule cuts links
	listeners map[netip.AddrPort]*listener
	conns     map[*conn]bool
	cut       map[string]bool // by the name of the machine whose link to its parent it is, or by its data folder
	lost      float64         // of the answers
	r         *rand.Rand
	dials     map[string]int // by machine
}

func newNetwork(seed uint64) *network {
	return &network{
		listeners: map[netip.AddrPort]*listener{}, conns: map[*conn]bool{}, cut: map[string]bool{}, dials: map[string]int{},
		r: rand.New(rand.NewPCG(seed, 0x6e6574)), //nolint:gosec // a schedule, not a secret
	}
}

// Cut takes away the link of a machine to its parent, or gives it back: of all of a name, or of the one with a data folder. What
// is under way ends.
func (n *network) Cut(machine string, gone bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut[machine] = gone
	for c := range n.conns {
		if gone && (c.of.Name == machine || c.of.Data == machine) {
			_ = c.Conn.Close()
			delete(n.conns, c)
		}
	}
}

// Lose makes so many of the parts of answers get lost, with their connection: 0 is none.
func (n *network) Lose(chance float64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lost = chance
}

// listen is the service's way to listen at the address of a machine.
func (n *network) listen(at netip.AddrPort) func(context.Context, string) (net.Listener, error) {
	return func(context.Context, string) (net.Listener, error) {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.listeners[at] != nil {
			return nil, fmt.Errorf("listen %s: %w", at, syscall.EADDRINUSE)
		}
		l := &listener{n: n, at: at, incoming: make(chan net.Conn), closed: make(chan struct{})}
		n.listeners[at] = l
		return l, nil
	}
}

// dial is the way of a machine to its parent.
func (n *network) dial(m *Machine) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return nil, err
		}
		failed := func(err error) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: network, Addr: net.TCPAddrFromAddrPort(to), Err: err}
		}
		n.mu.Lock()
		l, cut := n.listeners[to], n.cut[m.Name] || n.cut[m.Data]
		n.dials[m.Name]++
		n.mu.Unlock()
		switch {
		case cut:
			return failed(syscall.EHOSTUNREACH)
		case l == nil:
			return failed(syscall.ECONNREFUSED)
		}
		caller, callee := machine.Pipe(netip.AddrPortFrom(m.At.Addr(), 40000), to)
		select {
		case l.incoming <- callee:
		case <-l.closed:
			return failed(syscall.ECONNREFUSED)
		case <-ctx.Done():
			return failed(context.Cause(ctx))
		}
		c := &conn{Conn: caller, n: n, of: m}
		n.mu.Lock()
		defer n.mu.Unlock()
		n.conns[c] = true
		return c, nil
	}
}

// conn is the caller's end of a connection.
type conn struct {
	net.Conn
	n  *network
	of *Machine
}

var errLost = errors.New("connection reset by peer")

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	got, err := c.Conn.Read(p)
	c.n.mu.Lock()
	lost := err == nil && c.n.lost > 0 && c.n.r.Float64() < c.n.lost
	c.n.mu.Unlock()
	if lost {
		return 0, errors.Join(errLost, c.Close())
	}
	return got, err
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.n.mu.Lock()
	delete(c.n.conns, c)
	c.n.mu.Unlock()
	return c.Conn.Close()
}

// listener is that of a machine.
type listener struct {
	n        *network
	at       netip.AddrPort
	incoming chan net.Conn
	once     sync.Once
	closed   chan struct{}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.incoming:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.once.Do(func() {
		close(l.closed)
		l.n.mu.Lock()
		defer l.n.mu.Unlock()
		delete(l.n.listeners, l.at)
	})
	return nil
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return net.TCPAddrFromAddrPort(l.at) }
