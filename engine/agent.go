package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/health"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// Source is where commits come from. Its methods are called by one goroutine.
type Source interface {
	// Head asks the repository for the newest commit of the branch, and makes its
	// files available here. Where nothing changed that is one request.
	Head(ctx context.Context) (model.Commit, error)

	// Commit tells of a commit that was fetched before and is still available.
	Commit(ctx context.Context, id string) (model.Commit, error)

	// Since lists the commits that to has and from has not, newest first. ErrUnrelated
	// if from is not known to be an ancestor of to.
	Since(ctx context.Context, from, to string) ([]model.Commit, error)

	// Keep says which commits, beside the head, must stay available; the others may
	// be forgotten, and so may history before the oldest of these.
	Keep(ids ...string) error
}

// ErrUnrelated is why Source.Since cannot tell what lies between two commits: the
// older one was never seen, or the branch was rewritten.
var ErrUnrelated = errors.New("not known to be an ancestor")

// Question is what the rules of a commit are asked about a plan.
type Question struct {
	Site   *model.Site
	Want   *model.Want
	Have   model.Observed
	Plan   *plan.Plan
	Commit model.Commit // zero for a folder that is no checkout; ID alone where no more is known

	Destroy      bool // the removal was asked for by name
	AllowDeletes int  // so many removals are granted, by flag or by trailers
	Unattended   bool // nobody watches: an agent's pass
	Untraced     bool // no trailer grants any: no commit is known that the host converged to
}

// Judge holds a plan against the rules. An error among the findings forbids all of
// the plan: of source guard it is a guard's, of any other a policy's.
type Judge func(ctx context.Context, q Question) diag.List

// AgentOptions is what an agent is made of. All but Poll, Drift, Width, Exclusive,
// Log, Tell and the texts must be set.
type AgentOptions struct {
	Identity string
	Program  string // version, for its status
	URL      string // of the repository, without credentials, for its status
	Branch   string
	Path     string

	Source Source
	// Load reads the site of a commit, and holds it against its rules for sites:
	// Desired.Findings has what both say, Desired.Judge is how its plans are judged.
	// It is called at the beginning of every pass, since secrets and rules may change without a
	// commit; the agent keeps no site between two passes.
	Load func(ctx context.Context, c model.Commit) Desired
	Open func(d Desired, h *model.Host) (Driver, error)

	Health health.Prober // tries the checks of guests; its Tell is the agent's own
	Ledger *ledger.Ledger
	// Exclusive makes this process the one writer of the host, for one pass: it waits
	// until it is, or ctx ends. It tells blocked, at most once and on the goroutine that called it, who is in the way;
	// ctx is for the waiting only. May be nil.
	Exclusive func(ctx context.Context, blocked func(holder string)) (release func(), err error)

	Poll  time.Duration     // between two looks at the repository, with 10 % jitter; 0: 60 s
	Drift time.Duration     // between two full checks of the host; 0: 5 m
	Width int               // steps at once; 0: 8
	Log   *slog.Logger      // nil: discard
	Tell  func(AgentStatus) // told of every change of state, on the agent's goroutine; must not block. May be nil
}

// ErrUnknownIdentity is why an agent converges nothing, not even the last good
// commit: the site does not have its host any more, so another agent may own the
// guests by now.
var ErrUnknownIdentity = errors.New("identity is not in the site")

// Agent converges one host to a repository, again and again.
//
// One goroutine, that of Run or Once, does everything in turn: it asks the
// repository, makes a pass, waits. What it knows for itself alone are the fields at
// the end. What others may ask of it or say to it lies on the desk, under a lock,
// because people suspend, ask and wait at any moment, also while a step takes an
// hour; the agent reads there what was said when it comes to it.
type Agent struct {
	o    AgentOptions
	pen  chan struct{} // of length 1, full while somebody is the one writer
	wake chan struct{} // of length 1: something was put on the desk
	over chan struct{} // closed when Run or Once has ended
	desk desk

	fails  int       // questions in a row that the repository did not answer
	tries  int       // passes in a row that did not come to their end
	lost   error     // why the repository did not answer last
	kept   string    // the commits that Source.Keep was told last
	look   time.Time // when the repository is asked next, by the clock that nobody can set
	full   time.Time // when the host is checked next, by the same
	grants allowance // of the pass under way, less what it has used
	said   said
	limits func(plan.Step) time.Duration // how long the steps of the pass under way may take
}

// said is what stands in the log already, so that it is not told at every tick.
type said struct{ refused, trouble, stranger, kept string }

// NewAgent makes an agent; it reads what the ledger knows, and does nothing yet. An
// agent is for one Run, or one Once.
func NewAgent(o AgentOptions) (*Agent, error) {
	if o.Identity == "" || o.Source == nil || o.Load == nil || o.Open == nil || o.Ledger == nil {
		return nil, errors.New("new agent: identity, source, load, open and ledger must be set")
	}
	if o.Poll <= 0 {
		o.Poll = time.Minute
	}
	if o.Drift <= 0 {
		o.Drift = 5 * time.Minute
	}
	if o.Width <= 0 {
		o.Width = 8
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	a := &Agent{o: o, pen: make(chan struct{}, 1), wake: make(chan struct{}, 1), over: make(chan struct{})}
	state, err := o.Ledger.State()
	switch {
	case err != nil:
		o.Log.Warn("what was known is lost: history, suspensions, and which commit was good", "error", err)
	case state.Identity != "" && state.Identity != o.Identity:
		o.Log.Warn("the state is of another identity, so it is left aside", "state_of", state.Identity, "identity", o.Identity)
		state = ledger.State{}
	}
	state.Identity = o.Identity
	a.desk.state = state
	a.desk.commits = map[string]model.Commit{}
	a.desk.status = AgentStatus{
		Version: 1, Agent: o.Program, Identity: o.Identity, PID: os.Getpid(), Started: time.Now().UTC(), State: Starting,
		Repository: RepositoryStatus{URL: o.URL, Branch: o.Branch, Path: o.Path}, Nodes: []NodeStatus{},
	}
	return a, nil
}

// Run works until stop is closed (then it starts nothing new, finishes what runs
// and returns) or ctx ends (then it leaves what runs). All its goroutines have ended
// when it returns. It returns nil after stop, the cause after ctx.
func (a *Agent) Run(ctx context.Context, stop <-chan struct{}) error {
	defer a.begin(ctx, stop)()
	a.o.Log.Info("agent started", "identity", a.o.Identity, "program", a.o.Program, "repository", a.o.URL, "branch", a.o.Branch)
	next, goOn := a.take().and(ask{fetch: true, full: true}), !isClosed(stop) && ctx.Err() == nil
	for goOn {
		a.cycle(ctx, stop, next)
		next, goOn = a.rest(ctx, stop)
	}
	a.o.Log.Info("agent stopped", "identity", a.o.Identity)
	if isClosed(stop) {
		return nil
	}
	return context.Cause(ctx)
}

// Once fetches and makes one pass, as Run would, and reports. While everything is
// suspended it only plans. Where head is refused, or the repository does not answer,
// it converges to the last good commit, and the report says both.
func (a *Agent) Once(ctx context.Context, stop <-chan struct{}) Report {
	defer a.begin(ctx, stop)()
	a.expire(time.Now())
	r := a.cycle(ctx, stop, a.take().and(ask{fetch: true, full: true}))
	if a.lost == nil || r.Outcome == Interrupted {
		return r
	}
	r.Findings = append(FindingOf(fmt.Errorf("repository does not answer: %w", a.lost)), r.Findings...)
	if r.Success {
		r.Success, r.Outcome, r.Err = false, Failed, a.lost
		if len(r.Results) > 0 {
			r.Outcome = Partly
		}
	}
	return r
}

// Look asks for a look at repository and host as soon as may be; it returns at once.
// Any number of calls before that look are one.
func (a *Agent) Look() { a.ask(ask{fetch: true, full: true}) }

// Reconcile is Look, and waits for the end of the first pass that began after the
// call. Where head was refused that is the pass with the last good commit; Status
// says so. ErrInterrupted if the agent stops first; before Run it waits for it.
func (a *Agent) Reconcile(ctx context.Context) (PassStatus, error) {
	answer := make(chan PassStatus, 1)
	a.ask(ask{fetch: true, full: true, waiters: []chan<- PassStatus{answer}})
	select {
	case s, ok := <-answer:
		return reconciled(s, ok)
	case <-ctx.Done():
		return PassStatus{}, context.Cause(ctx)
	case <-a.over:
	}
	select {
	case s, ok := <-answer: // both at once
		return reconciled(s, ok)
	default:
		return PassStatus{}, ErrInterrupted
	}
}

func reconciled(s PassStatus, ok bool) (PassStatus, error) {
	if !ok {
		return PassStatus{}, ErrInterrupted
	}
	return s, nil
}
