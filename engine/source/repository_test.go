package source

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/source/objects"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
)

// transports are the ways to a repository: each gives the options to get there.
func transports() map[string]func(r *sourcetest.Repo) Options {
	return map[string]func(r *sourcetest.Repo) Options{
		"file": func(r *sourcetest.Repo) Options { return Options{URL: r.URL()} },
		"https": func(r *sourcetest.Repo) Options {
			s := r.HTTPS()
			return Options{URL: s.URL, Auth: Auth{CAFile: s.CAFile}}
		},
		"ssh": func(r *sourcetest.Repo) Options {
			s := r.SSH()
			return Options{URL: s.URL, Auth: Auth{KeyFile: s.KeyFile, KnownHostsFile: s.KnownHostsFile}}
		},
	}
}

// overAll runs a test over each transport, with a repository of its own.
func overAll(t *testing.T, test func(t *testing.T, r *sourcetest.Repo, o Options)) {
	t.Helper()
	for name, options := range transports() {
		t.Run(name, func(t *testing.T) {
			r := sourcetest.New(t)
			o := options(r)
			o.Dir = filepath.Join(sourcetest.TempDir(t), "deep", "copy.git")
			test(t, r, o)
		})
	}
}

func openRepository(t *testing.T, o Options) *Repository {
	t.Helper()
	if o.Dir == "" {
		o.Dir = filepath.Join(t.TempDir(), "copy.git")
	}
	r, err := OpenRepository(o)
	require.NoError(t, err)
	return r
}

func head(t *testing.T, r *Repository) model.Commit {
	t.Helper()
	c, err := r.Head(t.Context())
	require.NoError(t, err)
	return c
}

func readFile(t *testing.T, r *Repository, id, name string) string {
	t.Helper()
	f, err := r.Files(id)
	require.NoError(t, err)
	text, err := fs.ReadFile(f, name)
	require.NoError(t, err)
	return string(text)
}

func ids(commits []model.Commit) []string {
	out := []string{}
	for _, c := range commits {
		out = append(out, c.ID)
	}
	return out
}

// fsck has git check a repository. Without git it does nothing.
func fsck(t *testing.T, dir string) {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		return
	}
	out, err := sourcetest.Git(t.Context(), dir, "fsck", "--full", "--strict").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NotContains(t, string(out), "missing")
}

func TestHeadBringsACommitAndItsFiles(t *testing.T) {
	overAll(t, func(t *testing.T, r *sourcetest.Repo, o Options) {
		oldest := ""
		for i := range 64 {
			if made := r.Commit(map[string]string{"old.txt": strings.Repeat("x", i)}, "old"); i == 0 {
				oldest = made
			}
		}
		id := r.Commit(map[string]string{"site.hcl": "site \"a\" {\n}\n", "hosts/b.hcl": "host\n"}, "first\n\nwhy\n\nTicket: HOME-7")
		repo := openRepository(t, o)
		c := head(t, repo)
		require.Equal(t, id, c.ID)
		require.Equal(t, "first", c.Subject)
		require.Equal(t, model.Person{Name: "Ada Example", Email: "ada@example.org"}, c.Author)
		require.Equal(t, "2026-01-02T04:08:05Z", c.At.UTC().Format("2006-01-02T15:04:05Z07:00"))
		require.Equal(t, map[string]string{"Ticket": "HOME-7"}, c.Trailers)
		require.Len(t, c.Parents, 1)
		require.Equal(t, "host\n", readFile(t, repo, id, "hosts/b.hcl"))
		require.Equal(t, c, head(t, repo))
		_, err := repo.Commit(t.Context(), c.Parents[0])
		require.NoError(t, err)
		_, err = repo.Commit(t.Context(), oldest)
		require.ErrorIs(t, err, objects.ErrUnknown, "the first fetch brings 64 commits")
		fsck(t, o.Dir)

		again := openRepository(t, o) // as after a restart
		got, err := again.Commit(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, c, got)
	})
}

func TestSinceListsWhatCameNewestFirst(t *testing.T) {
	overAll(t, func(t *testing.T, r *sourcetest.Repo, o Options) {
		r.Commit(map[string]string{"a": "0"}, "before")
		first := r.Commit(map[string]string{"a": "1"}, "first")
		repo := openRepository(t, o)
		require.Equal(t, first, head(t, repo).ID)
		side := r.Side(first, map[string]string{"b": "1"}, "side")
		second := r.Commit(map[string]string{"a": "2"}, "second")
		merged := r.Merge(map[string]string{"b": "1"}, "merged", side)
		last := r.Commit(map[string]string{"a": "3"}, "last")
		require.Equal(t, last, head(t, repo).ID)

		got, err := repo.Since(t.Context(), first, last)
		require.NoError(t, err)
		require.Equal(t, []string{last, merged, second, side}, ids(got))
		got, err = repo.Since(t.Context(), second, merged)
		require.NoError(t, err)
		require.Equal(t, []string{merged, side}, ids(got))
		got, err = repo.Since(t.Context(), last, last)
		require.NoError(t, err)
		require.Empty(t, got)
		_, err = repo.Since(t.Context(), last, first)
		require.ErrorIs(t, err, model.ErrUnrelated)
		_, err = repo.Since(t.Context(), strings.Repeat("1", 40), last)
		require.ErrorIs(t, err, model.ErrUnrelated)
		_, err = repo.Since(t.Context(), "main", last)
		require.ErrorIs(t, err, model.ErrUnrelated)
		fsck(t, o.Dir)
	})
}

// A folder with many objects is fetched with few open files.
func TestFilesOfAFolderAreClosed(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // it closes what is forgotten
	r := sourcetest.New(t)
	r.Commit(map[string]string{"a": "1", "b/c": noise(t, 2<<20)}, "first")
	head(t, openRepository(t, Options{URL: r.URL()}))
	open, err := filepath.Glob("/proc/self/fd/*")
	require.NoError(t, err)
	for _, name := range open {
		file, _ := os.Readlink(name)
		require.NotContains(t, file, r.Dir)
	}
}

// A branch that began before the first commit that is here brings its past with it.
// Files that the older commit has, too, are then not new.
func TestSinceOfAMergedOldBranch(t *testing.T) {
	overAll(t, func(t *testing.T, r *sourcetest.Repo, o Options) {
		r.Commit(map[string]string{"a": "0"}, "root\n\nAllow-Deletes: 9")
		fork := r.Commit(map[string]string{"a": "1"}, "fork\n\nAllow-Deletes: 9")
		r.Commit(map[string]string{"a": "2"}, "between\n\nAllow-Deletes: 9")
		side := r.Side(fork, map[string]string{"b": "1"}, "side")
		first := r.Commit(map[string]string{"a": "3"}, "first")
		repo := openRepository(t, o)
		require.Equal(t, first, head(t, repo).ID)
		merged := r.Merge(map[string]string{"b": "1"}, "merged", side)
		require.Equal(t, merged, head(t, repo).ID)
		got, err := repo.Since(t.Context(), first, merged)
		require.NoError(t, err)
		require.Equal(t, []string{merged, side}, ids(got))
		fsck(t, o.Dir)
	})
}

func TestForcePush(t *testing.T) {
	t.Parallel()
	overAll(t, func(t *testing.T, r *sourcetest.Repo, o Options) {
		older := r.Commit(map[string]string{"a": "0"}, "older")
		first := r.Commit(map[string]string{"a": "1"}, "first")
		repo := openRepository(t, o)
		require.Equal(t, first, head(t, repo).ID)
		require.NoError(t, repo.Keep(first))

		other := r.ForcePush(map[string]string{"c": "other"}, "other")
		require.Equal(t, other, head(t, repo).ID)
		_, err := repo.Since(t.Context(), first, other)
		require.ErrorIs(t, err, model.ErrUnrelated)
		require.Equal(t, "1", readFile(t, repo, first, "a"), "what is kept stays readable")
		require.Equal(t, "other", readFile(t, repo, other, "c"))

		r.Reset(older)
		require.Equal(t, older, head(t, repo).ID)
		_, err = repo.Since(t.Context(), first, older)
		require.ErrorIs(t, err, model.ErrUnrelated)
		r.Reset(first)
		require.Equal(t, first, head(t, repo).ID, "and back again")
		fsck(t, o.Dir)

		again := openRepository(t, o)
		require.Equal(t, "1", readFile(t, again, first, "a"), "also after a restart")
	})
}

func TestOnlyTheBranchIsFetched(t *testing.T) {
	overAll(t, func(t *testing.T, r *sourcetest.Repo, o Options) {
		first := r.Commit(map[string]string{"a": "1"}, "first")
		other := r.Side(first, map[string]string{"b": strings.Repeat("b", 1000)}, "other")
		r.SetBranch("other", other)
		repo := openRepository(t, o)
		head(t, repo)
		_, err := repo.Commit(t.Context(), other)
		require.ErrorIs(t, err, objects.ErrUnknown)
	})
}

func TestKeepNamesWhatIsNotHere(t *testing.T) {
	r := sourcetest.New(t)
	first := r.Commit(map[string]string{"a": "1"}, "first")
	repo := openRepository(t, Options{URL: r.URL()})
	head(t, repo)
	missing := strings.Repeat("2", 40)
	err := repo.Keep(missing, first)
	require.ErrorIs(t, err, objects.ErrUnknown)
	require.ErrorContains(t, err, missing)
	r.ForcePush(map[string]string{"a": "2"}, "other")
	head(t, repo)
	require.Equal(t, "1", readFile(t, repo, first, "a"), "what is here is kept nevertheless")
}

func TestFilesAreAFileSystem(t *testing.T) {
	r := sourcetest.New(t)
	id := r.Commit(map[string]string{
		"site/site.hcl": "site\n", "site/hosts/a.hcl": "a\n", "site/run.sh": sourcetest.Exec + "#!/bin/sh\n", "site/empty": "",
		"site/to-file": sourcetest.Link + "hosts/a.hcl", "site/to-folder": sourcetest.Link + "./hosts/../hosts",
		"site/above": sourcetest.Link + "../shared/x", "shared/x": "shared\n", "site/a-b": "-", "site/a/x": "folder", "site/a.c": ".",
		"site/module": sourcetest.Submodule + strings.Repeat("3", 40),
	}, "first")
	for _, path := range []string{"site", "/site/", "./site"} {
		repo := openRepository(t, Options{URL: r.URL(), Path: path})
		head(t, repo)
		f, err := repo.Files(id)
		require.NoError(t, err)
		require.NoError(t, fstest.TestFS(f, "site.hcl", "hosts/a.hcl", "run.sh", "empty", "to-file", "above", "a-b", "a/x", "a.c", "module"))
		for name, want := range map[string]string{"to-file": "a\n", "to-folder/a.hcl": "a\n", "above": "shared\n"} {
			text, err := fs.ReadFile(f, name)
			require.NoError(t, err)
			require.Equal(t, want, string(text))
		}
		info, err := fs.Stat(f, "run.sh")
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o555), info.Mode())
		a, err := fs.Stat(f, "to-file")
		require.NoError(t, err)
		b, err := fs.Stat(f, "hosts/a.hcl")
		require.NoError(t, err)
		require.Equal(t, b.Sys(), a.Sys(), "equal contents have the same id")
		require.IsType(t, "", a.Sys())
		module, err := fs.ReadDir(f, "module")
		require.NoError(t, err)
		require.Empty(t, module)
		_, err = fs.ReadFile(f, "module/site.hcl")
		require.ErrorIs(t, err, fs.ErrNotExist)
	}
}

func TestLinksThatLeadOut(t *testing.T) {
	r := sourcetest.New(t)
	files := map[string]string{
		"site/out": sourcetest.Link + "../../etc/passwd", "site/abs": sourcetest.Link + "/etc/passwd", "site/gone": sourcetest.Link + "nowhere",
		"site/loop": sourcetest.Link + "loop2", "site/loop2": sourcetest.Link + "loop", "site/ok": "ok",
		"site/long": sourcetest.Link + strings.Repeat("./", 3000) + "ok",
		"site/lfs":  "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
		"site/mod":  sourcetest.Submodule + strings.Repeat("3", 40),
	}
	id := r.Commit(files, "first")
	repo := openRepository(t, Options{URL: r.URL(), Path: "site"})
	head(t, repo)
	f, err := repo.Files(id)
	require.NoError(t, err)
	for name, want := range map[string]string{
		"out": "points outside the repository", "abs": "points outside the repository", "gone": "does not exist", "loop": "form a loop", "long": "too long",
	} {
		_, err := fs.ReadFile(f, name)
		require.ErrorContains(t, err, want)
		_, err = f.Open(name)
		require.ErrorContains(t, err, want)
	}
	var notes []string
	for _, n := range repo.Notes(id) {
		notes = append(notes, n.String())
	}
	require.Equal(t, []string{
		"abs:1:1: warning: a symbolic link points outside the repository",
		"gone:1:1: warning: a symbolic link is broken",
		"lfs:1:1: warning: a file is a git-lfs pointer",
		"loop:1:1: warning: symbolic links form a loop",
		"loop2:1:1: warning: symbolic links form a loop",
		"mod:1:1: warning: a submodule is not read",
		"out:1:1: warning: a symbolic link points outside the repository",
	}, notes)
}

func TestAFolderThatIsNotThere(t *testing.T) {
	r := sourcetest.New(t)
	id := r.Commit(map[string]string{"sites/home/site.hcl": "", "sites/work/site.hcl": "", "README": ""}, "first")
	for path, want := range map[string]string{
		"sites/hom":  `it has no folder "sites/hom", did you mean "home"?`,
		"site/home":  `it has no folder "site", did you mean "sites"?`,
		"sites/none": `it has no folder "sites/none", known: home, work`,
		"README":     `"README" is not a folder`,
	} {
		repo := openRepository(t, Options{URL: r.URL(), Path: path})
		head(t, repo)
		_, err := repo.Files(id)
		require.ErrorIs(t, err, fs.ErrNotExist)
		require.ErrorContains(t, err, want)
		require.Empty(t, repo.Notes(id))
	}
	_, err := OpenRepository(Options{Dir: t.TempDir(), URL: r.URL(), Path: "../x"})
	require.ErrorContains(t, err, "outside the repository")
}

func TestAFileThatIsTooLarge(t *testing.T) {
	r := sourcetest.New(t)
	id := r.Commit(map[string]string{"big": strings.Repeat("x", 2<<20), "small": "x"}, "first")
	repo := openRepository(t, Options{URL: r.URL(), MaxFile: 1 << 20})
	head(t, repo)
	f, err := repo.Files(id)
	require.NoError(t, err)
	_, err = fs.ReadFile(f, "big")
	require.ErrorIs(t, err, objects.ErrTooLarge)
	info, err := fs.Stat(f, "big")
	require.NoError(t, err)
	require.Equal(t, int64(2<<20), info.Size())
	require.Equal(t, "x", readFile(t, repo, id, "small"))
}

func TestAnotherFolderIsLeftAlone(t *testing.T) {
	r := sourcetest.New(t)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "thesis.txt"), []byte("x"), 0o600))
	_, err := OpenRepository(Options{Dir: dir, URL: r.URL()})
	require.ErrorContains(t, err, "thesis.txt")
	_, err = OpenRepository(Options{Dir: r.Dir, URL: r.URL()})
	require.ErrorContains(t, err, "not a local copy of this program")
	require.FileExists(t, filepath.Join(dir, "thesis.txt"))
}

func TestACancelledCallerIsNotAFault(t *testing.T) {
	overAll(t, func(t *testing.T, r *sourcetest.Repo, o Options) {
		r.Commit(map[string]string{"a": "1"}, "first")
		repo := openRepository(t, o)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := repo.Head(ctx)
		require.ErrorIs(t, err, context.Canceled)
		var fault *fetchError
		require.NotErrorAs(t, err, &fault)
		head(t, repo)
	})
}

func TestBranch(t *testing.T) {
	dir, id := repository(t)
	branch := func(dir string) (root, branch string) {
		t.Helper()
		w, err := OpenWorktree(dir)
		require.NoError(t, err)
		root, branch, err = w.Branch()
		require.NoError(t, err)
		return root, branch
	}
	root, name := branch(filepath.Join(dir, "home"))
	require.Equal(t, dir, root)
	require.Equal(t, "master", name)
	write(t, dir, ".git/HEAD", id+"\n")
	root, name = branch(dir)
	require.Equal(t, dir, root)
	require.Empty(t, name, "a commit is checked out, and no branch")
	root, name = branch(t.TempDir())
	require.Empty(t, root+name)
}

// Any history of commits, merges and rewritten branches: what lies between what
// converged last and the head is what git says, however often the copy was compacted
// in between, and what was kept can be read.
func TestSinceSaysWhatGitSays(t *testing.T) {
	t.Parallel()
	needGit(t)
	rapid.Check(t, func(rt *rapid.T) {
		r := sourcetest.New(t)
		o := Options{URL: r.URL(), Dir: filepath.Join(sourcetest.TempDir(t), "copy")}.WithPacks(rapid.IntRange(1, 6).Draw(rt, "packs"))
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

func compare(t *testing.T, r *sourcetest.Repo, repo *Repository, from, to string, rewritten bool) {
	t.Helper()
	got, err := repo.Since(t.Context(), from, to)
	related := strings.Contains(runGit(t, r.Dir, "", "rev-list", to), from)
	if !related {
		require.ErrorIs(t, err, model.ErrUnrelated)
		return
	}
	if err != nil && rewritten {
		require.ErrorIs(t, err, model.ErrUnrelated) // it may not know, but it never guesses
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
	repo := openRepository(t, Options{URL: r.URL()}.WithPacks(3))
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
	repo := openRepository(t, Options{URL: s.URL, Auth: Auth{CAFile: s.CAFile}})
	fetched := heapOf(func() { head(t, repo) })
	t.Logf("fetch of %d MiB: %d MiB taken from the heap in all", large>>20, fetched>>20)
	race := debug.BuildSetting{Key: "-race", Value: "true"} // sync.Pool drops values at random
	if build, ok := debug.ReadBuildInfo(); !ok || !slices.Contains(build.Settings, race) {
		require.Less(t, fetched, uint64(large)*5/4, "one object at a time, and that once")
	}
	read := heapOf(func() { require.Equal(t, "s", readFile(t, repo, id, "small")) })
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

// runGit runs git in a folder.
func runGit(t testing.TB, dir, in string, args ...string) string {
	t.Helper()
	cmd := sourcetest.Git(t.Context(), dir, args...)
	cmd.Stdin = strings.NewReader(in)
	cmd.Env = append(cmd.Env, "GIT_AUTHOR_DATE=@1767323045 +0000", "GIT_COMMITTER_DATE=@1767323045 +0000")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "git %s: %s", strings.Join(args, " "), out)
	return string(out)
}

func begin(t *testing.T) (a *Author, bare, dir string) {
	t.Helper()
	bare, dir = filepath.Join(t.TempDir(), "site.git"), filepath.Join(t.TempDir(), "site")
	a, err := NewAuthor(bare, dir, fstest.MapFS{"site.hcl": {Data: []byte("one\n")}, "a/b.hcl": {Data: []byte("b\n")}})
	require.NoError(t, err)
	return a, bare, dir
}

// files reads what the branch of a bare repository holds.
func files(t *testing.T, bare string) (id string, texts map[string]string) {
	t.Helper()
	repo, err := git.PlainOpen(bare)
	require.NoError(t, err)
	ref, err := repo.Reference(plumbing.NewBranchReferenceName(AuthorBranch), true)
	require.NoError(t, err)
	commit, err := repo.CommitObject(ref.Hash())
	require.NoError(t, err)
	all, err := commit.Files()
	require.NoError(t, err)
	texts = map[string]string{}
	require.NoError(t, all.ForEach(func(f *object.File) error {
		texts[f.Name], err = f.Contents()
		return err
	}))
	return ref.Hash().String(), texts
}

func TestAPushIsInTheRepository(t *testing.T) {
	a, bare, dir := begin(t)
	first, err := a.Push(t.Context(), "first")
	require.NoError(t, err)
	at, texts := files(t, bare)
	require.Equal(t, first, at)
	require.Equal(t, map[string]string{"site.hcl": "one\n", "a/b.hcl": "b\n"}, texts)

	require.NoError(t, os.WriteFile(filepath.Join(dir, "site.hcl"), []byte("two\n"), 0o600))
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "a")))
	second, err := a.Push(t.Context(), "second")
	require.NoError(t, err)
	at, texts = files(t, bare)
	require.Equal(t, second, at)
	require.Equal(t, map[string]string{"site.hcl": "two\n"}, texts)

	third, err := a.Push(t.Context(), "nothing\n\nAllow-Deletes: 3")
	require.NoError(t, err)
	require.NotEqual(t, second, third)
	fsck(t, bare)
}

func TestAPushDoesNotOverwriteAnother(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed: the test pushes with it")
	}
	a, bare, _ := begin(t)
	_, err := a.Push(t.Context(), "first")
	require.NoError(t, err)
	other := filepath.Join(t.TempDir(), "other")
	for _, args := range [][]string{
		{"clone", "-q", bare, other},
		{"-C", other, "commit", "-q", "--allow-empty", "-m", "theirs"},
		{"-C", other, "push", "-q", "origin", AuthorBranch},
	} {
		runGit(t, "", "", args...)
	}
	theirs, _ := files(t, bare)
	_, err = a.Push(t.Context(), "mine")
	require.ErrorIs(t, err, ErrAhead)
	now, _ := files(t, bare)
	require.Equal(t, theirs, now)
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	file := filepath.Join(dir, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
}

// repository makes a checkout with a site at its root and one in home/, and gives
// the id of its only commit.
func repository(t *testing.T) (dir, commit string) {
	t.Helper()
	dir = t.TempDir()
	repo, err := git.PlainInit(dir, false)
	require.NoError(t, err)
	write(t, dir, "site.hcl", "site \"root\" {\n}\n")
	write(t, dir, "home/site.hcl", "site \"home\" {\n}\n")
	write(t, dir, "home/motd.txt", "hello\n")
	require.NoError(t, os.Symlink("motd.txt", filepath.Join(dir, "home", "link")))
	tree, err := repo.Worktree()
	require.NoError(t, err)
	require.NoError(t, tree.AddGlob("."))
	id, err := tree.Commit("first", &git.CommitOptions{Author: &object.Signature{Name: "a", Email: "a@example.org", When: time.Unix(1, 0)}})
	require.NoError(t, err)
	return dir, id.String()
}

func commitIn(t *testing.T, dir string) string {
	t.Helper()
	w, err := OpenWorktree(dir)
	require.NoError(t, err)
	c, err := w.Commit()
	require.NoError(t, err)
	return c.ID
}

func TestCommitOfAPlainFolderIsEmpty(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "secrets.yaml", "x")
	require.Empty(t, commitIn(t, dir))
	w, err := OpenWorktree(dir)
	require.NoError(t, err)
	tracked, err := w.Tracks("secrets.yaml")
	require.NoError(t, err)
	require.False(t, tracked)
}

func TestTheCommitOfACleanFolderIsKnownWhole(t *testing.T) {
	dir, id := repository(t)
	w, err := OpenWorktree(filepath.Join(dir, "home"))
	require.NoError(t, err)
	c, err := w.Commit()
	require.NoError(t, err)
	require.Equal(t, model.Commit{
		ID: id, Author: model.Person{Name: "a", Email: "a@example.org"}, At: c.At, Subject: "first", Message: "first", Trailers: c.Trailers,
	}, c)
	require.Equal(t, int64(1), c.At.Unix())
	write(t, dir, "home/motd.txt", "other\n")
	c, err = w.Commit()
	require.NoError(t, err)
	require.Equal(t, model.Commit{ID: id + DirtySuffix}, c, "what is not committed has no author")
}

func TestCommitBeforeTheFirstCommitIsEmpty(t *testing.T) {
	dir := t.TempDir()
	_, err := git.PlainInit(dir, false)
	require.NoError(t, err)
	require.Empty(t, commitIn(t, dir))
}

func TestOpenOfAMissingFolderFails(t *testing.T) {
	_, err := OpenWorktree(filepath.Join(t.TempDir(), "nowhere"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// A change in the folder makes it dirty; a change beside it does not.
func TestCommitSaysWhetherTheFolderDiffers(t *testing.T) {
	for name, c := range map[string]struct {
		change            func(t *testing.T, dir string)
		rootDirty, inHome bool
	}{
		"nothing":           {func(*testing.T, string) {}, false, false},
		"other contents":    {func(t *testing.T, dir string) { write(t, dir, "home/motd.txt", "hullo\n") }, true, true},
		"a file gone":       {func(t *testing.T, dir string) { require.NoError(t, os.Remove(filepath.Join(dir, "home/motd.txt"))) }, true, true},
		"a new HCL file":    {func(t *testing.T, dir string) { write(t, dir, "home/hosts/a.hcl", "") }, true, true},
		"a new other file":  {func(t *testing.T, dir string) { write(t, dir, "home/secrets.yaml", "") }, false, false},
		"hidden":            {func(t *testing.T, dir string) { write(t, dir, "home/.cache/a.hcl", "") }, false, false},
		"beside the folder": {func(t *testing.T, dir string) { write(t, dir, "site.hcl", "") }, true, false},
		"permissions": {func(t *testing.T, dir string) {
			require.NoError(t, os.Chmod(filepath.Join(dir, "home/site.hcl"), 0o600))
		}, false, false},
		"another link": {func(t *testing.T, dir string) {
			require.NoError(t, os.Remove(filepath.Join(dir, "home/link")))
			require.NoError(t, os.Symlink("site.hcl", filepath.Join(dir, "home/link")))
		}, true, true},
		"a link become a file": {func(t *testing.T, dir string) {
			require.NoError(t, os.Remove(filepath.Join(dir, "home/link")))
			write(t, dir, "home/link", "motd.txt")
		}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir, id := repository(t)
			c.change(t, dir)
			require.Equal(t, suffixed(id, c.rootDirty), commitIn(t, dir))
			require.Equal(t, suffixed(id, c.inHome), commitIn(t, filepath.Join(dir, "home")))
		})
	}
}

func suffixed(id string, dirty bool) string {
	if dirty {
		return id + DirtySuffix
	}
	return id
}

func TestAFolderThatTheCommitLacksIsDirty(t *testing.T) {
	dir, id := repository(t)
	write(t, dir, "new/site.hcl", "")
	require.Equal(t, id+DirtySuffix, commitIn(t, filepath.Join(dir, "new")))
}

func TestTracksAsGitDoes(t *testing.T) {
	dir, _ := repository(t)
	write(t, dir, "home/secrets.yaml", "x")
	home, err := OpenWorktree(filepath.Join(dir, "home"))
	require.NoError(t, err)
	for name, want := range map[string]bool{"site.hcl": true, "secrets.yaml": false} {
		got, err := home.Tracks(name)
		require.NoError(t, err)
		require.Equal(t, want, got, name)
	}

	repo, err := git.PlainOpen(dir)
	require.NoError(t, err)
	tree, err := repo.Worktree()
	require.NoError(t, err)
	_, err = tree.Add("home/secrets.yaml")
	require.NoError(t, err)
	got, err := home.Tracks("secrets.yaml")
	require.NoError(t, err)
	require.True(t, got, "staged is tracked")
}

func TestABrokenCheckoutIsAnErrorAndNotAPlainFolder(t *testing.T) {
	dir, _ := repository(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".git", "index"), []byte("no index"), 0o644))
	w, err := OpenWorktree(dir)
	require.NoError(t, err)
	_, err = w.Tracks("secrets.yaml")
	require.ErrorContains(t, err, "read the git index of")

	require.NoError(t, os.WriteFile(filepath.Join(dir, ".git", "HEAD"), []byte("ref: refs/heads/master\n"), 0o644))
	require.NoError(t, os.RemoveAll(filepath.Join(dir, ".git", "objects")))
	_, err = w.Commit()
	require.ErrorContains(t, err, "compare")
}

// A linked worktree has a .git file that points at the repository elsewhere.
func TestALinkedWorktreeIsACheckoutToo(t *testing.T) {
	dir, id := repository(t)
	linked := t.TempDir()
	admin := filepath.Join(dir, ".git", "worktrees", "linked")
	write(t, admin, "HEAD", id+"\n")
	write(t, admin, "commondir", "../..\n")
	write(t, admin, "gitdir", filepath.Join(linked, ".git")+"\n")
	write(t, linked, ".git", "gitdir: "+admin+"\n")
	write(t, linked, "site.hcl", "site \"root\" {\n}\n")
	require.Equal(t, id+DirtySuffix, commitIn(t, linked), "home/ is missing there")
}
