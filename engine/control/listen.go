package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// longestSocket is the kernel's limit for the name of a socket (unix(7)), without the zero at its
// end.
const longestSocket = 107

// Listen makes the control socket, for its owner and group. It replaces the socket of a dead agent,
// but not of a running one.
func Listen(ctx context.Context, name string) (net.Listener, error) {
	if len(name) > longestSocket {
		return nil, fmt.Errorf("make the control socket: %s is too long, the system takes %d bytes\nname a shorter one with --socket or HOMESTAK_SOCKET", name, longestSocket)
	}
	if conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", name); err == nil {
		_ = conn.Close()
		return nil, refusedf("make the control socket: another program answers on %s\nname another one with --socket or HOMESTAK_SOCKET", name)
	}
	if info, err := os.Lstat(name); err == nil {
		if info.Mode()&fs.ModeSocket == 0 {
			return nil, fmt.Errorf("make the control socket: %s is there already, and is not a socket\nremove it, or name another one with --socket or HOMESTAK_SOCKET", name)
		}
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("make the control socket: %w", err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return nil, fmt.Errorf("make the control socket: %w\nname another one with --socket or HOMESTAK_SOCKET", err)
	}
	// The file is created with the mode of the socket, less the umask, so it is never accessible to others.
	in := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), socketMode) }), err)
	}}
	ln, err := in.Listen(ctx, "unix", name)
	if err == nil {
		if err = os.Chmod(name, socketMode); err != nil {
			_ = ln.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("make the control socket: %w\nname another one with --socket or HOMESTAK_SOCKET", err)
	}
	return ln, nil
}

// socketMode lets the owner and the group in.
const socketMode = 0o660

// Bounded returns a listener that accepts only so many connections at once.
func Bounded(ln net.Listener, n int) net.Listener {
	return &boundedListener{Listener: ln, slots: make(chan struct{}, n), closed: make(chan struct{})}
}

type boundedListener struct {
	net.Listener
	slots  chan struct{}
	closed chan struct{}
	once   sync.Once
}

// Accept waits for a slot, then for a connection.
func (l *boundedListener) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	conn, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &boundedConn{Conn: conn, leave: sync.OnceFunc(func() { <-l.slots })}, nil
}

// Close ends the waiting too.
func (l *boundedListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

type boundedConn struct {
	net.Conn
	leave func()
}

// Close releases the slot.
func (c *boundedConn) Close() error {
	c.leave()
	return c.Conn.Close()
}
