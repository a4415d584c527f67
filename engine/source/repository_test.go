package source_test

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/source"
	"github.com/homestak/homestak-gitops/engine/source/objects"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
)

// transports are the ways to a repository: each gives the options to get there.
func transports() map[string]func(r *sourcetest.Repo) source.Options {
	return map[string]func(r *sourcetest.Repo) source.Options{
		"file": func(r *sourcetest.Repo) source.Options { return source.Options{URL: r.URL()} },
		"https": func(r *sourcetest.Repo) source.Options {
			s := r.HTTPS()
			return source.Options{URL: s.URL, Auth: source.Auth{CAFile: s.CAFile}}
		},
		"ssh": func(r *sourcetest.Repo) source.Options {
			s := r.SSH()
			return source.Options{URL: s.URL, Auth: source.Auth{KeyFile: s.KeyFile, KnownHostsFile: s.KnownHostsFile}}
		},
	}
}

// overAll runs a test over each transport, with a repository of its own.
func overAll(t *testing.T, test func(t *testing.T, r *sourcetest.Repo, o source.Options)) {
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

func openRepository(t *testing.T, o source.Options) *source.Repository {
	t.Helper()
	if o.Dir == "" {
		o.Dir = filepath.Join(t.TempDir(), "copy.git")
	}
	r, err := source.OpenRepository(o)
	require.NoError(t, err)
	return r
}

func head(t *testing.T, r *source.Repository) model.Commit {
	t.Helper()
	c, err := r.Head(t.Context())
	require.NoError(t, err)
	return c
}

func readFile(t *testing.T, r *source.Repository, id, name string) string {
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

// fsck asks git whether a repository is sound. Without git nobody is asked.
func fsck(t *testing.T, dir string) {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		return
	}
	cmd := exec.CommandContext(t.Context(), "git", "-c", "safe.directory=*", "-C", dir, "fsck", "--full", "--strict")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NotContains(t, string(out), "missing")
}

func TestHeadBringsACommitAndItsFiles(t *testing.T) {
	overAll(t, func(t *testing.T, r *sourcetest.Repo, o source.Options) {
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
	overAll(t, func(t *testing.T, r *sourcetest.Repo, o source.Options) {
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
		require.ErrorIs(t, err, objects.ErrUnrelated)
		_, err = repo.Since(t.Context(), strings.Repeat("1", 40), last)
		require.ErrorIs(t, err, objects.ErrUnrelated)
		_, err = repo.Since(t.Context(), "main", last)
		require.ErrorIs(t, err, objects.ErrUnrelated)
		fsck(t, o.Dir)
	})
}

// A branch that began before the first commit that is here brings its past with it.
// What it has that the older commit has too is then not new.
func TestSinceTellsOldFromNewWhenAnOldBranchIsMerged(t *testing.T) {
	overAll(t, func(t *testing.T, r *sourcetest.Repo, o source.Options) {
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
	overAll(t, func(t *testing.T, r *sourcetest.Repo, o source.Options) {
		older := r.Commit(map[string]string{"a": "0"}, "older")
		first := r.Commit(map[string]string{"a": "1"}, "first")
		repo := openRepository(t, o)
		require.Equal(t, first, head(t, repo).ID)
		require.NoError(t, repo.Keep(first))

		other := r.ForcePush(map[string]string{"c": "other"}, "other")
		require.Equal(t, other, head(t, repo).ID)
		_, err := repo.Since(t.Context(), first, other)
		require.ErrorIs(t, err, objects.ErrUnrelated)
		require.Equal(t, "1", readFile(t, repo, first, "a"), "what is kept stays readable")
		require.Equal(t, "other", readFile(t, repo, other, "c"))

		r.Reset(older)
		require.Equal(t, older, head(t, repo).ID)
		_, err = repo.Since(t.Context(), first, older)
		require.ErrorIs(t, err, objects.ErrUnrelated)
		r.Reset(first)
		require.Equal(t, first, head(t, repo).ID, "and back again")
		fsck(t, o.Dir)

		again := openRepository(t, o)
		require.Equal(t, "1", readFile(t, again, first, "a"), "also after a restart")
	})
}

func TestOnlyTheBranchIsFetched(t *testing.T) {
	overAll(t, func(t *testing.T, r *sourcetest.Repo, o source.Options) {
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
	repo := openRepository(t, source.Options{URL: r.URL()})
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
		repo := openRepository(t, source.Options{URL: r.URL(), Path: path})
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
	repo := openRepository(t, source.Options{URL: r.URL(), Path: "site"})
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
		repo := openRepository(t, source.Options{URL: r.URL(), Path: path})
		head(t, repo)
		_, err := repo.Files(id)
		require.ErrorIs(t, err, fs.ErrNotExist)
		require.ErrorContains(t, err, want)
		require.Empty(t, repo.Notes(id))
	}
	_, err := source.OpenRepository(source.Options{Dir: t.TempDir(), URL: r.URL(), Path: "../x"})
	require.ErrorContains(t, err, "outside the repository")
}

func TestAFileThatIsTooLarge(t *testing.T) {
	r := sourcetest.New(t)
	id := r.Commit(map[string]string{"big": strings.Repeat("x", 2<<20), "small": "x"}, "first")
	repo := openRepository(t, source.Options{URL: r.URL(), MaxFile: 1 << 20})
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

func TestAFolderOfSomebodyElseIsLeftAlone(t *testing.T) {
	r := sourcetest.New(t)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "thesis.txt"), []byte("x"), 0o600))
	_, err := source.OpenRepository(source.Options{Dir: dir, URL: r.URL()})
	require.ErrorContains(t, err, "thesis.txt")
	_, err = source.OpenRepository(source.Options{Dir: r.Dir, URL: r.URL()})
	require.ErrorContains(t, err, "not a local copy of this program")
	require.FileExists(t, filepath.Join(dir, "thesis.txt"))
}

func TestTheCallersEndIsNoFault(t *testing.T) {
	overAll(t, func(t *testing.T, r *sourcetest.Repo, o source.Options) {
		r.Commit(map[string]string{"a": "1"}, "first")
		repo := openRepository(t, o)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := repo.Head(ctx)
		require.ErrorIs(t, err, context.Canceled)
		var fault *source.Error
		require.NotErrorAs(t, err, &fault)
		head(t, repo)
	})
}
