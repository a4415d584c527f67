package real_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"
)

func itoa(n int) string { return strconv.Itoa(n) }

func removeFile(name string) error { return os.Remove(name) }

// kvm is the line of a node on a host that cannot virtualise by hardware.
func (s *story) kvm() string {
	if s.noKVM {
		return `options = { kvm = "0" }`
	}
	return ""
}

// agent: pushes to a repository are the only thing that is typed.
func agent(s *story) {
	if _, err := exec.LookPath("git"); err != nil {
		s.t.Skip("git is not installed, and these pushes are real ones:", err)
	}
	top := filepath.Dir(s.dir)
	repository := filepath.Join(top, "site.git")
	s.git("init", "-q", "--bare", "-b", "main", repository)
	s.git("init", "-q", "-b", "main")
	s.git("remote", "add", "origin", repository)
	secrets := filepath.Join(top, "secrets.yaml")
	require.NoError(s.t, os.Rename(filepath.Join(s.dir, "secrets.yaml"), secrets))
	config := filepath.Join(top, "agent.hcl")
	require.NoError(s.t, os.WriteFile(config, []byte(strings.NewReplacer("DATA", s.data, "SECRETS", secrets, "REPOSITORY", repository).Replace(`identity     = "real"
data_dir     = "DATA"
secrets_file = "SECRETS"
drift_every  = "2s"
listen       = ""

repository {
  url  = "REPOSITORY"
  poll = "1s"
}
`)), 0o600))

	var said bytes.Buffer
	daemon := s.command(s.t.Context(), "agent", "--config", config)
	daemon.Stderr = &said
	s.deploy(s.vm("vm"))
	first := s.push("One machine")
	require.NoError(s.t, daemon.Start())
	ended := make(chan error, 1)
	go func() { ended <- daemon.Wait() }()
	follow := follower{s, config, &said}

	follow.until("the first push is converged", func(st agentStatus) bool { return st.rests(first) })
	require.Equal(s.t, []string{"vm"}, s.names())

	s.deploy(s.vm("vm", "memori = 128"))
	typo := s.push("A typing error")
	st := follow.until("the typing error is refused", func(st agentStatus) bool { return st.Refused != nil && st.Refused.Commit == typo })
	require.Contains(s.t, string(st.Refused.Findings), "memori")
	require.Equal(s.t, first, st.converged())

	s.deploy(s.vm("vm", `tags = ["web"]`), ct("ct"))
	second := s.push("A container")
	follow.until("the next push is converged", func(st agentStatus) bool { return st.rests(second) })
	require.Equal(s.t, "homestak;web", s.config("vm")["tags"])

	s.byHand(http.MethodPost, "ct", "/status/stop", nil)
	follow.until("the container runs again", func(agentStatus) bool { return s.guest("ct").Status == "running" })

	s.remove("nodes.hcl", "image.hcl")
	last := s.push("All of it goes\n\nAllow-Deletes: 9")
	follow.until("everything is removed", func(st agentStatus) bool { return st.rests(last) })
	require.Empty(s.t, s.names())
	require.NoError(s.t, daemon.Process.Signal(syscall.SIGTERM))
	require.NoError(s.t, <-ended, &said)
}

// push commits the site as it is and pushes it.
func (s *story) push(message string) (commit string) {
	s.t.Helper()
	s.git("add", "--all")
	s.git("commit", "-q", "-m", message)
	s.git("push", "-q", "origin", "main")
	return s.git("rev-parse", "HEAD")
}

func (s *story) git(args ...string) string {
	s.t.Helper()
	command := exec.CommandContext(s.t.Context(), "git", args...)
	command.Dir = s.dir
	command.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "HOME="+s.data, "GIT_AUTHOR_NAME=Ada", "GIT_AUTHOR_EMAIL=ada@example.org", "GIT_COMMITTER_NAME=Ada", "GIT_COMMITTER_EMAIL=ada@example.org")
	out, err := command.CombinedOutput()
	require.NoError(s.t, err, "git %v: %s", args, out)
	return strings.TrimSpace(string(out))
}

// agentStatus is what the story reads of status --json.
type agentStatus struct {
	State     string
	Converged *struct{ ID string }
	Refused   *struct {
		Commit   string
		Findings json.RawMessage
	}
}

// converged is the last commit that the host came to be as it says.
func (st agentStatus) converged() string {
	if st.Converged == nil {
		return ""
	}
	return st.Converged.ID
}

// rests reports whether that commit is converged and no pass is under way.
func (st agentStatus) rests(commit string) bool {
	return st.State == "idle" && st.converged() == commit
}

// follower asks an agent how it is.
type follower struct {
	*story
	config string
	said   *bytes.Buffer
}

// until waits until the agent's status is as wanted. The agent is a process of its own, so
// there is nothing to wait on but the clock.
func (f follower) until(what string, wanted func(agentStatus) bool) agentStatus {
	f.t.Helper()
	limit, tick := time.NewTimer(f.patience), time.NewTicker(f.again/2)
	defer limit.Stop()
	defer tick.Stop()
	for {
		var st agentStatus
		r := f.run("status", "--json", "--config", f.config)
		if json.Unmarshal([]byte(r.out), &st) == nil && wanted(st) {
			return st
		}
		select {
		case <-tick.C:
		case <-limit.C:
			require.Fail(f.t, "waited in vain", "until %s\n%s\n%s", what, r.out+r.err, f.said)
		}
	}
}

// withKVM completes a line of options.
func (s *story) withKVM(line string) string {
	if s.noKVM {
		return strings.Replace(line, " KVM }", `, kvm = "0" }`, 1)
	}
	return strings.Replace(line, " KVM }", " }", 1)
}
