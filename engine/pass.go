// Package engine converges a host to a site. Start reading here. It is one
// pipeline of values:
//
//	commit → Desired (site) → Want → Observed → Plan → verdict → Results → Report
//
// A Pass runs the pipeline once: it loads the site, resolves what one host should
// have, observes what it has, plans the difference, asks whether the plan may be
// applied, applies it, and reports. Each arrow is one package (hcl, model, a driver,
// plan, apply) that knows the values but not the other packages. This package
// connects them.
//
// A Pass keeps no state. The truth is in git and on the host, so the recovery from
// a failure, a crash or a lost response is another Pass. Every verb that contacts a
// host runs a Pass: plan has no verdict, apply and destroy ask a person, and test
// runs several.
//
// Package agent runs passes in a loop, for the commits of a repository.
//
// If the outcome of a step is unknown, repeat.go observes the host again and
// continues. checked.go runs the health checks of guests, using package health; probes.go has what they need
// between passes.
package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
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

// Driver reads and changes one host. Its methods are safe for concurrent use.
type Driver interface {
	// Observe reads the state of the host that w is about, and changes nothing.
	// Observed.Unknown lists what it could not read. An error means that it could
	// read nothing.
	Observe(ctx context.Context, w *model.Want) (model.Observed, error)

	// Apply applies one step; see apply.Do for the contract. It is idempotent, and
	// changes nothing after ctx ended.
	Apply(ctx context.Context, s plan.Step) error

	// Machine returns access to the inside of a guest, or nil if the driver has none.
	// It sends no request. Before the first command, the machine verifies that the
	// guest has the ownership tag of addr. Near lists gateways that the site names.
	// For the address of something inside a guest, such as guest.web-1, at is that
	// guest: the machine has the access that steps for the address use, and its Ping
	// reports whether they can log in.
	Machine(addr model.Address, at model.Guest, near []netip.Addr) guest.Machine
}

// Releaser is a Driver that keeps resources during a pass, such as connections to guests.
// The pass calls Release at its end. The driver may be used again after that.
type Releaser interface{ Release() }

// dialer is a Driver whose guests may be out of reach from the network of this machine. Dial returns how
// checks over the network connect to them, or nil if they connect as everything else does.
type dialer interface {
	Dial() (func(ctx context.Context, network, address string) (net.Conn, error), error)
}

// Desired is the content of a commit, or of a folder.
type Desired struct {
	Site        *model.Site // nil if it could not be loaded
	Commit      string      // "" if the folder is not a checkout
	Findings    diag.List   // with an error among them, it must not be applied
	PolicyCheck PolicyCheck // checks plans against the policies of the commit; nil denies nothing
	// Render renders the outputs of the site with the facts of model.OutputFacts, by their names. Nil: it has none.
	Render  func(ctx context.Context, facts map[string]any) (map[string]model.Rendered, error)
	Harmful bool // its evaluation exceeded a limit, and would exceed it again
	// AwaitsSecrets: it was loaded without secrets, since the parent that gives them has not done so yet.
	AwaitsSecrets bool
	// References searches for words by which guests are known, and returns where those of a guest are, or why that is unknown; no
	// entry for a guest that nothing refers to. Nil: the site names no files to search.
	References func(ctx context.Context, words map[model.Address][]string) map[model.Address]string
}

// Question is the input of a PolicyCheck.
type Question struct {
	Site   *model.Site
	Want   *model.Want
	Have   model.Observed
	Plan   *plan.Plan
	Commit model.Commit // zero for a folder that is not a checkout; ID alone where no more is known

	Destroy      bool    // a person asked to destroy the manifest
	AllowDeletes int     // number of removals that a flag or trailers allow
	Before       *Before // the removals are counted from here; nil: from what the host has
	Unattended   bool    // a pass of an agent
	Untraced     bool    // trailers allow nothing: the last converged commit is unknown
}

// Before is the last commit that the agent converged to. All agents of a site count the removals
// since then, so they get the same number wherever in the tree the guests are.
type Before struct {
	Site    *model.Site
	Granted int // removals allowed since then, including those that are done
}

// PolicyCheck checks a plan against the policies. An error among the findings denies the whole
// plan. Its source is a guard, or else a policy.
type PolicyCheck func(ctx context.Context, q Question) diag.List

// ErrInterrupted ends a pass when Pass.Stop is closed. A caller that cancels the context for
// that reason uses it as the cause.
var ErrInterrupted = errors.New("interrupted")

// Pass has the parameters of a pass. Load, Host and Open are required.
type Pass struct {
	Verb string // for the report: apply, destroy, test
	Host string // name of the host to converge

	Scope
	Grants
	Memory

	Load func(context.Context) Desired

	// Lock takes the write lock of the host before the host is opened. It waits for the lock
	// until ctx ends. The caller of Run releases it. May be nil.
	Lock func(ctx context.Context, h *model.Host) error

	// Open makes the driver of the host for what Load returned. It sends no request.
	Open func(Desired, *model.Host) (Driver, error)

	// Verdict decides on a plan that no policy denies: true applies it. If Verdict is nil,
	// the pass ends with the plan.
	Verdict func(context.Context, *plan.Plan) (bool, error)

	// Health runs the checks of guests. A step that creates or changes a guest is done when
	// the checks of the guest pass.
	Health health.Prober

	Written written // may be nil

	Width    int      // number of steps that run at once; see apply.Options
	Observer Observer // may be nil

	// Stop ends the pass when it is closed: at once before the first step, and later as soon
	// as the running steps are done. May be nil.
	Stop <-chan struct{}
}

// written knows the outputs as they were written last.
type written interface {
	// Output returns the text of an output, and false if it is not known here.
	Output(o *model.Output) (text string, known bool)
}

// Scope is the part of a host that a pass is about. The zero value is the whole host.
type Scope struct {
	Manifest    string
	Targets     []model.Address
	Destroy     bool // destroy the manifest
	RefreshOnly bool // report differences and make no steps

	// Changed limits the pass to these guests, if the driver can observe them alone and they only need
	// updates; see model.Want. Otherwise the pass is about the whole host.
	Changed map[model.Address]model.Guest
	// StartFirst limits it to the guests that are off and shall run, if there are any and they only need updates.
	StartFirst bool

	// Locate asks those of Memory.Failing that have no checks for their address, for a few seconds at most.
	Locate bool
}

// Grants are the permissions of a plan by its policies; see Question.
type Grants struct {
	Commit       *model.Commit // nil: the policies know the commit only by Desired.Commit
	AllowDeletes int
	AllowOrphans []string // children that may be destroyed with their nodes; see plan.Input
	Unattended   bool
	Untraced     bool
}

// Memory is the state from earlier passes, and the reports of children since.
type Memory struct {
	// Failing lists guests that failed in an earlier pass. Each without a step is checked once more if it is on the
	// host, and steps that need it wait for that one attempt only.
	Failing    []model.Address
	Avoid      []int                        // VMIDs to use only if no other is free; see plan.Input
	SweepHints []string                     // from the observation of the last pass; see model.Want
	Children   map[string]model.ChildReport // the reports of children; see plan.Input
	History    History                      // may be nil
	// Restored is what is remembered of verifications of backups; nil: the pass makes none. See model.Want.
	Restored  map[model.Address]model.Restored
	Converged bool                             // the host was as the commit says before, so what differs was changed on the host
	Life      map[model.Address]plan.LifeFacts // of the nodes on the host; nil: only what this pass observes is known
	Addresses map[string]string                // of guests, by the same, as they were found last
}

// History knows the sites of earlier commits.
type History interface {
	// Before returns Question.Before for a plan that removes guests. It may be nil.
	Before(context.Context) *Before

	// Earlier returns the site of the commit whose spec was last applied in a guest, or nil if there is none. It is
	// called for nodes without a spec: only that site has the access to them.
	Earlier(ctx context.Context, guest model.Address) (*model.Site, error)
}

// Observer follows a pass while it runs.
type Observer interface {
	// Enter is called at the start of each phase, on the goroutine of the pass.
	Enter(Phase)

	// Observed is called with each observation of the whole host, from the goroutine of the pass or of a step, one
	// call at a time.
	Observed(model.Observed)

	// Step is called for every event of a step; see apply.Options.
	Step(apply.Event)
}

// StepFunc is an Observer that only follows the steps.
type StepFunc func(apply.Event)

// Enter implements Observer.
func (StepFunc) Enter(Phase) {}

// Observed implements Observer.
func (StepFunc) Observed(model.Observed) {}

// Step implements Observer.
func (f StepFunc) Step(e apply.Event) { f(e) }

// Phase is the present phase of a pass.
type Phase int

// The phases in their order. Planning comes twice: the site is resolved before the host is
// opened, and the difference is planned after the host was observed.
const (
	Loading Phase = iota
	Planning
	Opening
	Observing
	Checking
	Applying
)

func (p *Pass) enter(next Phase) {
	if p.Observer != nil {
		p.Observer.Enter(next)
	}
}

// progress has the values of the pipeline as far as the pass got. The others are zero.
type progress struct {
	desired  Desired
	findings diag.List   // of the loader, the planner, the policies and the steps, without duplicates
	want     *model.Want // that the plan is about
	all      *model.Want // of the whole host
	have     model.Observed
	plan     *plan.Plan
	omitted  int       // steps that RefreshOnly took out of the plan
	verdicts diag.List // findings of the policies, which are about the whole plan
	accepted bool
	asked    time.Duration // how long a person took to confirm; not part of the duration
	results  []apply.Result
	checks   map[model.Address]health.Report
	probes   []Probe
}

// endError ends a pass before its steps.
type endError struct {
	outcome Outcome
	denied  bool
	err     error // nil if the findings have the reason
}

// Error implements error.
func (e *endError) Error() string { return fmt.Sprintf("%s: %v", e.outcome, e.err) }

func failed(err error) error  { return &endError{outcome: Failed, err: err} }
func denied(by Outcome) error { return &endError{outcome: by, denied: true} }
func onlyPlanned() error      { return &endError{outcome: Planned} }

// Run runs the pass. If ctx is cancelled, Run ends as soon as the running steps can stop. The
// report has what was done.
func (p *Pass) Run(ctx context.Context) Report {
	began := time.Now()
	c, err := p.run(ctx)
	return p.report(ctx, began, c, err)
}

// run is the pipeline.
func (p *Pass) run(ctx context.Context) (c progress, err error) {
	stoppable, release := Until(ctx, p.Stop)
	defer release()

	if c.desired, c.findings, err = p.load(stoppable); err != nil {
		return c, err
	}
	want, found, err := p.resolve(stoppable, c.desired, c.findings)
	if c.findings = found; err != nil {
		return c, err
	}
	driver, err := p.open(stoppable, c.desired, want.Host)
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
		want = withFurther(want, have.Further)
		c.want, c.have = want, have
		c.have.ReadEdits = nil // the report keeps this observation
		if err := plan.UnknownTarget(p.Targets, want.State, have.State); err != nil && errObserve == nil {
			return c, failed(err)
		}
		c.plan, c.omitted = p.plan(stoppable, c.desired, want, have, c.findings)
		if c.findings = c.plan.Findings; errObserve != nil {
			return c, failed(causeOr(stoppable, errObserve))
		}
	}
	p.phases(&c)
	c.findings = distinct(c.findings, reviews(&c))
	if !p.Unattended {
		p.outputs(stoppable, &c)
	}
	c.verdicts = p.check(stoppable, c)
	c.findings = distinct(c.findings, c.verdicts).Sorted()
	c.plan.Findings = c.findings
	if by := OutcomeOf(c.verdicts); by != "" && stoppable.Err() == nil && !p.RefreshOnly {
		return c, denied(by)
	}
	c.accepted = stoppable.Err() == nil && !c.have.NothingSeen()
	if c.asked, err = p.grant(stoppable, c.plan); err != nil {
		return c, err
	}
	return p.apply(ctx, stoppable, driver, c), nil
}

// load loads the site and returns it with its findings.
func (p *Pass) load(ctx context.Context) (Desired, diag.List, error) {
	p.enter(Loading)
	d := p.Load(ctx)
	p.enter(Planning)
	if ctx.Err() != nil {
		return Desired{}, nil, failed(causeOr(ctx, nil)) // the findings come from the end of ctx, not from the site
	}
	found := distinct(nil, d.Findings)
	if d.Site == nil && !found.HasErrors() {
		found = append(found, diag.Errorf(diag.Range{}, "no site", "there is nothing to converge to"))
	}
	if found.HasErrors() {
		return d, found, denied(OutcomeOf(found))
	}
	return d, found, nil
}

// resolve returns the wanted state of the host, and found with the findings about it.
func (p *Pass) resolve(ctx context.Context, d Desired, found diag.List) (*model.Want, diag.List, error) {
	want, more := d.Site.Want(p.Host)
	if found = distinct(found, more); found.HasErrors() {
		return nil, found, denied(Invalid)
	}
	own := *want // the site shares its Want with other passes
	own.SweepHints = p.SweepHints
	if !p.Destroy {
		own.Restored = p.Restored
	}
	if p.History != nil && !p.Destroy {
		earlier := func(guest model.Address) (*model.Site, error) { return p.History.Earlier(ctx, guest) }
		found = distinct(found, d.Site.Withdraw(&own, earlier))
	}
	if p.Destroy { // what is inside of guests is destroyed with them
		own.State = maps.Clone(want.State)
		maps.DeleteFunc(own.State, func(_ model.Address, r *model.Resource) bool { return r.Inside != (model.Address{}) })
	}
	want = &own
	return want, found, nil
}

// open takes the write lock and opens the host.
func (p *Pass) open(ctx context.Context, d Desired, h *model.Host) (Driver, error) {
	p.enter(Opening)
	if p.Lock != nil {
		if err := p.Lock(ctx, h); err != nil {
			return nil, failed(causeOr(ctx, err))
		}
	}
	driver, err := p.Open(d, h)
	if err != nil {
		return nil, failed(fmt.Errorf("open host %s: %w", p.Host, err))
	}
	p.enter(Observing)
	return driver, nil
}

// observe observes the host; see observed.
func (p *Pass) observe(ctx context.Context, d Driver, w *model.Want) (model.Observed, error) {
	return p.observed(d.Observe(ctx, w))
}

// observed reports an observation of the whole host to the observer.
func (p *Pass) observed(have model.Observed, err error) (model.Observed, error) {
	if err == nil && p.Observer != nil && !have.Only {
		p.Observer.Observed(have)
	}
	return have, err
}

// withFurther adds what is wanted of the host as it was observed.
func withFurther(w *model.Want, more []*model.Resource) *model.Want {
	if len(more) == 0 {
		return w
	}
	own := *w
	own.State = maps.Clone(w.State)
	for _, r := range more {
		own.State[r.Addr] = r
	}
	return &own
}

// plan plans the difference, and adds the earlier findings to those of the plan. Omitted is the
// number of steps that RefreshOnly took out.
func (p *Pass) plan(ctx context.Context, d Desired, w *model.Want, have model.Observed, found diag.List) (made *plan.Plan, omitted int) {
	p.enter(Planning)
	in := plan.Input{
		Site: d.Site.Name, Commit: d.Commit, Host: p.Host, Kinds: d.Site.Kinds, Want: w, Have: have,
		Manifest: p.Manifest, Targets: p.Targets, Destroy: p.Destroy, Avoid: p.Avoid,
		Children: p.Children, AllowOrphans: p.AllowOrphans, Referenced: p.referenced(ctx, d, w, have), Failing: p.Failing,
	}
	made = plan.Make(in)
	// A pass that applies a new commit does without names: there the files changed.
	if have.ReadEdits != nil && len(made.Differing) > 0 && (p.Verdict == nil || p.Converged) {
		if in.Have.Edits = have.ReadEdits(ctx, made.Differing); len(in.Have.Edits) > 0 {
			made = plan.Make(in)
		}
	}
	if p.RefreshOnly {
		omitted = omitSteps(made)
	}
	unchanged := func(f diag.Finding) bool {
		return f.Severity == diag.Warning && f.Source == diag.FromSite && isUnchanged(f.Address, made, have)
	}
	made.Findings = append(slices.DeleteFunc(slices.Clone(found), unchanged), made.Findings...).Sorted()
	return made, omitted
}

// referenced returns what still refers to guests that are to be removed.
func (p *Pass) referenced(ctx context.Context, d Desired, w *model.Want, have model.Observed) map[model.Address]string {
	if d.References == nil {
		return nil
	}
	words := map[model.Address][]string{}
	for addr, r := range have.State {
		stays := w.State[addr] != nil || w.Declared[addr] || w.Suspended[r.Manifest]
		if r.Guest != nil && (p.Destroy || !stays) {
			words[addr] = plan.Names(r, w)
		}
	}
	if len(words) == 0 {
		return nil
	}
	return d.References(ctx, words)
}

// omitSteps makes the steps of a plan deferred differences, and returns their number.
func omitSteps(p *plan.Plan) int {
	for _, s := range p.Steps {
		p.Deferred = append(p.Deferred, model.Deferred{Address: s.Address.String(), Why: fmt.Sprintf("%s: %s", s.Action, s.Reason)})
	}
	n := len(p.Steps)
	if n > 0 {
		p.Findings = append(p.Findings, diag.Finding{
			Severity: diag.Warning, Source: diag.FromGuard,
			Summary: fmt.Sprintf("differences left as they are: %d", n), Detail: "read-only pass",
		})
	}
	p.Steps, p.Summary = nil, plan.Summary{Unchanged: p.Summary.Unchanged, Unmanaged: p.Summary.Unmanaged}
	return n
}

// check checks the plan against the policies of its commit.
func (p *Pass) check(ctx context.Context, c progress) diag.List {
	p.enter(Checking)
	if c.desired.PolicyCheck == nil {
		return nil
	}
	q := p.question(c.desired, c.all, c.have, c.plan)
	if p.History != nil && !p.Destroy && (slices.ContainsFunc(c.plan.Steps, removesGuest) || len(c.plan.Postponed()) > 0) {
		q.Before = p.History.Before(ctx)
	}
	return c.desired.PolicyCheck(ctx, q)
}

// removesGuest reports whether a step destroys a guest.
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

// grant asks for the verdict, and returns how long the answer took.
func (p *Pass) grant(ctx context.Context, made *plan.Plan) (took time.Duration, err error) {
	p.enter(Applying)
	granted, asked := false, time.Now()
	if p.Verdict != nil {
		granted, err = p.Verdict(ctx, made)
	}
	took = time.Since(asked)
	switch {
	case err != nil || ctx.Err() != nil:
		return took, failed(causeOr(ctx, err))
	case !granted:
		return took, onlyPlanned()
	}
	return took, nil
}

// apply applies the plan and runs the checks of guests. When Pass.Stop is closed, stoppable
// ends, but ctx does not: running steps are finished.
func (p *Pass) apply(ctx, stoppable context.Context, driver Driver, c progress) progress {
	checks := p.checker(c, driver)
	again := p.repeater(c, driver)
	options := p.options(c.desired.Site, c.want)
	options.Notify, checks.now = again.notify(), again.now
	do := checks.around(again.around(apply.Backoff{}.Retry(driver.Apply)))
	c.results = again.renumbered(apply.Run(ctx, c.plan.Steps, options, do))
	c.plan = again.renumberedPlan()
	c.findings = append(distinct(c.findings, again.found), failuresWithoutNode(c.results)...)
	failing := p.Failing
	if c.have.Only {
		failing = nil // they are other guests
	}
	checks.recheck(stoppable, failing, p.Width)
	if p.Locate {
		checks.locate(stoppable, failing)
	}
	checks.locate(stoppable, p.unlocated(&c))
	c.checks = checks.all()
	c.probes = checks.probes(c)
	return c
}

const (
	// stepTime limits a step whose manifest sets no timeout.
	stepTime = 10 * time.Minute
	// sharedTime limits a step that belongs to no manifest, such as the download of an image
	// over a slow line.
	sharedTime = time.Hour
	// restoreTime limits the verification of a backup: its restore is that of a whole guest, mostly at night.
	restoreTime = 6 * time.Hour
)

// options returns on_error and the timeouts of the manifests.
func (p *Pass) options(s *model.Site, w *model.Want) apply.Options {
	return apply.Options{
		Width: p.Width, Stop: p.Stop,
		OnError: func(manifest string) string {
			if m := s.Manifests[manifest]; m != nil {
				return m.OnError
			}
			return "" // as "stop"
		},
		Deadline: func(st plan.Step) time.Duration { return limit(s, w, st, p.Health, p.Unattended) },
	}
}

// limit is the time limit of a step, including the checks that it waits for.
func limit(s *model.Site, w *model.Want, st plan.Step, by health.Prober, noWait bool) time.Duration {
	checks := checkTime(s, w, st, by, noWait)
	if st.Inside != nil {
		checks += bootTime
	}
	if st.Address.Kind == model.RestoreKind || st.Have != nil && st.Have.Guest != nil && st.Have.Guest.SlowRemoval && (st.Action == plan.Delete || st.Action == plan.Replace) {
		return restoreTime + checks // otherwise each pass would begin it again, and none would end it
	}
	if m := s.Manifests[st.Manifest]; m != nil && m.Settings != nil && m.Settings.Timeout > 0 {
		return m.Settings.Timeout + checks
	}
	if st.Manifest == "" {
		return sharedTime
	}
	return stepTime + checks
}

// Until returns a context that ends with its parent, or with ErrInterrupted when stop is
// closed. The returned function releases it.
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

// causeOr returns the cause of the end of ctx, or err if ctx has not ended.
func causeOr(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return context.Cause(ctx)
}
