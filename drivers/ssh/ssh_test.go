package ssh_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/homestak/homestak-gitops/drivers/drivertest"
	driver "github.com/homestak/homestak-gitops/drivers/ssh"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/guest"
)

func TestMachine(t *testing.T) {
	drivertest.Machine(t, func(t *testing.T) guest.Machine {
		t.Helper()
		_, cfg := newServer(t)
		return open(t, cfg)
	})
}

// A machine behind another one, which knows nothing of what passes.
func TestMachineBehindAnother(t *testing.T) {
	drivertest.Machine(t, func(t *testing.T) guest.Machine {
		t.Helper()
		parent, above := newServer(t)
		child, cfg := newServer(t)
		parent.forward = child
		cfg.Dial, cfg.Via = nil, open(t, above)
		return open(t, cfg)
	})
}

var yes = guest.Command{Args: []string{"true"}}

// bubble runs a test in the time of synctest.
func bubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, test)
}

func TestOneConnectionForAll(t *testing.T) {
	s, cfg := newServer(t)
	m := open(t, cfg)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			_, err := m.Run(t.Context(), yes)
			require.NoError(t, err)
		})
	}
	all.Wait()
	require.NoError(t, m.Ping(t.Context()))
	require.Equal(t, 1, s.connections())
}

// A server that allows fewer sessions than we do gets as many as it allows.
func TestServerThatAllowsFewSessions(t *testing.T) {
	for _, sessions := range []int{1, 3} {
		s, cfg := newServer(t)
		s.sessions = sessions
		m := open(t, cfg)
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				out, err := m.Run(t.Context(), guest.Command{Args: []string{"cat"}, Stdin: []byte("x")})
				require.NoError(t, err)
				require.Equal(t, "x", out.Out)
			})
		}
		all.Wait()
	}
}

// Commands that we gave up count on the server until they end. Once they fill a connection, there
// is another, and what else ran over the first is not lost.
func TestGivenUpCommandsFillTheConnection(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, cfg := newServer(t)
		s.sessions = 3
		s.run = func(line string, ch ssh.Channel, _ <-chan string) any {
			begun(ch)
			if strings.Contains(line, "hang") {
				<-time.After(time.Hour)
			}
			return exitStatus{0}
		}
		m := open(t, cfg)
		long := make(chan error, 1)
		go func() {
			_, err := m.Run(t.Context(), guest.Command{Args: []string{"hang"}})
			long <- err
		}()
		for range 2 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			_, err := m.Run(ctx, guest.Command{Args: []string{"hang"}})
			require.ErrorIs(t, err, guest.ErrOutcomeLost)
			cancel()
		}
		_, err := m.Run(t.Context(), yes)
		require.NoError(t, err)
		require.Equal(t, 2, s.connections())
		require.NoError(t, <-long)
	})
}

// A server that allows none at all is not asked for ever.
func TestServerThatAllowsNoSession(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, cfg := newServer(t)
		s.sessions = -1
		_, err := open(t, cfg).Run(t.Context(), yes)
		require.EqualError(t, err, `ssh to root@192.0.2.7:22: it refuses every session (MaxSessions in its sshd_config, or out of processes): ssh: rejected: connect failed ("open failed")`)
		drivertest.Hopeless(t, err, false)
		require.NotErrorIs(t, err, guest.ErrOutcomeLost)
	})
}

// A connection that has ended while nothing ran is replaced.
func TestReconnect(t *testing.T) {
	s, cfg := newServer(t)
	m := open(t, cfg)
	for n := range 10 {
		_, err := m.Run(t.Context(), yes)
		require.NoError(t, err)
		require.Equal(t, 2*n+1, s.connections())
		s.dropAll()
		require.NoError(t, m.Ping(t.Context()))
		s.dropAll()
	}
}

// A command whose connection is lost has an unknown outcome, and does not run again.
func TestConnectionIsLostWhileACommandRuns(t *testing.T) {
	s, cfg := newServer(t)
	times := 0
	s.run = func(_ string, ch ssh.Channel, _ <-chan string) any {
		begun(ch)
		times++
		_, _ = io.WriteString(ch, "begun")
		s.dropAll()
		_, _ = io.Copy(io.Discard, ch)
		return nil
	}
	m := open(t, cfg)
	_, err := m.Run(t.Context(), yes)
	require.ErrorIs(t, err, guest.ErrOutcomeLost)
	require.ErrorContains(t, err, "ssh to root@192.0.2.7:22: the outcome of the command is unknown: ")
	drivertest.Hopeless(t, err, false)
	require.Equal(t, 1, times)
	require.Equal(t, 1, s.connections())
}

// A connection may end after every byte. Whatever was lost, a command runs once at most; it ran if
// there is an outcome, and it did not if the error says nothing of one that was lost.
func TestConnectionThatEndsAfterEveryByte(t *testing.T) {
	seen := map[string]int{}
	for direction := range 2 {
		for n := 1; n < 5000; n += 41 {
			s, cfg := newServer(t)
			s.cut[direction] = n
			var times atomic.Int32
			s.run = func(_ string, ch ssh.Channel, _ <-chan string) any {
				times.Add(1)
				begun(ch)
				_, _ = io.WriteString(ch, "out")
				return exitStatus{3}
			}
			out, err := open(t, cfg).Run(t.Context(), guest.Command{Args: []string{"true"}, Stdin: []byte("in")})
			ran := times.Load()
			switch {
			case err == nil:
				require.Equal(t, guest.Output{Code: 3, Out: "out"}, out)
				require.EqualValues(t, 1, ran, "%d bytes", n)
				seen[fmt.Sprint("outcome by connection ", s.connections())]++
			case errors.Is(err, guest.ErrOutcomeLost):
				require.LessOrEqual(t, ran, int32(1), "%d bytes", n)
				seen[fmt.Sprint("lost, ran ", ran)]++
			default:
				require.Zero(t, ran, "%d bytes: %v", n, err)
				seen["not connected"]++
			}
		}
	}
	for _, what := range []string{"outcome by connection 1", "outcome by connection 2", "lost, ran 0", "lost, ran 1", "not connected"} {
		require.NotZero(t, seen[what], "%s: %v", what, seen)
	}
}

// A session that ends without an exit code says nothing of its command.
func TestNoExitCode(t *testing.T) {
	s, cfg := newServer(t)
	s.run = func(string, ssh.Channel, <-chan string) any { return nil }
	_, err := open(t, cfg).Run(t.Context(), yes)
	require.EqualError(t, err, "ssh to root@192.0.2.7:22: the outcome of the command is unknown: the machine closed the session without an exit code")
	require.ErrorIs(t, err, guest.ErrOutcomeLost)

	s.run = nil
	_, err = open(t, cfg).Run(t.Context(), yes)
	require.EqualError(t, err, "ssh to root@192.0.2.7:22: its sshd refuses to run a command")
	drivertest.Hopeless(t, err, true)
}

// A machine that lost its power says nothing of it: the missing signs of life show it.
func TestMachineThatIsGone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, cfg := newServer(t)
		s.run = func(_ string, ch ssh.Channel, _ <-chan string) any {
			begun(ch)
			s.freezeAll()
			return exitStatus{0}
		}
		m := open(t, cfg)
		require.NoError(t, m.Ping(t.Context()))
		began := time.Now()
		_, err := m.Run(t.Context(), yes)
		require.EqualError(t, err, "ssh to root@192.0.2.7:22: the outcome of the command is unknown: no response for 45s")
		require.ErrorIs(t, err, guest.ErrOutcomeLost)
		require.Equal(t, time.Minute, time.Since(began), "45 s after a sign of life was due")

		s.run = func(_ string, ch ssh.Channel, _ <-chan string) any {
			begun(ch)
			return exitStatus{0}
		}
		_, err = m.Run(t.Context(), yes)
		require.NoError(t, err, "it is back")
		require.Equal(t, 2, s.connections())
	})
}

// A command that says nothing for hours is no reason to give up, where the machine lives.
func TestSilentCommand(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, cfg := newServer(t)
		s.run = func(_ string, ch ssh.Channel, _ <-chan string) any {
			begun(ch)
			<-time.After(5 * time.Hour)
			return exitStatus{3}
		}
		out, err := open(t, cfg).Run(t.Context(), yes)
		require.NoError(t, err)
		require.Equal(t, 3, out.Code)
	})
}

// An output that a process keeps open after its command has ended, as a service that was
// started by hand does, is not waited for.
func TestOutputThatStaysOpen(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, cfg := newServer(t)
		s.run = func(_ string, ch ssh.Channel, _ <-chan string) any {
			begun(ch)
			_, _ = io.WriteString(ch, "begun")
			_, _ = ch.SendRequest("exit-status", false, ssh.Marshal(exitStatus{4}))
			_, _ = io.Copy(io.Discard, ch)
			<-time.After(time.Hour)
			return nil
		}
		began := time.Now()
		out, err := open(t, cfg).Run(t.Context(), yes)
		require.NoError(t, err)
		require.Equal(t, guest.Output{Code: 4, Out: "begun"}, out)
		require.Equal(t, 5*time.Second, time.Since(began))
	})
}

// Output of a login shell before the command is not output of the command.
func TestLoginShellThatWrites(t *testing.T) {
	s, cfg := newServer(t)
	for _, noise := range []string{"Welcome!\n", "no newline", "\x01homestak\x02", strings.Repeat("\x01homestak", 10000)} {
		s.run = func(line string, ch ssh.Channel, signals <-chan string) any {
			_, _ = io.WriteString(ch, noise)
			_, _ = io.WriteString(ch.Stderr(), noise)
			return s.command(line, ch, signals)
		}
		out, err := open(t, cfg).Run(t.Context(), guest.Command{Args: []string{"/bin/sh", "-c", "echo out; echo err >&2"}})
		require.NoError(t, err)
		require.Equal(t, guest.Output{Out: "out\n", Err: "err\n"}, out)
	}
	s.run = func(_ string, ch ssh.Channel, _ <-chan string) any {
		_, _ = io.WriteString(ch, "This account is currently not available.\n")
		return exitStatus{1}
	}
	_, err := open(t, cfg).Run(t.Context(), yes)
	require.EqualError(t, err, "ssh to root@192.0.2.7:22: the login shell of this user ended with exit code 1 before it ran the command: This account is currently not available.; it must be a POSIX shell that runs commands")
	require.NotErrorIs(t, err, guest.ErrOutcomeLost)
}

// A signal that the library does not know is one all the same.
func TestUnknownSignal(t *testing.T) {
	s, cfg := newServer(t)
	s.run = func(_ string, ch ssh.Channel, _ <-chan string) any {
		begun(ch)
		return exitSignal{Name: "SIG@openssh.com"}
	}
	out, err := open(t, cfg).Run(t.Context(), yes)
	require.NoError(t, err)
	require.Equal(t, guest.Output{Signal: -1}, out)
}

// A machine whose key changed gets no login, also where it has another of the type that is
// pinned, and none but those.
func TestHostKeyThatChanged(t *testing.T) {
	s, cfg := newServer(t)
	m := open(t, cfg)
	require.NoError(t, m.Ping(t.Context()))
	pinned := ssh.FingerprintSHA256(s.hostKeys[0].PublicKey())
	other := s.newHostKey()
	s.mu.Lock()
	s.hostKeys = []ssh.Signer{other}
	s.mu.Unlock()
	s.dropAll()
	_, err := m.Run(t.Context(), yes)
	require.EqualError(t, err, "ssh to root@192.0.2.7:22: its host key has changed: pinned is "+pinned+" (ssh-ed25519), it shows "+ssh.FingerprintSHA256(other.PublicKey())+
		" (ssh-ed25519); the connection may be intercepted. If the machine was reinstalled, compare it with `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` on the machine's console and pin it")
	require.NotErrorIs(t, err, guest.ErrOutcomeLost)
	drivertest.Hopeless(t, err, true)

	cfg.HostKeys = []string{"ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBEmKSENjQEezOmxkZMy7opKgwFB9nkt5YRrYMjNuG5N87uRgg6CLrbo5wAdT/y6v0mKV0U2w0WZ2YB/++Tpockg="}
	_, err = open(t, cfg).Run(t.Context(), yes)
	require.ErrorContains(t, err, "(ecdsa-sha2-nistp256), and it has none of that type; if the machine was reinstalled, pin its new key")
	drivertest.Hopeless(t, err, true)

	cfg.HostKeys = []string{cfg.HostKeys[0], authorized(other.PublicKey())}
	require.NoError(t, open(t, cfg).Ping(t.Context()), "one of several")
}

// A key is learned before anything else is done, once, and then counts as pinned.
func TestHostKeyThatIsLearned(t *testing.T) {
	s, cfg := newServer(t)
	cfg.HostKeys = nil
	_, err := open(t, cfg).Run(t.Context(), yes)
	require.ErrorContains(t, err, "its host key is not known: it shows "+ssh.FingerprintSHA256(s.hostKeys[0].PublicKey())+" (ssh-ed25519); compare it with ")
	drivertest.Hopeless(t, err, true)

	var learned []string
	ran := 0
	full := errors.New("no space left on device")
	fail := full
	s.run = func(_ string, ch ssh.Channel, _ <-chan string) any {
		begun(ch)
		ran++
		return exitStatus{0}
	}
	cfg.Learn = func(_ context.Context, key string) error {
		learned = append(learned, key)
		require.Zero(t, ran)
		return fail
	}
	m := open(t, cfg)
	_, err = m.Run(t.Context(), yes)
	require.ErrorIs(t, err, full)
	require.ErrorContains(t, err, " was not accepted: no space left on device")
	drivertest.Hopeless(t, err, false)
	fail = nil
	for range 2 {
		_, err = m.Run(t.Context(), yes)
		require.NoError(t, err)
		s.dropAll()
	}
	want := strings.TrimSpace(authorized(s.hostKeys[0].PublicKey()))
	require.Equal(t, []string{want, want}, learned)
	require.Equal(t, 2, ran)
	s.mu.Lock()
	s.hostKeys = []ssh.Signer{s.newHostKey()}
	s.mu.Unlock()
	_, err = m.Run(t.Context(), yes)
	require.ErrorContains(t, err, "its host key has changed")
}

func TestLoginThatIsRefused(t *testing.T) {
	s, cfg := newServer(t)
	s.users = nil
	first, one := newKey(t)
	second, two := newKey(t)
	cfg.Keys, cfg.User = []string{one, two}, "web"
	cfg.AgentSocket = filepath.Join(t.TempDir(), "none")
	_, err := open(t, cfg).Run(t.Context(), yes)
	require.EqualError(t, err, "ssh to web@192.0.2.7:22: it accepts none of these keys: "+ssh.FingerprintSHA256(first.PublicKey())+" (ssh-ed25519), "+ssh.FingerprintSHA256(second.PublicKey())+
		" (ssh-ed25519) (the ssh-agent at "+cfg.AgentSocket+" has no usable keys: dial unix "+cfg.AgentSocket+": connect: no such file or directory); is one of them in ~/.ssh/authorized_keys of that user, and does sshd let the user log in?")
	drivertest.Hopeless(t, err, false)
}

// serveAgent serves an ssh-agent, and gives its socket.
func serveAgent(t *testing.T, keys ...ssh.Signer) string {
	t.Helper()
	ring := signers{agent.NewKeyring(), keys}
	socket := filepath.Join(t.TempDir(), "agent")
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	var wait sync.WaitGroup
	wait.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wait.Go(func() {
				_ = agent.ServeAgent(ring, conn)
				_ = conn.Close()
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wait.Wait()
	})
	return socket
}

// signers is an agent with keys that it does not give away.
type signers struct {
	agent.Agent
	keys []ssh.Signer
}

func (s signers) List() ([]*agent.Key, error) {
	var out []*agent.Key
	for _, k := range s.keys {
		out = append(out, &agent.Key{Format: k.PublicKey().Type(), Blob: k.PublicKey().Marshal()})
	}
	return out, nil
}

func (s signers) Sign(key ssh.PublicKey, data []byte) (*ssh.Signature, error) {
	for _, k := range s.keys {
		if string(k.PublicKey().Marshal()) == string(key.Marshal()) {
			return k.Sign(nil, data)
		}
	}
	return nil, errors.New("no such key")
}

func TestKeyOfAnAgent(t *testing.T) {
	s, cfg := newServer(t)
	key, _ := newKey(t)
	s.users, cfg.Keys = []ssh.PublicKey{key.PublicKey()}, nil
	cfg.AgentSocket = serveAgent(t, key)
	_, err := open(t, cfg).Run(t.Context(), yes)
	require.NoError(t, err)
	cfg.AgentSocket = serveAgent(t)
	_, err = open(t, cfg).Run(t.Context(), yes)
	require.ErrorContains(t, err, "has no usable keys: it is empty")
}

// An error of an unreachable machine says why, and whether waiting can help.
func TestMachineThatCannotBeReached(t *testing.T) {
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	says := func(text string) func(context.Context, string, string) (net.Conn, error) {
		return func(context.Context, string, string) (net.Conn, error) {
			near, far := pipe()
			_, _ = io.WriteString(far, text)
			return near, nil
		}
	}
	for _, v := range []struct {
		dial     func(context.Context, string, string) (net.Conn, error)
		want     string
		hopeless bool
	}{
		{func(context.Context, string, string) (net.Conn, error) { return nil, refused }, "nothing listens there: does sshd run, and on this port? dial tcp: connection refused", false},
		{func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.DNSError{Err: "no such host", Name: "web", IsNotFound: true}
		}, "no such name: lookup web: no such host", false},
		{func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ETIMEDOUT}
		}, "no answer; is the address right, and does a firewall drop it? dial tcp: connection timed out", false},
		{func(ctx context.Context, _, _ string) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }, "connecting: not connected after 20s: context deadline exceeded", false},
		{func(context.Context, string, string) (net.Conn, error) {
			near, far := pipe()
			go far.hangUp()
			return near, nil
		}, "it closed the connection at once: is the port right, and does it block this machine for a while (MaxStartups, fail2ban)? ssh: handshake failed: EOF", false},
		{says(""), "logging in: not connected after 20s: context deadline exceeded", false},
		{says(strings.Repeat("x", 300)), "what listens there does not speak ssh; is the port right? ssh: handshake failed: ssh: overflow reading version string", true},
	} {
		bubble(t, func(t *testing.T) {
			_, text := newKey(t)
			m := open(t, driver.Config{Address: "web", Keys: []string{text}, Dial: v.dial})
			_, err := m.Run(t.Context(), yes)
			require.EqualError(t, err, "ssh to root@web:22: "+v.want)
			require.NotErrorIs(t, err, guest.ErrOutcomeLost)
			drivertest.Hopeless(t, err, v.hopeless)
			require.EqualError(t, m.Ping(t.Context()), "ssh to root@web:22: "+v.want)
		})
	}
}

func TestParentThatDoesNotForward(t *testing.T) {
	parent, above := newServer(t)
	_, cfg := newServer(t)
	above.Address = "192.0.2.1"
	cfg.Dial, cfg.Via = nil, open(t, above)
	_, err := open(t, cfg).Run(t.Context(), yes)
	require.EqualError(t, err, "ssh to root@192.0.2.7:22 through root@192.0.2.1:22: root@192.0.2.1:22 forwards no connections (AllowTcpForwarding in its sshd_config): ssh: rejected: administratively prohibited (\"administratively prohibited\")")
	drivertest.Hopeless(t, err, true)

	child, cfg := newServer(t)
	parent.forward = child
	cfg.Dial, cfg.Via = nil, open(t, above)
	m := open(t, cfg)
	for range 3 { // each time the connection to the parent is dead
		_, err := m.Run(t.Context(), yes)
		require.NoError(t, err)
		parent.dropAll()
		require.NoError(t, m.Ping(t.Context()))
		parent.dropAll()
	}
}

func TestConfigThatCannotWork(t *testing.T) {
	_, text := newKey(t)
	const locked = `-----BEGIN OPENSSH PRIVATE KEY-----
b3BlbnNzaC1rZXktdjEAAAAACmFlczI1Ni1jdHIAAAAGYmNyeXB0AAAAGAAAABDFIwGyGi
hGqnpcKmV6Wl9mAAAAGAAAAAEAAAAzAAAAC3NzaC1lZDI1NTE5AAAAIGmqmXfXLGXbNZGF
-----END OPENSSH PRIVATE KEY-----
`
	for _, v := range []struct {
		cfg  driver.Config
		want string
	}{
		{driver.Config{Keys: []string{text}}, `"" is not a name or an IP address`},
		{driver.Config{Address: "a b", Keys: []string{text}}, `"a b" is not a name or an IP address`},
		{driver.Config{Address: "web", Port: 70000, Keys: []string{text}}, "ssh to root@web:70000: port 70000 is not between 1 and 65535"},
		{driver.Config{Address: "web"}, "ssh to root@web:22: there is no key to log in with, and no ssh-agent: set key in ssh of the host block"},
		{driver.Config{Address: "web", Keys: []string{text}, Misses: -1}, "ssh to root@web:22: a duration or a number is negative"},
		{driver.Config{Address: "web", Keys: []string{"hunter2"}}, "ssh to root@web:22: private key 1 cannot be read: it must be as ssh-keygen writes it"},
		{driver.Config{Address: "web", Keys: []string{text, locked}}, "ssh to root@web:22: private key 2 cannot be read: it must be as ssh-keygen writes it"},
		{driver.Config{Address: "2001:db8::7", Keys: []string{text}, HostKeys: []string{"ssh-ed25519"}}, `ssh to root@[2001:db8::7]:22: host key "ssh-ed25519" cannot be read: it must be as in /etc/ssh/ssh_host_ed25519_key.pub`},
	} {
		_, err := driver.New(v.cfg)
		require.EqualError(t, err, v.want)
		drivertest.Hopeless(t, err, true)
	}
}

func TestAddress(t *testing.T) {
	_, cfg := newServer(t)
	at, err := open(t, cfg).Address(t.Context())
	require.NoError(t, err)
	require.Equal(t, "192.0.2.7 as configured", at.Why)
	cfg.Address = "web.example"
	at, err = open(t, cfg).Address(t.Context())
	require.NoError(t, err)
	require.Equal(t, "192.0.2.7, the address of web.example", at.Why)
	require.False(t, at.Declared)
	cfg.Via = open(t, cfg)
	_, err = open(t, cfg).Address(t.Context())
	drivertest.Hopeless(t, err, true)
}

// After Close nothing runs, and what ran has an unknown outcome.
func TestClose(t *testing.T) {
	s, cfg := newServer(t)
	m := open(t, cfg)
	reached, closed := make(chan struct{}), make(chan error)
	s.run = func(_ string, _ ssh.Channel, signals <-chan string) any {
		close(reached)
		for range signals { // until the connection ends
		}
		return nil
	}
	go func() {
		<-reached
		closed <- m.Close()
	}()
	_, err := m.Run(t.Context(), yes)
	require.ErrorIs(t, err, guest.ErrOutcomeLost)
	require.NoError(t, <-closed)
	_, err = m.Run(t.Context(), yes)
	require.EqualError(t, err, "ssh to root@192.0.2.7:22: the connection to this machine was closed")
	drivertest.Hopeless(t, err, true)
}

func TestArgumentsThatAreTooLong(t *testing.T) {
	_, cfg := newServer(t)
	_, err := open(t, cfg).Run(t.Context(), guest.Command{Args: []string{"echo", strings.Repeat("x", 130<<10)}})
	require.ErrorContains(t, err, "the arguments of echo are 133196 bytes long as a shell reads them, of at most 131071: pass them on standard input")
	drivertest.Hopeless(t, err, true)
}

// A profile that writes without end costs a MiB, and not all the time that the command has.
func TestS7AnEndlessProfile(t *testing.T) {
	s, cfg := newServer(t)
	s.run = func(_ string, ch ssh.Channel, _ <-chan string) any {
		for {
			if _, err := io.WriteString(ch, strings.Repeat("y\n", 1000)); err != nil {
				return nil
			}
		}
	}
	_, err := open(t, cfg).Run(t.Context(), yes)
	require.ErrorContains(t, err, "the login shell of this user writes more than 1 MiB before it runs the command")
	require.NotErrorIs(t, err, guest.ErrOutcomeLost)
}

// hostileText drives terminals, is a format, and is long.
var hostileText = strings.Repeat("%s%n\x1b]0;owned\x07\u202e ", 10_000)

// TestS7HostileBanners: the banner of a server is dropped.
func TestS7HostileBanners(t *testing.T) {
	s, cfg := newServer(t)
	s.before, s.banner = strings.Repeat(hostileText[:200]+"\r\n", 1000), hostileText
	out, err := open(t, cfg).Run(t.Context(), yes)
	require.NoError(t, err)
	require.Equal(t, guest.Output{}, out)
}

// TestS7HostileErrors: the error of a server that refuses with hostile words is bounded and safe to show.
func TestS7HostileErrors(t *testing.T) {
	packet := func(message any) string { // RFC 4253, section 6, before keys are exchanged
		payload := ssh.Marshal(message)
		padding := 8 - (5+len(payload))%8 + 8
		return string(binary.BigEndian.AppendUint32(nil, uint32(1+len(payload)+padding))) + string(rune(padding)) + string(payload) + strings.Repeat("\x00", padding)
	}
	list := strings.Fields(hostileText)[:2000]
	for name, c := range map[string]struct{ says, want string }{
		"lines without end": {strings.Repeat(hostileText[:200]+"\n", 5000), "does not speak ssh"},
		"disconnect": {"SSH-2.0-x\r\n" + packet(struct {
			Reason         uint32 `sshtype:"1"`
			Text, Language string
		}{11, hostileText, ""}), "owned"},
		"algorithms": {"SSH-2.0-x\r\n" + packet(struct {
			Cookie                                    [16]byte `sshtype:"20"`
			Kex, Keys, C1, C2, M1, M2, Z1, Z2, L1, L2 []string
			Follows                                   bool
			Reserved                                  uint32
		}{Kex: list, Keys: list}), "owned"},
	} {
		t.Run(name, func(t *testing.T) {
			_, cfg := newServer(t)
			cfg.Dial = func(context.Context, string, string) (net.Conn, error) {
				near, far := pipe()
				go func() {
					_, _ = io.WriteString(far, c.says)
					_, _ = io.Copy(io.Discard, far)
				}()
				return near, nil
			}
			_, err := open(t, cfg).Run(t.Context(), yes)
			require.ErrorContains(t, err, c.want)
			require.Less(t, len(err.Error()), 2000)
			require.Equal(t, diag.Clean(err.Error()), err.Error())
		})
	}
	t.Run("sudo", func(t *testing.T) {
		s, cfg := newServer(t)
		programs(t, s, &cfg, "i=0; while [ $i -lt 3000 ]; do printf '%%s\\033]0;owned\\007\\n' >&2; i=$((i+1)); done; exit 1")
		_, err := open(t, cfg).Run(t.Context(), yes)
		require.ErrorContains(t, err, "this user cannot become root: …")
		require.Less(t, len(err.Error()), 2000)
		require.Equal(t, diag.Clean(err.Error()), err.Error())
	})
}

// programs makes a folder of shell scripts for a server whose user is not root.
func programs(t *testing.T, s *server, cfg *driver.Config, sudo string) {
	t.Helper()
	dir := t.TempDir()
	cfg.User = "web"
	for name, text := range map[string]string{"id": "echo 1000", "sudo": sudo} {
		if text != "" {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755))
		}
	}
	s.env = []string{"PATH=" + dir + ":/usr/bin:/bin"}
	if sudo == "" { // not the one of this machine
		for _, name := range []string{"true", "sh"} {
			require.NoError(t, os.Symlink("/bin/"+name, filepath.Join(dir, name)))
		}
		s.env = []string{"PATH=" + dir}
	}
}

const goodSudo = `[ "$1" = -n ] && shift; [ "$1" = -- ] && shift; exec /usr/bin/env AS=root "$@"`

func TestMachineBySudo(t *testing.T) {
	drivertest.Machine(t, func(t *testing.T) guest.Machine {
		t.Helper()
		s, cfg := newServer(t)
		programs(t, s, &cfg, goodSudo)
		m := open(t, cfg)
		out, err := m.Run(t.Context(), guest.Command{Args: []string{"/bin/sh", "-c", "echo $AS"}})
		require.NoError(t, err)
		require.Equal(t, "root\n", out.Out)
		return m
	})
}

func TestUserWhoCannotBecomeRoot(t *testing.T) {
	for _, v := range []struct{ sudo, want string }{
		{"", "ssh to web@192.0.2.7:22: this user is not root, and sudo is not installed: install it, or log in as root"},
		{"echo 'sudo: a password is required' >&2; exit 1", "ssh to web@192.0.2.7:22: this user cannot become root: sudo: a password is required; add `USER ALL=(ALL) NOPASSWD: ALL` to a file in /etc/sudoers.d, or log in as root"},
		{"exit 1", "ssh to web@192.0.2.7:22: this user cannot become root: sudo fails with exit code 1; add `USER ALL=(ALL) NOPASSWD: ALL` to a file in /etc/sudoers.d, or log in as root"},
	} {
		s, cfg := newServer(t)
		programs(t, s, &cfg, v.sudo)
		_, err := open(t, cfg).Run(t.Context(), yes)
		require.EqualError(t, err, v.want)
		drivertest.Hopeless(t, err, false)
	}
}

// A user whose id is that of root needs no sudo.
func TestRootByAnotherName(t *testing.T) {
	s, cfg := newServer(t)
	programs(t, s, &cfg, "exit 1")
	dir, _, _ := strings.Cut(strings.TrimPrefix(s.env[0], "PATH="), ":")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "id"), []byte("#!/bin/sh\necho 0\n"), 0o755))
	_, err := open(t, cfg).Run(t.Context(), yes)
	require.NoError(t, err)
}

// A connection that is lost while the user becomes root costs no outcome: the command for
// which it was made has not begun.
func TestConnectionIsLostBeforeSudo(t *testing.T) {
	s, cfg := newServer(t)
	cfg.User = "web"
	s.run = func(_ string, ch ssh.Channel, signals <-chan string) any {
		begun(ch)
		s.dropAll()
		for range signals { // until the connection ends
		}
		return nil
	}
	_, err := open(t, cfg).Run(t.Context(), yes)
	require.ErrorContains(t, err, "ssh to web@192.0.2.7:22: checking whether this user is root: ")
	require.NotErrorIs(t, err, guest.ErrOutcomeLost)
	drivertest.Hopeless(t, err, false)
}
