package main

import (
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl"
)

// All or nothing is written, and nothing is overwritten. The key of ownership is new, and for the user's eyes only.
func TestS1Init(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "site")
	require.NoError(t, writeScaffold(dir))
	require.FileExists(t, filepath.Join(dir, "site.hcl"))
	require.FileExists(t, filepath.Join(dir, ".gitignore"))
	keys := map[string]bool{}
	for _, made := range []string{dir, filepath.Join(t.TempDir(), "second")} {
		if made != dir {
			require.NoError(t, writeScaffold(made))
		}
		file := filepath.Join(made, "secrets.yaml")
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		info, err := os.Stat(file)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
		require.Contains(t, string(data), "ssh_keys:\n  # Who logs in")
		secrets, found := hcl.ParseSecrets(file, data, nil)
		require.Empty(t, found)
		require.Len(t, secrets.OwnershipKeys("home", "father"), 1)
		keys[secrets.Values["auth"][model.OwnershipKey]] = true
	}
	require.Len(t, keys, 2, "each site has a key of its own")
	require.ErrorContains(t, writeScaffold(dir), "already contains HCL files")

	dir = t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".gitignore"), nil, 0o600))
	require.ErrorContains(t, writeScaffold(dir), "nothing is overwritten")
	have, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, have, 1)
}

func TestBuildInfoOf(t *testing.T) {
	commit := func(id, modified string) []debug.BuildSetting {
		return []debug.BuildSetting{{Key: "vcs.revision", Value: id}, {Key: "vcs.modified", Value: modified}}
	}
	for name, c := range map[string]struct {
		info *debug.BuildInfo
		want buildInfo
	}{
		"no information":       {nil, buildInfo{Version: "(unknown)"}},
		"no version":           {&debug.BuildInfo{}, buildInfo{Version: "(unknown)"}},
		"a release":            {&debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}, Settings: commit("3f2c", "false")}, buildInfo{Version: "v1.2.3", Commit: "3f2c"}},
		"changed since commit": {&debug.BuildInfo{Settings: commit("3f2c", "true")}, buildInfo{Version: "(unknown)", Commit: "3f2c-dirty"}},
		"changed, no commit":   {&debug.BuildInfo{Settings: commit("", "true")}, buildInfo{Version: "(unknown)"}},
	} {
		c.want.Go = runtime.Version()
		require.Equal(t, c.want, buildInfoOf(c.info, c.info != nil), name)
	}
	require.Equal(t, runtime.Version(), thisBuild().Go)
}

// What replaces a word of the predecessor exists, and the word does not.
func TestRetired(t *testing.T) {
	root := (&app{ui: ui.New(ui.Process{})}).root()
	for word, now := range ui.Retired() {
		if !strings.HasPrefix(word, "--") {
			require.NotContains(t, ui.VerbNames(root), word)
		}
		command, ok := strings.CutPrefix(now, "homestak-gitops ")
		if !ok {
			continue
		}
		words := strings.FieldsFunc(command, func(r rune) bool { return r == ' ' || r == ',' })
		c, _, err := root.Find(words[:1])
		require.NoError(t, err, word)
		for _, flag := range words[1:] {
			if name, long := strings.CutPrefix(flag, "--"); long && name != "help" {
				require.NotNil(t, c.Flags().Lookup(name), word)
			}
		}
	}
}
