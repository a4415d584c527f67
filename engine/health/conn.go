package health

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/homestak/homestak-gitops/engine/model"
)

// conn is a connection with an idle timeout for reads and writes, which ends with its context and
// records its progress. One goroutine reads; what it counts is read by others too, since HTTP and
// SSH have their own.
type conn struct {
	net.Conn
	ctx  context.Context //nolint:containedctx // the time of the try, which is that of the connection
	idle time.Duration
	took time.Duration // to connect
	got  atomic.Int64  // bytes
	free func() bool   // stops the watch of ctx
}

// network connects to addresses.
type network func(ctx context.Context, network, address string) (net.Conn, error)

// network is the one that leads to an endpoint.
func (a *attempt) network(e model.Endpoint) network {
	switch {
	case e.Host == "" && a.Subject.Dial != nil:
		return a.Subject.Dial
	case a.Prober.Dial != nil:
		return a.Prober.Dial
	default:
		return new(net.Dialer).DialContext
	}
}

// dial connects within its own deadline. Its error says where, and what happened instead.
func (a *attempt) dial(ctx context.Context, network network, addr string) (*conn, error) {
	connect := cmp.Or(a.Connect, 5*time.Second)
	within, cancel := context.WithTimeout(ctx, connect)
	defer cancel()
	began := time.Now()
	inner, err := network(within, "tcp", addr)
	if err != nil {
		text := reason(err)
		switch {
		case ctx.Err() != nil:
			text = fmt.Sprint(context.Cause(ctx))
		case within.Err() != nil, errors.Is(err, os.ErrDeadlineExceeded):
			text = "no connection within " + short(connect)
		}
		return nil, &connectError{addr, text, err}
	}
	c := &conn{Conn: inner, ctx: ctx, idle: cmp.Or(a.Idle, 10*time.Second), took: time.Since(began)}
	c.free = context.AfterFunc(ctx, func() { _ = inner.Close() })
	return c, nil
}

// connectError is a failed attempt to connect.
type connectError struct {
	addr, text string
	err        error
}

// Error says where, and what came instead.
func (e *connectError) Error() string { return e.addr + ": " + e.text }

// Unwrap returns the network's error.
func (e *connectError) Unwrap() error { return e.err }

// Read ends when no byte received for the idle time.
func (c *conn) Read(b []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(c.idle)); err != nil {
		return 0, err
	}
	n, err := c.Conn.Read(b)
	c.got.Add(int64(n))
	return n, err
}

// Write ends when nothing was taken for the idle time.
func (c *conn) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.idle)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// Close closes it.
func (c *conn) Close() error {
	c.free()
	return c.Conn.Close()
}

// story describes how far a connection got, and the error that ended it.
func (c *conn) story(err error) string {
	text := "connected in " + short(c.took)
	if n := c.got.Load(); n > 0 {
		bytes := "bytes"
		if n == 1 {
			bytes = "byte"
		}
		text = fmt.Sprintf("%s, %d %s received", text, n, bytes)
	}
	switch {
	case c.ctx.Err() != nil:
		return fmt.Sprintf("%s, %v", text, context.Cause(c.ctx))
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Sprintf("%s, then no byte for %s", text, short(c.idle))
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.ErrClosedPipe), errors.Is(err, syscall.EPIPE):
		return fmt.Sprintf("%s, then the other side closed it", text)
	default:
		return fmt.Sprintf("%s, then: %s", text, reason(err))
	}
}

// reason is the kernel's error text, without the addresses, which the message already has.
func reason(err error) string {
	var dns *net.DNSError
	var no syscall.Errno
	switch {
	case errors.As(err, &dns):
		return "the name " + dns.Name + " is not known: " + dns.Err
	case errors.As(err, &no):
		return no.Error()
	default:
		return err.Error()
	}
}
