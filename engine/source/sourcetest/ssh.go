package sourcetest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// SSHServer is a real sshd, one process for each connection. It ends with the test.
type SSHServer struct {
	Addr           string // host:port
	User           string // that is let in
	URL            string // of the repository, with the user; "" without one
	KeyFile        string // a private key that is let in
	KnownHostsFile string // with the server's host key
	HostKeyFile    string // the server's private key; SetHostKey makes another
	Log            string // what sshd wrote

	t      testing.TB
	dir    string
	sshd   string
	lines  []string // more of its configuration
	listen net.Listener

	mu   sync.Mutex // the accepting goroutine reads what a test sets
	wrap func(net.Conn) net.Conn
	wait sync.WaitGroup
}

// SSH serves the repository. It skips the test if sshd, ssh-keygen or git are not installed, or sshd cannot run.
func (r *Repo) SSH() *SSHServer {
	r.t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		r.t.Skip("nothing serves a repository by ssh here:", err)
	}
	s := NewSSHServer(r.t)
	s.URL = fmt.Sprintf("ssh://%s@%s%s", s.User, s.Addr, r.Dir)
	return s
}

// NewSSHServer serves this machine to the user who runs the test. It skips the test if sshd or ssh-keygen are not
// installed, or sshd cannot run.
func NewSSHServer(t testing.TB) *SSHServer {
	t.Helper()
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		t.Skip("nothing serves by ssh here:", err)
	}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	s := &SSHServer{t: t, dir: t.TempDir(), sshd: sshd(t)}
	me, err := user.Current()
	check(err)
	s.User = me.Username
	s.KeyFile = s.Key("client")
	s.HostKeyFile = s.Key("host")
	public, err := os.ReadFile(s.KeyFile + ".pub")
	check(err)
	check(os.WriteFile(filepath.Join(s.dir, "authorized"), public, 0o600))
	s.Log = filepath.Join(s.dir, "sshd.log")
	s.configure(s.HostKeyFile)

	s.listen, err = net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it ends with the test
	check(err)
	s.Addr = s.listen.Addr().String()
	port := s.listen.Addr().(*net.TCPAddr).Port
	s.KnownHostsFile = filepath.Join(s.dir, "known_hosts")
	hostKey, err := os.ReadFile(s.HostKeyFile + ".pub")
	check(err)
	check(os.WriteFile(s.KnownHostsFile, fmt.Appendf(nil, "[127.0.0.1]:%d %s", port, hostKey), 0o600))
	s.wait.Go(s.accept)
	t.Cleanup(func() {
		_ = s.listen.Close()
		s.wait.Wait()
	})
	return s
}

// sshd finds the server, and what it needs to run as root.
func sshd(t testing.TB) string {
	t.Helper()
	file, err := exec.LookPath("sshd")
	if err != nil {
		file = "/usr/sbin/sshd"
		if _, err := os.Stat(file); err != nil {
			t.Skip("sshd is not installed, so nothing serves by ssh:", err)
		}
	}
	if os.Geteuid() == 0 {
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
			t.Skip("sshd does not run as root without /run/sshd:", err)
		}
	}
	return file
}

// Authorize lets a public key in, beside the others.
func (s *SSHServer) Authorize(public string) {
	s.t.Helper()
	f, err := os.OpenFile(filepath.Join(s.dir, "authorized"), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(public)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// Key makes a key pair without a passphrase and returns the file of the private key.
func (s *SSHServer) Key(name string) string { return s.LockedKey(name, "") }

// LockedKey makes a key pair with a passphrase.
func (s *SSHServer) LockedKey(name, passphrase string) string {
	s.t.Helper()
	file := filepath.Join(s.dir, name)
	out, err := exec.CommandContext(s.t.Context(), "ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", name, "-f", file).CombinedOutput()
	if err != nil {
		s.t.Fatalf("ssh-keygen: %v: %s", err, out)
	}
	return file
}

// SetHostKey makes the server show another key from now on.
func (s *SSHServer) SetHostKey(file string) {
	s.t.Helper()
	s.configure(file)
}

// Configure adds lines to the configuration of connections from now on, see sshd_config(5).
func (s *SSHServer) Configure(lines ...string) {
	s.t.Helper()
	s.lines = append(s.lines, lines...)
	s.configure(s.HostKeyFile)
}

func (s *SSHServer) configure(hostKey string) {
	s.t.Helper()
	text := strings.Join(append([]string{
		"HostKey " + hostKey,
		"AuthorizedKeysFile " + filepath.Join(s.dir, "authorized"),
		"PidFile none", "StrictModes no", "UsePAM no", "PasswordAuthentication no", "KbdInteractiveAuthentication no",
		"PermitRootLogin prohibit-password", "LogLevel ERROR",
		// No file of the user counts. Below another shell, bash reads no bash.bashrc (run_startup_files in its shell.c).
		"SetEnv SHLVL=1 HOME=" + s.dir + " GIT_CONFIG_NOSYSTEM=1", "PermitUserRC no",
	}, s.lines...), "\n") + "\n"
	if err := os.WriteFile(filepath.Join(s.dir, "config"), []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// SetWrap puts something around each connection from now on, to cut or count what
// goes through it; nil takes it away.
func (s *SSHServer) SetWrap(wrap func(net.Conn) net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wrap = wrap
}

func (s *SSHServer) accept() {
	for {
		conn, err := s.listen.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		wrap := s.wrap
		s.mu.Unlock()
		if wrap != nil {
			conn = wrap(conn)
		}
		s.wait.Go(func() { s.serve(conn) })
	}
}

// serve gives a connection to an sshd of its own, by pipes: so it may be wrapped.
func (s *SSHServer) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	//nolint:noctx // it ends with its connection, which ends with the test
	cmd := exec.Command(s.sshd, "-i", "-f", filepath.Join(s.dir, "config"), "-E", s.Log)
	cmd.Stdout = conn
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		s.t.Error(err)
		return
	}
	s.wait.Go(func() {
		_, _ = io.Copy(in, conn)
		_ = in.Close()
	})
	_ = cmd.Wait() // sshd reports how the session went; the client's side counts here
}
