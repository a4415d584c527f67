package scaffold_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/scaffold"
)

// All or nothing is written, and nothing is overwritten.
func TestWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "site")
	require.NoError(t, scaffold.Write(dir))
	require.FileExists(t, filepath.Join(dir, "site.hcl"))
	require.FileExists(t, filepath.Join(dir, ".gitignore"))
	require.ErrorContains(t, scaffold.Write(dir), "holds HCL files already")

	dir = t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".gitignore"), nil, 0o600))
	require.ErrorContains(t, scaffold.Write(dir), "nothing is overwritten")
	have, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, have, 1)
}
