package serve_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/source/serve"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
)

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
