// Package controltest has a fake agent, for tests of clients of its socket.
package controltest

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// Agent is a fake agent. Set its fields before the first request.
type Agent struct {
	Pass    agent.PassStatus
	Passing chan struct{} // closed: the pass that Reconcile waits for is over
	Free    chan struct{} // contains a token while the agent is not paused
	List    []ledger.Receipt
	Events  *control.EventLog
	Broken  []string

	mu        sync.Mutex
	status    agent.Status
	checks    int
	holders   []string
	suspended []ledger.Suspension
}

// New makes an agent of host father that is idle and healthy.
func New() *Agent {
	f := &Agent{Passing: make(chan struct{}), Free: make(chan struct{}, 1), Events: control.NewEventLog(time.Now())}
	f.Free <- struct{}{}
	f.status = agent.Status{Version: 1, Agent: "v1", Identity: "father", PID: 1, State: agent.Idle, Healthy: true, Summary: "father is as it should be"}
	return f
}

// Status is as set, with the suspensions.
func (f *Agent) Status() agent.Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.status
	s.Suspended = append([]ledger.Suspension{}, f.suspended...)
	return s
}

// CheckNow counts.
func (f *Agent) CheckNow() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.checks++
}

// Reconcile waits until Passing is closed.
func (f *Agent) Reconcile(ctx context.Context) (agent.PassStatus, error) {
	f.CheckNow()
	select {
	case <-f.Passing:
		return f.Pass, nil
	case <-ctx.Done():
		return agent.PassStatus{}, ctx.Err()
	}
}

// Pause takes the token of Free.
func (f *Agent) Pause(ctx context.Context, who string) (func(), error) {
	select {
	case <-f.Free:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.holders = append(f.holders, who)
	return func() { f.Free <- struct{}{} }, nil
}

// Suspend remembers.
func (f *Agent) Suspend(s ledger.Suspension) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.suspended = append(f.suspended, s)
	return nil
}

// Resume forgets.
func (f *Agent) Resume(manifest string) (bool, error) {
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

// Last gives List.
func (f *Agent) Last(n int, match func(*ledger.Receipt) bool) ([]ledger.Receipt, error) {
	var out []ledger.Receipt
	for _, r := range f.List {
		if (match == nil || match(&r)) && (n == 0 || len(out) < n) {
			out = append(out, r)
		}
	}
	return out, nil
}

// Verify gives Broken.
func (f *Agent) Verify(ledger.Expect) (ledger.Proof, error) {
	return ledger.Proof{Intact: len(f.List), Broken: append([]string{}, f.Broken...), Keys: []string{}}, nil
}

// VerifyNodes has one check that fails, of node app. For "early" no pass has seen it yet.
func (*Agent) VerifyNodes(_ context.Context, by string, match func(*engine.Probe) bool) (engine.Verified, error) {
	if by == "early" {
		return engine.Verified{}, agent.ErrNotSeen
	}
	p := engine.Probe{Node: "app", Manifest: "web"}
	p.Subject.Address = model.Address{Kind: "vm", Name: "app"}
	v := engine.Verified{Host: "father", Commit: by}
	if match(&p) {
		v.Checks = []engine.CheckRun{{Address: "vm.app", Node: "app", Check: "up", Status: engine.RunFailed, Detail: "exit 1", Seconds: 2}}
	}
	return v, nil
}

// Checks returns the number of requested checks.
func (f *Agent) Checks() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.checks
}

// Holders are those that paused it, in order.
func (f *Agent) Holders() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.holders)
}

// Change changes its status.
func (f *Agent) Change(edit func(*agent.Status)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	edit(&f.status)
}

// Serve answers for an agent of host father, which has one manifest, web, until end is
// called or the test ends.
func (f *Agent) Serve(t *testing.T, api string) (socket string, end func()) {
	t.Helper()
	socket = filepath.Join(ShortDir(t), "agent.sock")
	ln, err := control.Listen(t.Context(), socket)
	noError(t, err)
	facts := control.NewFacts("father")
	facts.Site(engine.Desired{Commit: "none", Site: &model.Site{
		Hosts: map[string]*model.Host{"father": {Name: "father", API: api}}, Manifests: map[string]*model.Manifest{"web": {Name: "web", Host: "father"}},
	}})
	c := &control.Server{
		Agent: f, Receipts: f, Log: slog.New(slog.DiscardHandler), Facts: facts, Events: f.Events,
		Card: control.Card{Version: 1, Program: "v1", Identity: "father", DataDir: "/data", PID: 1},
		Tree: func() wire.Report {
			return wire.Report{Version: 1, Identity: "father", Phase: wire.PhaseRun, Ready: true, Nodes: []wire.ReportNode{{Name: "app", Type: "vm", Parent: "father", Phase: wire.PhaseRun, Ready: true}}}
		},
		Wake: func(node string) wire.Asked {
			return map[string]wire.Asked{"app": wire.AskedChecking, "away": wire.AskedKept, "web": wire.AskedPushed}[node]
		},
	}
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- c.Serve(ctx, ln) }()
	end = sync.OnceFunc(func() {
		cancel()
		noError(t, <-over)
	})
	t.Cleanup(end)
	return socket, end
}

// ShortDir is a folder whose name leaves room for that of a socket.
func ShortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hg")
	noError(t, err)
	t.Cleanup(func() { noError(t, os.RemoveAll(dir)) })
	return dir
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
