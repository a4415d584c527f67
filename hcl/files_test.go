package hcl_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/hcl"
)

// Files in the layout stay as they are, hidden folders are not of the site, and a file with
// an error does not stop the others.
func TestFormatFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		name = filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		require.NoError(t, os.WriteFile(name, []byte(text), 0o640))
		return name
	}
	bad := write("a.hcl", "site \"home\" {\n")
	good := write("b.hcl", "site \"home\" {\n}\n")
	loose := write("sub/c.hcl", "host   \"father\" {\n}\n")
	write(".git/d.hcl", "x")
	write("e.txt", "x")
	files, err := hcl.Files(dir)
	require.NoError(t, err)
	require.Equal(t, []string{bad, good, loose}, files)

	changed, found, err := hcl.FormatFiles(files, true)
	require.NoError(t, err)
	require.True(t, found.HasErrors())
	require.Equal(t, []string{loose}, changed)
	text, err := os.ReadFile(loose)
	require.NoError(t, err)
	require.Contains(t, string(text), "host   ", "it only looked")

	changed, _, err = hcl.FormatFiles(append(files, filepath.Join(dir, "nowhere.hcl")), false)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.Equal(t, []string{loose}, changed)
	text, err = os.ReadFile(loose)
	require.NoError(t, err)
	require.Equal(t, "host \"father\" {\n}\n", string(text))
	info, err := os.Stat(loose)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o640), info.Mode().Perm())
}
