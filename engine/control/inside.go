package control

import (
	"context"
	"net"
	"net/http"
	"sync"
)

// Client returns a client of a server in the same process, and serves it until ctx ends. It may do what users of the socket may,
// except run commands on nodes.
func (c *Server) Client(ctx context.Context) *Client {
	ln := &insideListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	go func() { _ = c.Serve(ctx, ln) }() // it ends with ctx
	client := &Client{Card: c.self(), socket: "this process", base: "http://agent", tree: c.Tree}
	client.http = &http.Client{Transport: &http.Transport{DialContext: ln.dial, DisableKeepAlives: true}}
	return client
}

// insideListener accepts connections of its own process.
type insideListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *insideListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case l.conns <- there:
		return here, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept waits for a connection.
func (l *insideListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close ends Accept.
func (l *insideListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr is that of no network.
func (*insideListener) Addr() net.Addr { return &net.UnixAddr{Net: "unix", Name: "inside"} }
