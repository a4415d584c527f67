package source_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/source"
)

func begin(t *testing.T) (a *source.Author, bare, dir string) {
	t.Helper()
	bare, dir = filepath.Join(t.TempDir(), "site.git"), filepath.Join(t.TempDir(), "site")
	a, err := source.NewAuthor(bare, dir, fstest.MapFS{"site.hcl": {Data: []byte("one\n")}, "a/b.hcl": {Data: []byte("b\n")}})
	require.NoError(t, err)
	return a, bare, dir
}

// files reads what the branch of a bare repository holds.
func files(t *testing.T, bare string) (id string, texts map[string]string) {
	t.Helper()
	repo, err := git.PlainOpen(bare)
	require.NoError(t, err)
	ref, err := repo.Reference(plumbing.NewBranchReferenceName(source.AuthorBranch), true)
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

func TestWhatIsPushedIsInTheRepository(t *testing.T) {
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
	if _, err := exec.LookPath("git"); err == nil {
		check := exec.CommandContext(t.Context(), "git", "-C", bare, "fsck", "--full", "--strict")
		out, err := check.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
}

func TestAPushRefusesToLoseWhatSomebodyElsePushed(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed, and somebody else pushes with it")
	}
	a, bare, _ := begin(t)
	_, err := a.Push(t.Context(), "first")
	require.NoError(t, err)
	other := filepath.Join(t.TempDir(), "other")
	for _, args := range [][]string{
		{"clone", "-q", bare, other},
		{"-C", other, "-c", "user.name=b", "-c", "user.email=b@example.org", "commit", "-q", "--allow-empty", "-m", "theirs"},
		{"-C", other, "push", "-q", "origin", source.AuthorBranch},
	} {
		out, err := exec.CommandContext(t.Context(), "git", args...).CombinedOutput()
		require.NoError(t, err, "git %s: %s", strings.Join(args, " "), out)
	}
	theirs, _ := files(t, bare)
	_, err = a.Push(t.Context(), "mine")
	require.ErrorContains(t, err, "another push of "+theirs[:8])
	now, _ := files(t, bare)
	require.Equal(t, theirs, now)
}
