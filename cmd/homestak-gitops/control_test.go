package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/ledger"
)

// fakeAgent is an agent that does nothing but answer. Its fields are set before it is
// asked, but for those under the lock.
type fakeAgent struct {
	pass    agent.PassStatus
	passing chan struct{} // closed: the pass that Reconcile waits for is over
	free    chan struct{} // a token in it: nobody is the one writer
	list    []ledger.Receipt
	broken  []string

	mu        sync.Mutex
	status    agent.Status
	looks     int
	holders   []string
	suspended []ledger.Suspension
}

func newFakeAgent() *fakeAgent {
	f := &fakeAgent{passing: make(chan struct{}), free: make(chan struct{}, 1)}
	f.free <- struct{}{}
	f.status = agent.Status{Version: 1, Agent: "v1", Identity: "father", PID: 1, State: agent.Idle, Healthy: true, Summary: "father is as it should be"}
	return f
}

func (f *fakeAgent) Status() agent.Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.status
	s.Suspended = append([]ledger.Suspension{}, f.suspended...)
	return s
}

func (f *fakeAgent) CheckNow() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looks++
}

func (f *fakeAgent) Reconcile(ctx context.Context) (agent.PassStatus, error) {
	f.CheckNow()
	select {
	case <-f.passing:
		return f.pass, nil
	case <-ctx.Done():
		return agent.PassStatus{}, ctx.Err()
	}
}

func (f *fakeAgent) Pause(ctx context.Context, who string) (func(), error) {
	select {
	case <-f.free:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.holders = append(f.holders, who)
	return func() { f.free <- struct{}{} }, nil
}

func (f *fakeAgent) Suspend(s ledger.Suspension) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.suspended = append(f.suspended, s)
	return nil
}

func (f *fakeAgent) Resume(manifest string) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, s := range f.suspended {
		if s.Manifest == manifest {
			f.suspended = append(f.suspended[:i], f.suspended[i+1:]...)
			return true, nil
		}
	}
	return false, nil
}

func (f *fakeAgent) Last(n int, match func(*ledger.Receipt) bool) ([]ledger.Receipt, error) {
	var out []ledger.Receipt
	for _, r := range f.list {
		if (match == nil || match(&r)) && (n == 0 || len(out) < n) {
			out = append(out, r)
		}
	}
	return out, nil
}

func (f *fakeAgent) Verify() (int, []string, error) { return len(f.list), f.broken, nil }

// looked counts the looks that were asked for.
func (f *fakeAgent) looked() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.looks
}

// served answers for a fake agent of host father, which has one manifest, web.
func served(t *testing.T, f *fakeAgent, api string) (socket string, end func()) {
	t.Helper()
	socket = filepath.Join(shortDir(t), "agent.sock")
	ln, err := listenControl(t.Context(), socket)
	require.NoError(t, err)
	c := &control{
		agent: f, suspends: f, receipts: f, log: slog.New(slog.DiscardHandler),
		known: &knowledge{identity: "father", api: api, manifests: []string{"web"}},
		card:  agentCard{Version: 1, Program: "v1", Identity: "father", DataDir: "/data", PID: 1},
	}
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- c.serve(ctx, ln) }()
	end = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-over)
	})
	t.Cleanup(end)
	return socket, end
}

// shortDir is a folder whose name leaves room for that of a socket.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hg")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func dialed(t *testing.T, socket string) *remote {
	t.Helper()
	r, err := dialAgent(t.Context(), socket)
	require.NoError(t, err)
	return r
}

func TestControlAnswers(t *testing.T) {
	t.Parallel()
	f := newFakeAgent()
	f.list = []ledger.Receipt{
		{ID: "2", Steps: []ledger.Step{{Address: "vm.b"}, {Address: "vm.a"}}},
		{ID: "1", Steps: []ledger.Step{{Address: "vm.a"}}},
	}
	socket, _ := served(t, f, "https://a:8006")
	info, err := os.Stat(socket)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o660), info.Mode().Perm(), "for owner and group")
	r := dialed(t, socket)
	require.Equal(t, agentCard{
		Version: 1, Program: "v1", Identity: "father", DataDir: "/data", PID: 1, API: "https://a:8006", Manifests: []string{"web"},
	}, r.card)

	var s agent.Status
	require.NoError(t, r.get(t.Context(), "/status", &s))
	require.Equal(t, f.Status(), s)

	var h history
	require.NoError(t, r.get(t.Context(), "/history?n=1", &h))
	require.Len(t, h.Receipts, 1)
	require.NoError(t, r.get(t.Context(), "/history?n=0&address=vm.b", &h))
	require.Len(t, h.Receipts, 1)
	require.Equal(t, "2", h.Receipts[0].ID)
	var c chain
	require.NoError(t, r.get(t.Context(), "/history/verify", &c))
	require.Equal(t, chain{2, []string{}}, c)

	require.NoError(t, r.post(t.Context(), "/reconcile", nil, nil))
	require.Equal(t, 1, f.looked())

	said, err := r.suspend(t.Context(), ledger.Suspension{Manifest: "web", Reason: "a test"}, time.Hour)
	require.NoError(t, err)
	require.Equal(t, whoami(), said.By)
	require.WithinDuration(t, time.Now().Add(time.Hour), *said.Until, time.Minute)
	require.Equal(t, []ledger.Suspension{said}, f.Status().Suspended)
	require.NoError(t, r.post(t.Context(), "/resume", map[string]string{"manifest": "web"}, nil))
	require.Empty(t, f.Status().Suspended)
}

func TestControlRefuses(t *testing.T) {
	t.Parallel()
	f := newFakeAgent()
	socket, _ := served(t, f, "")
	r := dialed(t, socket)
	yesterday := time.Now().Add(-24 * time.Hour)
	for _, c := range []struct {
		method, path string
		body         any
		status       int
		code, says   string
	}{
		{http.MethodGet, "/nothing", nil, 404, "not_found", "there is no GET /nothing here\nthe agent that runs is version v1"},
		{http.MethodDelete, "/status", nil, 404, "not_found", "there is no DELETE /status here"},
		{http.MethodGet, "/history?n=many", nil, 400, "bad_request", "n is not a number"},
		{http.MethodPost, "/suspend", ledger.Suspension{}, 400, "bad_request", "needs a reason"},
		{http.MethodPost, "/suspend", ledger.Suspension{Reason: "x", Manifest: "wep"}, 400, "bad_request", "did you mean \"web\"?"},
		{http.MethodPost, "/suspend", ledger.Suspension{Reason: "x", Until: &yesterday}, 400, "bad_request", "over already"},
		{http.MethodPost, "/suspend", map[string]string{"reasons": "x"}, 400, "bad_request", `unknown field "reasons"`},
		{http.MethodPost, "/suspend", ledger.Suspension{Reason: strings.Repeat("x", 1<<20)}, 413, "too_large", "64 KiB"},
		{http.MethodPost, "/resume", map[string]string{"manifest": "web"}, 404, "not_suspended", "manifest web is not suspended\nthe agent is not suspended at all"},
		{http.MethodPost, "/hold", nil, 400, "bad_request", "who holds?"},
	} {
		err := r.call(t.Context(), c.method, c.path, c.body, nil)
		p, ok := errors.AsType[*problem](err)
		require.True(t, ok, "%s %s: %v", c.method, c.path, err)
		require.Equal(t, c.status, p.Status, c.path)
		require.Equal(t, c.code, p.Code, c.path)
		require.Contains(t, p.Error(), c.says)
	}
	require.Empty(t, f.Status().Suspended)
}

// Whoever opens the socket and means no good costs bounded time, and nobody else.
func TestControlOutlivesBadClients(t *testing.T) {
	t.Parallel()
	f := newFakeAgent()
	for i := range 5000 { // an answer that no buffer of the kernel holds
		f.status.Nodes = append(f.status.Nodes, engine.NodeStatus{Address: fmt.Sprintf("vm.%04d", i), Error: strings.Repeat("x", 200)})
	}
	socket, end := served(t, f, "")
	say := func(text string) {
		conn, err := net.Dial("unix", socket)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		_, _ = io.WriteString(conn, text)
	}
	say("\x00\xff garbage \r\n\r\n")
	say("GET /status HTTP/1.1\r\nHost: a\r\n")                                    // and no more
	say("GET /status HTTP/1.1\r\nHost: a\r\n\r\n")                                // and never reads
	say("POST /suspend HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n{") // and never sends
	say("POST /hold?who=x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n")
	say("GET /" + strings.Repeat("a", 1<<20) + " HTTP/1.1\r\n\r\n")
	r := dialed(t, socket)
	var s agent.Status
	require.NoError(t, r.get(t.Context(), "/status", &s))
	require.Len(t, s.Nodes, 5000)
	end() // and the end of the agent does not wait for them either
	_, err := dialAgent(t.Context(), socket)
	require.ErrorIs(t, err, errNoAgent)
}

func TestHoldLastsAsLongAsItsClient(t *testing.T) {
	t.Parallel()
	f := newFakeAgent()
	socket, end := served(t, f, "")
	r := dialed(t, socket)
	res, err := r.send(t.Context(), http.MethodPost, "/hold?who=me&verb=apply", nil)
	require.NoError(t, err)
	require.Empty(t, f.free)
	require.NoError(t, res.Body.Close())
	<-f.free // the agent is free again
	f.free <- struct{}{}

	res, err = r.send(t.Context(), http.MethodPost, "/hold?who=other&verb=test", nil)
	require.NoError(t, err)
	defer res.Body.Close()
	require.Equal(t, []string{"me (apply)", "other (test)"}, f.holders)
	end() // an agent that ends takes no account of holders: the lock file does
	_, err = io.ReadAll(res.Body)
	require.True(t, err == nil || errors.Is(err, io.ErrUnexpectedEOF), "%v", err)
}

func TestReconcileWaitsForItsPass(t *testing.T) {
	t.Parallel()
	f := newFakeAgent()
	f.pass = agent.PassStatus{Commit: "0123456789", Outcome: engine.Done}
	socket, _ := served(t, f, "")
	r := dialed(t, socket)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, r.post(gone, "/reconcile?wait", nil, nil))
	got := make(chan agent.PassStatus, 1)
	go func() {
		var p agent.PassStatus
		if r.post(t.Context(), "/reconcile?wait", nil, &p) == nil {
			got <- p
		}
		close(got)
	}()
	require.Eventually(t, func() bool { return f.looked() > 0 }, 10*time.Second, time.Millisecond)
	require.Empty(t, got)
	close(f.passing)
	require.Equal(t, f.pass, <-got)
}

func TestSocketOfADeadAgentIsReplaced(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	name := filepath.Join(dir, "agent.sock")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: name})
	require.NoError(t, err)
	ln.SetUnlinkOnClose(false)
	require.NoError(t, ln.Close())
	require.FileExists(t, name)
	_, err = dialAgent(t.Context(), name)
	require.ErrorIs(t, err, errNoAgent)

	live, err := listenControl(t.Context(), name)
	require.NoError(t, err)
	defer func() { _ = live.Close() }()
	_, err = listenControl(t.Context(), name)
	require.ErrorContains(t, err, "another program answers on "+name)
	require.Equal(t, exitRefused, codeOf(err))

	plain := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(plain, []byte("precious"), 0o600))
	_, err = listenControl(t.Context(), plain)
	require.ErrorContains(t, err, "is no socket")
	require.FileExists(t, plain)

	_, err = listenControl(t.Context(), filepath.Join(dir, strings.Repeat("x", 100)))
	require.ErrorContains(t, err, "is too long, the system takes 107 bytes\nname a shorter one with --socket or HOMESTAK_SOCKET")
}
