package source_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/source"
)

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

func commitOf(t *testing.T, dir string) string {
	t.Helper()
	w, err := source.OpenWorktree(dir)
	require.NoError(t, err)
	c, err := w.Commit()
	require.NoError(t, err)
	return c.ID
}

func TestCommitOfAPlainFolderIsEmpty(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "secrets.yaml", "x")
	require.Empty(t, commitOf(t, dir))
	w, err := source.OpenWorktree(dir)
	require.NoError(t, err)
	tracked, err := w.Tracks("secrets.yaml")
	require.NoError(t, err)
	require.False(t, tracked)
}

func TestTheCommitOfACleanFolderIsKnownWhole(t *testing.T) {
	dir, id := repository(t)
	w, err := source.OpenWorktree(filepath.Join(dir, "home"))
	require.NoError(t, err)
	c, err := w.Commit()
	require.NoError(t, err)
	require.Equal(t, model.Commit{
		ID: id, Author: model.Person{Name: "a", Email: "a@example.org"}, At: c.At, Subject: "first", Trailers: c.Trailers,
	}, c)
	require.Equal(t, int64(1), c.At.Unix())
	write(t, dir, "home/motd.txt", "other\n")
	c, err = w.Commit()
	require.NoError(t, err)
	require.Equal(t, model.Commit{ID: id + source.DirtySuffix}, c, "what is not committed has no author")
}

func TestCommitBeforeTheFirstCommitIsEmpty(t *testing.T) {
	dir := t.TempDir()
	_, err := git.PlainInit(dir, false)
	require.NoError(t, err)
	require.Empty(t, commitOf(t, dir))
}

func TestOpenOfAMissingFolderFails(t *testing.T) {
	_, err := source.OpenWorktree(filepath.Join(t.TempDir(), "nowhere"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// What changes in the folder makes it dirty; what changes beside it does not.
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
			require.Equal(t, suffixed(id, c.rootDirty), commitOf(t, dir))
			require.Equal(t, suffixed(id, c.inHome), commitOf(t, filepath.Join(dir, "home")))
		})
	}
}

func suffixed(id string, dirty bool) string {
	if dirty {
		return id + source.DirtySuffix
	}
	return id
}

func TestAFolderThatTheCommitLacksIsDirty(t *testing.T) {
	dir, id := repository(t)
	write(t, dir, "new/site.hcl", "")
	require.Equal(t, id+source.DirtySuffix, commitOf(t, filepath.Join(dir, "new")))
}

func TestTracksAsGitDoes(t *testing.T) {
	dir, _ := repository(t)
	write(t, dir, "home/secrets.yaml", "x")
	home, err := source.OpenWorktree(filepath.Join(dir, "home"))
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
	w, err := source.OpenWorktree(dir)
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
	require.Equal(t, id+source.DirtySuffix, commitOf(t, linked), "home/ is missing there")
}
