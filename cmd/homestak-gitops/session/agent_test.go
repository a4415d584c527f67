package session_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/drivers/push"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/control/controltest"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/service"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
	"github.com/homestak/homestak-gitops/engine/view"
	"github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/sim"
)

// An agent opens its host by the network that it was made on.
func TestAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		repo := sourcetest.New(t)
		repo.Commit(map[string]string{"site.hcl": enginetest.TwoNodes}, "Two nodes")
		cfg := &service.Config{AgentFile: model.AgentFile{Identity: "father", DataDir: filepath.Join(t.TempDir(), "agent"), DriftEvery: time.Minute, Concurrency: 4}}
		cfg.Repository = &model.AgentRepository{URL: repo.Dir, Branch: "main", Poll: time.Minute, Auth: &model.AgentAuth{}}
		hosts := sim.Hosts{}
		n := session.Network{Transport: hosts.Transport, Reaches: hosts.Reaches}
		s, err := n.Agent(service.Options{Config: cfg, Program: "v1", Log: slog.New(slog.DiscardHandler)}, push.Config{})
		require.NoError(t, err)
		r := s.Once(t.Context(), make(chan struct{}), &view.PassProgress{Term: view.Terminal{W: &strings.Builder{}}})
		require.Equal(t, engine.Done, r.Outcome, r.Err)
		require.Len(t, hosts["father"].Snapshot().Guests, 2)
	})
}

const child = `
site "home" {
}
host "father" {
  api = "https://192.0.2.10:8006"
}
image "pve-9" {
  url = "https://example.org/pve-9.qcow2"
}
manifest "deep" {
  pattern = "tiered"
  host    = "father"
  node "inner" {
    type   = "pve"
    cores  = 1
    memory = 512
    image  = image.pve-9
  }
}
`

// The agent of a child is installed by an agent that serves, unless the child is simulated and the server is not.
func TestChildrenNeedAServer(t *testing.T) {
	inMemory := service.Network{Listen: func(context.Context, string) (net.Listener, error) { return nil, errors.New("not in this test") }}
	simulated := session.Network{Guests: &push.Config{}}
	for name, c := range map[string]struct {
		network session.Network
		listen  string
		inside  service.Network
		serves  bool
	}{
		"a real one that serves":                   {listen: ":44443", serves: true},
		"a real one that does not":                 {listen: "none"},
		"a simulated one on the real network":      {network: simulated, listen: ":44443"},
		"a simulated one on the simulated network": {network: simulated, listen: ":44443", inside: inMemory, serves: true},
	} {
		cfg := &service.Config{AgentFile: model.AgentFile{Identity: "father", Listen: c.listen}}
		o := session.Join(c.network, service.Options{Config: cfg, Network: c.inside}, push.Config{}, "", nil)
		site, found := hcl.Load(fstest.MapFS{"site.hcl": {Data: []byte(child)}}, hcl.Options{Kinds: o.Kinds})
		require.False(t, found.HasErrors(), "%v", found)
		want, _ := site.Want("father")
		require.Len(t, want.Deferred, 1, "no child has all that its agent needs")
		require.Equal(t, c.serves, !strings.Contains(want.Deferred[0].Why, "only the agent of father installs it"), "%s: %s", name, want.Deferred[0].Why)
	}
}

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
	socket, _ := served.Serve(t, "")
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

	require.NoError(t, os.Mkdir(control.Folder(data).Ledger(), 0o700))
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
