package service

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/specserve/wire"
)

// What decides what root does must not be the agent's.
func TestTheHelperRefusesFilesOfTheAgent(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		name = filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		require.NoError(t, os.Chmod(name, mode))
		return name
	}
	file := write("agent.hcl", "identity = \"father\"\nsecrets_file = \"secrets.yaml\"\nrepository {\n  url = \"https://git.example.org/site.git\"\n}\n", 0o644)
	write("secrets.yaml", "{}", 0o600)
	cfg, found := ReadConfig(Flags{File: file}, func(name string) string { return map[string]string{"HOME": dir}[name] })
	require.Empty(t, found)
	o := HelperOptions{Config: cfg, UID: os.Getuid() + 1, Folder: filepath.Join(dir, "state"), Log: slog.New(slog.DiscardHandler)}
	_, err := newHelper(o)
	require.NoError(t, err)
	write("secrets.yaml", "{}", 0o620)
	_, err = newHelper(o)
	require.ErrorContains(t, err, "secrets_file: the agent or others may change "+filepath.Join(dir, "secrets.yaml")+", which decides what root does: chown root")
	write("secrets.yaml", "{}", 0o600)
	write("agent.hcl", "", 0o666)
	_, err = newHelper(o)
	require.ErrorContains(t, err, "agent.hcl: the agent or others may change")
	require.NoError(t, notOf(12345, ""))
	require.NoError(t, notOf(12345, filepath.Join(dir, "missing")))
	if os.Getuid() == 0 {
		name := write("key", "", 0o600)
		require.NoError(t, os.Chown(name, 12345, 0))
		require.ErrorContains(t, notOf(12345, name), "may change")
	}
}

// The token for the parent is the only thing that the helper takes from the agent's folder. A link there leads nowhere.
func TestTheTokenOfTheAgent(t *testing.T) {
	dir := t.TempDir()
	pin, err := wire.ParsePins([]string{"sha256:0000000000000000000000000000000000000000000000000000000000000000"})
	require.NoError(t, err)
	p := wire.Parent{Identity: "inner", Server: "https://192.0.2.10:44443", Pins: pin, Token: "renewed"}
	name := filepath.Join(dir, parentFile)
	require.NoError(t, p.Save(name))
	got, err := agentsParent(name, os.Getuid())
	require.NoError(t, err)
	require.Equal(t, "renewed", got.Token)
	_, err = agentsParent(name, os.Getuid()+1)
	require.ErrorContains(t, err, "is not a file of the agent")
	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink(name, link))
	_, err = agentsParent(link, os.Getuid())
	require.Error(t, err)
}
