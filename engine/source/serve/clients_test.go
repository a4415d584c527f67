package serve_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	gogit "github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/source"
	"github.com/homestak/homestak-gitops/engine/source/serve"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
)

// The requests of one fetch.
var (
	ask   = "GET /site.git/info/refs"
	fetch = "POST /site.git/git-upload-pack"
)

// Clients of every version of the protocol clone and fetch with as few requests as it allows.
func TestGit(t *testing.T) {
	needGit(t)
	for _, version := range []string{"0", "1", "2"} {
		t.Run("protocol "+version, func(t *testing.T) {
			w := newWorld(t, serve.HandlerOptions{})
			w.good = w.push(map[string]string{"site.hcl": "site \"a\" {\n}\n", "hosts/pve1.hcl": "host \"pve1\" {\n}\n"})
			second := w.push(map[string]string{"hosts/pve1.hcl": "host \"pve1\" {\n  # more\n}\n"})
			dir := w.clone("-c", "protocol.version="+version)
			w.check(t, dir, second)
			require.Equal(t, []string{ask, fetch}, w.requests())
			require.Equal(t, "refs/heads/main", git(t, "-C", dir, "symbolic-ref", "HEAD"))
			require.Equal(t, "origin/HEAD\norigin/main", git(t, "-C", dir, "for-each-ref", "--format=%(refname:short)", "refs/remotes"))
			require.Equal(t, "2", git(t, "-C", dir, "rev-list", "--count", "HEAD"))

			git(t, "-C", dir, "fetch", "-q", "origin", "refs/homestak/last-good")
			require.Equal(t, w.good, git(t, "-C", dir, "rev-parse", "FETCH_HEAD"))
			w.requests()

			git(t, "-C", dir, "fetch", "-q")
			require.Equal(t, []string{ask}, w.requests(), "nothing changed")

			for n := range 3 {
				w.push(map[string]string{fmt.Sprintf("more%d.hcl", n): "# " + version + "\n"})
			}
			git(t, "-C", dir, "pull", "-q")
			require.Equal(t, []string{ask, fetch}, w.requests())
			w.check(t, dir, w.head)

			w.repo.ForcePush(map[string]string{"site.hcl": "site \"b\" {\n}\n"}, "rewritten")
			w.follow()
			git(t, "-C", dir, "fetch", "-q")
			git(t, "-C", dir, "reset", "-q", "--hard", "origin/main")
			w.check(t, dir, w.head)

			git(t, "-C", dir, "commit", "-q", "--allow-empty", "-m", "mine")
			out, err := tryGit("-C", dir, "push", "-q")
			require.Error(t, err)
			require.Contains(t, out, "remote error: this repository is read-only; push to the one that its server follows")
		})
	}
}

// A client whose own history is long needs several rounds to find what both have.
func TestNegotiation(t *testing.T) {
	needGit(t)
	w := newWorld(t, serve.HandlerOptions{})
	w.push(map[string]string{"site.hcl": "site \"a\" {\n}\n", "data": strings.Repeat("much ", 1000)})
	dir := w.clone()
	for n := range 150 {
		git(t, "-C", dir, "commit", "-q", "--allow-empty", "-m", fmt.Sprint("mine ", n))
	}
	w.push(map[string]string{"more.hcl": "# more\n"})
	w.requests()
	git(t, "-C", dir, "fetch", "-q")
	rounds := w.requests()
	require.Equal(t, ask, rounds[0])
	require.Greater(t, len(rounds), 2)
	require.Less(t, len(rounds), 12)
	require.Equal(t, w.head, git(t, "-C", dir, "rev-parse", "origin/main"))
	require.Empty(t, git(t, "-C", dir, "fsck", "--strict", "--full", "--no-dangling", "--no-progress"))
	packs := git(t, "-C", dir, "count-objects", "-v")
	require.Contains(t, packs, "in-pack: 0", "only three small objects came") // git unpacks small packs
	git(t, "-C", dir, "checkout", "-q", "--detach", "origin/main")
	w.check(t, dir, w.head)
}

func TestDepth(t *testing.T) {
	needGit(t)
	w := newWorld(t, serve.HandlerOptions{})
	for n := range 10 {
		w.push(map[string]string{"site.hcl": fmt.Sprintf("# %d\n", n)})
	}
	count := func(dir string) string { return git(t, "-C", dir, "rev-list", "--count", "HEAD") }
	dir := w.clone("--depth", "1")
	w.check(t, dir, w.head)
	require.Equal(t, "1", count(dir))
	git(t, "-C", dir, "fetch", "-q", "--depth", "4")
	require.Equal(t, "4", count(dir))
	out, err := tryGit("-C", dir, "fetch", "-q", "--deepen", "2")
	require.Error(t, err)
	require.Contains(t, out, "Server does not support --deepen")
	git(t, "-C", dir, "fetch", "-q", "--depth", "6")
	require.Equal(t, "6", count(dir))
	w.push(map[string]string{"site.hcl": "# next\n"})
	git(t, "-C", dir, "pull", "-q")
	require.Equal(t, "7", count(dir))
	w.check(t, dir, w.head)
	git(t, "-C", dir, "fetch", "-q", "--unshallow")
	require.Equal(t, "11", count(dir))
	w.check(t, dir, w.head)
	git(t, "-C", dir, "fetch", "-q", "--depth", "2")
	require.Equal(t, "2", count(dir))
	w.check(t, dir, w.head)
	out, err = tryGit("-C", dir, "fetch", "-q", "--shallow-since", "2026-01-01")
	require.Error(t, err)
	require.Contains(t, out, "not support")
}

// The copy of an agent begins with one commit of a long history. Clones of it end there.
func TestHistoryThatIsNotHere(t *testing.T) {
	needGit(t)
	w := newWorld(t, serve.HandlerOptions{})
	for n := range 70 {
		w.repo.Commit(map[string]string{"site.hcl": fmt.Sprintf("# %d\n", n)}, "old")
	}
	w.follow()
	dir := w.clone()
	w.check(t, dir, w.head)
	require.Equal(t, "64", git(t, "-C", dir, "rev-list", "--count", "HEAD"), "what the server fetched first")
	deep := w.clone("--depth", "3")
	w.check(t, deep, w.head)
	w.push(map[string]string{"site.hcl": "# new\n"})
	for dir, has := range map[string]string{dir: "65", deep: "4"} {
		git(t, "-C", dir, "pull", "-q")
		w.check(t, dir, w.head)
		require.Equal(t, has, git(t, "-C", dir, "rev-list", "--count", "HEAD"))
		git(t, "-C", dir, "fetch", "-q", "--unshallow")
		require.Equal(t, "65", git(t, "-C", dir, "rev-list", "--count", "HEAD"))
	}
}

// go-git is a client of its own. It does not record where a history ends unless it asked for
// a depth.
func TestGoGit(t *testing.T) {
	needGit(t)
	for name, depth := range map[string]int{"all": 0, "depth 1": 1} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, serve.HandlerOptions{})
			w.push(map[string]string{"site.hcl": "# one\n", "hosts/pve1.hcl": "# a\n"})
			w.push(map[string]string{"site.hcl": "# two\n"})
			dir := filepath.Join(sourcetest.TempDir(t), "clone")
			repo, err := gogit.PlainCloneContext(t.Context(), dir, false, &gogit.CloneOptions{URL: w.url, Depth: depth})
			require.NoError(t, err)
			w.check(t, dir, w.head)
			require.Equal(t, []string{ask, fetch}, w.requests())
			require.ErrorIs(t, repo.FetchContext(t.Context(), &gogit.FetchOptions{Depth: depth}), gogit.NoErrAlreadyUpToDate)
			require.Equal(t, []string{ask}, w.requests())
			for range 2 {
				w.push(map[string]string{"site.hcl": "# three " + w.head + "\n"})
				tree, err := repo.Worktree()
				require.NoError(t, err)
				require.NoError(t, tree.PullContext(t.Context(), &gogit.PullOptions{Depth: depth}))
				require.Equal(t, []string{ask, fetch}, w.requests())
				w.check(t, dir, w.head)
			}
			log, err := repo.Log(&gogit.LogOptions{})
			require.NoError(t, err)
			found := 0
			_ = log.ForEach(func(*object.Commit) error { found++; return nil })
			require.Equal(t, map[int]int{0: 4, 1: 3}[depth], found)
		})
	}
}

// The same where the past of the first commit is not here. go-git then does not know where
// its history ends, but fetches, and has all files.
func TestGoGitWithoutThePast(t *testing.T) {
	needGit(t)
	w := newWorld(t, serve.HandlerOptions{})
	for n := range 5 {
		w.repo.Commit(map[string]string{"site.hcl": fmt.Sprintf("# %d\n", n)}, "old")
	}
	w.follow()
	for name, depth := range map[string]int{"all": 0, "depth 1": 1} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(sourcetest.TempDir(t), "clone")
			repo, err := gogit.PlainCloneContext(t.Context(), dir, false, &gogit.CloneOptions{URL: w.url, Depth: depth})
			require.NoError(t, err)
			for range 2 {
				w.push(map[string]string{"site.hcl": "# new " + w.head + "\n"})
				require.NoError(t, repo.FetchContext(t.Context(), &gogit.FetchOptions{Depth: depth}))
				id, err := repo.ResolveRevision("origin/main")
				require.NoError(t, err)
				require.Equal(t, w.head, id.String())
				tree, err := repo.Worktree()
				require.NoError(t, err)
				require.NoError(t, tree.Checkout(&gogit.CheckoutOptions{Hash: *id}))
				require.Equal(t, git(t, "-C", w.repo.Dir, "ls-tree", "-r", w.head), git(t, "-C", dir, "ls-tree", "-r", "HEAD"))
			}
		})
	}
}

// Our own client is what follows a parent; what it has fetched can be served again.
func TestChain(t *testing.T) {
	needGit(t)
	w := newWorld(t, serve.HandlerOptions{})
	w.repo.Commit(map[string]string{"site.hcl": "# none\n"}, "old")
	first := w.push(map[string]string{"site.hcl": "# one\n", "a/b/c.hcl": "# deep\n"})
	child := newWorld(t, serve.HandlerOptions{})
	child.repo = w.repo // that it is compared with
	var err error
	child.copy, err = source.OpenRepository(source.Options{Dir: t.TempDir(), URL: w.url})
	require.NoError(t, err)
	require.Equal(t, first, child.follow())
	require.Equal(t, []string{ask, fetch}, w.requests())
	require.Equal(t, first, child.follow())
	require.Equal(t, []string{ask}, w.requests(), "nothing changed")
	require.NoError(t, w.copy.Keep(first))
	require.NoError(t, child.copy.Keep(first))
	for n := range 40 {
		w.repo.Commit(map[string]string{"site.hcl": fmt.Sprintf("# %d\n", n)}, fmt.Sprintf("change %d\n\nAllow-Deletes: %d", n, n))
		if n%7 == 0 {
			w.follow()
			child.follow()
		}
	}
	w.follow()
	w.requests()
	require.Equal(t, w.head, child.follow())
	require.Equal(t, []string{ask, fetch}, w.requests())
	since, err := child.copy.Since(t.Context(), first, child.head)
	require.NoError(t, err)
	require.Len(t, since, 40)
	require.Equal(t, "39", since[0].Trailers["Allow-Deletes"])
	dir := child.clone()
	w.check(t, dir, w.head)

	w.repo.ForcePush(map[string]string{"site.hcl": "# rewritten\n"}, "rewritten")
	w.follow()
	require.Equal(t, w.head, child.follow())
	w.check(t, child.clone(), w.head)
}

// A commit with a secret is not served, also not as the past of the one that removes it.
func TestWithheld(t *testing.T) {
	needGit(t)
	const canary = "hunter2-canary"
	w := newWorld(t, serve.HandlerOptions{})
	first := w.push(map[string]string{"site.hcl": "# one\n"})
	dir := w.clone()
	other, err := gogit.PlainClone(t.TempDir(), true, &gogit.CloneOptions{URL: w.url})
	require.NoError(t, err)
	child, err := source.OpenRepository(source.Options{Dir: t.TempDir(), URL: w.url})
	require.NoError(t, err)
	_, err = child.Head(t.Context())
	require.NoError(t, err)
	bad := w.repo.Commit(map[string]string{"secret.hcl": canary}, "a mistake")
	clean := w.repo.Commit(map[string]string{"secret.hcl": sourcetest.Gone}, "fixed")
	var asked []string
	w.withhold = func(id string) bool { asked = append(asked, id); return id == bad }
	w.repo.Commit(map[string]string{"site.hcl": "# two\n"}, "change")
	w.good = first
	w.follow()
	require.Equal(t, []string{clean, bad}, asked, "each once, and nothing below")

	clone := w.clone()
	w.check(t, clone, w.head)
	require.Equal(t, "2", git(t, "-C", clone, "rev-list", "--count", "HEAD"))
	require.NotContains(t, git(t, "-C", clone, "cat-file", "--batch-all-objects", "--batch"), canary)
	git(t, "-C", clone, "fetch", "-q", "--unshallow")
	require.NotContains(t, git(t, "-C", clone, "cat-file", "--batch-all-objects", "--batch"), canary)

	// A clone from before has the same first commit, but not what is between.
	out, err := tryGit("-C", dir, "fetch", "--no-progress")
	require.Error(t, err)
	require.Contains(t, out, "did not send all necessary objects", "its history would end at a commit where it did not end before")
	git(t, "-C", dir, "fetch", "-q", "--update-shallow")
	git(t, "-C", dir, "reset", "-q", "--hard", "origin/main")
	w.check(t, dir, w.head)
	require.NoError(t, other.FetchContext(t.Context(), &gogit.FetchOptions{}))
	got, err := child.Head(t.Context())
	require.NoError(t, err)
	require.Equal(t, w.head, got.ID)
	_, err = child.Since(t.Context(), first, w.head)
	require.ErrorIs(t, err, model.ErrUnrelated, "what lies between is not known, so its trailers grant nothing")
}

// A commit comes while a client is between its requests: it gets the one that it was
// promised, and the next fetch brings the new one.
func TestDuringAFetch(t *testing.T) {
	needGit(t)
	for _, version := range []string{"0", "2"} {
		w := newWorld(t, serve.HandlerOptions{})
		first := w.push(map[string]string{"site.hcl": "# one\n"})
		var once sync.Once
		change := func(r *http.Request) {
			if r.Method == http.MethodPost {
				once.Do(func() {
					w.repo.ForcePush(map[string]string{"site.hcl": "# two\n"}, "rewritten")
					w.follow()
				})
			}
		}
		w.onRequest(change)
		dir := w.clone("-c", "protocol.version="+version)
		w.check(t, dir, first)
		second := w.head
		require.NotEqual(t, first, second)
		git(t, "-C", dir, "fetch", "-q")
		require.Equal(t, second, git(t, "-C", dir, "rev-parse", "origin/main"))

		git(t, "-C", dir, "reset", "-q", "--hard", "origin/main")
		w.push(map[string]string{"site.hcl": "# three\n"})
		third := w.head
		git(t, "-C", dir, "pull", "-q")
		w.check(t, dir, third)
	}
}

// Many clients of all kinds fetch while commits come: each gets a whole commit that was in
// force at that time, and nothing else. A client that was overtaken by two commits is asked to fetch again.
func TestConcurrency(t *testing.T) {
	needGit(t)
	w := newWorld(t, serve.HandlerOptions{})
	w.push(map[string]string{"site.hcl": "# 0\n", "data.hcl": strings.Repeat("# much\n", 10000)})
	clones := []string{w.clone(), w.clone("--depth", "1"), w.clone("-c", "protocol.version=0")}
	stop := make(chan struct{})
	stopped := func() bool {
		select {
		case <-stop:
			return true
		default:
			return false
		}
	}
	var wait sync.WaitGroup
	for n := range 3 {
		dir := clones[n]
		wait.Go(func() {
			for !stopped() {
				out, err := tryGit("-C", dir, "fetch", "-q")
				if err != nil && !strings.Contains(out, "fetch again") {
					t.Errorf("fetch: %s", out)
					return
				}
			}
		})
	}
	for range 4 {
		wait.Go(func() {
			for !stopped() {
				if status, _, body := get(t, w.url+"/raw/HEAD/site.hcl"); status != http.StatusOK || !strings.HasPrefix(body, "# ") {
					t.Errorf("%d: %s", status, body)
					return
				}
			}
		})
	}
	for n := range 15 {
		w.good = w.head
		w.push(map[string]string{"site.hcl": fmt.Sprintf("# %d\n", n), "data.hcl": strings.Repeat(fmt.Sprintf("# %d\n", n), 10000)})
	}
	close(stop)
	wait.Wait()
	for _, dir := range clones {
		git(t, "-C", dir, "fetch", "-q")
		git(t, "-C", dir, "reset", "-q", "--hard", "origin/main")
		w.check(t, dir, w.head)
	}
}

// Any sequence of commits gives clients the same trees as the repository has, and a
// repository that git finds nothing wrong with. A sequence follows from its number.
func TestAnyHistory(t *testing.T) {
	needGit(t)
	sequences := uint64(6)
	if n, err := strconv.ParseUint(os.Getenv("HOMESTAK_HISTORIES"), 10, 32); err == nil {
		sequences = n
	}
	for seed := range sequences {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			anyHistory(t, rand.New(rand.NewPCG(seed, 0)))
		})
	}
}

func anyHistory(t *testing.T, random *rand.Rand) {
	one := func(list ...string) string { return list[random.IntN(len(list))] }
	w := newWorld(t, serve.HandlerOptions{})
	w.push(map[string]string{"site.hcl": "# 0\n"})
	clients := []string{w.clone(), w.clone("--depth", "1"), w.clone("-c", "protocol.version=0", "--depth", "3")}
	all := []string{w.head}
	for range 8 {
		for range 1 + random.IntN(4) {
			text := one("# x\n", "# y\n", "", sourcetest.Gone, sourcetest.Exec+"z\n", sourcetest.Link+"site.hcl")
			files := map[string]string{
				one("site.hcl", "a/b.hcl", "a/c/d.hcl", "e f.hcl", "link", "run"): text,
				"count.hcl": fmt.Sprint(random.IntN(3)), // the same contents come again
			}
			switch random.IntN(8) {
			case 0:
				w.repo.ForcePush(files, "rewritten")
			case 1, 2:
				w.repo.Merge(files, "merge", w.repo.Side(one(all...), files, "side"))
			case 3:
				w.repo.Reset(one(all...))
			default:
				w.repo.Commit(files, "change")
			}
			all = append(all, w.repo.Head())
		}
		if random.IntN(2) == 0 {
			w.good = w.head
			require.NoError(t, w.copy.Keep(w.head))
		}
		w.follow()
		for n, dir := range clients {
			if random.IntN(3) == 0 {
				continue // this one fetches later
			}
			depth := "--no-tags"
			if n > 0 && random.IntN(2) == 0 {
				depth = fmt.Sprint("--depth=", 1+random.IntN(4))
			}
			git(t, "-C", dir, "fetch", "-q", "--update-shallow", depth)
			git(t, "-C", dir, "reset", "-q", "--hard", "origin/main")
			w.check(t, dir, w.head)
		}
	}
	w.check(t, w.clone(), w.head)
}

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
	out, err := sourcetest.Git(context.Background(), "", args...).CombinedOutput()
	return string(out), err
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
