// Package agent is the daemon: it runs passes (package engine) in a loop, with the commits of a repository, and
// reports the state of the host.
//
// One goroutine owns all state (type loop). It does one thing after the other: check the repository, run a pass,
// wait. Slow operations (the repository, the pass, the write lock) run in goroutines of their own, which get values
// and return values; meanwhile the loop serves its inbox. So requests never wait for a step, and nothing is locked.
//
// The inbox holds requests of people (suspend, resume, pause, check now) and events of the current pass (a step
// began, a check is still failing). After each change the loop publishes an immutable view, which Status and Stuck
// read.
//
//	agent.go      the configuration of an agent, and Run
//	requests.go   the inbox
//	loop.go       when it checks repository and host, and when it retries
//	converge.go   one cycle: the newest commit, or else the last good one
//	pass.go       one pass: its input, and its events
//	upstream.go   the checks of the repository, and what trailers allow
//	record.go     what it records of a pass
//	memory.go     what survives a restart
//	status.go, view.go, summary.go, progress.go   what it publishes
//	receipt.go    what the ledger keeps of a pass
//	changed.go    when it checks a host on which something changed
//	membership.go whether a commit has the agent, and what a child does that left the site
//	children.go   the children of the host that left the site
//	checks.go     the checks of guests between passes
//	panics.go     recovery from a panic
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/health"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
)

// source provides commits. At most one of its methods runs at a time.
type source interface {
	// Head fetches the newest commit of the branch and makes its files available here. If nothing changed, that
	// costs one request.
	Head(ctx context.Context) (model.Commit, error)

	// Commit describes a commit that was fetched before and is still available.
	Commit(ctx context.Context, id string) (model.Commit, error)

	// Since lists the commits that to has and from has not, newest first;
	// model.ErrUnrelated if from is not known to be an ancestor of to.
	Since(ctx context.Context, from, to string) ([]model.Commit, error)

	// Keep names the commits, beside the head, that must stay available. The others may
	// be forgotten, and so may history before the oldest of these.
	Keep(ids ...string) error
}

// Options configure an Agent. All but Poll, Drift, Width, Exclusive, Parent, Children, Revoke, InForce, Forget,
// Observed, Log, Notify and the texts must be set.
type Options struct {
	Identity string
	Program  string // version, for its status
	URL      string // of the repository, without credentials, for its status
	Branch   string
	Path     string

	Source source
	// Load reads the site of a commit and checks it with its rules for sites:
	// Desired.Findings has what both found. It is called at the beginning of every
	// pass, since secrets and rules may change without a commit; the agent keeps no site
	// between two passes.
	Load func(ctx context.Context, c model.Commit) engine.Desired
	Open func(d engine.Desired, h *model.Host) (engine.Driver, error)

	Health health.Prober // tries the checks of guests; the agent sets its Tell
	Ledger *ledger.Ledger
	// Exclusive takes the write lock of the host, for one pass: it waits until it has it,
	// or ctx ends; ctx is for the waiting only. It calls blocked, at most once and on the
	// goroutine that called it, with who holds the lock. May be nil.
	Exclusive func(ctx context.Context, h *model.Host, blocked func(holder string)) (release func(), err error)
	// InForce is called with the site of the commit that is converged to, and how far the host is: at the start of
	// Run, when one of them is another one, and again in each pass, as secrets, rules and guests may change. It is called
	// by one goroutine at a time, never while Source is in use, and must not ask the agent. May be nil.
	InForce func(ctx context.Context, d engine.Desired, host HostState)
	// Forget is called before a guest is created or replaced, and after it was removed: what it reported came from another
	// machine. May be nil.
	Forget func(node string)
	// Revoke revokes the tokens of a host that left the site and is empty, and reports whether they are revoked: a person may
	// have done it. May be nil where Children is.
	Revoke func(host string, empty bool) (bool, error)
	// Parent gives what the parent said last, nil as long as it said nothing. Nil for the agent of a host.
	Parent func() *Bundle
	// Children gives what is known of the children, by the last report of each; the caller may change the map. The
	// agent itself finds out which of them are Gone. May be nil.
	Children func() map[string]model.ChildReport
	// Outputs writes the outputs of the site that this agent writes, with the state that a pass left, and removes those that it
	// wrote and that left the site. Before is what it returned last. May be nil.
	Outputs func(ctx context.Context, d engine.Desired, nodes []engine.NodeStatus, before []OutputStatus) []OutputStatus
	// Observed is called with what an observation of the host saw; see engine.Pass.
	Observed func(model.Observed)

	Poll  time.Duration // between two questions to the repository, with 10 % jitter; 0: 60 s
	Drift time.Duration // between two full checks of the host; 0: 5 m
	Width int           // steps at once; 0: 8
	// Replaced reports whether another program is installed: then Run ends between two passes. May be nil.
	Replaced func() bool
	Log      *slog.Logger // nil: discard
	Notify   func(Status) // called after every change of state; must not block, nor ask the agent for anything but its status. May be nil
}

// HostState compares the host with the applied commit.
type HostState struct {
	Removed   []string // children that the site lacks: on the host, and hosts whose parent this agent was
	Moved     []string // hosts whose parent this agent was, and that have another one
	Converged string   // the last commit that the host converged to completely; "" for none
}

// ErrUnknownIdentity is why an agent converges nothing, not even the last good
// commit: the site no longer has its host, so another agent may own the guests by now.
var ErrUnknownIdentity = errors.New("identity is not in the site")

// Agent converges one host to a repository, again and again. Its methods may be called
// from any goroutine, also before Run and after it.
type Agent struct {
	inbox     chan envelope
	idle      chan *loop // holds the loop while neither Run nor Once does
	published *atomic.Pointer[view]
	write     chan struct{} // full while another writer may change the host
	ended     chan struct{} // closed when Run or Once has ended
	checks    *checks
}

// New makes an agent; it reads what the ledger knows, and does nothing yet. An agent is
// for one Run, or one Once.
func New(o Options) (*Agent, error) {
	if o.Identity == "" || o.Source == nil || o.Load == nil || o.Open == nil || o.Ledger == nil {
		return nil, errors.New("new agent: identity, source, load, open and ledger must be set")
	}
	o.Poll = cmp.Or(max(o.Poll, 0), time.Minute)
	o.Drift = cmp.Or(max(o.Drift, 0), 5*time.Minute)
	o.Width = cmp.Or(max(o.Width, 0), 8)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	a := &Agent{
		inbox: make(chan envelope), idle: make(chan *loop, 1), published: &atomic.Pointer[view]{},
		write: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	l := &loop{
		o: o, agent: a, memory: remembered(o), journal: journal{log: o.Log},
		status: Status{
			Version: 1, Agent: o.Program, Identity: o.Identity, PID: os.Getpid(), Started: time.Now().UTC(), State: Starting,
			Nodes: []engine.NodeStatus{},
		},
	}
	l.upstream = upstream{
		source: o.Source, branch: o.Branch, during: l.during, log: o.Log, commits: map[string]model.Commit{},
		status: RepositoryStatus{URL: o.URL, Branch: o.Branch, Path: o.Path},
	}
	a.checks = newChecks(o.Health, l.memory.FailingChecks, func(t turnedChecks) { a.send(t) })
	l.publish()
	a.idle <- l
	return a, nil
}

// Run works until stop is closed (then it finishes running steps and starts no new ones
// and returns) or ctx ends (then it leaves what runs). All its goroutines have ended
// when it returns. It returns nil after stop, the cause after ctx.
func (a *Agent) Run(ctx context.Context, stop <-chan struct{}) error {
	l := <-a.idle
	var beside sync.WaitGroup
	defer beside.Wait()
	defer l.end() // then what runs beside it can still report
	besides, end := context.WithCancel(ctx)
	defer end()
	beside.Go(func() { a.checks.run(besides) })
	l.begin(ctx, stop)
	l.o.Log.Info("agent started", "identity", l.o.Identity, "program", l.o.Program, "repository", l.o.URL, "branch", l.o.Branch)
	showLastGood(ctx, l)
	next, more := l.requested.take().and(work{fetch: true, check: true}), !engine.IsClosed(stop) && ctx.Err() == nil
	for more {
		l.cycle(ctx, next)
		next, more = l.wait(ctx)
	}
	l.o.Log.Info("agent stopped", "identity", l.o.Identity)
	if engine.IsClosed(stop) {
		return nil
	}
	return context.Cause(ctx)
}

// Once fetches and runs one pass, as Run would, and reports. If everything is suspended, it only plans. If head is
// refused or the repository does not respond, it converges to the last good commit, and the report says both.
func (a *Agent) Once(ctx context.Context, stop <-chan struct{}) engine.Report {
	l := <-a.idle
	defer l.end()
	l.begin(ctx, stop)
	l.memory.expire(time.Now())
	r := l.cycle(ctx, l.requested.take().and(work{fetch: true, check: true}))
	if l.upstream.lost == nil || r.Outcome == engine.Interrupted {
		return r
	}
	r.Findings = append(engine.FindingOf(fmt.Errorf("repository does not answer: %w", l.upstream.lost)), r.Findings...)
	if r.Success {
		r.Success, r.Outcome, r.Err = false, engine.Failed, l.upstream.lost
		if len(r.Results) > 0 {
			r.Outcome = engine.Partly
		}
	}
	return r
}

// Status is the present state of the agent and the host.
func (a *Agent) Status() Status { return a.published.Load().at(time.Now(), a.checks.list()) }

// Stuck returns the time since which the agent should have made progress but did not; zero if all is well. The
// watchdog is fed while it is zero. The agent should have made progress:
//
//   - when its next check is due;
//   - 30 minutes after it asked the repository (which has deadlines of its own);
//   - 10 minutes after it began to load a site, to open or observe a host, to evaluate the
//     rules, to record a pass, or to take the write lock without a report of its holder;
//   - when the first of the running steps has exceeded the time that its manifest
//     gives it, or 10 minutes after the last one ended;
//
// each with two minutes of grace. It is never stuck while another process holds the write lock, or outside Run.
func (a *Agent) Stuck() (since time.Time) {
	if due := a.published.Load().due; !due.IsZero() && time.Now().After(due) {
		since = due
	}
	return since
}
