package source_test

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/homestak/homestak-gitops/engine/source"
	"github.com/homestak/homestak-gitops/engine/source/objects"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
)

// Any history of commits, merges and rewritten branches: what lies between what
// converged last and the head is what git says, however often the copy was compacted
// in between, and what was kept can be read.
func TestSinceSaysWhatGitSays(t *testing.T) {
	t.Parallel()
	needGit(t)
	rapid.Check(t, func(rt *rapid.T) {
		r := sourcetest.New(t)
		o := source.Options{URL: r.URL(), Dir: filepath.Join(sourcetest.TempDir(t), "copy")}.WithPacks(rapid.IntRange(1, 6).Draw(rt, "packs"))
		repo := openRepository(t, o)
		all := []string{r.Commit(map[string]string{"f": "0"}, "root")}
		kept, rewritten := "", false
		steps := []string{"commit", "commit", "side", "merge", "look", "look", "keep"}
		if rapid.Bool().Draw(rt, "rewrites") {
			steps = append(steps, "reset")
		}
		for i := range rapid.IntRange(3, 25).Draw(rt, "steps") {
			change := map[string]string{"f": fmt.Sprint(i), fmt.Sprint("g", i%3): strings.Repeat(fmt.Sprint(i), 2000)}
			some := rapid.SampledFrom(all)
			switch rapid.SampledFrom(steps).Draw(rt, "step") {
			case "commit":
				all = append(all, r.Commit(change, "commit"))
			case "side":
				all = append(all, r.Side(some.Draw(rt, "parent"), change, "side"))
			case "merge":
				all = append(all, r.Merge(change, "merge", some.Draw(rt, "other")))
			case "reset":
				r.Reset(some.Draw(rt, "to"))
				rewritten = true
			case "keep":
				kept = head(t, repo).ID
				require.NoError(t, repo.Keep(kept))
			default:
				id := head(t, repo).ID
				require.Equal(t, r.Head(), id)
				if kept != "" {
					require.NotEmpty(t, readFile(t, repo, kept, "f"))
					compare(t, r, repo, kept, id, rewritten)
				}
			}
		}
	})
}

func compare(t *testing.T, r *sourcetest.Repo, repo *source.Repository, from, to string, rewritten bool) {
	t.Helper()
	got, err := repo.Since(t.Context(), from, to)
	related := strings.Contains(runGit(t, r.Dir, "", "rev-list", to), from)
	if !related {
		require.ErrorIs(t, err, objects.ErrUnrelated)
		return
	}
	if err != nil && rewritten {
		require.ErrorIs(t, err, objects.ErrUnrelated) // it may not be able to tell, but it never guesses
		return
	}
	require.NoError(t, err)
	require.Equal(t, strings.Fields(runGit(t, r.Dir, "", "rev-list", "--date-order", from+".."+to)), ids(got))
}

// Files that were handed out can be read by others while the repository fetches,
// compacts and forgets what they belong to.
func TestFilesOutliveWhatTheyBelongTo(t *testing.T) {
	t.Parallel()
	r := sourcetest.New(t)
	big := strings.Repeat("line\n", 1000)
	first := r.Commit(map[string]string{"a": big, "dir/b": "b"}, "first")
	repo := openRepository(t, source.Options{URL: r.URL()}.WithPacks(3))
	head(t, repo)
	files, err := repo.Files(first)
	require.NoError(t, err)
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for {
				text, err := fs.ReadFile(files, "a")
				if err != nil || string(text) != big {
					t.Errorf("%v", err)
					return
				}
				if _, err := fs.Stat(files, "dir/b"); err != nil {
					t.Error(err)
					return
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	for i := range 60 {
		id := r.ForcePush(map[string]string{"a": fmt.Sprint(i)}, "other")
		head(t, repo)
		require.NoError(t, repo.Keep(id))
	}
	close(stop)
	readers.Wait()
	_, err = repo.Files(first)
	require.ErrorIs(t, err, objects.ErrUnknown, "it was forgotten in the meantime")
}

// A site's binary files may be large: they are not read with the others, nor held
// while they are fetched.
func TestLargeFilesAreNotHeld(t *testing.T) {
	const large = 24 << 20
	r := sourcetest.New(t)
	s := r.HTTPS()
	id := r.Commit(map[string]string{"image": noise(t, large), "small": "s"}, "first")
	repo := openRepository(t, source.Options{URL: s.URL, Auth: source.Auth{CAFile: s.CAFile}})
	fetched := allocated(func() { head(t, repo) })
	t.Logf("fetch of %d MiB: %d MiB taken from the heap in all", large>>20, fetched>>20)
	if !raced {
		require.Less(t, fetched, uint64(large)*5/4, "one object at a time, and that once")
	}
	read := allocated(func() { require.Equal(t, "s", readFile(t, repo, id, "small")) })
	require.Less(t, read, uint64(1<<20))
	files, err := repo.Files(id)
	require.NoError(t, err)
	info, err := fs.Stat(files, "image")
	require.NoError(t, err)
	require.Equal(t, int64(large), info.Size())
}

func needGit(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed, so there is nothing to compare with:", err)
	}
}

// runGit runs git in a folder, without the settings of whoever runs the test.
func runGit(t testing.TB, dir, in string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", append([]string{"-c", "safe.directory=*"}, args...)...)
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(in)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "HOME="+dir, "GIT_AUTHOR_NAME=Ada", "GIT_AUTHOR_EMAIL=ada@example.org",
		"GIT_COMMITTER_NAME=Ada", "GIT_COMMITTER_EMAIL=ada@example.org", "GIT_AUTHOR_DATE=@1767323045 +0000", "GIT_COMMITTER_DATE=@1767323045 +0000")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "git %s: %s", strings.Join(args, " "), out)
	return string(out)
}
