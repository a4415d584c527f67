package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/control/controltest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/service"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
	"github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// agentStage is a stage whose site is a repository, with an agent at work on it.
type agentStage struct {
	stage
	*execution
	host    *pve.Host
	hangups chan os.Signal
	env     map[string]string
	args    []string
}

// newAgentStage makes a host, a repository with a site of n+1 guests for it, and all
// that an agent needs.
func newAgentStage(t *testing.T, cfg pve.Config, n int) *agentStage {
	t.Helper()
	h, st := serve(t, cfg, n)
	st.data = controltest.ShortDir(t)
	secrets := filepath.Join(st.data, "secrets.yaml")
	require.NoError(t, os.Rename(filepath.Join(st.site, "secrets.yaml"), secrets))
	s := &agentStage{stage: st, host: h, hangups: make(chan os.Signal, 1), env: map[string]string{
		"HOMESTAK_LISTEN": "none", "HOMESTAK_DATA_DIR": st.data, "HOMESTAK_IDENTITY": "father", "HOMESTAK_SECRETS_FILE": secrets, "HOMESTAK_REPOSITORY_URL": st.site,
	}}
	_, err := git.PlainInit(st.site, false)
	require.NoError(t, err)
	s.commit(t, "begin")
	return s
}

// commit commits the folder of the site; the branch of a fresh repository is master.
func (s *agentStage) commit(t *testing.T, message string) {
	t.Helper()
	repo, err := git.PlainOpen(s.site)
	require.NoError(t, err)
	tree, err := repo.Worktree()
	require.NoError(t, err)
	_, err = tree.Add("site.hcl")
	require.NoError(t, err)
	_, err = tree.Commit(message, &git.CommitOptions{Author: &object.Signature{Name: "Ann", Email: "a@example.org", When: time.Now()}})
	require.NoError(t, err)
}

// begin starts the agent.
func (s *agentStage) begin(t *testing.T) {
	t.Helper()
	e := &execution{t: t, signals: make(chan os.Signal, 2), out: &stream{}, err: &stream{}, ended: make(chan ui.Exit, 1)}
	p := ui.Process{
		Stdin: strings.NewReader(""), Stdout: e.out, Stderr: e.err, Signals: e.signals,
		Env:       func(key string) string { return s.env[key] },
		Subscribe: func(os.Signal) (<-chan os.Signal, func()) { return s.hangups, func() {} },
	}
	ctx := t.Context()
	go func() { e.ended <- run(ctx, append([]string{"agent", "--branch", "master"}, s.args...), p) }()
	s.execution = e
}

// status asks the agent until it says something.
func (s *agentStage) until(t *testing.T, text string) string {
	t.Helper()
	var out string
	require.Eventually(t, func() bool {
		_, out, _ = runIn(t, s.env, "status")
		return strings.Contains(out, text)
	}, 5*time.Minute, 5*time.Millisecond, "waiting for %q", text)
	return out
}

// systemd is the other side of sd_notify.
func systemd(t *testing.T) *net.UnixConn {
	t.Helper()
	name := filepath.Join(controltest.ShortDir(t), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	t.Setenv("NOTIFY_SOCKET", name)
	t.Setenv("WATCHDOG_USEC", "100000")
	t.Setenv("WATCHDOG_PID", fmt.Sprint(os.Getpid()))
	return conn
}

// hears reads messages until one has a text, and gives those before it.
func hears(t *testing.T, conn *net.UnixConn, text string) (before []string) {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(5*time.Minute)))
	buf := make([]byte, 4096)
	for {
		n, err := conn.Read(buf)
		require.NoError(t, err, "waiting for %q after %q", text, before)
		if strings.Contains(string(buf[:n]), text) {
			return before
		}
		before = append(before, string(buf[:n]))
	}
}

// The life of a unit: it starts, is reloaded, is watched, and ends.
func TestTheAgentAsAUnit(t *testing.T) {
	conn := systemd(t)
	s := newAgentStage(t, pve.Config{}, 1)
	s.begin(t)
	require.NotContains(t, hears(t, conn, "READY=1"), "RELOADING=1")
	hears(t, conn, "STATUS=in sync at ")
	hears(t, conn, "WATCHDOG=1")
	require.Len(t, s.host.Snapshot().Guests, 2)

	site := filepath.Join(s.site, "site.hcl")
	text, err := os.ReadFile(site)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(site, []byte(strings.Replace(string(text), "count      = 1", "count      = 2", 1)), 0o600))
	s.commit(t, "one more")
	s.hangups <- syscall.SIGHUP
	hears(t, conn, "RELOADING=1\nMONOTONIC_USEC=")
	hears(t, conn, "READY=1")
	s.until(t, "“one more”")
	require.Eventually(t, func() bool { return len(s.host.Snapshot().Guests) == 3 }, 5*time.Minute, 5*time.Millisecond)
	s.until(t, "father  healthy  idle")

	s.signals <- syscall.SIGTERM
	hears(t, conn, "STOPPING=1")
	require.Equal(t, ui.ExitDone, s.end())
	require.NoFileExists(t, filepath.Join(s.data, "agent.sock"))
	require.NotContains(t, s.err.String(), s.host.Token())
}

// Once: what runs is finished. Twice: it leaves.
func TestTheAgentStopsOnSignals(t *testing.T) {
	t.Parallel()
	s := newAgentStage(t, pve.Config{TaskTime: 300 * time.Millisecond}, 2)
	s.begin(t)
	s.until(t, "vm.first creating")
	s.signals <- syscall.SIGTERM
	require.Equal(t, ui.ExitDone, s.end())
	require.Len(t, s.host.Snapshot().Guests, 1, "what ran was finished, and nothing new was begun")

	s = newAgentStage(t, pve.Config{TaskTime: 24 * time.Hour}, 2)
	s.begin(t)
	s.until(t, "image.debian creating")
	s.signals <- syscall.SIGTERM
	s.until(t, "stopping: running steps finish, no new ones start")
	s.signals <- syscall.SIGTERM
	require.Equal(t, ui.ExitInterrupted, s.end())
}

// A command that began before the agent, and so did not ask it, has the lock file.
func TestTheAgentWaitsForTheLock(t *testing.T) {
	t.Parallel()
	s := newAgentStage(t, pve.Config{}, 1)
	api := ""
	text, err := os.ReadFile(filepath.Join(s.site, "site.hcl"))
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if _, value, ok := strings.Cut(line, "api         = "); ok {
			api = strings.Trim(strings.TrimSpace(value), `"`)
		}
	}
	release, err := control.Folder(s.data).LockHost(&model.Host{Name: "father", API: api}, "apply")
	require.NoError(t, err)
	s.begin(t)
	out := s.until(t, "waiting for the write lock of the host")
	require.Contains(t, out, fmt.Sprintf("which is changed by %s: pid %d, apply, since ", control.Whoami(), os.Getpid()))
	require.Empty(t, s.host.Snapshot().Guests)
	release()
	s.until(t, "healthy  idle")
	require.Len(t, s.host.Snapshot().Guests, 2)
	s.signals <- syscall.SIGTERM
	require.Equal(t, ui.ExitDone, s.end())
}

// The secrets are re-read on each pass, and with a changed one the host is opened again.
func TestANewTokenIsUsedByTheNextPass(t *testing.T) {
	t.Parallel()
	s := newAgentStage(t, pve.Config{}, 1)
	secrets := s.env["HOMESTAK_SECRETS_FILE"]
	right, err := os.ReadFile(secrets)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(secrets, []byte(secretsFor("father", "root@pam!sim=00000000-0000-0000-0000-000000000000")), 0o600))
	s.begin(t)
	s.until(t, "401 Authentication failed")
	require.NoError(t, os.WriteFile(secrets, right, 0o600))
	code, _, stderr := runIn(t, s.env, "reconcile")
	require.Equal(t, ui.ExitDone, code, stderr)
	require.Len(t, s.host.Snapshot().Guests, 2)
	require.Contains(t, s.err.String(), "reconnecting to the host")
	s.signals <- syscall.SIGTERM
	require.Equal(t, ui.ExitDone, s.end())
}

// runIn runs the program with an environment, to its end.
func runIn(t *testing.T, env map[string]string, args ...string) (code ui.Exit, out, stderr string) {
	t.Helper()
	var o, e stream
	p := ui.Process{Stdin: strings.NewReader(""), Stdout: &o, Stderr: &e, Env: func(key string) string { return env[key] }}
	code = run(t.Context(), args, p)
	return code, o.String(), e.String()
}

// What is set last counts: flags before environment before file before the machine.
func TestAgentConfigPrecedence(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	state, credentials := filepath.Join(dir, "state"), filepath.Join(dir, "credentials")
	require.NoError(t, os.MkdirAll(credentials, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(credentials, "secrets.yaml"), nil, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(credentials, "age-keys.txt"), []byte("# created: …\n"), 0o600))
	file := filepath.Join(dir, "agent.hcl")
	require.NoError(t, os.WriteFile(file, []byte(`
identity    = "file"
drift_every = "7m"
repository {
  url    = "site.git"
  branch = "file"
  path   = "file"
  auth {
    token_file = "tokens/git"
  }
}
`), 0o600))
	here, err := os.Getwd()
	require.NoError(t, err)
	env := map[string]string{
		"HOMESTAK_CONFIG": file, "HOMESTAK_REPOSITORY_BRANCH": "environment", "HOMESTAK_REPOSITORY_PATH": "environment",
		"HOMESTAK_REPOSITORY_AUTH_KEY_FILE": "key", "HOMESTAK_LOG_LEVEL": "debug",
		"STATE_DIRECTORY": state + ":/elsewhere", "CREDENTIALS_DIRECTORY": credentials,
	}
	code, out, stderr := runIn(t, env, "agent", "--print-config", "--path", "flag")
	require.Zero(t, code, stderr)
	require.Equal(t, squeezed(fmt.Sprintf(`# what holds for the agent of this machine; file: %[1]s/agent.hcl
identity = "file" # %[1]s/agent.hcl:2:1
data_dir = "%[1]s/state" # STATE_DIRECTORY
listen   = ":44443" # default
# serve_images is not set
images_max = 20 # default
repository {
  url    = "%[1]s/site.git" # %[1]s/agent.hcl:5:3
  branch = "environment" # HOMESTAK_REPOSITORY_BRANCH
  path   = "flag" # --path
  poll   = "1m" # default
  max_size = 512 # default
  auth {
    token_file = "%[1]s/tokens/git" # %[1]s/agent.hcl:9:5
    # username is not set
    key_file = "%[2]s/key" # HOMESTAK_REPOSITORY_AUTH_KEY_FILE
    # known_hosts_file is not set
    # ca_file is not set
  }
}
parent {
  # url is not set
  # pins is not set
  # token_file is not set
  report_every = "1m" # default
}
api {
  # token_file is not set
  # ca_file is not set
  # fingerprint is not set
}
secrets_file = "%[1]s/credentials/secrets.yaml" # CREDENTIALS_DIRECTORY
age_key_file = "%[1]s/credentials/age-keys.txt" # CREDENTIALS_DIRECTORY
access {
  # read_key_file is not set
  # operator_key_file is not set
  # repository_key_file is not set
  # hook_key_file is not set
}
web {
  # listen is not set
  # certificate_file is not set
  # private_key_file is not set
}
# output_folders is not set
drift_every = "7m" # %[1]s/agent.hcl:3:1
concurrency = 8 # default
log {
  level  = "debug" # HOMESTAK_LOG_LEVEL
  format = "text" # default
}
`, dir, here)), squeezed(out))

	// What is printed is an agent.hcl that says the same.
	again, found := hcl.ParseAgent("agent.hcl", []byte(out))
	require.Empty(t, found)
	require.Equal(t, "flag", again.Repository.Path)
	require.Equal(t, 7*time.Minute, again.DriftEvery)
	again2 := filepath.Join(dir, "again.hcl")
	require.NoError(t, os.WriteFile(again2, []byte(out), 0o600))
	code, printed, _ := runIn(t, nil, "agent", "--print-config", "--config", again2)
	require.Zero(t, code)
	require.Equal(t, values(out), values(printed))
}

// The unit has placeholders for files that the machine does not have: they hide nothing of the
// site.
func TestPlaceholdersOfTheUnit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	unit, err := os.ReadFile(filepath.Join("..", "..", "systemd", "homestak-gitops.service"))
	require.NoError(t, err)
	found := 0
	for line := range strings.Lines(string(unit)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "SetCredential="); ok {
			name, text, _ := strings.Cut(value, ":")
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
			found++
		}
	}
	require.Equal(t, 2, found)
	code, out, stderr := runIn(t, map[string]string{"CREDENTIALS_DIRECTORY": dir, "HOMESTAK_DATA_DIR": dir, "HOMESTAK_IDENTITY": "x"}, "agent", "--print-config")
	require.Zero(t, code, stderr)
	require.Contains(t, out, "# secrets_file is not set\n")
	require.Contains(t, out, "# age_key_file is not set\n")
}

// squeezed takes away the spaces that lay the text out.
func squeezed(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		fmt.Fprintln(&b, strings.Join(strings.Fields(line), " "))
	}
	return b.String()
}

// values takes away comments and alignment.
func values(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		value, _, _ := strings.Cut(line, "#")
		if value = strings.TrimSpace(value); value != "" {
			fmt.Fprintln(&b, strings.Join(strings.Fields(value), " "))
		}
	}
	return b.String()
}

// All that is wrong is reported at once, wherever it was said, and no secret with it.
func TestAgentConfigMistakes(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "agent.hcl")
	require.NoError(t, os.WriteFile(file, []byte("identiti = \"father\"\nlisten = \":1\"\nparent {\n  url = \"https://mother:44443\"\n}\n"), 0o600))
	env := map[string]string{"HOMESTAK_CONCURRENCY": "lots", "HOME": "/nowhere", "HOMESTAK_REPOSITORY_URL": "https://x:hunter2@git.example/a.git"}
	code, out, stderr := runIn(t, env, "agent", "--config", file, "--log-level", "loud", "--identity", "father")
	require.Equal(t, ui.ExitFailed, code)
	require.Empty(t, out)
	for _, want := range []string{
		file + `:1:1: error: unknown attribute "identiti" in agent.hcl`, `did you mean "identity"?`,
		"error: HOMESTAK_CONCURRENCY: concurrency must be a whole number",
		`error: --log-level: level = "loud" is not valid`, "known: debug, error, info, warn",
		"error: HOMESTAK_REPOSITORY_URL: url = ", "name a file in auth { token_file = … }",
		file + ":4:3: error: parent.pins is missing", file + ":4:3: error: parent.token_file is missing",
		"error: the agent cannot start: 6 configuration errors",
	} {
		require.Contains(t, stderr, want)
	}
	require.NotContains(t, stderr, "hunter2")

	_, _, stderr = runIn(t, nil, "agent", "--config", "/nowhere/agent.hcl")
	require.Contains(t, stderr, "read the agent's configuration: open /nowhere/agent.hcl")
	_, _, stderr = runIn(t, map[string]string{"HOME": t.TempDir()}, "agent", "--identity", "father")
	require.Contains(t, stderr, "no repository is set")
	_, _, stderr = runIn(t, nil, "agent", "--json", "--identity", "father")
	require.Contains(t, stderr, "homestak-gitops status --json")
}

const pullSite = `
site "home" {
}
host "father" {
  api = "https://192.0.2.10:8006"
}
image "debian-12" {
  url      = "https://example.org/debian-12.qcow2"
  checksum = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
}
spec "base" {
  platform {
    packages = ["jq"]
  }
}
manifest "edge" {
  pattern = "flat"
  host    = "father"
  node "edge" {
    type   = "vm"
    spec   = spec.base
    cores  = 1
    memory = 512
    image  = image.debian-12
    execution {
      mode = "pull"
    }
  }
}
`

// A simulated node in mode pull reaches the server of the agent that made it, applies its spec, and reports.
func TestN8AgentSimServesPullNodes(t *testing.T) {
	repo := sourcetest.New(t)
	repo.Commit(map[string]string{"site.hcl": pullSite}, "A node in mode pull")
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.2:0") // a port that is free, and stays so: others take those of 127.0.0.1
	require.NoError(t, err)
	listen := ln.Addr().String()
	require.NoError(t, ln.Close())

	cfg := &service.Config{AgentFile: model.AgentFile{Identity: "father", DataDir: filepath.Join(t.TempDir(), "agent"), Listen: listen, DriftEvery: time.Minute, Concurrency: 2}}
	cfg.Access, cfg.Parent, cfg.API, cfg.Log = &model.AgentAccess{}, &model.AgentParent{ReportEvery: time.Minute}, &model.AgentAPI{}, &model.AgentLog{Level: "info", Format: "text"}
	require.NoError(t, os.MkdirAll(cfg.DataDir, 0o700))
	cfg.Repository = &model.AgentRepository{URL: repo.Dir, Branch: "main", Poll: time.Minute, Auth: &model.AgentAuth{}}
	network, err := simulatedNetwork()
	require.NoError(t, err)
	defer network.End()
	s, err := newService(cfg, network, nil, slog.New(slog.DiscardHandler), func(string) string { return "" })
	require.NoError(t, err)

	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, control.NoSocket, nil, nil) }()
	require.Eventually(t, func() bool { return slices.ContainsFunc(s.Agent.Status().Nodes, isReady) }, 5*time.Minute, 10*time.Millisecond)
	stop()
	require.ErrorIs(t, <-ended, context.Canceled)
}

func isReady(n engine.NodeStatus) bool { return n.Node == "edge" && n.Ready }

// Where something in the folder is another user's, the agent does not begin without it:
// a suspension may stand there. It says what to do.
func TestFilesOfAnotherUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		t.Skip("root may read everything")
	}
	data := t.TempDir()
	require.NoError(t, os.Mkdir(control.Folder(data).Ledger(), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(control.Folder(data).Ledger(), "state.json"), nil, 0))
	for _, args := range [][]string{{"agent", "--once", "--identity", "father", "--repository", "/nowhere.git"}, {"status"}} {
		_, _, stderr := runIn(t, map[string]string{"HOMESTAK_DATA_DIR": data}, args...)
		require.Contains(t, stderr, "let root say: chown -R", args)
	}
}

// Two agents with two data folders do not know of each other's locks.
func TestAnotherAgentOfTheHostIsReported(t *testing.T) {
	t.Parallel()
	socket, _ := controltest.New().Serve(t, "")
	state := t.TempDir()
	own := filepath.Join(state, "homestak-gitops")
	if os.Geteuid() == 0 {
		t.Skip("root's own data folder is that of the machine")
	}
	release, err := (control.Holder{Verb: "agent", Socket: socket}).Lock(control.Folder(own).AgentLock())
	require.NoError(t, err)
	defer release()
	for identity, want := range map[string]bool{"father": true, "mother": false} {
		env := map[string]string{"XDG_STATE_HOME": state, "HOMESTAK_DATA_DIR": t.TempDir()}
		_, _, stderr := runIn(t, env, "agent", "--once", "--identity", identity, "--repository", "/nowhere.git")
		require.Equal(t, want, strings.Contains(stderr, "another agent for a host father runs here"), stderr)
	}
}

// An agent of root in such a folder does so at its end.
func TestRootsAgentHandsOver(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	data := t.TempDir()
	require.NoError(t, os.Chown(data, 1234, 1234))
	code, _, stderr := runIn(t, map[string]string{"HOMESTAK_DATA_DIR": data}, "agent", "--once", "--identity", "father", "--repository", "/nowhere.git")
	require.Equal(t, ui.ExitFailed, code, stderr)
	info, err := os.Stat(filepath.Join(data, "ledger", "state.json"))
	if os.IsNotExist(err) {
		info, err = os.Stat(filepath.Join(data, "ledger"))
	}
	require.NoError(t, err)
	require.Equal(t, uint32(1234), info.Sys().(*syscall.Stat_t).Uid)
}
