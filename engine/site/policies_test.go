package site

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOpenPolicies: the folder of a site, and its folder policy, lead to the same files.
func TestOpenPolicies(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "policy"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "policy", "own.rego"), nil, 0o600))
	for _, of := range []string{dir, filepath.Join(dir, "policy")} {
		tree, done, err := OpenPolicies(of)
		require.NoError(t, err)
		names, err := fs.Glob(tree, "policy/*")
		require.NoError(t, err)
		require.Equal(t, []string{"policy/own.rego"}, names, of)
		done()
	}
	_, _, err := OpenPolicies(filepath.Join(dir, "gone"))
	require.ErrorIs(t, err, fs.ErrNotExist)
}
