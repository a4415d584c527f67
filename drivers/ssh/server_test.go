package ssh_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/homestak/homestak-gitops/drivers/drivertest"
	driver "github.com/homestak/homestak-gitops/drivers/ssh"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
)

// server is an SSH server in memory, over pipes. What a test sets before its first connection stays.
type server struct {
	t        *testing.T
	hostKeys []ssh.Signer
	users    []ssh.PublicKey // keys that are let in
	run      func(line string, ch ssh.Channel, signals <-chan string) (exit any)
	sessions int      // how many at once on a connection; 0: as many as wanted, -1: none
	forward  *server  // where connections are forwarded to; nil: nowhere
	env      []string // of commands
	before   string   // lines before its version
	banner   string   // before the login
	cut      [2]int   // after how many bytes to and from the server its first connection ends; 0: never

	wait  sync.WaitGroup
	mu    sync.Mutex
	conns []*end // our ends, in the order of their connections
}

// newServer is a server with a host key that lets one key in. Commands run on this machine.
func newServer(t *testing.T) (*server, driver.Config) {
	t.Helper()
	key, text := newKey(t)
	s := &server{t: t, users: []ssh.PublicKey{key.PublicKey()}, env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}}
	s.run = s.command
	s.hostKeys = []ssh.Signer{s.newHostKey()}
	t.Cleanup(func() {
		s.dropAll()
		s.wait.Wait()
	})
	return s, driver.Config{Address: "192.0.2.7", Keys: []string{text}, HostKeys: []string{authorized(s.hostKeys[0].PublicKey())}, Dial: s.dial}
}

func (s *server) newHostKey() ssh.Signer {
	key, _ := newKey(s.t)
	return key
}

// newKey makes a key, and its private part as ssh-keygen writes it.
func newKey(t *testing.T) (ssh.Signer, string) {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	key, err := ssh.NewSignerFromKey(private)
	require.NoError(t, err)
	block, err := ssh.MarshalPrivateKey(private, "")
	require.NoError(t, err)
	return key, string(pem.EncodeToMemory(block))
}

func authorized(key ssh.PublicKey) string { return string(ssh.MarshalAuthorizedKey(key)) }

// open is the way to the server; it ends with the test.
func open(t *testing.T, cfg driver.Config) *driver.Machine {
	t.Helper()
	m, err := driver.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

func (s *server) dial(context.Context, string, string) (net.Conn, error) { return s.connect(), nil }

func (s *server) connect() net.Conn {
	near, far := pipe()
	s.mu.Lock()
	if len(s.conns) == 0 {
		far.in.left, far.out.left = s.cut[0], s.cut[1]
	}
	s.conns = append(s.conns, far)
	s.mu.Unlock()
	s.wait.Go(func() { s.serve(far) })
	return near
}

// connections is how many there were.
func (s *server) connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

func (s *server) dropAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		_ = c.Close()
	}
}

// freezeAll drops all traffic in both directions without closing anything.
func (s *server) freezeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		c.freeze()
	}
}

func (s *server) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	cfg := &ssh.ServerConfig{PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		if slices.ContainsFunc(s.users, func(k ssh.PublicKey) bool { return bytes.Equal(k.Marshal(), key.Marshal()) }) {
			return nil, nil
		}
		return nil, errors.New("not let in")
	}}
	if s.banner != "" {
		cfg.BannerCallback = func(ssh.ConnMetadata) string { return s.banner }
	}
	_, _ = io.WriteString(conn, s.before)
	s.mu.Lock()
	for _, key := range s.hostKeys {
		cfg.AddHostKey(key)
	}
	s.mu.Unlock()
	sc, chans, reqs, err := ssh.NewServerConn(conn, cfg)
	if err != nil {
		return
	}
	s.wait.Go(func() { ssh.DiscardRequests(reqs) })
	var open sync.WaitGroup
	slots := make(chan struct{}, max(s.sessions, 0))
	for c := range chans {
		switch c.ChannelType() {
		case "direct-tcpip":
			open.Go(func() { s.forwarded(c) })
			continue
		case "session":
		default:
			_ = c.Reject(ssh.UnknownChannelType, c.ChannelType())
			continue
		}
		if s.sessions != 0 {
			select {
			case slots <- struct{}{}:
			default:
				_ = c.Reject(ssh.ConnectionFailed, "open failed")
				continue
			}
		}
		ch, reqs, err := c.Accept()
		if err != nil {
			break
		}
		open.Go(func() {
			s.session(ch, reqs)
			if s.sessions != 0 {
				<-slots
			}
		})
	}
	_ = sc.Close()
	open.Wait()
}

func (s *server) forwarded(c ssh.NewChannel) {
	if s.forward == nil {
		_ = c.Reject(ssh.Prohibited, "administratively prohibited")
		return
	}
	ch, reqs, err := c.Accept()
	if err != nil {
		return
	}
	s.wait.Go(func() { ssh.DiscardRequests(reqs) })
	conn := s.forward.connect()
	s.wait.Go(func() { _, _ = io.Copy(conn, ch); _ = conn.Close() })
	_, _ = io.Copy(ch, conn)
	_ = ch.Close()
}

type exitStatus struct{ Code uint32 }

type exitSignal struct {
	Name        string
	Core        bool
	Text, Words string
}

func (s *server) session(ch ssh.Channel, reqs <-chan *ssh.Request) {
	defer func() { _ = ch.Close() }()
	signals := make(chan string, 10)
	var running sync.WaitGroup
	defer running.Wait()
	defer close(signals)
	for req := range reqs {
		switch req.Type {
		case "exec":
			var p struct{ Line string }
			_ = ssh.Unmarshal(req.Payload, &p)
			_ = req.Reply(s.run != nil, nil)
			if s.run == nil {
				return
			}
			running.Go(func() {
				switch exit := s.run(p.Line, ch, signals).(type) {
				case exitStatus:
					_, _ = ch.SendRequest("exit-status", false, ssh.Marshal(exit))
				case exitSignal:
					_, _ = ch.SendRequest("exit-signal", false, ssh.Marshal(exit))
				}
				_ = ch.Close()
			})
		case "signal":
			var p struct{ Name string }
			_ = ssh.Unmarshal(req.Payload, &p)
			signals <- p.Name
		}
	}
}

// command runs a line on this machine, as sshd does.
func (s *server) command(line string, ch ssh.Channel, signals <-chan string) any {
	cmd := exec.Command("/bin/sh", "-c", line)
	cmd.Env, cmd.Stdout, cmd.Stderr = s.env, ch, ch.Stderr()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		s.t.Error(err)
		return nil
	}
	s.wait.Go(func() {
		_, _ = io.Copy(stdin, ch)
		_ = stdin.Close()
	})
	s.wait.Go(func() {
		for range signals {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		}
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	})
	_ = cmd.Wait()
	_ = ch.CloseWrite()
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		name := map[syscall.Signal]string{syscall.SIGKILL: "KILL", syscall.SIGTERM: "TERM", syscall.SIGUSR1: "USR1"}[status.Signal()]
		return exitSignal{Name: name}
	}
	return exitStatus{uint32(status.ExitStatus())}
}

// end is one end of a connection in memory. Both write without waiting for each other, as over a
// network, and may be in a bubble of synctest.
type end struct {
	in, out *stream
}

func pipe() (near, far *end) {
	a, b := newStream(), newStream()
	return &end{a, b}, &end{b, a}
}

type stream struct {
	mu             sync.Mutex
	more           *sync.Cond
	buf            bytes.Buffer
	closed, frozen bool
	left           int // bytes until it ends; 0: it does not
}

func newStream() *stream {
	s := &stream{}
	s.more = sync.NewCond(&s.mu)
	return s
}

func (e *end) Read(p []byte) (int, error) {
	e.in.mu.Lock()
	defer e.in.mu.Unlock()
	for e.in.buf.Len() == 0 && !e.in.closed {
		e.in.more.Wait()
	}
	return e.in.buf.Read(p)
}

func (e *end) Write(p []byte) (int, error) {
	if e.out.ends(len(p)) {
		_ = e.Close()
	}
	e.out.mu.Lock()
	defer e.out.mu.Unlock()
	defer e.out.more.Broadcast()
	switch {
	case e.out.closed:
		return 0, net.ErrClosed
	case e.out.frozen:
		return len(p), nil
	}
	return e.out.buf.Write(p)
}

// ends reports whether a stream ends before so many bytes more.
func (s *stream) ends(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left == 0 {
		return false
	}
	s.left = max(s.left-n, 1) // what has ended does not go on
	return s.left == 1
}

func (e *end) Close() error {
	for _, s := range []*stream{e.in, e.out} {
		s.mu.Lock()
		s.closed = true
		s.more.Broadcast()
		s.mu.Unlock()
	}
	return nil
}

// hangUp ends a connection after the first byte on it.
func (e *end) hangUp() {
	_, _ = e.Read(make([]byte, 1))
	_ = e.Close()
}

func (e *end) freeze() {
	for _, s := range []*stream{e.in, e.out} {
		s.mu.Lock()
		s.frozen = true
		s.mu.Unlock()
	}
}

func (*end) LocalAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 50000} }

func (*end) RemoteAddr() net.Addr             { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 22} }
func (*end) SetDeadline(time.Time) error      { return nil }
func (*end) SetReadDeadline(time.Time) error  { return nil }
func (*end) SetWriteDeadline(time.Time) error { return nil }

// begun says that the far shell is there, as it does before it runs a command.
func begun(ch ssh.Channel) {
	_, _ = io.WriteString(ch, "\x01homestak\x02\n")
	_, _ = io.WriteString(ch.Stderr(), "\x01homestak\x02\n")
}

// realSSHD is a real sshd on this machine, for tests that run as root.
func realSSHD(t *testing.T) (*sourcetest.SSHServer, driver.Config) {
	t.Helper()
	s := sourcetest.NewSSHServer(t)
	if s.User != "root" {
		t.Skip("commands run as root, and the test does not")
	}
	read := func(file string) string {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		return string(text)
	}
	host, port, err := net.SplitHostPort(s.Addr)
	require.NoError(t, err)
	n, err := strconv.Atoi(port)
	require.NoError(t, err)
	return s, driver.Config{Address: host, Port: n, User: s.User, Keys: []string{read(s.KeyFile)}, HostKeys: []string{read(s.HostKeyFile + ".pub")}}
}

func TestMachineByRealSSHD(t *testing.T) {
	drivertest.Machine(t, func(t *testing.T) guest.Machine {
		t.Helper()
		_, cfg := realSSHD(t)
		return open(t, cfg)
	})
}

func TestMachineBehindRealSSHD(t *testing.T) {
	_, above := realSSHD(t)
	_, cfg := realSSHD(t)
	cfg.Via = open(t, above)
	in := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
	out, err := open(t, cfg).Run(t.Context(), guest.Command{Args: []string{"cat"}, Stdin: in})
	require.NoError(t, err)
	require.Equal(t, string(in), out.Out)
}

func TestRealHostKeyThatChanged(t *testing.T) {
	s, cfg := realSSHD(t)
	require.NoError(t, open(t, cfg).Ping(t.Context()))
	s.SetHostKey(s.Key("other"))
	_, err := open(t, cfg).Run(t.Context(), yes)
	require.ErrorContains(t, err, "its host key has changed: pinned is SHA256:")
	drivertest.Hopeless(t, err, true)
}

func TestRealLoginThatIsRefused(t *testing.T) {
	_, cfg := realSSHD(t)
	_, cfg.Keys[0] = newKey(t)
	_, err := open(t, cfg).Run(t.Context(), yes)
	require.ErrorContains(t, err, "it accepts none of these keys: SHA256:")
}

// A server may allow fewer sessions than we do, and notices late that one has ended.
func TestRealSSHDThatAllowsFewSessions(t *testing.T) {
	s, cfg := realSSHD(t)
	s.Configure("MaxSessions 2")
	m := open(t, cfg)
	var all sync.WaitGroup
	for range 12 {
		all.Go(func() {
			out, err := m.Run(t.Context(), guest.Command{Args: []string{"cat"}, Stdin: []byte("x")})
			require.NoError(t, err)
			require.Equal(t, "x", out.Out)
		})
	}
	all.Wait()

	s, cfg = realSSHD(t)
	s.Configure("MaxSessions 0")
	_, err := open(t, cfg).Run(t.Context(), yes)
	require.ErrorContains(t, err, "it refuses every session (MaxSessions in its sshd_config, or out of processes)")
}

func TestRealSSHDThatForwardsNothing(t *testing.T) {
	s, above := realSSHD(t)
	s.Configure("AllowTcpForwarding no")
	_, cfg := realSSHD(t)
	cfg.Via = open(t, above)
	_, err := open(t, cfg).Run(t.Context(), yes)
	require.ErrorContains(t, err, " forwards no connections (AllowTcpForwarding in its sshd_config)")
	drivertest.Hopeless(t, err, true)
}

// A server whose login shell runs nothing: what it says is shown.
func TestRealSSHDThatRunsNothing(t *testing.T) {
	s, cfg := realSSHD(t)
	s.Configure("ForceCommand echo no commands here")
	_, err := open(t, cfg).Run(t.Context(), yes)
	require.ErrorContains(t, err, "ended with exit code 0 before it ran the command: ")
	require.ErrorContains(t, err, "no commands here")
}
