package machine

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"syscall"
)

// Net is a network in memory. The zero value has no servers. Safe for concurrent use.
type Net struct {
	mu      sync.Mutex // for moments: servers and callers come side by side
	servers map[netip.AddrPort]*listener
	callers uint32
}

// Listen makes a server's end of an address, until it is closed. A second one there is EADDRINUSE. As is the address that
// it shows.
func (n *Net) Listen(at, as netip.AddrPort) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.servers[at] != nil {
		return nil, &net.OpError{Op: "listen", Net: "tcp", Addr: net.TCPAddrFromAddrPort(as), Err: syscall.EADDRINUSE}
	}
	if n.servers == nil {
		n.servers = map[netip.AddrPort]*listener{}
	}
	l := &listener{of: n, at: at, as: as, calls: make(chan net.Conn), closed: make(chan struct{})}
	n.servers[at] = l
	return l, nil
}

// Dial connects to the server that listens at an address; without one it is ECONNREFUSED. As is the
// address for whom it is reached by. Each caller has an address of its own, since what one may do is
// limited by that.
func (n *Net) Dial(ctx context.Context, at, as netip.AddrPort) (net.Conn, error) {
	n.mu.Lock()
	l := n.servers[at]
	n.callers++
	from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, byte(n.callers >> 8), byte(n.callers)}), callerPort) //nolint:gosec // it begins again
	n.mu.Unlock()
	refused := &net.OpError{Op: "dial", Net: "tcp", Addr: net.TCPAddrFromAddrPort(as), Err: syscall.ECONNREFUSED}
	if l == nil {
		return nil, refused
	}
	caller, callee := Pipe(from, as)
	select {
	case l.calls <- callee:
		return caller, nil
	case <-l.closed:
		return nil, refused
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// callerPort is the port of all callers.
const callerPort = 50000

// Close ends all servers.
func (n *Net) Close() {
	n.mu.Lock()
	var all []*listener
	for _, l := range n.servers {
		all = append(all, l)
	}
	n.mu.Unlock()
	for _, l := range all {
		_ = l.Close()
	}
}

// listener is a server's end.
type listener struct {
	of     *Net
	at, as netip.AddrPort
	calls  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

// Accept waits for a caller.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.calls:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close ends Accept.
func (l *listener) Close() error {
	l.once.Do(func() {
		l.of.mu.Lock()
		defer l.of.mu.Unlock()
		delete(l.of.servers, l.at)
		close(l.closed)
	})
	return nil
}

// Addr returns the address that it listens on.
func (l *listener) Addr() net.Addr { return net.TCPAddrFromAddrPort(l.as) }
