package ssh

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/homestak/homestak-gitops/engine/guest"
)

// connection is one to the machine, after login.
type connection struct {
	m      *Machine
	client *ssh.Client
	prefix string // of every command: how the far shell becomes it, as root

	once  sync.Once // closes ended once
	ended chan struct{}
	why   error // it ended; set before ended is closed

	users   int  // commands that use it; under mu of the machine
	retired bool // no more commands; under mu of the machine
}

// start runs f in a goroutine that Close waits for; after Close it does not.
func (m *Machine) start(f func()) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		m.wait.Go(f)
	}
	return !m.closed
}

// connection returns a connection that is alive, as far as is known.
func (m *Machine) connection(ctx context.Context) (*connection, error) {
	if c, err := m.current(); c != nil || err != nil {
		return c, err
	}
	select {
	case m.connecting <- struct{}{}:
		defer func() { <-m.connecting }()
	case <-ctx.Done():
		return nil, m.failed(fmt.Errorf("connecting: %w", context.Cause(ctx)))
	}
	if c, err := m.current(); c != nil || err != nil {
		return c, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, m.cfg.Connect, fmt.Errorf("not connected after %s: %w", m.cfg.Connect, context.DeadlineExceeded))
	defer cancel()
	c, err := m.connect(ctx)
	if err != nil {
		return nil, m.failed(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, &machineError{m.name(), errClosed, true}
	}
	m.conn = c
	return c, nil
}

// current returns the connection if it is alive; neither it nor an error if a new one is needed.
func (m *Machine) current() (*connection, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, &machineError{m.name(), errClosed, true}
	}
	if m.conn != nil {
		select {
		case <-m.conn.ended:
		default:
			return m.conn, nil
		}
	}
	return nil, nil //nolint:nilnil // as its comment says
}

// connect makes a connection and logs in.
func (m *Machine) connect(ctx context.Context) (*connection, error) {
	conn, err := m.dial(ctx)
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("connecting: %w", context.Cause(ctx))
		}
		return nil, err
	}
	closeOnEnd := context.AfterFunc(ctx, func() { _ = conn.Close() }) // whatever waits for it ends then
	l := &login{m: m, ctx: ctx}
	sc, chans, reqs, err := ssh.NewClientConn(conn, m.address, l.config())
	l.close()
	if err != nil {
		closeOnEnd()
		_ = conn.Close()
		return nil, l.failed(err)
	}
	c := &connection{m: m, client: ssh.NewClient(sc, chans, reqs), ended: make(chan struct{}), prefix: begin}
	m.mu.Lock()
	m.conns[c] = true // Close ends it
	m.mu.Unlock()
	started := m.start(c.watch) && m.start(func() {
		<-c.ended
		_ = conn.Close()
		_ = c.client.Close()
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.conns, c)
	}) && m.start(c.keepAlive)
	if !started {
		c.end(errClosed)
		_ = conn.Close()
		return nil, errClosed
	}
	if m.cfg.User != root {
		if err := c.becomeRoot(ctx); err != nil {
			c.end(err)
			return nil, err
		}
	}
	if !closeOnEnd() {
		c.end(context.Cause(ctx))
		return nil, fmt.Errorf("logging in: %w", context.Cause(ctx))
	}
	return c, nil
}

// dial opens the underlying network connection.
func (m *Machine) dial(ctx context.Context) (net.Conn, error) {
	if m.cfg.Via == nil {
		return m.cfg.Dial(ctx, "tcp", m.address)
	}
	conn, err := m.cfg.Via.forward(ctx, m.address)
	if err != nil && !errors.As(err, new(*ssh.OpenChannelError)) {
		return nil, &ViaError{m.cfg.Via.name(), err}
	}
	return conn, err
}

// forward opens a connection from the machine to an address.
func (m *Machine) forward(ctx context.Context, address string) (net.Conn, error) {
	for again := false; ; again = true {
		c, err := m.connection(ctx)
		if err != nil {
			return nil, err
		}
		conn, err := c.client.DialContext(ctx, "tcp", address)
		if err == nil || ctx.Err() != nil || again || errors.As(err, new(*ssh.OpenChannelError)) {
			return conn, err
		}
		c.end(err) // it was dead
	}
}

// Dial opens a connection by TCP from the machine to an address, with deadlines, which a channel of SSH does not have.
func (m *Machine) Dial(ctx context.Context, _, address string) (net.Conn, error) {
	far, err := m.forward(ctx, address)
	if err != nil {
		return nil, err
	}
	near, inner := net.Pipe()
	end := func() { _ = far.Close(); _ = inner.Close() } // each ends both copies
	started := m.start(func() { _, _ = io.Copy(far, inner); end() }) && m.start(func() { _, _ = io.Copy(inner, far); end() })
	if !started {
		end()
		return nil, &machineError{m.name(), errClosed, true}
	}
	return near, nil
}

// end ends the connection. Only the first reason counts.
func (c *connection) end(why error) {
	c.once.Do(func() {
		c.why = why
		close(c.ended)
	})
}

// watch waits for the end of the connection.
func (c *connection) watch() {
	err := c.client.Wait()
	if err == nil {
		err = errors.New("the machine closed the connection")
	}
	c.end(err)
}

// keepAlive sends keep-alive requests. Without an answer for Misses times KeepAlive the connection
// is dead: a machine that lost its power or its network sends nothing that says so.
func (c *connection) keepAlive() {
	every := c.m.cfg.KeepAlive
	timer := time.NewTimer(every)
	defer timer.Stop()
	for {
		select {
		case <-c.ended:
			return
		case <-timer.C:
		}
		silence := time.Duration(c.m.cfg.Misses) * every
		ctx, cancel := context.WithTimeoutCause(context.Background(), silence, fmt.Errorf("no response for %s", silence))
		if err := c.ping(ctx); err != nil {
			c.end(err)
		}
		cancel()
		timer.Reset(every)
	}
}

// ping sends a keep-alive request. The name of the request is the one that OpenSSH uses for this
// (PROTOCOL, section 2.1); any answer will do, also that it is unknown.
func (c *connection) ping(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	answered := make(chan error, 1)
	if !c.m.start(func() {
		_, _, err := c.client.SendRequest("keepalive@openssh.com", true, nil)
		answered <- err
	}) {
		return errClosed
	}
	select {
	case err := <-answered:
		return err
	case <-c.ended:
		return c.why
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// probe is the check of a user who is not root: whether they are root by another name, and else
// whether sudo makes them root without a password.
const probe = `if [ "$(id -u)" = 0 ]; then echo root
elif command -v sudo >/dev/null 2>&1; then LC_ALL=C sudo -n true && echo sudo
else echo none; fi`

// becomeRoot finds out how commands run as root.
func (c *connection) becomeRoot(ctx context.Context) error {
	out, err := c.run(ctx, begin+"/bin/sh -c "+quoteAll([]string{probe}), nil, func() {})
	if err != nil {
		// The outcome that is lost is not that of the command for which we connect.
		err = errors.New("checking whether this user is root: " + err.Error())
		if ctx.Err() != nil {
			err = fmt.Errorf("checking whether this user is root: %w", context.Cause(ctx))
		}
		return err
	}
	lines := strings.Fields(out.Out)
	switch {
	case slices.Contains(lines, "root"):
	case slices.Contains(lines, "sudo"):
		c.prefix = begin + "sudo -n -- "
	case slices.Contains(lines, "none"):
		return &sudoError{Machine: c.m.name()}
	default:
		reason := cmp.Or(guest.Excerpt(out.Err), fmt.Sprintf("sudo fails with exit code %d", out.Code))
		return &sudoError{Machine: c.m.name(), Reason: reason}
	}
	return nil
}

// login is one attempt to log in. It belongs to the goroutine that connects.
type login struct {
	m       *Machine
	ctx     context.Context
	offered []string
	agent   net.Conn
	reason  string // details, if the login is refused
	hostKey error  // what is wrong with the host key
}

func (l *login) config() *ssh.ClientConfig {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	return &ssh.ClientConfig{
		User:              l.m.cfg.User,
		Auth:              []ssh.AuthMethod{ssh.PublicKeysCallback(l.keys)},
		HostKeyCallback:   l.check,
		HostKeyAlgorithms: algorithms(l.m.pinned),
		ClientVersion:     "SSH-2.0-homestak",
	}
}

// keys are those that are offered.
func (l *login) keys() ([]ssh.Signer, error) {
	keys := slices.Clone(l.m.signers)
	if l.m.cfg.AgentSocket != "" {
		more, err := l.agentKeys()
		if err != nil {
			l.reason = fmt.Sprintf("the ssh-agent at %s has no usable keys: %v", l.m.cfg.AgentSocket, err)
		}
		keys = append(keys, more...)
	}
	for _, key := range keys {
		l.offered = append(l.offered, fingerprint(key.PublicKey()))
	}
	return keys, nil
}

func (l *login) agentKeys() ([]ssh.Signer, error) {
	conn, err := new(net.Dialer).DialContext(l.ctx, "unix", l.m.cfg.AgentSocket)
	if err != nil {
		return nil, err
	}
	l.agent = conn
	context.AfterFunc(l.ctx, func() { _ = conn.Close() })
	keys, err := agent.NewClient(conn).Signers()
	if err == nil && len(keys) == 0 {
		err = errors.New("it is empty")
	}
	return keys, err
}

func (l *login) close() {
	if l.agent != nil {
		_ = l.agent.Close()
	}
}

// check verifies the host key of the machine.
func (l *login) check(_ string, _ net.Addr, shown ssh.PublicKey) error {
	l.m.mu.Lock()
	pinned := l.m.pinned
	l.m.mu.Unlock()
	if slices.ContainsFunc(pinned, func(key ssh.PublicKey) bool { return bytes.Equal(key.Marshal(), shown.Marshal()) }) {
		return nil
	}
	wrong := &HostKeyError{Machine: l.m.name(), Shown: fingerprint(shown), Pinned: fingerprints(pinned)}
	l.hostKey = wrong
	if len(pinned) > 0 || l.m.cfg.Learn == nil {
		return wrong
	}
	if wrong.Err = l.m.cfg.Learn(l.ctx, strings.TrimSpace(string(ssh.MarshalAuthorizedKey(shown)))); wrong.Err != nil {
		return wrong
	}
	l.hostKey = nil
	l.m.mu.Lock()
	l.m.pinned = []ssh.PublicKey{shown}
	l.m.mu.Unlock()
	return nil
}

func fingerprints(keys []ssh.PublicKey) []string {
	var out []string
	for _, key := range keys {
		out = append(out, fingerprint(key))
	}
	return out
}

// failed explains why the login failed.
func (l *login) failed(err error) error {
	l.m.mu.Lock()
	pinned := l.m.pinned
	l.m.mu.Unlock()
	text := err.Error()
	var none *ssh.AlgorithmNegotiationError
	switch {
	case l.hostKey != nil:
		return l.hostKey
	case errors.As(err, &none) && none.What == "host key" && len(pinned) > 0:
		return &HostKeyError{Machine: l.m.name(), Pinned: fingerprints(pinned)}
	case strings.Contains(text, "unable to authenticate"):
		return &LoginError{Machine: l.m.name(), Offered: l.offered, Reason: l.reason}
	case strings.Contains(text, "Too many authentication failures"):
		return &LoginError{Machine: l.m.name(), Offered: l.offered, Reason: "too many of them: sshd stops after MaxAuthTries"}
	case l.ctx.Err() != nil:
		return fmt.Errorf("logging in: %w", context.Cause(l.ctx))
	}
	return err
}
