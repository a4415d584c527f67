package source

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/source/objects"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
)

// fault asks for the head, which must fail in a known way, and gives what was said.
func fault(t *testing.T, r *Repository, kind error, temporary bool) string {
	t.Helper()
	_, err := r.Head(t.Context())
	require.ErrorIs(t, err, kind)
	var f *fetchError
	require.ErrorAs(t, err, &f)
	require.Equal(t, temporary, f.Temporary(), err.Error())
	require.NotContains(t, err.Error(), "\n")
	require.NotEmpty(t, f.Advice, "it must say what to do: %s", err)
	require.Equal(t, r.String(), f.Where)
	return err.Error()
}

func TestARepositoryThatIsNotThere(t *testing.T) {
	overAll(t, func(t *testing.T, r *sourcetest.Repo, o Options) {
		id := r.Commit(map[string]string{"a": "1"}, "first")
		repo := openRepository(t, o)
		head(t, repo)
		r.Remove()
		fault(t, repo, errNotFound, false)
		require.Equal(t, "1", readFile(t, repo, id, "a"), "what is here stays readable")
		r.Restore()
		require.Equal(t, id, head(t, repo).ID)
	})
}

func TestABranchThatIsNotThere(t *testing.T) {
	overAll(t, func(t *testing.T, r *sourcetest.Repo, o Options) {
		repo := openRepository(t, o)
		require.Contains(t, fault(t, repo, errEmpty, true), "push a first commit")
		id := r.Commit(map[string]string{"a": "1"}, "first")
		require.Equal(t, id, head(t, repo).ID)
		r.SetBranch("stable", id)
		r.RemoveBranch("main")
		require.Contains(t, fault(t, repo, errNoBranch, false), `"main"; known: stable`)
		require.Equal(t, "1", readFile(t, repo, id, "a"))
		o.Dir, o.Branch = filepath.Join(t.TempDir(), "x"), "stabel"
		require.Contains(t, fault(t, openRepository(t, o), errNoBranch, false), `did you mean "stable"?`)
	})
}

func TestAFolderWithoutARepository(t *testing.T) {
	repo := openRepository(t, Options{URL: t.TempDir()})
	require.Contains(t, fault(t, repo, errNotFound, false), "is not a git repository")
}

// A commit that is too large is refused with the number and the setting, and is downloaded once: a poll that finds it again costs one
// request.
func TestS5ACommitThatIsTooLargeIsDownloadedOnce(t *testing.T) {
	r, s, repo := httpsRepository(t, func(o *Options) { o.MaxPack = 1 << 20 })
	id := r.Commit(map[string]string{"a": "1"}, "first")
	head(t, repo)
	require.NoError(t, repo.Keep(id))
	r.Commit(map[string]string{"big": noise(t, 2<<20)}, "too much")
	said := fault(t, repo, objects.ErrTooLarge, false)
	require.Contains(t, said, "more than 1 MiB to fetch")
	require.Contains(t, said, "max_size in repository of agent.hcl")
	before := s.Requests()
	require.Equal(t, said, fault(t, repo, objects.ErrTooLarge, false))
	require.Equal(t, 1, s.Requests()-before)
	require.Equal(t, "1", readFile(t, repo, id, "a"))
	next := r.Commit(map[string]string{"big": sourcetest.Gone}, "less")
	require.Equal(t, next, head(t, repo).ID)
}

func TestAPackThatIsTooLarge(t *testing.T) {
	t.Parallel()
	overAll(t, func(t *testing.T, r *sourcetest.Repo, o Options) {
		id := r.Commit(map[string]string{"a": "1"}, "first")
		o.MaxPack = 64 << 10
		repo := openRepository(t, o)
		head(t, repo)
		require.NoError(t, repo.Keep(id))
		big := noise(t, 50_000)
		r.Commit(map[string]string{"big": big}, "too much")
		next := r.Commit(map[string]string{"big": big, "b": noise(t, 50_001)}, "too much at once")
		fault(t, repo, objects.ErrTooLarge, false)
		require.Equal(t, "1", readFile(t, repo, id, "a"))

		// Two large commits, of which the newer one alone is small enough.
		r.Reset(id)
		require.Equal(t, id, head(t, repo).ID)
		r.Reset(next)
		last := r.Commit(map[string]string{"b": sourcetest.Gone}, "less")
		require.Equal(t, last, head(t, repo).ID, "it begins anew with the head alone")
		_, err := repo.Since(t.Context(), id, last)
		require.ErrorIs(t, err, model.ErrUnrelated)
		require.Equal(t, "1", readFile(t, repo, id, "a"))
		fsck(t, o.Dir)
	})
}

// noise is text that cannot be made smaller.
func noise(t *testing.T, n int) string {
	t.Helper()
	b := make([]byte, n)
	_, err := io.ReadFull(noiseSource(n), b)
	require.NoError(t, err)
	return string(b)
}

func httpsRepository(t *testing.T, change func(o *Options)) (*sourcetest.Repo, *sourcetest.HTTPServer, *Repository) {
	t.Helper()
	r := sourcetest.New(t)
	s := r.HTTPS()
	o := Options{URL: s.URL, Auth: Auth{CAFile: s.CAFile}, Timeout: 20 * time.Second}
	if change != nil {
		change(&o)
	}
	return r, s, openRepository(t, o)
}

func TestOneRequestWhereNothingChanged(t *testing.T) {
	r, s, repo := httpsRepository(t, nil)
	r.Commit(map[string]string{"a": "1"}, "first")
	id := head(t, repo).ID
	before := s.Requests()
	require.Equal(t, id, head(t, repo).ID)
	require.Equal(t, 1, s.Requests()-before)
	require.Equal(t, "GET /site.git/info/refs?service=git-upload-pack", s.Seen()[before])
}

func TestTheConnectionIsKept(t *testing.T) {
	conns := make(chan struct{}, 100)
	r := sourcetest.New(t)
	s := r.HTTPS()
	s.CountConnections(func() { conns <- struct{}{} })
	r.Commit(map[string]string{"a": "1"}, "first")
	repo := openRepository(t, Options{URL: s.URL, Auth: Auth{CAFile: s.CAFile}})
	for range 5 {
		head(t, repo)
	}
	require.Len(t, conns, 1)
	s.CloseConnections()
	head(t, repo) // a connection that died in between is no fault
}

func TestLogins(t *testing.T) {
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	r, s, repo := httpsRepository(t, func(o *Options) { o.Auth.TokenFile = token })
	r.Commit(map[string]string{"a": "1"}, "first")
	s.SetLogin("git", "s3cret")
	require.Contains(t, fault(t, repo, errLogin, false), "no such file")
	require.NoError(t, os.WriteFile(token, []byte("\n"), 0o600))
	require.Contains(t, fault(t, repo, errLogin, false), "is empty")
	require.NoError(t, os.WriteFile(token, []byte("wrong\n"), 0o600))
	require.NotContains(t, fault(t, repo, errDenied, false), "wrong")
	require.NoError(t, os.WriteFile(token, []byte("s3cret\nand a note\n"), 0o600))
	head(t, repo)
	s.SetLogin("git", "rotated")
	fault(t, repo, errDenied, false)
	require.NoError(t, os.WriteFile(token, []byte("rotated"), 0o600))
	r.Commit(map[string]string{"a": "2"}, "second")
	head(t, repo) // without a restart

	plain := openRepository(t, Options{URL: s.URL, Auth: Auth{CAFile: s.CAFile}})
	require.Contains(t, fault(t, plain, errDenied, false), "it requires a login")
}

func TestCredentialsOfTheURLAreNotShown(t *testing.T) {
	r, s, _ := httpsRepository(t, nil)
	r.Commit(map[string]string{"a": "1"}, "first")
	s.SetLogin("bob", "s3cret")
	with := strings.Replace(s.URL, "https://", "https://bob:s3cret@", 1)
	repo := openRepository(t, Options{URL: with, Auth: Auth{CAFile: s.CAFile}})
	head(t, repo)
	require.Equal(t, s.URL, repo.String())
	s.SetLogin("bob", "other")
	require.NotContains(t, fault(t, repo, errDenied, false), "s3cret")
	for _, bad := range []string{"https://bob:s3cret@host:port/x", "https://bob:s3cret@/x", "https://bob:s3cret@ho st/x", "https://bob:s3cret@host/%zz", "http://bob:s3cret@git.example.org/x", "ssh://bob:s3cret@host/x", "ftp://bob:s3cret@host/x"} {
		_, err := OpenRepository(Options{Dir: t.TempDir(), URL: bad})
		require.Error(t, err, bad)
		require.NotContains(t, err.Error(), "s3cret")
	}
}

func TestHTTPFaults(t *testing.T) {
	t.Parallel()
	answer := func(code int, kind, text string) sourcetest.Fault {
		return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.Header().Set("Content-Type", kind)
			w.WriteHeader(code)
			_, _ = io.WriteString(w, text)
		}
	}
	const smart = "application/x-git-upload-pack-advertisement"
	for name, c := range map[string]struct {
		fault     sourcetest.Fault
		kind      error
		temporary bool
	}{
		"forbidden":       {answer(403, "text/plain", ""), errDenied, false},
		"not found":       {answer(404, "text/plain", ""), errNotFound, false},
		"overloaded":      {answer(503, "text/html", "<html>"), errUnreachable, true},
		"too many":        {answer(429, "text/html", ""), errUnreachable, true},
		"a page":          {answer(200, "text/html; charset=utf-8", "<html>Please log in</html>"), errNotGit, false},
		"plain files":     {answer(200, "text/plain", strings.Repeat("a", 40)+"\trefs/heads/main\n"), errDumb, false},
		"nonsense":        {answer(200, smart, "zzzz nonsense"), errCut, true},
		"an error line":   {answer(200, smart, "0036ERR access denied or repository not exported: xx\n\n"), errDenied, false},
		"a short list":    {answer(200, smart, "001e# service=git-upload-pack\n0000"), errCut, true},
		"a teapot":        {answer(418, "text/plain", ""), errNotGit, false},
		"a login page":    {loginPage, errNotGit, false},
		"no encryption":   {redirect("http://git.example.org/x/info/refs"), errNotGit, false},
		"a circle":        {redirect("/site.git/info/refs?service=git-upload-pack"), errNotGit, false},
		"cut in the list": {func(http.ResponseWriter, *http.Request, http.Handler) { panic(http.ErrAbortHandler) }, errUnreachable, true},
	} {
		t.Run(name, func(t *testing.T) {
			r, s, repo := httpsRepository(t, nil)
			id := r.Commit(map[string]string{"a": "1"}, "first")
			head(t, repo)
			s.SetFault(c.fault)
			t.Log(fault(t, repo, c.kind, c.temporary))
			require.Equal(t, "1", readFile(t, repo, id, "a"))
			s.SetFault(nil)
			head(t, repo)
		})
	}
}

func loginPage(w http.ResponseWriter, r *http.Request, _ http.Handler) {
	if r.URL.Path != "/login" {
		http.Redirect(w, r, "/login?back=%2F", http.StatusFound)
	}
	w.Header().Set("Content-Type", "text/html")
	_, _ = io.WriteString(w, "<html>Who are you?</html>")
}

func redirect(to string) sourcetest.Fault {
	return func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		http.Redirect(w, r, to, http.StatusFound)
	}
}

// A repository that moved is followed. The login does not go along to another server.
func TestRedirects(t *testing.T) {
	r, s, repo := httpsRepository(t, func(o *Options) { o.URL = strings.Replace(o.URL, "site.git", "old.git", 1) })
	id := r.Commit(map[string]string{"a": "1"}, "first")
	s.SetFault(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if moved, ok := strings.CutPrefix(r.URL.Path, "/old.git/"); ok {
			http.Redirect(w, r, "/site.git/"+moved+"?"+r.URL.RawQuery, http.StatusMovedPermanently)
			return
		}
		next.ServeHTTP(w, r)
	})
	require.Equal(t, id, head(t, repo).ID)

	logins := make(chan string, 10)
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		logins <- r.Header.Get("Authorization")
		http.NotFound(w, r)
	}))
	defer other.Close()
	from := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL+"/x/info/refs", http.StatusFound)
	}))
	defer from.Close()
	away := openRepository(t, Options{URL: strings.Replace(from.URL, "http://", "http://bob:s3cret@", 1) + "/x"})
	fault(t, away, errNotFound, false)
	require.Empty(t, <-logins)
}

func TestCertificates(t *testing.T) {
	r, s, _ := httpsRepository(t, nil)
	r.Commit(map[string]string{"a": "1"}, "first")
	ca := filepath.Join(t.TempDir(), "ca.pem")
	repo := openRepository(t, Options{URL: s.URL})
	require.Contains(t, fault(t, repo, errUntrusted, false), "ca_file")
	repo = openRepository(t, Options{URL: s.URL, Auth: Auth{CAFile: ca}})
	fault(t, repo, errUntrusted, false)
	require.NoError(t, os.WriteFile(ca, []byte("no certificate"), 0o600))
	require.Contains(t, fault(t, repo, errUntrusted, false), "contains no certificate")
	text, err := os.ReadFile(s.CAFile)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(ca, text, 0o600))
	head(t, repo) // without a restart
	plain := openRepository(t, Options{URL: strings.Replace(s.URL, "https", "http", 1)})
	fault(t, plain, errNotGit, false)
}

func TestAConnectionThatIsCutInAPack(t *testing.T) {
	for _, after := range []int{0, 1, 8, 30, 100, 5000} {
		r, s, repo := httpsRepository(t, nil)
		id := r.Commit(map[string]string{"a": "1"}, "first")
		head(t, repo)
		next := r.Commit(map[string]string{"a": noise(t, 20_000)}, "second")
		s.SetFault(cut(after))
		_, err := repo.Head(t.Context())
		require.True(t, errors.Is(err, errCut) || errors.Is(err, errUnreachable), "%v", err)
		require.Equal(t, "1", readFile(t, repo, id, "a"))
		s.SetFault(nil)
		require.Equal(t, next, head(t, repo).ID)
	}
}

func TestAServerThatIsSilent(t *testing.T) {
	r, s, repo := httpsRepository(t, func(o *Options) { o.Timeout = 100 * time.Millisecond })
	r.Commit(map[string]string{"a": "1"}, "first")
	release := make(chan struct{})
	s.SetFault(func(_ http.ResponseWriter, r *http.Request, _ http.Handler) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	defer close(release)
	fault(t, repo, errTimeout, true)
}

func TestAnUnreachableAddress(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.2:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	fault(t, openRepository(t, Options{URL: "https://" + addr + "/x"}), errUnreachable, true)
}

// usage is how much a folder holds: bytes of files, and how many.
func usage(t *testing.T, dir string) (bytes int64, files int) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		bytes, files = bytes+info.Size(), files+1
		return err
	}))
	return bytes, files
}

// fetches are enough for the copy to be packed dozens of times: what each fetch left behind would show.
const fetches = 2_000

// The local copy of a branch that gets a commit between any two looks.
func TestTheCopyStaysSmall(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("thousands of fetches take some seconds")
	}
	dir := sourcetest.TempDir(t)
	r := sourcetest.New(t)
	files := map[string]string{}
	for i := range 20 {
		files[fmt.Sprintf("hosts/%02d.hcl", i)] = fmt.Sprintf("host %d %s\n", i, noise(t, 1000+i))
	}
	last := r.Commit(files, "first")
	o := Options{URL: r.URL(), Dir: filepath.Join(dir, "copy")}
	repo := openRepository(t, o)
	head(t, repo)
	require.NoError(t, repo.Keep(last))
	var mostBytes int64
	var mostFiles int
	for i := range fetches {
		id := r.Commit(map[string]string{fmt.Sprintf("hosts/%02d.hcl", i%20): fmt.Sprintf("host %d\n", i)}, fmt.Sprint("change ", i))
		c, err := repo.Head(t.Context())
		require.NoError(t, err)
		require.Equal(t, id, c.ID)
		since, err := repo.Since(t.Context(), last, id)
		require.NoError(t, err)
		require.Len(t, since, 1+i%3)
		if i%3 == 2 { // of three commits one converges
			require.NoError(t, repo.Keep(id))
			last = id
		}
		if i%50 == 0 {
			bytes, n := usage(t, o.Dir)
			mostBytes, mostFiles = max(mostBytes, bytes), max(mostFiles, n)
		}
	}
	t.Logf("after %d fetches: at most %d KiB in %d files", fetches, mostBytes>>10, mostFiles)
	require.Less(t, mostBytes, int64(180<<10)) // 20 bytes kept of each would be too much
	require.Less(t, mostFiles, 80)
	fsck(t, o.Dir)
	require.Equal(t, r.Head(), head(t, openRepository(t, o)).ID, "and it can be opened again")
}

// Looks at a branch where nothing happens leave nothing behind.
func TestFetchesOfNothingNewLeaveNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("thousands of looks take a second")
	}
	r := sourcetest.New(t)
	id := r.Commit(map[string]string{"a": "1"}, "first")
	o := Options{URL: r.URL(), Dir: filepath.Join(sourcetest.TempDir(t), "copy")}
	repo := openRepository(t, o)
	head(t, repo)
	bytes, files := usage(t, o.Dir)
	descriptors := openFiles(t)
	for range fetches {
		require.Equal(t, id, head(t, repo).ID)
	}
	b, f := usage(t, o.Dir)
	require.Equal(t, bytes, b)
	require.Equal(t, files, f)
	require.LessOrEqual(t, openFiles(t), descriptors)
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(list)
}

// noiseSource gives the same noise for the same seed.
func noiseSource(seed int) *rand.ChaCha8 {
	return rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)})
}

// heapOf is how many bytes f takes from the heap, given back or not.
func heapOf(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func sshRepository(t *testing.T, change func(o *Options)) (*sourcetest.Repo, *sourcetest.SSHServer, *Repository) {
	t.Helper()
	r := sourcetest.New(t)
	s := r.SSH()
	o := Options{URL: s.URL, Auth: Auth{KeyFile: s.KeyFile, KnownHostsFile: s.KnownHostsFile}, Timeout: 20 * time.Second}
	if change != nil {
		change(&o)
	}
	return r, s, openRepository(t, o)
}

func TestHostKeys(t *testing.T) {
	known := filepath.Join(t.TempDir(), "known_hosts")
	r, s, repo := sshRepository(t, func(o *Options) { o.Auth.KnownHostsFile = known })
	r.Commit(map[string]string{"a": "1"}, "first")
	_, port, err := net.SplitHostPort(strings.TrimSuffix(s.URL[strings.Index(s.URL, "@")+1:], r.Dir))
	require.NoError(t, err)
	line := "ssh-keyscan -p " + port + " 127.0.0.1 >> " + known
	require.Contains(t, fault(t, repo, errHostKey, false), line, "no such file")
	require.NoError(t, os.WriteFile(known, nil, 0o600))
	text := fault(t, repo, errHostKey, false)
	require.Contains(t, text, line)
	require.Contains(t, text, "it is not known: the server shows SHA256:")
	right, err := os.ReadFile(s.KnownHostsFile)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(known, right, 0o600))
	head(t, repo)

	s.SetHostKey(s.Key("host2"))
	text = fault(t, repo, errHostKey, false)
	require.Contains(t, text, "it has changed")
	require.Contains(t, text, "line 1 of "+known)
	require.NoError(t, os.WriteFile(known, []byte("@revoked * "+hostKey(t, right)), 0o600))
	s.SetHostKey(s.HostKeyFile)
	require.Contains(t, fault(t, repo, errHostKey, false), "revoked")
	require.NoError(t, os.WriteFile(known, []byte("nonsense\n"), 0o600))
	fault(t, repo, errHostKey, false)
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
	with := func(key string) *Repository {
		return openRepository(t, Options{URL: s.URL, Auth: Auth{KeyFile: key, KnownHostsFile: s.KnownHostsFile}})
	}
	head(t, with(s.KeyFile))
	require.Contains(t, fault(t, with(s.KeyFile+".none"), errLogin, false), "no such file")
	require.Contains(t, fault(t, with(s.KeyFile+".pub"), errLogin, false), "not a private key")
	require.Contains(t, fault(t, with(s.LockedKey("locked", "sesame")), errLogin, false), "passphrase")
	require.Contains(t, fault(t, with(s.Key("stranger")), errDenied, false), "accepts none of the keys")

	rotated := filepath.Join(t.TempDir(), "key")
	stranger, err := os.ReadFile(s.Key("second"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(rotated, stranger, 0o600))
	repo := with(rotated)
	fault(t, repo, errDenied, false)
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
	repo := openRepository(t, Options{URL: s.URL})
	require.Contains(t, fault(t, repo, errLogin, false), "key_file")
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
		repo := openRepository(t, Options{URL: url, Auth: Auth{KeyFile: s.KeyFile, KnownHostsFile: s.KnownHostsFile}})
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
		var f *fetchError
		require.ErrorAs(t, err, &f, "after %d bytes", after)
		require.True(t, f.Temporary(), err)
		require.Equal(t, "1", readFile(t, repo, id, "a"))
	}
	s.SetWrap(nil)
	require.Equal(t, next, head(t, repo).ID)
}

// What a login shell prints is no refusal of a server whose connection is cut.
func TestAnSSHConnectionThatIsCutAfterTheShellPrinted(t *testing.T) {
	t.Parallel()
	r, s, repo := sshRepository(t, nil)
	r.Commit(map[string]string{"a": "1"}, "first")
	// so much text that sshd has sent some of it before it ends
	s.Configure(`ForceCommand yes "rm: no such file" | head -c 500000 >&2; kill -9 $PPID`)
	require.Contains(t, fault(t, repo, errCut, true), "the server says: rm: no such file")
}

func TestAnSSHServerThatIsSilent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	r := sourcetest.New(t)
	s := r.SSH()
	repo := openRepository(t, Options{
		URL:  "ssh://git@" + l.Addr().String() + "/x",
		Auth: Auth{KeyFile: s.KeyFile, KnownHostsFile: s.KnownHostsFile}, Timeout: 100 * time.Millisecond,
	})
	fault(t, repo, errTimeout, true)
}

// cut is a fault that ends the connection after so many bytes of the pack.
func cut(after int) sourcetest.Fault {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Method != http.MethodPost {
			next.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(&cutter{w, after}, r)
	}
}

type cutter struct {
	http.ResponseWriter
	left int
}

func (c *cutter) Write(b []byte) (int, error) {
	n := min(len(b), c.left)
	c.left -= n
	_, _ = c.ResponseWriter.Write(b[:n])
	if c.left == 0 {
		_ = http.NewResponseController(c.ResponseWriter).Flush()
		panic(http.ErrAbortHandler)
	}
	return n, nil
}
