package integration_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// followed is a story whose site reaches its host by pushes alone: real git sends
// them to a repository, and the built binary, running as an agent, follows that.
type followed struct {
	*story
	repo   *sourcetest.Repo
	config string   // agent.hcl
	data   string   // the agent's folder
	env    []string // of git
	agent  *process // the one that runs now
	conn   *http.Client
}

// transport is how agent and author reach the repository.
type transport struct {
	name  string
	reach func(*followed) (url string, auth []string)
}

func byFile() transport {
	return transport{"file", func(f *followed) (string, []string) { return f.repo.URL(), nil }}
}

// transports are all of them: a folder, git's own http-backend behind TLS and a token,
// and a real sshd.
func transports() []transport {
	return []transport{
		byFile(),
		{"https", func(f *followed) (string, []string) {
			s := f.repo.HTTPS()
			s.SetLogin("git", "t0ken-of-the-agent")
			token := filepath.Join(f.t.TempDir(), "token")
			require.NoError(f.t, os.WriteFile(token, []byte("t0ken-of-the-agent\n"), 0o600))
			f.env = append(f.env, "GIT_SSL_CAINFO="+s.CAFile, "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=credential.helper",
				"GIT_CONFIG_VALUE_0=!f() { echo username=git; echo password=t0ken-of-the-agent; }; f")
			return s.URL, []string{"token_file = " + quote(token), "ca_file = " + quote(s.CAFile)}
		}},
		{"ssh", func(f *followed) (string, []string) {
			s := f.repo.SSH()
			f.env = append(f.env, fmt.Sprintf("GIT_SSH_COMMAND=ssh -F none -i %s -o UserKnownHostsFile=%s", s.KeyFile, s.KnownHostsFile))
			return s.URL, []string{"key_file = " + quote(s.KeyFile), "known_hosts_file = " + quote(s.KnownHostsFile)}
		}},
	}
}

func quote(s string) string { return fmt.Sprintf("%q", s) }

// follow sets the scene: an empty repository, a checkout of it with the frame of a
// site, and an agent that does not run yet.
func follow(t *testing.T, c pve.Config, by transport) *followed {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed, and these pushes are real ones:", err)
	}
	f := &followed{story: begin(t, c), repo: sourcetest.New(t)}
	f.data = filepath.Join(filepath.Dir(f.dir), "data") // as starts and says have it
	url, auth := by.reach(f)
	f.config = filepath.Join(t.TempDir(), "agent.hcl")
	secrets := filepath.Join(t.TempDir(), "secrets.yaml")
	require.NoError(t, os.Rename(filepath.Join(f.dir, "secrets.yaml"), secrets))
	text := fmt.Sprintf("identity = %q\ndata_dir = %q\nsecrets_file = %q\ndrift_every = \"1s\"\nrepository {\n  url = %q\n  poll = \"1s\"\n  auth {\n    %s\n  }\n}\n",
		f.onto, f.data, secrets, url, strings.Join(auth, "\n    "))
	require.NoError(t, os.WriteFile(f.config, []byte(text), 0o600))
	f.conn = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", f.socket())
	}}}
	t.Cleanup(f.conn.CloseIdleConnections)
	f.git("init", "-q", "-b", "main")
	f.git("remote", "add", "origin", url)
	return f
}

func (f *followed) socket() string { return filepath.Join(f.data, "agent.sock") }

// git runs git in the checkout, as its author.
func (f *followed) git(args ...string) string {
	f.t.Helper()
	cmd := exec.CommandContext(f.t.Context(), "git", args...)
	cmd.Dir = f.dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "HOME="+f.data, "GIT_TERMINAL_PROMPT=0",
		"GIT_AUTHOR_NAME=Ada", "GIT_AUTHOR_EMAIL=ada@example.org", "GIT_COMMITTER_NAME=Ada", "GIT_COMMITTER_EMAIL=ada@example.org")
	cmd.Env = append(cmd.Env, f.env...)
	out, err := cmd.CombinedOutput()
	require.NoError(f.t, err, "git %v: %s", args, out)
	return strings.TrimSpace(string(out))
}

// push commits the checkout as it is, and pushes it. Nothing else is typed.
func (f *followed) push(message string) (commit string) {
	f.t.Helper()
	f.git("add", "--all")
	f.git("commit", "-q", "--allow-empty", "-m", message)
	f.git("push", "-q", "--force", "origin", "main")
	return f.git("rev-parse", "HEAD")
}

// begins runs the agent.
func (f *followed) begins() {
	f.t.Helper()
	f.agent = f.starts("agent", "--config", f.config)
	f.t.Cleanup(func() {
		if !f.t.Failed() {
			f.ends()
		}
	})
}

// ends stops the agent as systemd does; what runs is finished.
func (f *followed) ends() {
	if f.agent == nil {
		return
	}
	_ = f.agent.Process.Signal(syscall.SIGTERM)
	require.NoError(f.t, f.agent.Wait(), f.agent.said())
	require.NotContains(f.t, f.agent.said(), "goroutine ", "it panicked")
	f.agent = nil
}

// status asks the agent how it is; false while it does not answer.
func (f *followed) status() (st agent.Status, answered bool) {
	req, err := http.NewRequestWithContext(f.t.Context(), http.MethodGet, "http://agent/status", http.NoBody)
	require.NoError(f.t, err)
	resp, err := f.conn.Do(req)
	if err != nil {
		return st, false
	}
	defer func() { _ = resp.Body.Close() }()
	return st, resp.StatusCode == http.StatusOK && json.NewDecoder(resp.Body).Decode(&st) == nil
}

// until waits until the agent's status is as wanted. A process of its own does the
// work, so there is nothing to wait on but the clock; patience is for a busy machine.
func (f *followed) until(what string, wanted func(agent.Status) bool) agent.Status {
	f.t.Helper()
	const patience = 10 * time.Minute
	limit, tick := time.NewTimer(patience), time.NewTicker(20*time.Millisecond)
	defer limit.Stop()
	defer tick.Stop()
	for {
		st, ok := f.status()
		if ok && wanted(st) {
			return st
		}
		select {
		case <-tick.C:
		case <-f.agent.ended:
			require.Fail(f.t, "the agent ended", "%v while waiting until %s\n%s", f.agent.err, what, f.agent.said())
		case <-limit.C:
			text, _ := json.MarshalIndent(st, "", "  ")
			require.Fail(f.t, "waited in vain", "until %s\n%s\n%s", what, text, f.agent.said())
		}
	}
}

// converged waits until the host came to be as a commit says, and the agent rests.
func (f *followed) converged(commit string) agent.Status {
	f.t.Helper()
	return f.until(commit[:8]+" is converged", func(s agent.Status) bool {
		return s.State == agent.Idle && s.Converged != nil && s.Converged.ID == commit
	})
}

// refused waits until a commit is refused.
func (f *followed) refused(commit string) agent.Status {
	f.t.Helper()
	return f.until(commit[:8]+" is refused", func(s agent.Status) bool {
		return s.State == agent.Idle && s.Refused != nil && s.Refused.Commit == commit
	})
}

// looksAgain waits for a whole pass that begins after the call.
func (f *followed) looksAgain() agent.Status {
	f.t.Helper()
	before, ok := f.status()
	require.True(f.t, ok)
	return f.until("it has looked again", func(s agent.Status) bool {
		// The first pass that ends after now may have begun before; the second did not.
		return s.State == agent.Idle && s.Last != nil && s.Last.Ended.Sub(before.At).Seconds() > s.Last.Seconds
	})
}

// asksGitAgain waits until the agent has asked the repository after now.
func (f *followed) asksGitAgain() {
	f.t.Helper()
	before, ok := f.status()
	require.True(f.t, ok)
	f.until("it has asked the repository again", func(s agent.Status) bool {
		return s.State == agent.Idle && s.Repository.Checked != nil && s.Repository.Checked.Sub(before.At) > time.Second
	})
}

// refusalText are the findings of a refusal, as text.
func refusalText(s agent.Status) string {
	var b strings.Builder
	for _, x := range s.Refused.Findings {
		fmt.Fprintf(&b, "%s: %s: %s %s\n", x.At, x.Source, x.Summary, x.Detail)
	}
	return b.String()
}
