package asroot

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/aspect"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/engine/source"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
	"github.com/homestak/homestak-gitops/sim/debian"
)

// host is a simulated Debian with a helper, and the repository of its site. In a commit, spec.json is the spec of the host.
type host struct {
	*Server
	t     *testing.T
	disk  *debian.Machine
	repo  *sourcetest.Repo
	dir   string
	runs  int
	dies  int                   // the helper is killed at this command; 0: it is not
	after bool                  // after the command has run
	ran   func(c guest.Command) // is called before each command; may be nil
}

var errKilled = errors.New("killed")

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{t: t, disk: debian.NewDisk(debian.Options{}).Begin(debian.Birth{Instance: "1", Hostname: "father"}), repo: sourcetest.New(t), dir: t.TempDir()}
	t.Cleanup(h.disk.Halt)
	h.restart()
	return h
}

// restart starts a new helper on the same machine.
func (h *host) restart() {
	repo, err := source.OpenRepository(source.Options{Dir: filepath.Join(h.dir, "repository"), URL: h.repo.URL()})
	require.NoError(h.t, err)
	h.runs, h.dies = 0, 0
	h.Server = &Server{
		UID: os.Getuid(), Commits: repo, Machine: h, State: filepath.Join(h.dir, "state.json"), Log: slog.New(slog.DiscardHandler),
		Resolve: func(_ context.Context, c model.Commit) (*spec.Spec, error) {
			files, err := repo.Files(c.ID)
			if err != nil {
				return nil, err
			}
			text, err := fs.ReadFile(files, "spec.json")
			if errors.Is(err, fs.ErrNotExist) {
				return nil, nil //nolint:nilnil // none is an answer
			}
			if err != nil {
				return nil, err
			}
			return spec.Read(text)
		},
	}
}

// Run implements converge.Machine.
func (h *host) Run(_ context.Context, c guest.Command) (guest.Output, error) {
	h.runs++
	if h.dies == h.runs && !h.after {
		return guest.Output{}, errKilled
	}
	if h.ran != nil {
		h.ran(c)
	}
	var out, errs bytes.Buffer
	s := h.disk.Root(c.Args...)
	s.In, s.Out, s.Err = bytes.NewReader(c.Stdin), &out, &errs
	p, err := h.disk.K.Start(s)
	if err != nil {
		return guest.Output{}, err
	}
	code, signal := p.Ended()
	if h.dies == h.runs {
		return guest.Output{}, errKilled
	}
	return guest.Output{Code: code, Signal: int(signal), Out: out.String(), Err: errs.String()}, nil
}

func (h *host) sh(line string) string {
	h.t.Helper()
	dies := h.dies
	h.dies = 0
	out, err := h.Run(h.t.Context(), guest.Command{Args: []string{"sh", "-c", line}})
	h.dies = dies
	require.NoError(h.t, err)
	require.Zero(h.t, out.Code, "%s\n%s%s", line, out.Out, out.Err)
	return out.Out
}

// listen lets the helper answer connections until the test ends, or the function that it returns is called.
func (h *host) listen() (socket string, end func()) {
	h.t.Helper()
	dir, err := os.MkdirTemp("", "helper")
	require.NoError(h.t, err)
	socket = filepath.Join(dir, "s")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	require.NoError(h.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	serve := h.Serve // a restart replaces it
	go func() { done <- serve(ctx, ln, time.Hour) }()
	ended := false
	end = func() {
		if !ended {
			ended = true
			cancel()
			require.NoError(h.t, <-done)
			_ = ln.Close()
			_ = os.RemoveAll(dir)
		}
	}
	h.t.Cleanup(end)
	return socket, end
}

// client is an agent that wants a commit.
func (h *host) client(commit string) *Client {
	socket, _ := h.listen()
	return &Client{Socket: socket, Commit: func() string { return commit }}
}

func parse(t *testing.T, members string) *spec.Spec {
	t.Helper()
	s, err := spec.Read([]byte(document(members)))
	require.NoError(t, err)
	return s
}

func document(members string) string {
	return fmt.Sprintf(`{"version": 1, "node": "father", "spec": "pve", %s}`, members)
}

func (h *host) commit(members string) string {
	return h.repo.Commit(map[string]string{"spec.json": document(members)}, "a change")
}

const (
	motd   = `"config": {"files": [{"path": "/etc/motd", "content": "welcome\n", "mode": "0644", "owner": "root", "group": "root"}], "sysctl": {"net.ipv4.ip_forward": "1"}}`
	other  = `"config": {"files": [{"path": "/etc/motd", "content": "hello\n", "mode": "0644", "owner": "root", "group": "root"}]}`
	others = motd + `, "platform": {"packages": ["htop"], "services": {"cron": "disabled"}},
		"posture": {"name": "prod", "ssh": {"port": "2222", "permit_root_login": "no", "password_authentication": "no"}},
		"access": {"former_users": "remove", "users": [{"name": "ann", "sudo": "nopasswd", "ssh_keys": ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA a@laptop"], "groups": ["video"], "shell": "/bin/bash"}]}`
)

func TestASpecIsAppliedAndWithdrawn(t *testing.T) {
	h := newHost(t)
	want := parse(t, others)
	c := h.client(h.commit(others))
	seen, err := c.Observe(t.Context(), want)
	require.NoError(t, err)
	_, more := seen.Unplanned(nil)
	require.True(t, more)
	require.Empty(t, h.sh("ls /var/lib | grep homestak || :"), "a dry run changes nothing")

	var steps []string
	require.NoError(t, c.Apply(t.Context(), want, converge.Options{Started: func(s aspect.Step) { steps = append(steps, s.Text) }}))
	require.NotEmpty(t, steps)
	h.sh(`grep -qx welcome /etc/motd && id ann && command -v htop && ! systemctl is-active cron && [ -f /var/lib/homestak-gitops-spec/owned.json ]`)
	require.Equal(t, []int{2222}, h.disk.SSHD().Ports)
	seen, err = c.Observe(t.Context(), want)
	require.NoError(t, err)
	change, more := seen.Unplanned(nil)
	require.False(t, more, "%v", change)
	require.Empty(t, plan.Differences(want, seen.Observed().State[converge.Address("father")].Spec.(*spec.Spec)))

	h.sh("echo drift >/etc/motd")
	seen, err = c.Observe(t.Context(), want)
	require.NoError(t, err)
	change, more = seen.Unplanned(nil)
	require.True(t, more)
	require.Contains(t, change.Path, "config.file./etc/motd")

	h.repo.Commit(map[string]string{"README": "x", "spec.json": sourcetest.Gone}, "no spec")
	none := want.Withdrawn()
	c = h.client(h.repo.Head())
	require.NoError(t, c.Apply(t.Context(), none, converge.Options{}))
	require.NoError(t, c.Apply(t.Context(), none, converge.Options{}))
	h.sh(`grep -q WARRANTY /etc/motd && ! id ann && ! command -v htop && systemctl is-active cron`)
	require.Equal(t, []int{22}, h.disk.SSHD().Ports)
	h.restart()
	_, err = h.client(h.repo.Head()).Observe(t.Context(), none)
	require.NoError(t, err)
}

// The connection transmits what the helper saw.
func TestSeenGoesOverTheConnection(t *testing.T) {
	h := newHost(t)
	want := parse(t, others)
	direct, err := converge.Observe(t.Context(), h, want)
	require.NoError(t, err)
	text, err := seenOf(direct).encode()
	require.NoError(t, err)
	got, err := decode(text, want)
	require.NoError(t, err)
	require.Equal(t, plan.Differences(want, direct.Have), plan.Differences(want, got.Have))
	a, b := direct.Observed(), got.Observed()
	require.True(t, model.Same(a.State[converge.Address("father")].Spec, b.State[converge.Address("father")].Spec))
	require.Equal(t, a.State[converge.Address("father")].Unread, b.State[converge.Address("father")].Unread)
	require.Equal(t, a.Findings, b.Findings)
	require.Equal(t, a.Unknown, b.Unknown)
}

func TestOnlyTheCommitInForce(t *testing.T) {
	h := newHost(t)
	first := h.commit(motd)
	second := h.commit(other)
	side := h.repo.Side(first, map[string]string{"spec.json": document(motd)}, "by the agent")
	ask := func(commit, members string) error {
		_, err := h.client(commit).Observe(t.Context(), parse(t, members))
		return err
	}
	require.ErrorContains(t, ask(first, motd), "is not in force: the head of the branch is "+second+", and no spec was applied yet")
	require.ErrorContains(t, ask(second, motd), "the spec is not that of commit "+second)
	require.ErrorContains(t, ask(side, motd), "is not in force")
	require.ErrorContains(t, ask("/etc/shadow", motd), "is not in force")
	require.NoError(t, ask(second, other))
	require.NoError(t, h.client(second).Apply(t.Context(), parse(t, other), converge.Options{}))
	require.ErrorContains(t, ask(first, motd), "is not in force: it is not between "+second)

	third := h.commit(motd)
	fourth := h.commit(other)
	require.NoError(t, ask(third, motd), "the head may be a commit that the agent refuses")
	require.NoError(t, h.client(fourth).Apply(t.Context(), parse(t, other), converge.Options{}))
	h.restart()
	require.ErrorContains(t, ask(third, motd), "is not in force", "an older commit, also after a restart")
	require.ErrorContains(t, ask(second, other), "is not in force", "a request that was made before")

	h.repo.Remove()
	require.NoError(t, ask(fourth, other), "the repository is away, and its last head stays in force")
	require.ErrorContains(t, ask(side, motd), fourth+", the head of the branch; that is the last head that the helper knows, since the repository does not answer: ")
	h.repo.Restore()
	rewritten := h.repo.ForcePush(map[string]string{"spec.json": document(motd)}, "another history")
	require.NoError(t, ask(rewritten, motd))
	require.ErrorContains(t, ask(third, motd), "is not in force")
	require.Contains(t, h.sh("cat /etc/motd"), "hello")

	require.NoError(t, os.WriteFile(h.State, []byte("{"), 0o600))
	require.ErrorContains(t, ask(rewritten, motd), "read the state of the helper")
}

func TestTheFirstRequestNeedsTheRepository(t *testing.T) {
	h := newHost(t)
	head := h.commit(motd)
	h.repo.Remove()
	_, err := h.client(head).Observe(t.Context(), parse(t, motd))
	require.ErrorContains(t, err, "the helper asks the repository itself which commit is in force, and it does not answer")
}

// Anything but a valid request is refused, and nothing is run.
func TestRequestsThatAreRefused(t *testing.T) {
	h := newHost(t)
	head := h.commit(motd)
	sum, err := digest(parse(t, motd))
	require.NoError(t, err)
	socket, _ := h.listen()
	old := ""
	for _, c := range []struct{ send, says string }{
		{`{"version": 1, "nonce": "NONCE", "commit": "HEAD", "digest": "SUM", "dry_run": true}`, ""},
		{`{"version": 1, "nonce": "OLD", "commit": "HEAD", "digest": "SUM"}`, "the request was made for another connection"},
		{`{"version": 1, "nonce": "", "commit": "HEAD", "digest": "SUM"}`, "the request was made for another connection"},
		{`{"version": 2, "nonce": "NONCE", "commit": "HEAD", "digest": "SUM"}`, "the request has version 2, the helper answers 1: restart the agent"},
		{`{"version": 1, "nonce": "NONCE", "commit": "HEAD", "digest": ""}`, "the spec is not that of commit"},
		{`{"version": 1, "nonce": "NONCE", "commit": "HEAD", "digest": "SUM", "run": "id"}`, "the request cannot be read"},
		{`{"version": 1, "commit": "` + strings.Repeat("x", maxRequest) + `"}`, "the request is longer than 4096 bytes"},
		{`{`, "the request cannot be read"},
	} {
		h.runs = 0
		conn, err := net.Dial("unix", socket)
		require.NoError(t, err)
		in := bufio.NewReader(conn)
		var m message
		line, err := in.ReadBytes('\n')
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(line, &m))
		_, err = io.WriteString(conn, strings.NewReplacer("NONCE", m.Nonce, "OLD", old, "HEAD", head, "SUM", sum).Replace(c.send)+"\n")
		require.NoError(t, err)
		old = m.Nonce
		m = message{}
		line, err = in.ReadBytes('\n')
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(line, &m))
		require.NotNil(t, m.Result)
		if c.says == "" {
			require.Empty(t, m.Result.Error)
			require.NotZero(t, h.runs)
		} else {
			require.Contains(t, m.Result.Error, c.says)
			require.Zero(t, h.runs)
		}
		require.NoError(t, conn.Close())
	}
}

func TestOnlyTheAgentMayAsk(t *testing.T) {
	h := newHost(t)
	head := h.commit(motd)
	h.UID++
	err := h.client(head).Apply(t.Context(), parse(t, motd), converge.Options{})
	require.ErrorContains(t, err, fmt.Sprintf("user %d may not ask the helper: only the agent may, which runs as user %d", os.Getuid(), h.UID))
	require.Zero(t, h.runs)
}

// Where the helper is killed, the next request goes on, and the machine ends up as if nothing had happened.
func TestKilledAtEveryCommand(t *testing.T) {
	const state = "cat /etc/motd /etc/passwd /proc/sys/net/ipv4/ip_forward; sed 's/uid 1000/name/' /var/lib/homestak-gitops-spec/owned.json; ls -A /var/lib/homestak-gitops-spec/revert; systemctl is-active cron || :"
	for _, after := range []bool{false, true} {
		reference := ""
		for dies := 0; ; dies++ {
			h := newHost(t)
			c := h.client(h.commit(others))
			h.dies, h.after = dies, after
			err := c.Apply(t.Context(), parse(t, others), converge.Options{})
			if dies == 0 {
				require.NoError(t, err)
				reference = h.sh(state)
				continue
			}
			if h.runs < dies {
				require.NoError(t, err)
				break
			}
			require.ErrorContains(t, err, "killed", "command %d", dies)
			h.restart()
			require.NoError(t, h.client(h.repo.Head()).Apply(t.Context(), parse(t, others), converge.Options{}), "command %d", dies)
			require.Equal(t, reference, h.sh(state), "command %d", dies)
		}
	}
}

// A pass that is to end, or an agent that is gone, ends the request before its next step.
func TestStopped(t *testing.T) {
	h := newHost(t)
	c := h.client(h.commit(others))
	stop := make(chan struct{})
	begun := false
	err := c.Apply(t.Context(), parse(t, others), converge.Options{Stop: stop, Started: func(aspect.Step) {
		if !begun {
			begun = true
			close(stop)
		}
	}})
	if err != nil { // it may have been done before it heard of that
		require.ErrorIs(t, err, converge.ErrStopped)
	}
	require.NoError(t, c.Apply(t.Context(), parse(t, others), converge.Options{}))

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, c.Apply(ctx, parse(t, others), converge.Options{}))
}

func TestServeEndsWhenItIsIdle(t *testing.T) {
	h := newHost(t)
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	require.NoError(t, err)
	require.NoError(t, h.Serve(t.Context(), ln, time.Millisecond))
	require.NoError(t, ln.Close())
}

func TestReady(t *testing.T) {
	c := &Client{Socket: filepath.Join(t.TempDir(), "s")}
	require.ErrorContains(t, c.Ready(), "systemctl enable --now homestak-gitops-host.socket")
	require.NoError(t, os.WriteFile(c.Socket, nil, 0o600))
	require.NoError(t, c.Ready())
	_, err := c.Observe(t.Context(), parse(t, motd))
	require.ErrorContains(t, err, "journalctl -u homestak-gitops-host")
}
