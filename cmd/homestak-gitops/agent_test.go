package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/control/controltest"
	"github.com/homestak/homestak-gitops/engine/model"
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

// commit commits the site as it lies there; the branch of a fresh repository is master.
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
	e := &execution{t: t, signals: make(chan os.Signal, 2), out: &stream{}, err: &stream{}, ended: make(chan int, 1)}
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
func TestTheAgentEndsAsItIsTold(t *testing.T) {
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

// Who began before the agent, and so did not ask it, has the lock file.
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
	release, err := control.LockHost(s.data, &model.Host{Name: "father", API: api}, "apply")
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
func TestANewTokenIsUsedAtTheNextLook(t *testing.T) {
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
