package integration_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	gogit "github.com/go-git/go-git/v5"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"
	"github.com/stretchr/testify/require"
)

// copies are the files that each commit writes alike, so that a mixture of two would show.
var copies = []string{"one.txt", "dir/two.txt", "dir/sub/three.txt"}

// git clones and fetches, go-git clones and pulls, and others read single files and the spec, before,
// while and after commits come: each sees one commit as a whole, and none sees an older one after a
// newer one.
func TestST09CloneWhileCommitsCome(t *testing.T) {
	t.Parallel()
	p := beginParent(t)
	key, operator := string(p.access().Repository), string(p.access().Operator)
	url := "https://" + p.addr + "/site.git"
	write := func(n int) string {
		for _, name := range copies {
			p.write(name, fmt.Sprintf("%d\n", n))
		}
		p.write("site.hcl", strings.Replace(p.read("site.hcl"), fmt.Sprintf(`"v%d.example"`, n-1), fmt.Sprintf(`"v%d.example"`, n), 1))
		return p.commit(fmt.Sprint("version ", n))
	}
	p.write("site.hcl", strings.Replace(p.read("site.hcl"), "home.example", "v0.example", 1))
	asks := p.child("127.0.0.2")
	served := func(commit string) {
		t.Helper()
		require.Equal(t, "202", asks.ask(http.MethodPost, "/reconcile", operator, http.NoBody).code())
		require.Eventually(t, func() bool { return strings.Contains(asks.get("/health", "").body, commit) }, 5*time.Minute, 100*time.Millisecond)
	}
	served(write(1))

	auth := "http.extraHeader=Authorization: Bearer " + key
	dir := filepath.Join(t.TempDir(), "kept")
	tryClone := func(dir string) error {
		out, err := p.tryGit("clone", "-q", "-c", auth, url, dir) // which keeps it for fetches
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	require.NoError(t, tryClone(dir))
	pulled, err := gogit.PlainClone(filepath.Join(t.TempDir(), "pulled"), false, goClone(url, key))
	require.NoError(t, err)

	// whole is the version of a work tree, which has to be one.
	whole := func(read func(name string) (string, error)) (int, error) {
		version := 0
		for _, name := range copies {
			text, err := read(name)
			if err != nil {
				return 0, err
			}
			var n int
			if _, err := fmt.Sscan(text, &n); err != nil {
				return 0, fmt.Errorf("%s has %q", name, text)
			}
			if version != 0 && n != version {
				return 0, fmt.Errorf("versions %d and %d are mixed", version, n)
			}
			version = n
		}
		return version, nil
	}
	ofGit := func(dir, at string) func(string) (string, error) {
		return func(name string) (string, error) { return p.tryGit("-C", dir, "show", at+":"+name) }
	}
	fresh := t.TempDir()
	clients := map[string]func(n int) (int, error){
		"git clone": func(n int) (int, error) {
			to := filepath.Join(fresh, fmt.Sprint(n))
			if err := tryClone(to); err != nil {
				return 0, err
			}
			return whole(ofGit(to, "HEAD"))
		},
		"git fetch": func(int) (int, error) {
			if out, err := p.tryGit("-C", dir, "fetch", "-q"); err != nil {
				return 0, fmt.Errorf("%w: %s", err, out)
			}
			return whole(ofGit(dir, "origin/main"))
		},
		"go-git clone": func(n int) (int, error) {
			r, err := gogit.PlainClone(filepath.Join(fresh, fmt.Sprint("go-", n)), false, goClone(url, key))
			if err != nil {
				return 0, err
			}
			return whole(ofGoGit(r))
		},
		"go-git pull": func(int) (int, error) {
			tree, err := pulled.Worktree()
			if err != nil {
				return 0, err
			}
			o := goClone(url, key)
			err = tree.PullContext(t.Context(), &gogit.PullOptions{Auth: o.Auth, InsecureSkipTLS: true})
			if err != nil && err != gogit.NoErrAlreadyUpToDate { //nolint:errorlint // it is returned as it is
				return 0, err
			}
			return whole(ofGoGit(pulled))
		},
		"raw files": func(int) (int, error) {
			r, err := asks.tryAsk(http.MethodGet, "/site.git/raw/HEAD/"+copies[0], key, http.NoBody)
			if err != nil || r.status != http.StatusOK {
				return 0, fmt.Errorf("%s: %w", r.code(), err)
			}
			return whole(func(string) (string, error) { return r.body, nil })
		},
		"specs": func(int) (int, error) {
			r, err := asks.tryAsk(http.MethodGet, "/spec/alpha", alphaToken, http.NoBody)
			if err != nil || r.status != http.StatusOK {
				return 0, fmt.Errorf("%s: %w", r.code(), err)
			}
			_, rest, _ := strings.Cut(r.body, `"domain":"v`)
			number, _, _ := strings.Cut(rest, ".")
			return whole(func(string) (string, error) { return number, nil })
		},
	}
	stop := make(chan struct{})
	var all sync.WaitGroup
	var mutex sync.Mutex // the clients count side by side
	seen := map[string]map[int]int{}
	for name, look := range clients {
		seen[name] = map[int]int{}
		all.Go(func() {
			last := 0
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				version, err := look(n)
				if err != nil || version < last {
					t.Errorf("%s: version %d after %d: %v", name, version, last, err)
					return
				}
				last = version
				mutex.Lock()
				seen[name][version]++
				mutex.Unlock()
			}
		})
	}
	const versions = 5
	last := ""
	for n := 2; n <= versions; n++ {
		last = write(n)
		served(last)
	}
	saw := func() bool { // afterwards, too
		mutex.Lock()
		defer mutex.Unlock()
		for name := range clients {
			if seen[name][versions] == 0 {
				return false
			}
		}
		return true
	}
	require.Eventually(t, saw, 5*time.Minute, 100*time.Millisecond, "%v", seen)
	close(stop)
	all.Wait()
	require.Equal(t, last, p.gitIn(dir, "rev-parse", "origin/main"))
	require.Empty(t, p.gitIn(dir, "fsck", "--strict", "--full", "--no-dangling", "--no-progress"))
	t.Logf("seen: %v", seen)
}

func goClone(url, key string) *gogit.CloneOptions {
	return &gogit.CloneOptions{URL: url, Auth: &githttp.BasicAuth{Username: "git", Password: key}, InsecureSkipTLS: true}
}

func ofGoGit(r *gogit.Repository) func(name string) (string, error) {
	return func(name string) (string, error) {
		head, err := r.Head()
		if err != nil {
			return "", err
		}
		commit, err := r.CommitObject(head.Hash())
		if err != nil {
			return "", err
		}
		file, err := commit.File(name)
		if err != nil {
			return "", err
		}
		return file.Contents()
	}
}
