package session_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/control/controltest"
)

// parse reads a command line into flags, which add gives to the command.
func parse(t *testing.T, add func(*session.AgentFlags, *ui.UI, *cobra.Command), env map[string]string, args ...string) (f *session.AgentFlags, c *cobra.Command, stderr *bytes.Buffer) {
	t.Helper()
	stderr = &bytes.Buffer{}
	f, c = &session.AgentFlags{}, &cobra.Command{}
	c.SetContext(t.Context())
	add(f, ui.New(ui.Process{Stderr: stderr, Env: func(key string) string { return env[key] }}), c)
	require.NoError(t, c.ParseFlags(args))
	return f, c, stderr
}

func TestAgentThatRuns(t *testing.T) {
	served := controltest.New()
	served.Change(func(s *agent.Status) { s.Nodes = []engine.NodeStatus{{Address: "vm.one"}, {Address: "ct.two"}} })
	socket, _ := controltest.Serve(t, served, "")
	f, c, stderr := parse(t, (*session.AgentFlags).Find, nil, "--socket", socket)
	client, err := f.Running(t.Context())
	require.NoError(t, err)
	require.Equal(t, "the agent of host father", f.Name(client))
	s, err := f.Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, "father", s.Identity)
	_, err = f.NotedRecord(t.Context())
	require.NoError(t, err)
	require.Empty(t, stderr.String())

	names, directive := f.CompleteAddress(c, nil, "")
	require.Equal(t, []string{"vm.one", "ct.two"}, names)
	require.Equal(t, cobra.ShellCompDirectiveNoFileComp, directive)
	names, _ = f.CompleteAddress(c, []string{"vm.one"}, "")
	require.Empty(t, names, "an address is one argument")
	names, _ = f.CompleteManifest(c, nil, "")
	require.Equal(t, []string{"web"}, names)
}

// Where no agent runs, verbs that need one say how to start it, and the others read what the last one left behind.
func TestAgentThatDoesNotRun(t *testing.T) {
	data := t.TempDir()
	f, c, stderr := parse(t, (*session.AgentFlags).Find, map[string]string{"HOMESTAK_SOCKET": control.NoSocket}, "--data-dir", data)
	_, err := f.Running(t.Context())
	require.ErrorIs(t, err, control.ErrNoAgent)
	require.ErrorContains(t, err, "(data folder "+data+")\nstart it: systemctl start homestak-gitops")
	names, _ := f.CompleteAddress(c, nil, "")
	require.Empty(t, names)
	names, _ = f.CompleteManifest(c, nil, "")
	require.Empty(t, names)
	_, err = f.NotedRecord(t.Context())
	require.ErrorContains(t, err, "no agent is running here, and none ever ran")
	require.Empty(t, stderr.String())

	require.NoError(t, os.Mkdir(filepath.Join(data, control.LedgerDir), 0o700))
	r, err := f.NotedRecord(t.Context())
	require.NoError(t, err)
	require.Contains(t, stderr.String(), "no agent is running here; this is its state at ")
	s, err := r.Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, control.Absent, s.State)
}

// A file that --config names must be there. What is wrong in a file is reported beside what it may explain: that no agent runs.
func TestConfigurationThatIsNotRight(t *testing.T) {
	file := filepath.Join(t.TempDir(), "agent.hcl")
	f, _, stderr := parse(t, (*session.AgentFlags).Find, nil, "--config", file)
	_, _, err := f.Client(t.Context())
	require.ErrorContains(t, err, file)
	require.NotErrorIs(t, err, control.ErrNoAgent)
	require.Empty(t, stderr.String())

	require.NoError(t, os.WriteFile(file, []byte("identity = \"father\"\ncolour = \"blue\"\n"), 0o600))
	f, _, stderr = parse(t, (*session.AgentFlags).Find, map[string]string{"HOMESTAK_CONFIG": file, "HOMESTAK_SOCKET": control.NoSocket}, "--data-dir", t.TempDir())
	_, _, err = f.Client(t.Context())
	require.ErrorIs(t, err, control.ErrNoAgent)
	require.Contains(t, stderr.String(), "colour")
}

// The verb agent has a flag for each attribute; only those that were given count.
func TestAttributes(t *testing.T) {
	f, _, _ := parse(t, (*session.AgentFlags).All, map[string]string{"HOMESTAK_IDENTITY": "mother"}, "--branch", "next", "--repository", "/site.git", "--data-dir", t.TempDir())
	cfg, found := f.Configuration()
	require.False(t, found.HasErrors(), "%v", found)
	require.Equal(t, "next", cfg.Repository.Branch)
	require.Equal(t, "mother", cfg.Identity)
}

func TestAgentOfAnotherMachine(t *testing.T) {
	f, _, _ := parse(t, (*session.AgentFlags).Anywhere, nil, "--server", "https://192.0.2.10:44443")
	_, err := f.Running(t.Context())
	require.ErrorContains(t, err, "--server needs the pin of the server and a key")
	require.Equal(t, "the server at https://192.0.2.10:44443", f.Name(&control.Client{}))
}
