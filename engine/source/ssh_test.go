package source_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/source"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
)

func sshRepository(t *testing.T, change func(o *source.Options)) (*sourcetest.Repo, *sourcetest.SSHServer, *source.Repository) {
	t.Helper()
	r := sourcetest.New(t)
	s := r.SSH()
	o := source.Options{URL: s.URL, Auth: source.Auth{KeyFile: s.KeyFile, KnownHostsFile: s.KnownHostsFile}, Timeout: 20 * time.Second}
	if change != nil {
		change(&o)
	}
	return r, s, openRepository(t, o)
}

func TestHostKeys(t *testing.T) {
	known := filepath.Join(t.TempDir(), "known_hosts")
	r, s, repo := sshRepository(t, func(o *source.Options) { o.Auth.KnownHostsFile = known })
	r.Commit(map[string]string{"a": "1"}, "first")
	_, port, err := net.SplitHostPort(strings.TrimSuffix(s.URL[strings.Index(s.URL, "@")+1:], r.Dir))
	require.NoError(t, err)
	line := "ssh-keyscan -p " + port + " 127.0.0.1 >> " + known
	require.Contains(t, fault(t, repo, source.ErrHostKey, false), line, "no such file")
	require.NoError(t, os.WriteFile(known, nil, 0o600))
	text := fault(t, repo, source.ErrHostKey, false)
	require.Contains(t, text, line)
	require.Contains(t, text, "it is not known: the server shows SHA256:")
	right, err := os.ReadFile(s.KnownHostsFile)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(known, right, 0o600))
	head(t, repo)

	s.SetHostKey(s.Key("host2"))
	text = fault(t, repo, source.ErrHostKey, false)
	require.Contains(t, text, "it has changed")
	require.Contains(t, text, "line 1 of "+known)
	require.NoError(t, os.WriteFile(known, []byte("@revoked * "+hostKey(t, right)), 0o600))
	s.SetHostKey(s.HostKeyFile)
	require.Contains(t, fault(t, repo, source.ErrHostKey, false), "revoked")
	require.NoError(t, os.WriteFile(known, []byte("nonsense\n"), 0o600))
	fault(t, repo, source.ErrHostKey, false)
}

func hostKey(t *testing.T, line []byte) string {
	t.Helper()
	_, key, ok := strings.Cut(string(line), " ")
	require.True(t, ok)
	return key
}

func TestKeys(t *testing.T) {
	t.Parallel()
	r, s, _ := sshRepository(t, nil)
	r.Commit(map[string]string{"a": "1"}, "first")
	with := func(key string) *source.Repository {
		return openRepository(t, source.Options{URL: s.URL, Auth: source.Auth{KeyFile: key, KnownHostsFile: s.KnownHostsFile}})
	}
	head(t, with(s.KeyFile))
	require.Contains(t, fault(t, with(s.KeyFile+".none"), source.ErrLogin, false), "no such file")
	require.Contains(t, fault(t, with(s.KeyFile+".pub"), source.ErrLogin, false), "not a private key")
	require.Contains(t, fault(t, with(s.LockedKey("locked", "sesame")), source.ErrLogin, false), "passphrase")
	require.Contains(t, fault(t, with(s.Key("stranger")), source.ErrDenied, false), "accepts none of the keys")

	rotated := filepath.Join(t.TempDir(), "key")
	stranger, err := os.ReadFile(s.Key("second"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(rotated, stranger, 0o600))
	repo := with(rotated)
	fault(t, repo, source.ErrDenied, false)
	right, err := os.ReadFile(s.KeyFile)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(rotated, right, 0o600))
	head(t, repo) // without a restart
}

// Where no key is named those of the home folder count, as for ssh.
func TestDefaultKeys(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	r, s, _ := sshRepository(t, nil)
	r.Commit(map[string]string{"a": "1"}, "first")
	repo := openRepository(t, source.Options{URL: s.URL})
	require.Contains(t, fault(t, repo, source.ErrLogin, false), "key_file")
	require.NoError(t, os.MkdirAll(filepath.Join(home, ".ssh"), 0o700))
	for from, to := range map[string]string{s.KeyFile: "id_ed25519", s.KnownHostsFile: "known_hosts"} {
		text, err := os.ReadFile(from)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(home, ".ssh", to), text, 0o600))
	}
	head(t, repo)
}

func TestPathsThatAShellWouldReadOtherwise(t *testing.T) {
	r, s, _ := sshRepository(t, nil)
	id := r.Commit(map[string]string{"a": "1"}, "first")
	odd := filepath.Join(filepath.Dir(r.Dir), "it's $(touch x) !.git")
	require.NoError(t, os.Rename(r.Dir, odd))
	for _, url := range []string{strings.TrimSuffix(s.URL, r.Dir) + strings.ReplaceAll(strings.ReplaceAll(odd, "$", "%24"), " ", "%20")} {
		repo := openRepository(t, source.Options{URL: url, Auth: source.Auth{KeyFile: s.KeyFile, KnownHostsFile: s.KnownHostsFile}})
		require.Equal(t, id, head(t, repo).ID)
	}
}

// cutConn ends a connection once so many bytes came from the server.
type cutConn struct {
	net.Conn
	left int
}

func (c *cutConn) Write(b []byte) (int, error) {
	if c.left -= len(b); c.left < 0 {
		_ = c.Close()
		return 0, net.ErrClosed
	}
	return c.Conn.Write(b)
}

func TestAnSSHConnectionThatIsCut(t *testing.T) {
	t.Parallel()
	r, s, repo := sshRepository(t, nil)
	id := r.Commit(map[string]string{"a": "1"}, "first")
	head(t, repo)
	next := r.Commit(map[string]string{"a": noise(t, 200_000)}, "second")
	for _, after := range []int{0, 100, 2000, 5000, 20_000, 100_000} {
		s.SetWrap(func(c net.Conn) net.Conn { return &cutConn{c, after} })
		_, err := repo.Head(t.Context())
		var f *source.Error
		require.ErrorAs(t, err, &f, "after %d bytes", after)
		require.True(t, f.Temporary(), err)
		require.Equal(t, "1", readFile(t, repo, id, "a"))
	}
	s.SetWrap(nil)
	require.Equal(t, next, head(t, repo).ID)
}

func TestAnSSHServerThatIsSilent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	r := sourcetest.New(t)
	s := r.SSH()
	repo := openRepository(t, source.Options{
		URL:  "ssh://git@" + l.Addr().String() + "/x",
		Auth: source.Auth{KeyFile: s.KeyFile, KnownHostsFile: s.KnownHostsFile}, Timeout: 100 * time.Millisecond,
	})
	fault(t, repo, source.ErrTimeout, true)
}
