// Package engine is the program; read it first. It turns what a site says into
// what a host is, in one pipeline of values:
//
//	commit → Desired (site) → Want → Observed → Plan → verdict → Results → Report
//
// A Pass is that pipeline, once: it loads the site, resolves what one host shall
// hold, looks at what the host holds, plans the difference, asks whether that may
// be done, does it, and reports. Each arrow is one package (hcl, model, a driver,
// plan, apply) which knows the values and none of its neighbours; this package
// only joins them.
//
// A Pass remembers nothing. What is true is in git and on the host; to go on after
// a failure, a crash or a lost answer is to make another Pass. Every verb that
// looks at a host is one: plan is a Pass without a verdict, apply and destroy ask
// a person, test makes several of them.
//
// Package agent makes passes again and again, with the commits of a repository.
//
// Where the outcome of a step is not known, repeat.go looks again and goes on.
// Whether a guest is well is asked in checked.go, by package health.
package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/health"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// Driver is the way to one host. Its methods may be called from several goroutines.
type Driver interface {
	// Observe reads what the host holds, as far as Want makes it worth reading; it
	// changes nothing. What could not be seen is named in Observed.Unknown. An
	// error means that nothing at all is known.
	Observe(ctx context.Context, w *model.Want) (model.Observed, error)

	// Apply does one step, as apply.Do asks: again is fine, and nothing changes
	// once ctx has ended.
	Apply(ctx context.Context, s plan.Step) error

	// Machine is the way into a guest at a place, for what is done inside it; nil where
	// the driver has none. The driver proves that the guest is the one of the address
	// before it asks anything of it. Near are gateways that the files name. It sends no
	// request itself. The address of what is wanted inside a guest is asked for with the place of
	// that guest: it gives the way by which steps for it are done, and Ping says whether they can be.
	Machine(addr model.Address, at model.Guest, near []netip.Addr) guest.Machine
}

// Releaser is a Driver that keeps something from one call to the next as long as a pass lasts, such as
// connections to guests. The pass calls Release when it is over; the driver may be used again.
type Releaser interface{ Release() }

// Desired is what a commit, or a folder, says.
type Desired struct {
	Site        *model.Site // nil if nothing could be read
	Commit      string      // "" if the folder is no checkout
	Findings    diag.List   // an error among them: it must not converge
	PolicyCheck PolicyCheck // holds plans against the rules of the commit; nil: nothing is ever denied
}

// Question is what the rules of a commit are asked about a plan.
type Question struct {
	Site   *model.Site
	Want   *model.Want
	Have   model.Observed
	Plan   *plan.Plan
	Commit model.Commit // zero for a folder that is not a checkout; ID alone where no more is known

	Destroy      bool    // the removal was asked for by name
	AllowDeletes int     // so many removals are granted, by flag or by trailers
	Before       *Before // what the removals are counted from; nil: from what is on the host
	Unattended   bool    // nobody watches: an agent's pass
	Untraced     bool    // no trailer grants any: no commit is known that the host converged to
}

// Before is the commit that an agent converged to before: with it all agents of a site count the same removals,
// wherever in the tree the guests are.
type Before struct {
	Site    *model.Site
	Granted int // removals that were granted since, those included that are done
}

// PolicyCheck checks a plan against the rules. An error among the findings forbids all of
// the plan: of source guard it is a guard's, of any other a policy's.
type PolicyCheck func(ctx context.Context, q Question) diag.List

// ErrInterrupted is why a pass ends when Pass.Stop is closed. Who cancels the
// context for the same reason gives it as the cause.
var ErrInterrupted = errors.New("interrupted")

// Pass is everything a pass needs. Load, Host and Open must be set.
type Pass struct {
	Verb string // for the report: apply, destroy, test
	Host string // the host it converges

	// Scope: everything of the host, unless one of these narrows it.
	Manifest    string
	Targets     []model.Address
	Destroy     bool // want nothing of the manifest
	RefreshOnly bool // only look: a difference is reported, and no step made of it

	Load func(context.Context) Desired
	Open func(*model.Host) (Driver, error)

	// What rules are told of the pass; see Question. The commit of a site is known to
	// them by Desired.Commit alone where Commit is nil.
	Commit       *model.Commit
	AllowDeletes int
	Unattended   bool
	Untraced     bool

	// Before gives what the removals of a plan are counted from, if it has any; see Question. May be nil, and give nil.
	Before func(context.Context) *Before

	// Earlier gives the site of the commit that the host converged to, if that is another one: it says how nodes are entered
	// that lost their spec. May be nil, and give nil.
	Earlier func(context.Context) *model.Site

	// Verdict is asked about a plan that no rule denies: true lets it be carried out.
	// Nil means that a plan is all that was asked for.
	Verdict func(context.Context, *plan.Plan) (bool, error)

	// Health tries the checks of guests. A guest that a step makes or changes, and that
	// shall run, is done when its checks hold. Those of Failing without a step are tried
	// once more; what is not on the host is left out. What needs one of them waits no
	// longer for it than that: it had its time in an earlier pass. With Locate those of Failing that
	// have no checks are asked for their address, within a few seconds.
	Health  health.Prober
	Failing []model.Address
	Locate  bool

	Children     map[string]model.Child // what is known of the guests that hold nodes; see plan.Input
	AllowOrphans []string               // that go with what is in them; see plan.Input

	// Changed makes it a pass about these guests alone, as long as the driver can observe them apart and nothing but updates
	// of them is to be done; see model.Want. Otherwise it is one about all.
	Changed map[model.Address]model.Guest

	Avoid      []int    // VMIDs that are drawn last; see plan.Input
	SweepHints []string // of the observation of the last pass; see model.Want

	Width  int               // how many steps run at once; see apply.Options
	Notify func(apply.Event) // told of every step; may be nil

	// Lock takes the write lock of the host before it is opened; it waits until it has it, or
	// ctx ends. Whoever makes the pass releases it. May be nil.
	Lock func(ctx context.Context, h *model.Host) error

	// Observed is called with what each observation of the pass saw, from its goroutine or
	// from that of a step, one at a time. May be nil.
	Observed func(model.Observed)

	// Enter is called when the pass enters a phase, on its goroutine. May be nil.
	Enter func(Phase)

	// Stop, when closed, makes the pass start nothing new: before the first step
	// it ends at once, later when what runs is done. May be nil.
	Stop <-chan struct{}
}

// Phase is what a pass is doing. What a phase after Loading does takes long only where
// something is waited for: Opening, Observing, Checking (asking the rules) and Applying.
type Phase int

// The phases of a pass, in their order; it plans before it opens the host, and after it
// observed it.
const (
	Loading Phase = iota
	Planning
	Opening
	Observing
	Checking
	Applying
)

func (p *Pass) enter(next Phase) {
	if p.Enter != nil {
		p.Enter(next)
	}
}

// course is what a pass came to: a value for each arrow of the pipeline. What it did not
// reach is zero.
type course struct {
	desired  Desired
	findings diag.List   // by the loader, the planner, the rules, the steps; each once
	want     *model.Want // what the plan is about
	all      *model.Want // what the host shall hold
	have     model.Observed
	plan     *plan.Plan
	aside    int       // steps that are left, since only looking was asked for
	ruled    diag.List // what the rules found: it withholds no single step
	accepted bool
	thinking time.Duration // that a person took for the verdict, which is no work of ours
	results  []apply.Result
	checks   map[model.Address]health.Report
}

// ending is why a pass ends before its steps.
type ending struct {
	outcome Outcome
	denied  bool
	err     error // nil where findings say it
}

// Error says it.
func (e *ending) Error() string { return fmt.Sprintf("%s: %v", e.outcome, e.err) }

func failed(err error) error     { return &ending{outcome: Failed, err: err} }
func denied(by Outcome) error    { return &ending{outcome: by, denied: true} }
func onlyPlanned() error         { return &ending{outcome: Planned} }
func sound(found diag.List) bool { return !found.HasErrors() }

// Run makes the pass. Cancelling ctx ends it as soon as the work in progress can be
// left; the report says how far it came.
func (p *Pass) Run(ctx context.Context) Report {
	began := time.Now()
	c, err := p.run(ctx)
	return p.report(ctx, began, c, err)
}

// run is the pipeline.
func (p *Pass) run(ctx context.Context) (c course, err error) {
	stoppable, release := Until(ctx, p.Stop)
	defer release()

	if c.desired, c.findings, err = p.load(stoppable); err != nil {
		return c, err
	}
	want, found, err := p.resolve(stoppable, c.desired, c.findings)
	if c.findings = found; err != nil {
		return c, err
	}
	driver, err := p.open(stoppable, want)
	if err != nil {
		return c, err
	}
	if r, ok := driver.(Releaser); ok {
		defer r.Release()
	}
	c.all = want
	if have, enough, errObserve := p.planChanged(stoppable, driver, &c); !enough {
		if errObserve != nil {
			have = model.NotObserved(p.Host, errObserve)
		}
		c.want, c.have = want, have
		c.plan, c.aside = p.plan(c.desired, want, have, c.findings)
		if c.findings = c.plan.Findings; errObserve != nil {
			return c, failed(why(stoppable, errObserve))
		}
	}
	c.ruled = p.check(stoppable, c)
	c.findings = distinct(c.findings, c.ruled).Sorted()
	c.plan.Findings = c.findings
	if by := OutcomeOf(c.ruled); by != "" && stoppable.Err() == nil && !p.RefreshOnly {
		return c, denied(by)
	}
	c.accepted = stoppable.Err() == nil && !c.have.NothingSeen()
	if c.thinking, err = p.grant(stoppable, c.plan); err != nil {
		return c, err
	}
	return p.apply(ctx, stoppable, driver, c), nil
}

// load reads the site, with what was found in it.
func (p *Pass) load(ctx context.Context) (Desired, diag.List, error) {
	p.enter(Loading)
	d := p.Load(ctx)
	p.enter(Planning)
	if ctx.Err() != nil {
		return Desired{}, nil, failed(why(ctx, nil)) // what was found is about the hurry, not the site
	}
	found := distinct(nil, d.Findings)
	if d.Site == nil && sound(found) {
		found = append(found, diag.Errorf(diag.Range{}, "no site", "there is nothing to converge to"))
	}
	if !sound(found) {
		return d, found, denied(Invalid)
	}
	return d, found, nil
}

// resolve says what the host shall hold, and adds what it found to what was found before.
func (p *Pass) resolve(ctx context.Context, d Desired, found diag.List) (*model.Want, diag.List, error) {
	want, more := d.Site.Want(p.Host)
	if found = distinct(found, more); !sound(found) {
		return nil, found, denied(Invalid)
	}
	own := *want // the site keeps its own
	if len(p.SweepHints) > 0 {
		own.SweepHints = p.SweepHints
	}
	if p.Earlier != nil && !p.Destroy {
		if earlier := p.Earlier(ctx); earlier != nil {
			own.State = maps.Clone(want.State)
			found = distinct(found, d.Site.Withdraw(&own, earlier))
		}
	}
	if p.Destroy { // what is inside of guests goes with them
		own.State = maps.Clone(want.State)
		maps.DeleteFunc(own.State, func(_ model.Address, r *model.Resource) bool { return r.Inside != (model.Address{}) })
	}
	want = &own
	return want, found, nil
}

// open opens the host, after its write lock was taken.
func (p *Pass) open(ctx context.Context, w *model.Want) (Driver, error) {
	p.enter(Opening)
	if p.Lock != nil {
		if err := p.Lock(ctx, w.Host); err != nil {
			return nil, failed(why(ctx, err))
		}
	}
	driver, err := p.Open(w.Host)
	if err != nil {
		return nil, failed(fmt.Errorf("open host %s: %w", p.Host, err))
	}
	p.enter(Observing)
	return driver, nil
}

// observe reads the host, and lets others know.
func (p *Pass) observe(ctx context.Context, d Driver, w *model.Want) (model.Observed, error) {
	have, err := d.Observe(ctx, w)
	if err == nil && p.Observed != nil && !have.Only {
		p.Observed(have)
	}
	return have, err
}

// plan plans the difference. What was found before it belongs to its document, too. Aside
// is how many steps were taken out again, since only looking was asked for.
func (p *Pass) plan(d Desired, w *model.Want, have model.Observed, found diag.List) (made *plan.Plan, aside int) {
	p.enter(Planning)
	made = plan.Make(plan.Input{
		Site: d.Site.Name, Commit: d.Commit, Host: p.Host, Kinds: d.Site.Kinds, Want: w, Have: have,
		Manifest: p.Manifest, Targets: p.Targets, Destroy: p.Destroy, Avoid: p.Avoid,
		Children: p.Children, AllowOrphans: p.AllowOrphans,
	})
	if p.RefreshOnly {
		aside = setAside(made)
	}
	unchanged := func(f diag.Finding) bool {
		return f.Severity == diag.Warning && f.Source == diag.FromSite && isUnchanged(f.Address, made, have)
	}
	made.Findings = append(slices.DeleteFunc(slices.Clone(found), unchanged), made.Findings...).Sorted()
	return made, aside
}

// setAside turns the steps of a plan into things that are reported and left as they are,
// and counts them.
func setAside(p *plan.Plan) int {
	for _, s := range p.Steps {
		p.Deferred = append(p.Deferred, model.Deferred{Address: s.Address.String(), Why: fmt.Sprintf("%s: %s", s.Action, s.Reason)})
	}
	n := len(p.Steps)
	if n > 0 {
		p.Findings = append(p.Findings, diag.Finding{
			Severity: diag.Warning, Source: diag.FromGuard,
			Summary: fmt.Sprintf("differences left as they are: %d", n), Detail: "only looking was asked for",
		})
	}
	p.Steps, p.Summary = nil, plan.Summary{Unchanged: p.Summary.Unchanged, Unmanaged: p.Summary.Unmanaged}
	return n
}

// check holds the plan against the rules of its commit.
func (p *Pass) check(ctx context.Context, c course) diag.List {
	p.enter(Checking)
	if c.desired.PolicyCheck == nil {
		return nil
	}
	q := p.question(c.desired, c.all, c.have, c.plan)
	if p.Before != nil && !p.Destroy && slices.ContainsFunc(c.plan.Steps, removesGuest) {
		q.Before = p.Before(ctx)
	}
	return c.desired.PolicyCheck(ctx, q)
}

// removesGuest reports whether nothing is left of a guest after a step.
func removesGuest(s plan.Step) bool {
	return (s.Action == plan.Delete || s.Action == plan.Replace) && s.VMID != 0
}

func (p *Pass) question(d Desired, w *model.Want, have model.Observed, made *plan.Plan) Question {
	commit := model.Commit{ID: d.Commit}
	if p.Commit != nil {
		commit = *p.Commit
	}
	return Question{
		Site: d.Site, Want: w, Have: have, Plan: made, Commit: commit,
		Destroy: p.Destroy, AllowDeletes: p.AllowDeletes, Unattended: p.Unattended, Untraced: p.Untraced,
	}
}

// grant asks whether a plan may be carried out, and how long the answer took.
func (p *Pass) grant(ctx context.Context, made *plan.Plan) (took time.Duration, err error) {
	p.enter(Applying)
	granted, asked := false, time.Now()
	if p.Verdict != nil {
		granted, err = p.Verdict(ctx, made)
	}
	took = time.Since(asked)
	switch {
	case err != nil || ctx.Err() != nil:
		return took, failed(why(ctx, err))
	case !granted:
		return took, onlyPlanned()
	}
	return took, nil
}

// apply carries the plan out, and tries the checks of guests. Stoppable ends at a stop, ctx
// does not: what runs is finished.
func (p *Pass) apply(ctx, stoppable context.Context, driver Driver, c course) course {
	checks := p.checker(c, driver)
	again := p.repeater(c, driver)
	options := p.options(c.desired.Site, c.want)
	options.Notify, checks.now = again.notify(), again.now
	do := checks.around(again.around(apply.Retry(driver.Apply, apply.Backoff{})))
	c.results = again.renumbered(apply.Run(ctx, c.plan.Steps, options, do))
	c.plan = again.renumberedPlan()
	c.findings = append(distinct(c.findings, again.found), beside(c.results)...)
	checks.again(stoppable, p.Failing, p.Width)
	if p.Locate {
		checks.locate(stoppable, p.Failing)
	}
	c.checks = checks.all()
	return c
}

const (
	// stepTime is how long a step may take where its manifest says nothing.
	stepTime = 10 * time.Minute
	// besideTime is how long one may take that belongs to no manifest: an image is
	// downloaded, over whatever line the host has.
	besideTime = time.Hour
)

// options takes from the site what its manifests say about failures and waits.
func (p *Pass) options(s *model.Site, w *model.Want) apply.Options {
	return apply.Options{
		Width: p.Width, Stop: p.Stop,
		OnError: func(manifest string) string {
			if m := s.Manifests[manifest]; m != nil {
				return m.OnError
			}
			return apply.Stop
		},
		Deadline: func(st plan.Step) time.Duration { return limit(s, w, st, p.Health, p.Unattended) },
	}
}

// limit is how long a step may take, with the checks that it waits for.
func limit(s *model.Site, w *model.Want, st plan.Step, by health.Prober, hurry bool) time.Duration {
	checks := checkTime(s, w, st, by, hurry)
	if st.Inside != nil {
		checks += bootTime
	}
	if m := s.Manifests[st.Manifest]; m != nil && m.Settings != nil && m.Settings.Timeout > 0 {
		return m.Settings.Timeout + checks
	}
	if st.Manifest == "" {
		return besideTime
	}
	return stepTime + checks
}

// Until gives a context that ends with its parent, or with ErrInterrupted when stop is
// closed, and the function that frees what it holds.
func Until(ctx context.Context, stop <-chan struct{}) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-stop:
			cancel(ErrInterrupted)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil); <-ended }
}

// why prefers the reason why a context ended over what came of it.
func why(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return context.Cause(ctx)
}
