package source_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/source"
)

func TestBranch(t *testing.T) {
	dir, id := repository(t)
	branch := func(dir string) (root, branch string) {
		t.Helper()
		w, err := source.OpenWorktree(dir)
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
