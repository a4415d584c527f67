package keys_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/specserve/keys"
)

func TestAccess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "server")
	_, err := keys.Ensure(dir, time.Now())
	require.NoError(t, err)
	providers := []string{"generic", "github", "gitlab"}
	_, err = keys.ReadAccess(keys.Files{Dir: dir}, providers)
	require.ErrorIs(t, err, os.ErrNotExist)

	first, err := keys.EnsureAccess(keys.Files{Dir: dir}, providers)
	require.NoError(t, err)
	seen := map[string]bool{}
	for name, key := range map[string][]byte{keys.ReadFile: first.Read, keys.OperatorFile: first.Operator, keys.RepositoryFile: first.Repository, keys.HookFile: first.Hook("generic"), "hook-github.key": first.Hook("github"), "hook-gitlab.key": first.Hook("gitlab")} {
		info, err := os.Stat(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode())
		require.Regexp(t, `^[0-9a-f]{64}$`, string(key))
		seen[string(key)] = true
	}
	require.Len(t, seen, 6, "each key is another one")

	again, err := keys.EnsureAccess(keys.Files{Dir: dir}, providers)
	require.NoError(t, err)
	require.True(t, again.Equal(first))

	// The administrator may write one.
	own := filepath.Join(dir, keys.HookFileOf("github"))
	require.NoError(t, os.WriteFile(own, []byte("a secret of sixteen or more \n"), 0o600))
	with, err := keys.ReadAccess(keys.Files{Dir: dir}, providers)
	require.NoError(t, err)
	require.Equal(t, "a secret of sixteen or more", string(with.Hook("github")))
	require.Equal(t, first.Hook("gitlab"), with.Hook("gitlab"))
	require.False(t, with.Equal(first))
	require.False(t, first.Equal(with))

	// A file may be missing, as after its secret was moved to the file of another provider.
	require.NoError(t, os.Rename(filepath.Join(dir, keys.HookFile), own))
	moved, err := keys.ReadAccess(keys.Files{Dir: dir}, providers)
	require.NoError(t, err)
	require.Nil(t, moved.Hook("generic"))
	require.Equal(t, first.Hook("generic"), moved.Hook("github"))
	require.False(t, moved.Equal(with))
}

// A key that is there is never replaced by itself, and no error has it.
func TestAccessRefused(t *testing.T) {
	for name, c := range map[string]struct {
		content string
		mode    os.FileMode
	}{
		"short":     {"canary\n", 0o600},
		"empty":     {"", 0o600},
		"two lines": {"canary-canary-canary\ncanary-canary-canary\n", 0o600},
		"readable":  {"canary-canary-canary\n", 0o644},
	} {
		for _, file := range []string{keys.ReadFile, keys.OperatorFile, keys.RepositoryFile, keys.HookFile, keys.HookFileOf("gitea")} {
			t.Run(name+" "+file, func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "server")
				_, err := keys.Ensure(dir, time.Now())
				require.NoError(t, err)
				path := filepath.Join(dir, file)
				require.NoError(t, os.WriteFile(path, []byte(c.content), 0o600))
				require.NoError(t, os.Chmod(path, c.mode))
				_, err = keys.EnsureAccess(keys.Files{Dir: dir}, []string{"generic", "gitea"})
				require.ErrorContains(t, err, path)
				require.NotContains(t, err.Error(), "canary")
				after, err := os.ReadFile(path)
				require.NoError(t, err)
				require.Equal(t, c.content, string(after))
			})
		}
	}
}

// Each file may be elsewhere, as agent.hcl names it; the others stay in the folder.
func TestFilesElsewhere(t *testing.T) {
	dir, elsewhere := filepath.Join(t.TempDir(), "server"), filepath.Join(t.TempDir(), "read")
	_, err := keys.Ensure(dir, time.Now())
	require.NoError(t, err)
	made, err := keys.EnsureAccess(keys.Files{Dir: dir, Read: elsewhere}, nil)
	require.NoError(t, err)
	require.NoFileExists(t, filepath.Join(dir, keys.ReadFile))
	require.FileExists(t, filepath.Join(dir, keys.OperatorFile))
	text, err := os.ReadFile(elsewhere)
	require.NoError(t, err)
	require.Equal(t, string(made.Read)+"\n", string(text))
}
