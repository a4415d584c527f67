package control_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/plan"
)

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
func TestBetween(t *testing.T) {
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
			s.Running = &agent.Running{Commit: s.Head.ID, Since: noon, Now: []agent.StepNow{{Address: "vm.b", Action: plan.Update, Since: s.At}}}
		}, []string{"step-ended vm.aaaaa: create, after 12s", "step-started vm.baaaa: update"}},
		{"the end", func(s *agent.Status) {
			s.Running = nil
			s.Last = &agent.PassStatus{Commit: s.Head.ID, Outcome: engine.Done, Ended: s.At, Drift: true, Summary: plan.Summary{Create: 1, Update: 1}}
			s.Nodes = []engine.NodeStatus{{Address: "vm.a", Phase: "run", Ready: true}, {Address: "vm.b", Phase: "run", Drift: 2, Error: "its checks\nfail"}}
		}, []string{
			"step-ended vm.baaaa: update, after 0s", "pass-ended aaaa: done, 1 to create, 1 to update, drift",
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
