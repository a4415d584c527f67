package serve_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/source"
	"github.com/homestak/homestak-gitops/engine/source/serve"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
)

// world is a repository that is pushed to, the copy of it that an agent has, and the server
// of that copy.
type world struct {
	t        testing.TB
	repo     *sourcetest.Repo
	copy     *source.Repository
	handler  *serve.Handler
	url      string // of the repository
	base     string // of the server
	head     string
	good     string // of the snapshot, beside the head
	withhold func(id string) bool

	mu   sync.Mutex // the server's goroutines read what a test sets
	seen []string   // requests: method and path
	hook func(r *http.Request)
}

func newWorld(t testing.TB, o serve.HandlerOptions) *world {
	t.Helper()
	w := &world{t: t, repo: sourcetest.New(t)}
	var err error

	w.copy, err = source.OpenRepository(source.Options{Dir: t.TempDir(), URL: w.repo.URL()})
	require.NoError(t, err)
	w.handler = serve.NewHandler(o)
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		w.seen = append(w.seen, r.Method+" "+r.URL.Path)
		hook := w.hook
		w.mu.Unlock()
		if hook != nil {
			hook(r)
		}
		w.handler.ServeHTTP(rw, r)
	}))
	t.Cleanup(s.Close)
	w.base, w.url = s.URL, s.URL+"/site.git"
	return w
}

// follow fetches what was pushed, and publishes it.
func (w *world) follow() string {
	w.t.Helper()
	c, err := w.copy.Head(w.t.Context())
	require.NoError(w.t, err)
	w.head = c.ID
	w.publish()
	return c.ID
}

func (w *world) publish() {
	w.t.Helper()
	s, err := w.copy.Snapshot(serve.Content{Branch: "main", InForce: w.head, LastGood: w.good, Withheld: w.withhold})
	require.NoError(w.t, err)
	w.handler.Publish(s)
}

// push makes a commit and publishes it.
func (w *world) push(files map[string]string) string {
	w.t.Helper()
	w.repo.Commit(files, "change")
	return w.follow()
}

// requests gives what was asked since the last call.
func (w *world) requests() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := w.seen
	w.seen = nil
	return seen
}

func (w *world) onRequest(hook func(*http.Request)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hook = hook
}

// git runs git, which must succeed.
func git(t require.TestingT, args ...string) string {
	out, err := tryGit(args...)
	require.NoError(t, err, "git %s: %s", strings.Join(args, " "), out)
	return strings.TrimSpace(out)
}

func tryGit(args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "HOME=/nonexistent", "GIT_TERMINAL_PROMPT=0", "LC_ALL=C", "GIT_ADVICE=0")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

func needGit(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed, so no git clones from here:", err)
	}
}

// check compares a checkout with the repository that was pushed to, and lets git check it.
func (w *world) check(t require.TestingT, dir, commit string) {
	require.Equal(t, commit, git(t, "-C", dir, "rev-parse", "HEAD"))
	require.Empty(t, git(t, "-C", dir, "status", "--porcelain"))
	require.Equal(t, git(t, "-C", w.repo.Dir, "ls-tree", "-r", commit), git(t, "-C", dir, "ls-tree", "-r", "HEAD"))
	require.Empty(t, git(t, "-C", dir, "fsck", "--strict", "--full", "--no-dangling", "--no-progress"))
}

func (w *world) clone(args ...string) string {
	w.t.Helper()
	dir := filepath.Join(sourcetest.TempDir(w.t), "clone")
	git(w.t, append(append([]string{"clone", "-q"}, args...), w.url, dir)...)
	return dir
}

func get(t testing.TB, url string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res.StatusCode, res.Header, string(text)
}
