package engine

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
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
	Load func(ctx context.Context, c model.Commit) Desired
	Open func(d Desired, h *model.Host) (Driver, error)

	Ledger *ledger.Ledger
	// Exclusive makes this process the one writer of the host, for one pass: it waits
	// until it is, or ctx ends. It tells blocked, at most once, who is in the way. May be nil.
	Exclusive func(ctx context.Context, blocked func(holder string)) (release func(), err error)

	Poll  time.Duration     // between two looks at the repository, with 10 % jitter; 0: 60 s
	Drift time.Duration     // between two full checks of the host; 0: 5 m
	Width int               // steps at once; 0: 8
	Log   *slog.Logger      // nil: discard
	Tell  func(AgentStatus) // told of every change of state, on the agent's goroutine; must not block. May be nil
}

// Agent converges one host to a repository, again and again.
type Agent struct{ o AgentOptions }

var errNotBuilt = errors.New("not built")

// NewAgent makes an agent; it reads what the ledger knows, and does nothing yet.
func NewAgent(o AgentOptions) (*Agent, error) { return &Agent{o}, errNotBuilt }

// Run works until stop is closed (then it starts nothing new, finishes what runs
// and returns) or ctx ends (then it leaves what runs). All its goroutines have ended
// when it returns. It returns nil after stop, the cause after ctx.
func (a *Agent) Run(ctx context.Context, stop <-chan struct{}) error { return errNotBuilt }

// Once fetches and makes one pass, as Run would, and reports. While everything is
// suspended it only plans.
func (a *Agent) Once(ctx context.Context, stop <-chan struct{}) Report { return Report{} }

// Look asks for a look at repository and host as soon as may be; it returns at once.
// Any number of calls before that look are one.
func (a *Agent) Look() {}

// Reconcile is Look, and waits for the end of the first pass that began after the
// call.
func (a *Agent) Reconcile(ctx context.Context) (PassStatus, error) { return PassStatus{}, errNotBuilt }

// Status may be called from any goroutine, at any time.
func (a *Agent) Status() AgentStatus { return AgentStatus{} }

// Suspend keeps the agent from converging a manifest, or everything; a second word
// about the same replaces the first. It holds when it returns, but for steps that run.
func (a *Agent) Suspend(s ledger.Suspension) error { return errNotBuilt }

// Resume takes a suspension back and looks at once; false if there was none.
func (a *Agent) Resume(manifest string) (bool, error) { return false, errNotBuilt }

// Hold makes somebody else the one writer until release is called or ctx ends: it
// waits for the pass under way, and keeps the next from beginning.
func (a *Agent) Hold(ctx context.Context, who string) (release func(), err error) {
	return nil, errNotBuilt
}

// Stuck says since when the agent should have come on and did not; zero while all is
// well. A watchdog is fed as long as it is zero.
func (a *Agent) Stuck() time.Time { return time.Time{} }
