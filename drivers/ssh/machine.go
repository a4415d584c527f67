package ssh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/homestak/homestak-gitops/engine/guest"
)

const root = "root"

// Machine is a remote machine. It is safe for concurrent use. Close it after use.
type Machine struct {
	cfg     Config
	address string // host:port
	signers []ssh.Signer

	connecting chan struct{} // full while a connection is made
	slots      chan struct{} // an entry for each session

	// mu is for a moment only: commands come from many goroutines, and each reads these.
	mu      sync.Mutex
	conn    *connection          // for new commands; nil if there has to be another
	conns   map[*connection]bool // all that have not ended
	pinned  []ssh.PublicKey
	running int // sessions that the server has opened
	closed  bool

	wait sync.WaitGroup // for all goroutines
}

// errClosed is a machine that was closed.
var errClosed = errors.New("the connection to this machine was closed")

// name is the name of the machine in texts.
func (m *Machine) name() string {
	name := m.cfg.User + "@" + m.address
	if m.cfg.Via != nil {
		name += " through " + m.cfg.Via.name()
	}
	return name
}

// Address is as guest.Machine wants it: the configured one, or that of the connection where this is
// a name.
func (m *Machine) Address(ctx context.Context) (guest.Address, error) {
	if ip, err := netip.ParseAddr(m.cfg.Address); err == nil {
		return guest.Address{IP: ip, Why: ip.String() + " as configured", Declared: true}, nil
	}
	if m.cfg.Via != nil {
		return guest.Address{}, &machineError{m.name(), fmt.Errorf("its address is unknown: only %s resolves the name %s", m.cfg.Via.name(), m.cfg.Address), true}
	}
	c, err := m.connection(ctx)
	if err != nil {
		return guest.Address{}, err
	}
	at, ok := c.client.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return guest.Address{}, &machineError{m.name(), fmt.Errorf("its address is unknown from a connection to %s", c.client.RemoteAddr()), true}
	}
	ip := at.AddrPort().Addr().Unmap()
	return guest.Address{IP: ip, Why: fmt.Sprintf("%s, the address of %s", ip, m.cfg.Address)}, nil
}

// Ping implements guest.Machine: the machine's sshd answers a request.
func (m *Machine) Ping(ctx context.Context) error {
	for again := false; ; again = true {
		c, err := m.connection(ctx)
		if err != nil {
			return err
		}
		err = c.ping(ctx)
		if err == nil || ctx.Err() != nil || again {
			return m.failed(err)
		}
		c.end(err)
	}
}

// Run is as guest.Machine wants it. When ctx ends, the command gets SIGTERM where the server
// passes signals on (RFC 4254 section 6.9). OpenSSH does so for users who are not root only
// (session_signal_req in its session.c), so that a command mostly goes on: one that may hang
// is run by timeout(1).
func (m *Machine) Run(ctx context.Context, c guest.Command) (guest.Output, error) {
	if err := c.Check(); err != nil {
		return guest.Output{}, err
	}
	if err := m.acquire(ctx); err != nil {
		return guest.Output{}, m.failed(err)
	}
	later := retry{m: m}
	for again := false; ; {
		conn, err := m.connection(ctx)
		if err != nil {
			m.release()
			return guest.Output{}, err
		}
		line := conn.prefix + quoteAll(c.Args)
		if len(line) > longestLine {
			m.release()
			return guest.Output{}, &machineError{m.name(), fmt.Errorf("the arguments of %s are %d bytes long as a shell reads them, of at most %d: pass them on standard input", c.Args[0], len(line), longestLine), true}
		}
		out, err := conn.run(ctx, line, c.Stdin, m.release)
		var refused *ssh.OpenChannelError
		switch {
		case err == nil:
			return out, nil
		case errors.Is(err, errNotSent) && ctx.Err() == nil && !again:
			// The connection was dead, unnoticed. The command did not run.
			again = true
			err = m.acquire(ctx)
		case errors.As(err, &refused):
			if err = later.wait(ctx, conn, refused); err != nil {
				m.release()
			}
		}
		if err != nil {
			return guest.Output{}, m.failed(err)
		}
	}
}

// longestLine is the maximum length of one argument of a program, here the line for the far shell
// (MAX_ARG_STRLEN of Linux, less its end).
const longestLine = 128<<10 - 1

// acquire waits for a session to be free.
func (m *Machine) acquire(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return fmt.Errorf("the command did not start: %w", context.Cause(ctx))
	default:
	}
	select {
	case m.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the command did not start, since %d others run: %w", cap(m.slots), context.Cause(ctx))
	}
}

func (m *Machine) release() { <-m.slots }

// count counts the sessions that the server has opened.
func (m *Machine) count(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running += n
}

// retry waits until a session that the server refused may be tried again: it allows fewer than we
// do (MaxSessions), or has not yet noticed that one has ended. If it refuses for longer, commands
// that we gave up may fill the connection: sshd counts them until they have ended
// (session_close_by_channel in session.c of OpenSSH). So there is another connection then.
type retry struct {
	m        *Machine
	pause    time.Duration
	tries    int // since the connection was made, or another session ran
	replaced bool
}

const (
	firstPause = 10 * time.Millisecond
	lastPause  = 200 * time.Millisecond
	mostTries  = 8 // a second in all
)

func (r *retry) wait(ctx context.Context, c *connection, refused error) error {
	r.m.mu.Lock()
	others := r.m.running > 0
	r.m.mu.Unlock()
	switch r.tries++; {
	case r.tries <= mostTries:
	case !r.replaced:
		r.tries, r.replaced = 0, true
		r.m.retire(c)
		return nil
	case others:
		r.tries = 0
	default:
		return fmt.Errorf("it refuses every session (MaxSessions in its sshd_config, or out of processes): %w", refused)
	}
	r.pause = min(max(2*r.pause, firstPause), lastPause)
	select {
	case <-ctx.Done():
		return fmt.Errorf("the command did not start, since the machine allows no more sessions: %w", context.Cause(ctx))
	case <-time.After(r.pause):
		return nil
	}
}

// Close ends the connection and everything that runs over it, and waits for the end of its
// goroutines.
func (m *Machine) Close() error {
	m.mu.Lock()
	m.closed = true
	for c := range m.conns {
		c.end(errClosed)
	}
	m.mu.Unlock()
	m.wait.Wait()
	return nil
}

// enter records that a command uses a connection, and leave that it no longer does.
func (m *Machine) enter(c *connection) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c.users++
}

func (m *Machine) leave(c *connection) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.users--; c.users == 0 && c.retired {
		c.end(errRetired)
	}
}

// retire stops new commands on a connection. It ends when no command uses it any more.
func (m *Machine) retire(c *connection) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conn == c {
		m.conn = nil
	}
	if c.retired = true; c.users == 0 {
		c.end(errRetired)
	}
}

// errRetired is a connection that was replaced.
var errRetired = errors.New("the connection was replaced by another")

// quoteAll makes the words of a line for a POSIX shell.
func quoteAll(args []string) string {
	words := make([]string, len(args))
	for i, arg := range args {
		words[i] = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
	}
	return strings.Join(words, " ")
}
