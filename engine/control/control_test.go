package control_test

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
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/control/controltest"
	"github.com/homestak/homestak-gitops/engine/ledger"
)

func dialed(t *testing.T, socket string) *control.Client {
	t.Helper()
	r, err := control.Dial(t.Context(), socket)
	require.NoError(t, err)
	return r
}

// pipes is a listener in memory.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (*pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes"} }

// However long a client has been silent, or in the middle of a request, the agent does not wait for it longer than
// a second.
func TestSilentClientsDelayNoEnd(t *testing.T) {
	for name, c := range map[string]struct {
		says    string
		waits   time.Duration // before the end
		longest time.Duration
	}{
		"just connected":   {"", 0, 600 * time.Millisecond},
		"silent":           {"", 9 * time.Second, 600 * time.Millisecond},
		"half a request":   {"GET /sta", 0, time.Second},
		"after an answer":  {"GET /agent HTTP/1.1\r\nHost: x\r\n\r\n", time.Second, 600 * time.Millisecond},
		"waits for a pass": {"POST /reconcile?wait HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", time.Second, 600 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := controltest.New()
				s := &control.Server{Agent: f, Receipts: f, Facts: control.NewFacts("father"), Events: f.Events, Log: slog.New(slog.DiscardHandler)}
				ln := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- s.Serve(ctx, ln) }()
				here, there := net.Pipe()
				ln.conns <- there
				got := make(chan string, 1)
				go func() {
					text, _ := io.ReadAll(here)
					got <- string(text)
				}()
				_, err := io.WriteString(here, c.says)
				require.NoError(t, err)
				<-time.After(c.waits)
				synctest.Wait()
				began := time.Now()
				cancel()
				require.NoError(t, <-done)
				require.LessOrEqual(t, time.Since(began), c.longest)
				require.NoError(t, here.Close())
				answer := <-got
				if strings.HasPrefix(c.says, "POST") {
					require.Contains(t, answer, "503 Service Unavailable")
					require.Contains(t, answer, "Retry-After: 5\r\n")
				}
			})
		})
	}
}

// A stream ends with the agent, and a client resumes it where it was.
func TestControlStreamsEvents(t *testing.T) {
	t.Parallel()
	f := controltest.New()
	f.Events.Record(f.Status())
	socket, end := controltest.Serve(t, f, "")
	c := dialed(t, socket)
	var seen []control.Event
	err := c.Events(t.Context(), "", true, func(e control.Event) error {
		if seen = append(seen, e); len(seen) == 1 {
			s := f.Status()
			s.State = agent.Stopping
			f.Events.Record(s)
			return nil
		}
		go end()
		return nil
	})
	require.NoError(t, err)
	require.Len(t, seen, 2)
	require.Equal(t, control.Stopping, seen[1].Type)

	socket, _ = controltest.Serve(t, f, "")
	var again []control.Event
	err = dialed(t, socket).Events(t.Context(), seen[0].ID, false, func(e control.Event) error {
		again = append(again, e)
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, seen[1:], again)
}

func TestControlAnswers(t *testing.T) {
	t.Parallel()
	f := controltest.New()
	f.List = []ledger.Receipt{
		{ID: "2", Steps: []ledger.Step{{Address: "vm.b"}, {Address: "vm.a"}}},
		{ID: "1", Steps: []ledger.Step{{Address: "vm.a"}}},
	}
	socket, _ := controltest.Serve(t, f, "https://a:8006")
	info, err := os.Stat(socket)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o660), info.Mode().Perm(), "for owner and group")
	r := dialed(t, socket)
	require.Equal(t, control.Card{
		Version: 1, Program: "v1", Identity: "father", DataDir: "/data", PID: 1, API: "https://a:8006", Manifests: []string{"web"},
	}, r.Card)

	s, err := r.Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, f.Status(), s)

	h, err := r.History(t.Context(), 1, "")
	require.NoError(t, err)
	require.Len(t, h.Receipts, 1)
	h, err = r.History(t.Context(), 0, "vm.b")
	require.NoError(t, err)
	require.Len(t, h.Receipts, 1)
	require.Equal(t, "2", h.Receipts[0].ID)
	c, err := r.Verify(t.Context())
	require.NoError(t, err)
	require.Equal(t, control.Chain{2, []string{}}, c)

	require.NoError(t, r.CheckNow(t.Context()))
	require.Equal(t, 1, f.Checks())

	said, err := r.Suspend(t.Context(), ledger.Suspension{Manifest: "web", Reason: "a test"}, time.Hour)
	require.NoError(t, err)
	require.Equal(t, control.Whoami(), said.By)
	require.WithinDuration(t, time.Now().Add(time.Hour), *said.Until, time.Minute)
	require.Equal(t, []ledger.Suspension{said}, f.Status().Suspended)
	require.NoError(t, r.Resume(t.Context(), "web"))
	require.Empty(t, f.Status().Suspended)
}

func TestControlRefuses(t *testing.T) {
	t.Parallel()
	f := controltest.New()
	socket, _ := controltest.Serve(t, f, "")
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
		{http.MethodPost, "/suspend", ledger.Suspension{Reason: "x", Until: &yesterday}, 400, "bad_request", "would end in the past"},
		{http.MethodPost, "/suspend", map[string]string{"reasons": "x"}, 400, "bad_request", `unknown field "reasons"`},
		{http.MethodPost, "/suspend", ledger.Suspension{Reason: strings.Repeat("x", 1<<20)}, 413, "too_large", "64 KiB"},
		{http.MethodPost, "/resume", map[string]string{"manifest": "web"}, 404, "not_suspended", "manifest web is not suspended\nthe agent is not suspended"},
		{http.MethodPost, "/hold", nil, 400, "bad_request", "who and verb are missing or too long"},
	} {
		err := r.Call(t.Context(), c.method, c.path, c.body, nil)
		p, ok := errors.AsType[*control.ProblemError](err)
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
	f := controltest.New()
	for i := range 5000 { // an answer that no buffer of the kernel holds
		f.Change(func(s *agent.Status) {
			s.Nodes = append(s.Nodes, engine.NodeStatus{Address: fmt.Sprintf("vm.%04d", i), Error: strings.Repeat("x", 200)})
		})
	}
	socket, end := controltest.Serve(t, f, "")
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
	s, err := r.Status(t.Context())
	require.NoError(t, err)
	require.Len(t, s.Nodes, 5000)
	end() // and the end of the agent does not wait for them either
	_, err = control.Dial(t.Context(), socket)
	require.ErrorIs(t, err, control.ErrNoAgent)
}

func TestHoldLastsAsLongAsItsClient(t *testing.T) {
	t.Parallel()
	f := controltest.New()
	socket, end := controltest.Serve(t, f, "")
	r := dialed(t, socket)
	res, err := r.Send(t.Context(), http.MethodPost, "/hold?who=me&verb=apply", nil)
	require.NoError(t, err)
	require.Empty(t, f.Free)
	require.NoError(t, res.Body.Close())
	<-f.Free // the agent is free again
	f.Free <- struct{}{}

	res, err = r.Send(t.Context(), http.MethodPost, "/hold?who=other&verb=test", nil)
	require.NoError(t, err)
	defer res.Body.Close()
	require.Equal(t, []string{"me (apply)", "other (test)"}, f.Holders())
	end() // an agent that ends takes no account of holders: the lock file does
	_, err = io.ReadAll(res.Body)
	require.True(t, err == nil || errors.Is(err, io.ErrUnexpectedEOF), "%v", err)
}

func TestReconcileWaitsForItsPass(t *testing.T) {
	t.Parallel()
	f := controltest.New()
	f.Pass = agent.PassStatus{Commit: "0123456789", Outcome: engine.Done}
	socket, _ := controltest.Serve(t, f, "")
	r := dialed(t, socket)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := r.Reconcile(gone)
	require.Error(t, err)
	got := make(chan agent.PassStatus, 1)
	go func() {
		if p, err := r.Reconcile(t.Context()); err == nil {
			got <- p
		}
		close(got)
	}()
	require.Eventually(t, func() bool { return f.Checks() > 0 }, 5*time.Minute, time.Millisecond)
	require.Empty(t, got)
	close(f.Passing)
	require.Equal(t, f.Pass, <-got)
}

func TestSocketOfADeadAgentIsReplaced(t *testing.T) {
	t.Parallel()
	dir := controltest.ShortDir(t)
	name := filepath.Join(dir, "agent.sock")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: name})
	require.NoError(t, err)
	ln.SetUnlinkOnClose(false)
	require.NoError(t, ln.Close())
	require.FileExists(t, name)
	_, err = control.Dial(t.Context(), name)
	require.ErrorIs(t, err, control.ErrNoAgent)

	live, err := control.Listen(t.Context(), name)
	require.NoError(t, err)
	defer func() { _ = live.Close() }()
	_, err = control.Listen(t.Context(), name)
	require.ErrorContains(t, err, "another program answers on "+name)
	var refused *control.RefusedError
	require.ErrorAs(t, err, &refused)

	plain := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(plain, []byte("precious"), 0o600))
	_, err = control.Listen(t.Context(), plain)
	require.ErrorContains(t, err, "is not a socket")
	require.FileExists(t, plain)

	_, err = control.Listen(t.Context(), filepath.Join(dir, strings.Repeat("x", 100)))
	require.ErrorContains(t, err, "is too long, the system takes 107 bytes\nname a shorter one with --socket or HOMESTAK_SOCKET")
}
