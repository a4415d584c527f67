package machine

// Connections in memory between simulated machines. Unlike those of net.Pipe, both ends may
// write without waiting for each other, as over a network.

import (
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"
)

// Pipe makes a connection, and gives both of its ends. The addresses are those of the far one, and of
// who has called it.
func Pipe(near, far netip.AddrPort) (caller, callee net.Conn) {
	a, b := newStream(), newStream()
	return &end{in: a, out: b, local: near, remote: far}, &end{in: b, out: a, local: far, remote: near}
}

// end is one end of a connection. Safe for concurrent use.
type end struct {
	in, out       *netStream
	local, remote netip.AddrPort
}

// netStream is one direction.
type netStream struct {
	mu       sync.Mutex // both ends use it
	data     []byte
	closed   bool
	changed  chan struct{} // closed at every change
	deadline time.Time     // of the reader
}

func newStream() *netStream { return &netStream{changed: make(chan struct{})} }

func (s *netStream) change(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
	close(s.changed)
	s.changed = make(chan struct{})
}

// Read is as net.Conn wants it.
func (e *end) Read(p []byte) (int, error) {
	for {
		e.in.mu.Lock()
		data, closed, changed, deadline := e.in.data, e.in.closed, e.in.changed, e.in.deadline
		if len(data) > 0 {
			n := copy(p, data)
			e.in.data = data[n:]
			e.in.mu.Unlock()
			return n, nil
		}
		e.in.mu.Unlock()
		if closed {
			return 0, io.EOF
		}
		if deadline.IsZero() {
			<-changed
			continue
		}
		left := time.NewTimer(time.Until(deadline))
		select {
		case <-changed:
			left.Stop()
		case <-left.C:
			return 0, os.ErrDeadlineExceeded
		}
	}
}

// Write is as net.Conn wants it.
func (e *end) Write(p []byte) (int, error) {
	closed := false
	e.out.change(func() {
		if closed = e.out.closed; !closed {
			e.out.data = append(e.out.data, p...)
		}
	})
	if closed {
		return 0, net.ErrClosed
	}
	return len(p), nil
}

// Close ends both directions.
func (e *end) Close() error {
	for _, s := range []*netStream{e.in, e.out} {
		s.change(func() { s.closed = true })
	}
	return nil
}

// LocalAddr is the address of this end.
func (e *end) LocalAddr() net.Addr { return net.TCPAddrFromAddrPort(e.local) }

// RemoteAddr is that of the other one.
func (e *end) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(e.remote) }

// SetDeadline only affects reads; writes never block.
func (e *end) SetDeadline(t time.Time) error { return e.SetReadDeadline(t) }

// SetReadDeadline is as net.Conn wants it.
func (e *end) SetReadDeadline(t time.Time) error {
	e.in.change(func() { e.in.deadline = t })
	return nil
}

// SetWriteDeadline changes nothing.
func (*end) SetWriteDeadline(time.Time) error { return nil }
