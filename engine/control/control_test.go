package control_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/control/controltest"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/machine"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

func dialed(t *testing.T, socket string) *control.Client {
	t.Helper()
	r, err := control.Dial(t.Context(), socket)
	require.NoError(t, err)
	return r
}

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
				at, network := netip.MustParseAddrPort("192.0.2.1:80"), new(machine.Net)
				ln, err := network.Listen(at, at)
				require.NoError(t, err)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- s.Serve(ctx, ln) }()
				here, err := network.Dial(t.Context(), at, at)
				require.NoError(t, err)
				got := make(chan string, 1)
				go func() {
					text, _ := io.ReadAll(here)
					got <- string(text)
				}()
				_, err = io.WriteString(here, c.says)
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
	socket, end := f.Serve(t, "")
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

	socket, _ = f.Serve(t, "")
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
	socket, _ := f.Serve(t, "https://a:8006")
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
	h, err = r.History(t.Context(), 0, "b")
	require.NoError(t, err)
	require.Len(t, h.Receipts, 1, "a name is enough")
	h, err = r.History(t.Context(), 0, "vm.b")
	require.NoError(t, err)
	require.Len(t, h.Receipts, 1)
	require.Equal(t, "2", h.Receipts[0].ID)
	c, err := r.Verify(t.Context())
	require.NoError(t, err)
	require.Equal(t, ledger.Proof{Intact: 2, Broken: []string{}, Keys: []string{}}, c)

	require.NoError(t, r.CheckNow(t.Context()))
	require.Equal(t, 1, f.Checks())

	f.Change(func(s *agent.Status) { s.Nodes = []engine.NodeStatus{{Address: "vm.app", Node: "app"}} })
	v, err := r.VerifyNodes(t.Context(), control.Selected{Nodes: []string{"app"}, Manifest: "web", By: "ann"})
	require.NoError(t, err)
	require.Equal(t, engine.Verified{Host: "father", Commit: "ann", Checks: []engine.CheckRun{
		{Address: "vm.app", Node: "app", Check: "up", Status: engine.RunFailed, Detail: "exit 1", Seconds: 2},
	}}, v)
	f.Change(func(s *agent.Status) { s.Nodes = nil })
	_, err = r.VerifyNodes(t.Context(), control.Selected{Nodes: []string{"app"}, By: "early"})
	require.ErrorContains(t, err, "no pass has seen the host since the agent started")
	_, err = r.VerifyNodes(t.Context(), control.Selected{Nodes: []string{"app"}, By: "ann"})
	require.ErrorContains(t, err, `the agent has no node "app"`)

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
	socket, _ := f.Serve(t, "")
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
		{http.MethodPost, "/verify", control.Selected{}, 400, "bad_request", "by is missing or too long"},
		{http.MethodPost, "/verify", control.Selected{By: "ann", Manifest: "wep"}, 400, "bad_request", "did you mean \"web\"?"},
		{http.MethodPost, "/verify", control.Selected{By: "ann", Nodes: []string{"a\x1b"}}, 404, "unknown_node", `the agent has no node "a?"`},
		{http.MethodPost, "/tasks", wire.Asking{Kind: wire.TaskPlan, By: strings.Repeat("x", 201)}, 400, "bad_request", "by is missing or too long"},
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

// A malicious client of the socket costs bounded time, and delays no other client.
func TestControlOutlivesBadClients(t *testing.T) {
	t.Parallel()
	f := controltest.New()
	for i := range 5000 { // an answer that no buffer of the kernel holds
		f.Change(func(s *agent.Status) {
			s.Nodes = append(s.Nodes, engine.NodeStatus{Address: fmt.Sprintf("vm.%04d", i), Error: strings.Repeat("x", 200)})
		})
	}
	socket, end := f.Serve(t, "")
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
	socket, end := f.Serve(t, "")
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
	socket, _ := f.Serve(t, "")
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

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// lines are events without what is the same in all.
func lines(events []control.Event) []string {
	var out []string
	for _, e := range events {
		out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s%.4s: %s", e.Type, e.Address, e.Commit, e.Text)))
	}
	return out
}

func commit(id string) *agent.CommitStatus {
	return &agent.CommitStatus{ID: strings.Repeat(id, 40), Subject: "web: more\x1b[31m memory", Author: "ann"}
}

// A day of an agent, status after status, and what each says beyond the one before.
func TestChangesOfAStatus(t *testing.T) {
	s := agent.Status{Identity: "father", Agent: "v1", PID: 7, At: noon, State: agent.Starting}
	before := agent.Status{}
	for _, step := range []struct {
		name   string
		change func(s *agent.Status)
		want   []string
	}{
		{"begins", func(*agent.Status) {}, []string{"started : version v1, process 7"}},
		{"nothing", func(s *agent.Status) { s.State, s.Summary = agent.Checking, "looking" }, nil},
		{
			"a commit", func(s *agent.Status) { s.Head, s.InForce = commit("a"), commit("a") },
			[]string{"commit-fetched aaaa: web: more?[31m memory (ann)", "commit-in-force aaaa: web: more?[31m memory"},
		},
		{"a pass", func(s *agent.Status) {
			s.Running = &agent.Running{Commit: s.Head.ID, Since: noon, Now: []agent.StepNow{{Address: "vm.a", Action: plan.Create, Since: noon}}}
		}, []string{"pass-started aaaa: at commit aaaaaaaa", "step-started vm.aaaaa: create"}},
		{"the next step", func(s *agent.Status) {
			s.At = noon.Add(12 * time.Second)
			s.Running = &agent.Running{Commit: s.Head.ID, Since: noon, Now: []agent.StepNow{{Address: "vm.b", Action: plan.Update, Since: s.At}, {Address: "vm.c", Action: plan.Adopt, Since: s.At}}}
		}, []string{"step-ended vm.aaaaa: create, after 12s", "step-started vm.baaaa: update"}},
		{"the end", func(s *agent.Status) {
			s.Running = nil
			s.Last = &agent.PassStatus{Commit: s.Head.ID, Outcome: engine.Done, Ended: s.At, Drift: true, Summary: plan.Summary{Create: 1, Update: 1, Adopt: 7, Forget: 1}}
			s.Nodes = []engine.NodeStatus{{Address: "vm.a", Phase: "run", Ready: true}, {Address: "vm.b", Phase: "run", Drift: 2, Error: "its checks\nfail"}}
		}, []string{
			"step-ended vm.baaaa: update, after 0s", "pass-ended aaaa: done, 7 to adopt, 1 to create, 1 to update, 1 to give up, drift",
			"node-ready vm.a: run", "node-not-ready vm.b: run, 2 differ: its checks fail",
		}},
		{"a bad commit", func(s *agent.Status) {
			s.Head = commit("b")
			s.Refused = &agent.Refusal{Commit: s.Head.ID, Outcome: engine.Invalid, Findings: diag.List{{Severity: diag.Error, Summary: "unknown preset"}}}
		}, []string{"commit-fetched bbbb: web: more?[31m memory (ann)", "commit-refused bbbb: invalid: error: unknown preset"}},
		{"the repository fails", func(s *agent.Status) { s.Repository.Error = "no route" }, []string{"repository-failing : no route"}},
		{"and still does", func(s *agent.Status) { s.Repository.Error = "no route to host" }, nil},
		{"and answers", func(s *agent.Status) { s.Repository.Error, s.Repository.URL = "", "https://git" }, []string{"repository-answered : https://git"}},
		{
			"suspended", func(s *agent.Status) {
				s.Suspended = []ledger.Suspension{{Manifest: "web", Reason: "move", Since: noon}, {Since: noon}}
			},
			[]string{"suspended : manifest web: move", "suspended : everything:"},
		},
		{"resumed", func(s *agent.Status) { s.Suspended = []ledger.Suspension{{Since: noon}} }, []string{"resumed : manifest web"}},
		{"a whole pass at once", func(s *agent.Status) {
			s.Last = &agent.PassStatus{Commit: commit("c").ID, Outcome: engine.Failed, Ended: noon.Add(time.Hour), Error: "no quorum"}
			s.Nodes = []engine.NodeStatus{{Address: "vm.b", Phase: "destroy", Drift: 2, Error: "its checks\nfail"}}
		}, []string{"pass-ended cccc: failed: no quorum", "node-not-ready vm.b: destroy, 2 differ: its checks fail", "node-gone vm.a: run"}},
		{"checks run", func(s *agent.Status) {
			s.Checks = []agent.CheckStatus{{Address: "vm.a", Check: "web", State: agent.CheckUnknown}, {Address: "vm.b", Check: "web", State: agent.CheckPassing}}
		}, nil},
		{"they fail", func(s *agent.Status) {
			s.Checks = []agent.CheckStatus{
				{Address: "vm.a", Check: "web", State: agent.CheckFailing, Error: "exit 1\x1b"}, {Address: "vm.b", Check: "web", State: agent.CheckFailing, Error: "exit 2"}, {Address: "vm.c", Check: "new", State: agent.CheckFailing},
			}
		}, []string{"check-failing vm.a: web: exit 1?", "check-failing vm.b: web: exit 2", "check-failing vm.c: new:"}},
		{"and fail otherwise", func(s *agent.Status) {
			s.Checks = []agent.CheckStatus{{Address: "vm.a", Check: "web", State: agent.CheckFailing, Error: "exit 3"}, {Address: "vm.b", Check: "web", State: agent.CheckFailing, Idle: "suspended"}}
		}, nil},
		{"one passes, one is made again", func(s *agent.Status) {
			s.Checks = []agent.CheckStatus{{Address: "vm.a", Check: "web", State: agent.CheckPassing}, {Address: "vm.b", Check: "web", State: agent.CheckUnknown}}
		}, []string{"check-passing vm.a: web"}},
		{"the end of it", func(s *agent.Status) { s.State = agent.Stopping }, []string{"stopping : finishes running steps, starts no new ones"}},
	} {
		after := s
		step.change(&after)
		require.Equal(t, step.want, lines(control.Between(before, after)), step.name)
		for _, e := range control.Between(before, after) {
			require.Equal(t, "father", e.Agent)
			require.Equal(t, after.At, e.At)
		}
		before, s = after, after
	}
}

// A failure from before the start is not new, and simultaneous failures do not push everything else out of the log.
func TestEventsOfManyChecks(t *testing.T) {
	s := agent.Status{Identity: "father", At: noon, Checks: []agent.CheckStatus{{Address: "vm.a", Check: "web", State: agent.CheckFailing}}}
	require.Len(t, control.Between(agent.Status{}, s), 1, "it started")
	all := s
	all.Checks = nil
	for i := range 1000 {
		all.Checks = append(all.Checks, agent.CheckStatus{Address: fmt.Sprintf("vm.g%d", i), Check: "web", State: agent.CheckFailing, Error: "no route"})
	}
	got := lines(control.Between(s, all))
	require.Len(t, got, 101)
	require.Equal(t, "check-failing vm.g0: web: no route", got[0])
	require.Equal(t, "check-failing : and 900 more checks fail or pass again: see status", got[100])
	require.Empty(t, control.Between(all, all))
}

// status gives the nth status of a run: each has one event.
func status(n int) agent.Status {
	s := agent.Status{Identity: "father", At: noon}
	if n > 0 {
		s.Last = &agent.PassStatus{Outcome: engine.Done, Ended: noon.Add(time.Duration(n) * time.Second)}
	}
	return s
}

func TestTheLogIsBounded(t *testing.T) {
	l := control.NewEventLog(noon)
	all, missed, more := l.After("")
	require.Empty(t, all)
	require.False(t, missed)
	for n := range control.Kept + 10 {
		l.Record(status(n))
	}
	<-more
	all, missed, _ = l.After("")
	require.Len(t, all, control.Kept)
	require.False(t, missed)
	next, missed, _ := l.After(all[5].ID)
	require.Equal(t, all[6:], next)
	require.False(t, missed)
	next, missed, _ = l.After(all[len(all)-1].ID)
	require.Empty(t, next)
	require.False(t, missed)

	before := strings.Replace(all[0].ID, "-11", "-10", 1)
	next, missed, _ = l.After(before)
	require.Equal(t, all, next, "the one before the first that is kept")
	require.False(t, missed)
	for _, id := range []string{strings.Replace(before, "-10", "-9", 1), "other-12", "x", "-", all[0].ID + "000000", before + "x"} {
		next, missed, _ = l.After(id)
		require.Equal(t, all, next, id)
		require.True(t, missed, id)
	}
}

// A client reads what is kept, goes on with what happens, and resumes where it was.
func TestAStreamIsResumed(t *testing.T) {
	l := control.NewEventLog(noon)
	ending := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { l.Serve(w, r, ending) }))
	defer server.Close()
	get := func(ctx context.Context, query, last string, each func(control.Event) error) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+query, http.NoBody)
		require.NoError(t, err)
		req.Header.Set("Last-Event-ID", last)
		res, err := server.Client().Do(req)
		require.NoError(t, err)
		defer res.Body.Close()
		require.Equal(t, "text/event-stream; charset=utf-8", res.Header.Get("Content-Type"))
		return control.Read(ctx, res.Body, each)
	}
	l.Record(status(0))
	l.Record(status(1))
	var seen []control.Event
	collect := func(e control.Event) error {
		seen = append(seen, e)
		return nil
	}
	require.NoError(t, get(t.Context(), "?follow=false", "", collect))
	require.Equal(t, []string{"started : version , process 0", "pass-ended : done"}, lines(seen))

	enough := errors.New("enough")
	n := 2
	err := get(t.Context(), "", seen[0].ID, func(e control.Event) error {
		require.NoError(t, collect(e))
		if len(seen) == 5 {
			return enough
		}
		l.Record(status(n)) // each one that comes makes the next
		n++
		return nil
	})
	require.ErrorIs(t, err, enough)
	require.Equal(t, seen[1], seen[2], "it began behind the first")
	require.NotEqual(t, seen[3].ID, seen[4].ID)

	seen = nil
	require.NoError(t, get(t.Context(), "?follow=false", "old-1", collect))
	require.Equal(t, control.MissedEvents, seen[0].Type)
	require.Equal(t, control.Started, seen[1].Type)

	// When the server ends, so do its streams.
	err = get(t.Context(), "", "", func(e control.Event) error {
		if e.Type == control.Started {
			close(ending)
		}
		return nil
	})
	require.NoError(t, err)
	err = control.Read(t.Context(), strings.NewReader("data: {\n\n"), collect)
	require.ErrorContains(t, err, "read the events")
	err = control.Read(t.Context(), strings.NewReader("data: "+strings.Repeat("x", 1<<20)), collect)
	require.ErrorIs(t, err, bufio.ErrTooLong)
}

// A silent stream says that it is there.
func TestASilentStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := control.NewEventLog(noon)
		ending, w, done := make(chan struct{}), httptest.NewRecorder(), make(chan struct{})
		go func() {
			defer close(done)
			l.Serve(w, httptest.NewRequest(http.MethodGet, "/events", http.NoBody), ending)
		}()
		timer := time.NewTimer(time.Minute - time.Second)
		<-timer.C
		synctest.Wait()
		close(ending)
		<-done
		require.Equal(t, "retry: 2000\n\n"+strings.Repeat(": alive\n\n", 3), w.Body.String())
	})
}

// What root's own agent makes in the folder of an agent that is not root, that agent
// can read; and nothing outside of the folder changes hands.
func TestRootHandsOver(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	ours, other := t.TempDir(), t.TempDir()
	write := func(name string) string {
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o700))
		require.NoError(t, os.WriteFile(name, nil, 0o600))
		return name
	}
	owner := func(name string) int {
		info, err := os.Lstat(name)
		require.NoError(t, err)
		return int(info.Sys().(*syscall.Stat_t).Uid)
	}
	state, shadow, passwd := write(filepath.Join(ours, "ledger", "state.json")), write(filepath.Join(other, "shadow")), write(filepath.Join(other, "passwd"))
	require.NoError(t, control.Folder(ours).HandOver())
	require.Zero(t, owner(state), "the folder is root's")

	require.NoError(t, os.Symlink(other, filepath.Join(ours, "link")))
	require.NoError(t, os.Link(shadow, filepath.Join(ours, "shadow")))
	require.NoError(t, os.Chown(ours, 1234, 1234))
	require.NoError(t, control.Folder(ours).HandOver())
	require.Equal(t, 1234, owner(state))
	require.Equal(t, 1234, owner(filepath.Dir(state)))
	require.Zero(t, owner(other))
	require.Zero(t, owner(passwd))
	require.Zero(t, owner(shadow), "it has a second name, elsewhere")
	require.Error(t, control.Folder(filepath.Join(ours, "nowhere")).HandOver())
}

// An error about the folder says what to do.
func TestFolderErrors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	denied, full := &os.PathError{Op: "open", Path: "state.json", Err: syscall.EACCES}, &os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}
	require.ErrorContains(t, control.Folder(dir).Explain(denied), "permission denied\nsomething in it belongs to another user, as after a run of root; let root say: chown -R --reference="+dir)
	require.ErrorContains(t, control.Folder(dir).Explain(full), "make room")
	require.Contains(t, control.Folder("/nowhere").Hint(denied), "name a folder that you may write")
	require.NoError(t, os.Chmod(dir, 0o500))
	require.Contains(t, control.Folder(dir).Hint(denied), "name a folder that you may write")
	other := os.ErrExist
	require.Equal(t, other, control.Folder(dir).Explain(other))
}

// A full disk does not prevent taking the write lock.
func TestALockNeedsNoRoom(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "agent.lock")
	require.NoError(t, os.Symlink("/dev/full", name))
	release, err := (control.Holder{Verb: "agent"}).Lock(name)
	require.NoError(t, err)
	release()
}

// Files that root makes in the folder of an agent that is not root belong to the agent.
func TestLocksBelongToTheDataFolder(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	dir := t.TempDir()
	require.NoError(t, os.Chown(dir, 1234, 1234))
	release, err := control.Folder(dir).LockHost(&model.Host{Name: "father"}, "apply")
	require.NoError(t, err)
	defer release()
	files, err := filepath.Glob(filepath.Join(dir, "locks", "*"))
	require.NoError(t, err)
	for _, name := range append(files, filepath.Join(dir, "locks")) {
		info, err := os.Stat(name)
		require.NoError(t, err)
		require.Equal(t, uint32(1234), info.Sys().(*syscall.Stat_t).Uid, name)
	}
	_, err = control.Folder(dir).LockHost(&model.Host{Name: "father"}, "agent")
	require.ErrorContains(t, err, fmt.Sprintf("host father is being changed by %s: pid %d, apply, since ", control.Whoami(), os.Getpid()))
}

// A host below that turns ready or not is an event; what it says otherwise is none.
func TestEventsOfHostsBelow(t *testing.T) {
	l := control.NewEventLog(noon)
	before := wire.Report{}
	for _, step := range []struct {
		name  string
		ready bool
		nodes []wire.ReportNode
		want  []string
	}{
		{"the first report", false, []wire.ReportNode{{Name: "inner", Type: "pve", Parent: "branch-7", Ready: true}, {Name: "web", Type: "vm", Parent: "inner"}}, []string{"host-not-ready host.branch-7: no quorum", "host-ready host.inner:"}},
		{"nothing new", false, []wire.ReportNode{{Name: "inner", Type: "pve", Parent: "branch-7", Ready: true, Drift: 1}}, nil},
		{"both turn", true, []wire.ReportNode{{Name: "inner", Type: "pve", Parent: "branch-7", Error: "no\nroute"}}, []string{"host-ready host.branch-7:", "host-not-ready host.inner: no route"}},
		{"one is gone", true, nil, nil},
	} {
		after := wire.Report{Identity: "branch-7", Ready: step.ready, Nodes: step.nodes, Findings: diag.List{{Severity: diag.Error, Summary: "no quorum"}}}
		all, _, _ := l.After("")
		l.Reported(before, after, noon, func(string) bool { return true })
		now, _, _ := l.After("")
		require.Equal(t, step.want, lines(now[len(all):]), step.name)
		before = after
	}
}

// Over HTTPS the name is the word of the caller, so what is recorded has the address, too.
func TestByHasTheAddress(t *testing.T) {
	for remote, want := range map[string]string{"@": "ada@desk", "": "ada@desk", "192.0.2.7:51812": "ada@desk at 192.0.2.7", "[2001:db8::1]:443": "ada@desk at 2001:db8::1"} {
		require.Equal(t, want, control.By(&http.Request{RemoteAddr: remote}, "ada@desk"))
	}
}
