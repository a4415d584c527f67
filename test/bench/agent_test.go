package bench_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/test/bench/fleet"
)

// never is a time between looks that no measurement lives to see.
const never = "24h"

// agentProcess is the program as a daemon, a process of its own. It finds no other program:
// what it does, it does by itself.
type agentProcess struct {
	m    *meter
	cmd  *exec.Cmd
	args []string
	env  []string // beside that of this process
	conn *http.Client
	data string // its folder
	log  string // file that it writes to
	over chan error
}

// follow starts an agent that follows a repository, and waits until its host is as
// the head says. It ends with the benchmark, if not before.
func (m *meter) follow(p *published, host *server, poll string, env ...string) *agentProcess {
	dir, err := os.MkdirTemp(m.dir, "agent-")
	require.NoError(m.b, err)
	a := &agentProcess{m: m, data: filepath.Join(dir, "data"), log: filepath.Join(dir, "log"), over: make(chan error, 1)}
	config, secrets, socket := filepath.Join(dir, "agent.hcl"), filepath.Join(dir, "secrets.yaml"), filepath.Join(dir, "socket")
	require.NoError(m.b, os.WriteFile(secrets, []byte(fleet.Fleet{}.Site(host.access)["secrets.yaml"]), 0o600))
	text := fmt.Sprintf("identity = \"father\"\ndata_dir = %q\nlisten = \"127.0.0.1:0\"\nsecrets_file = %q\ndrift_every = %q\nrepository {\n  url  = %q\n  poll = %q\n  auth {\n    ca_file = %q\n  }\n}\n",
		a.data, secrets, never, p.server.URL, poll, p.server.CAFile)
	require.NoError(m.b, os.WriteFile(config, []byte(text), 0o600))
	a.args, a.env = []string{"agent", "--config", config, "--socket", socket}, env
	a.conn = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	a.begin()
	m.b.Cleanup(a.end)
	a.converged(p.head())
	return a
}

// begin starts the agent, once more if it was killed.
func (a *agentProcess) begin() {
	log, err := os.OpenFile(a.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	require.NoError(a.m.b, err)
	defer func() { _ = log.Close() }()
	a.cmd = exec.CommandContext(a.m.ctx, a.m.bin, a.args...)
	a.cmd.Env = slices.Concat(os.Environ(), []string{"PATH=" + filepath.Join(filepath.Dir(a.data), "nothing")}, a.env)
	a.cmd.Stdout, a.cmd.Stderr = log, log
	require.NoError(a.m.b, a.cmd.Start())
	go func(cmd *exec.Cmd) { a.over <- cmd.Wait() }(a.cmd)
}

// kill ends it as a crash does.
func (a *agentProcess) kill() {
	require.NoError(a.m.b, a.cmd.Process.Kill())
	require.Error(a.m.b, <-a.over)
	a.conn.CloseIdleConnections()
}

// serves waits until it answers a request of a node.
func (a *agentProcess) serves(ask string) {
	limit, tick := time.NewTimer(time.Minute), time.NewTicker(2*time.Millisecond)
	defer limit.Stop()
	defer tick.Stop()
	for {
		var s agent.Status
		if a.ask(http.MethodGet, "/status", &s) == nil && s.Server != nil && s.Server.Commit != "" {
			if c, err := dial(a.m.ctx, s.Server.Address); err == nil {
				err = c.ask(ask)
				hangUp([]*conn{c})
				if err == nil {
					return
				}
			}
		}
		select {
		case <-tick.C:
		case <-limit.C:
			require.Fail(a.m.b, "the agent does not serve", a.said())
		}
	}
}

// end stops the agent as systemd does, and waits for its end. It may be called again.
func (a *agentProcess) end() {
	if a.cmd == nil {
		return
	}
	had, err := childrenOf(a.cmd.Process.Pid)
	require.NoError(a.m.b, err)
	if a.m.agents++; had {
		a.m.parents++
	}
	_ = a.cmd.Process.Signal(syscall.SIGTERM)
	err = <-a.over
	a.cmd = nil
	a.conn.CloseIdleConnections()
	require.NoError(a.m.b, err, a.said())
}

// said is what it logged.
func (a *agentProcess) said() string {
	text, _ := os.ReadFile(a.log)
	return string(text)
}

// ask sends a request over the agent's socket and reads the answer, if into is not nil.
func (a *agentProcess) ask(method, path string, into any) error {
	req, err := http.NewRequestWithContext(a.m.ctx, method, "http://agent"+path, http.NoBody)
	if err != nil {
		return err
	}
	res, err := a.conn.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode >= http.StatusBadRequest {
		return errors.New(res.Status)
	}
	if into == nil {
		return nil
	}
	return json.NewDecoder(res.Body).Decode(into)
}

// looks lets it look at repository and host once, and waits for the end of that. It
// must be a check that finds nothing to do.
func (a *agentProcess) looks() {
	var pass agent.PassStatus
	require.NoError(a.m.b, a.ask(http.MethodPost, "/reconcile?wait", &pass), a.said())
	require.Equal(a.m.b, engine.Done, pass.Outcome, a.said())
	s := pass.Summary
	require.Zero(a.m.b, s.Create+s.Update+s.Replace+s.Delete, a.said())
	require.Zero(a.m.b, pass.Unknown, a.said())
}

// converged waits until the host is as a commit says and the agent rests.
func (a *agentProcess) converged(commit string) {
	limit, tick := time.NewTimer(time.Minute), time.NewTicker(10*time.Millisecond)
	defer limit.Stop()
	defer tick.Stop()
	for {
		var s agent.Status
		if a.ask(http.MethodGet, "/status", &s) == nil && s.State == agent.Idle && s.Converged != nil && s.Converged.ID == commit {
			return
		}
		select {
		case <-tick.C:
		case err := <-a.over:
			a.over <- err
			require.Fail(a.m.b, "the agent ended", "%v\n%s", err, a.said())
		case <-limit.C:
			require.Fail(a.m.b, "the agent does not converge", "to %s\n%+v\n%s", commit, s, a.said())
		}
	}
}

// used is the CPU that it has used so far.
func (a *agentProcess) used() time.Duration {
	d, err := cpuOf(a.cmd.Process.Pid)
	require.NoError(a.m.b, err)
	return d
}

// clone is how many bytes its copy of the repository has.
func (a *agentProcess) clone() int64 {
	n, err := sizeOf(filepath.Join(a.data, "repository"))
	require.NoError(a.m.b, err)
	return n
}

// rests waits until what follows a pass is over, and gives the memory that it holds
// then, and how much of that is not pages of files, which it shares.
func (a *agentProcess) rests() (rss, own int64) {
	a.m.pause(300 * time.Millisecond)
	pid := a.cmd.Process.Pid
	return memoryOf(pid, "VmRSS"), memoryOf(pid, "RssAnon")
}

// pause lets time pass in which nothing is asked of anybody.
func (m *meter) pause(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-m.ctx.Done():
	}
}
