package agent

import (
	"context"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"time"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/health"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// pass is one pass with one commit. newPass copies what it needs of the loop. While the pass runs, the engine calls load,
// lock, open, verdict and the methods of engine.Observer and engine.History, beside the loop: they send to its inbox. The
// loop reads the results after the pass has ended.
type pass struct {
	o      *Options
	send   func(request)
	params engine.Pass
	commit model.Commit
	aside  []ledger.Suspension // when it began
	active bool                // not everything is suspended: it may change the host, and children learn which of them left

	warned diag.List // about trailers
	harm   diag.List // why the commit must not be loaded; empty if it may
	good   bool      // the commit is the last good one

	member    membershipFacts
	before    *model.Commit // membershipFacts.Before; nil if it is not available
	converged *model.Commit // of the host; nil if it is not available
	granted   int           // removals allowed since converged
	specs     specSites

	phase   engine.Phase
	desired engine.Desired
	course  course
	unknown error // why the site does not have the agent
	host    HostState
	hosts   map[string]ledger.HostBelow // that have or had this agent as their parent
	shown   bool                        // host was reported
	release func()                      // of the write lock; nil while it is not held
}

// newPass prepares a pass. While everything is suspended the pass only plans, and needs no lock.
func (l *loop) newPass(ctx context.Context, c model.Commit) *pass {
	p := &pass{o: &l.o, send: l.agent.send, commit: c, aside: l.memory.Suspended, active: !suspended(l.memory.Suspended, "")}
	l.startPass(c)
	l.grants, p.warned = l.upstream.grant(ctx, &l.memory.State, c)
	p.params = engine.Pass{
		Verb: verb, Host: l.o.Identity, Width: l.o.Width, Health: l.o.Health, Stop: l.halt, Observer: p,
		Grants: engine.Grants{
			Commit: &p.commit, AllowDeletes: l.grants.removals, AllowOrphans: l.grants.orphans, Unattended: true, Untraced: l.grants.untraced,
		},
		Memory: engine.Memory{
			Failing: l.memory.failing(), Avoid: l.memory.UnusableVMIDs, SweepHints: l.memory.SweepHints, Children: childrenFor(ctx, l, c), History: p,
			Converged: c.ID == l.memory.Converged.ID, Restored: l.memory.restored(), Life: l.life, Addresses: addresses(l),
		},
		Load: p.load, Open: l.o.Open,
	}
	p.params.Health.Notify = func(w health.Progress) { p.send(checkProgress(w)) }
	if c.ID == l.memory.Converged.ID {
		p.params.Changed, p.params.StartFirst = l.changed, l.startFirst
	}
	p.host.Converged = l.memory.Converged.ID
	if p.active {
		p.params.Verdict, p.host.Removed, p.hosts = p.verdict, slices.Sorted(maps.Keys(l.memory.Withdrawn)), l.memory.Hosts
		if l.o.Exclusive != nil {
			p.params.Lock = p.lock
		}
	}
	p.harm, p.good = l.memory.harmful(c.ID, l.o.Program), c.ID == l.memory.Good.ID
	if p.member = membership(ctx, l, c); p.member.Child {
		p.before = l.known(ctx, c, p.member.Before)
	}
	p.converged, p.granted, p.specs = l.known(ctx, c, l.memory.Converged.ID), l.grants.granted, sitesOfSpecs(ctx, l, c)
	return p
}

// known describes a commit, which may be that of the pass; nil if it is not available.
func (l *loop) known(ctx context.Context, of model.Commit, id string) *model.Commit {
	switch id {
	case "":
		return nil
	case of.ID:
		return &of
	}
	c, err := l.upstream.commit(ctx, id)
	if err != nil {
		return nil
	}
	return &c
}

// runPass makes one pass with one commit, and records it.
func (l *loop) runPass(ctx context.Context, c model.Commit) engine.Report {
	p := l.newPass(ctx, c)
	defer p.unlock() // after the pass is recorded
	r := l.run(ctx, p)
	l.agent.checks.passed(&r, !p.active)
	l.memory.noteHarmful(p.desired, l.o.Program)
	if l.course = p.course; p.unknown != nil && r.Denied && p.course == courseHold {
		r.Err = p.unknown
	}
	if now := stillThere(&r, p.host.Removed); len(now) < len(p.host.Removed) {
		p.host.Removed, p.shown = now, false
	}
	if r.Accepted && !p.shown {
		l.during(ctx, p.show)
	}
	if !p.active && r.Plan != nil {
		l.withheld = len(r.Plan.Steps)
	}
	writeOutputs(ctx, l, p, &r)
	l.recordPass(c, r, p.aside)
	if r.Accepted && p.active {
		noteHosts(ctx, l, p.desired.Site, c.ID)
	}
	if now := l.memory.Converged.ID; now != p.host.Converged || !maps.Equal(p.hosts, l.memory.Hosts) {
		p.host.Converged, p.hosts = now, l.memory.Hosts
		l.during(ctx, p.show)
	}
	return r
}

// run runs the pass. A panic before the first step is the fault of the commit, which
// the program cannot handle, so the commit is refused; but for a panic of the observation,
// which is a host that could not be observed.
func (l *loop) run(ctx context.Context, p *pass) (r engine.Report) {
	var defect *defectError
	watch := &headWatch{source: l.o.Source, known: l.memory.Head.ID, every: l.o.Poll, send: p.send}
	l.during(ctx, func(beside context.Context) { // a pass heeds its own Stop
		defer func() {
			if v := recover(); v != nil {
				defect = &defectError{phaseTexts[p.phase], v, debug.Stack()}
			}
		}()
		watch.during(beside, func() { r = p.params.Run(ctx) })
	})
	if defect == nil {
		return r
	}
	defect.log(l.o.Log, p.commit.ID)
	r = engine.Report{Verb: verb, Host: p.params.Host, Commit: p.commit.ID, Outcome: engine.Failed, Err: defect}
	switch {
	case p.phase == engine.Observing:
		r.Have = model.NotObserved(p.params.Host, defect)
	case !l.progress.begun:
		r.Findings, r.Outcome, r.Err, r.Denied = diag.List{defect.finding(p.phase)}, engine.Invalid, nil, true
	}
	return r
}

// countedByParent is the number of removals that a child that left the site may make. Its parent reports that only for a commit whose
// removals its own policies allowed, those in the child included, so they are not counted again. A child that never
// converged could not count them as its parent did.
const countedByParent = 1 << 30

// load loads the site of the commit. If it is the last good one, nodes get it from now on.
func (p *pass) load(ctx context.Context) engine.Desired {
	d := engine.Desired{Findings: p.harm}
	if p.harm == nil {
		d = p.o.Load(ctx, p.commit)
	}
	d.Commit, d.Findings = p.commit.ID, slices.Concat(d.Findings, p.warned)
	if p.desired = d; d.Site != nil && !d.Findings.HasErrors() {
		p.course, p.unknown = p.prepare(ctx)
		if p.course == courseEmpty {
			p.params.AllowDeletes = max(p.params.AllowDeletes, countedByParent)
		}
	}
	if p.good {
		p.show(ctx)
	}
	return p.desired
}

// prepare reduces the site to what this pass is about: without what is suspended, and for a child that left the site
// nothing at all. It refuses a site that does not have the identity.
func (p *pass) prepare(ctx context.Context) (course, error) {
	before := func() *model.Site {
		if p.before == nil {
			return nil
		}
		return p.o.Load(ctx, *p.before).Site
	}
	d := &p.desired
	site, course, err := p.member.decide(d.Site, before, observed(ctx, p.o.Open, *d))
	if err != nil {
		found := engine.FindingOf(err)
		found[0].Source = diag.FromSite
		d.Findings = append(slices.Clone(d.Findings), found...)
		return course, err
	}
	switch course {
	case courseVacant:
		d.Findings = append(slices.Clone(d.Findings), diag.Warnf(diag.Range{}, p.member.Identity+" left the site: nothing is on it", "its parent says that it left; no commit is known that had it and was in force here, and no guest is on the host"))
	case courseEmpty:
		d.Findings = append(slices.Clone(d.Findings), diag.Warnf(diag.Range{}, p.member.Identity+" left the site: all that it manages is removed", "its parent says so for this commit, which it lacks, and the last one that converged had it"))
	default: // there is nothing to say
	}
	p.send(siteLoaded(slices.Collect(maps.Keys(d.Site.Manifests))))
	d.Site = site
	if manifests := suspendedManifests(p.aside); len(manifests) > 0 {
		d.Site = d.Site.Suspend(manifests...)
	}
	return course, nil
}

// lock takes the lock towards other processes; see engine.Pass.
func (p *pass) lock(ctx context.Context, h *model.Host) error {
	blocked := false
	release, err := p.o.Exclusive(ctx, h, func(holder string) {
		blocked = true
		p.send(lockedBy(holder))
	})
	if blocked {
		p.send(lockedBy(""))
	}
	if err != nil {
		return fmt.Errorf("take the write lock of host %s: %w", p.o.Identity, err)
	}
	p.release = release
	return nil
}

func (p *pass) unlock() {
	if p.release != nil {
		p.release()
	}
}

// verdict accepts every plan that no policy denies. An agent whose host is vacant makes no steps. Before the first step, nodes
// get this commit: those that the pass creates fetch their specs from it, and the pass waits for them.
func (p *pass) verdict(ctx context.Context, made *plan.Plan) (bool, error) {
	if p.course == courseVacant {
		if slices.ContainsFunc(made.Steps, func(s plan.Step) bool { return s.Have != nil && s.Have.Guest != nil }) {
			return false, errNotVacant
		}
		made.Steps = nil // nothing shows that this agent made what is here
	}
	p.shown = true
	p.show(ctx)
	if len(made.Steps) > 0 {
		if err := ledger.Begin(p.o.Ledger, "", Begun(verb, p.params.Host, p.o.Identity, p.commit, made)); err != nil {
			p.o.Log.Warn("a receipt is missing if the agent is killed now", "error", err)
		}
	}
	usual := make([]time.Duration, len(made.Steps))
	for i, s := range made.Steps {
		usual[i] = p.o.Ledger.Usual(s.Address.Kind, string(s.Action))
	}
	p.send(planned{made.Steps, usual})
	return true, nil
}

// show reports the site and the state of the host to the server of nodes.
func (p *pass) show(ctx context.Context) { p.o.inForce(ctx, p.desired, p.host, p.hosts) }

// Enter implements engine.Observer.
func (p *pass) Enter(next engine.Phase) {
	p.phase = next
	p.send(moved{})
}

// Observed implements engine.Observer.
func (p *pass) Observed(have model.Observed) {
	if p.active && (len(p.host.Removed) > 0 || have.HasChild()) {
		want, _ := p.desired.Site.Want(p.o.Identity)
		p.host.Removed = removedChildren(want, have, p.host.Removed)
	}
	if p.o.Observed != nil {
		p.o.Observed(have)
	}
}

// Step implements engine.Observer.
func (p *pass) Step(e apply.Event) { p.send((*stepEvent)(&e)) }

// Before implements engine.History by the commit that the host converged to.
func (p *pass) Before(ctx context.Context) *engine.Before {
	if p.converged == nil {
		return nil
	}
	d := p.o.Load(ctx, *p.converged)
	if d.Site == nil || d.Findings.HasErrors() {
		return nil // the secrets may be others now: what is on the host counts
	}
	return &engine.Before{Site: d.Site, Granted: p.granted}
}

// Earlier implements engine.History.
func (p *pass) Earlier(ctx context.Context, guest model.Address) (*model.Site, error) {
	return p.specs.site(ctx, guest)
}

// inForce reports the site of the commit that is in force, if it is one to converge to.
func (o *Options) inForce(ctx context.Context, d engine.Desired, host HostState, hosts map[string]ledger.HostBelow) {
	if o.InForce != nil && d.Site != nil && !d.Findings.HasErrors() {
		removed, moved := hostsBelow(hosts, d.Site, o.Identity)
		host.Removed, host.Moved = slices.Concat(host.Removed, removed), moved
		o.InForce(ctx, d, host)
	}
}

// startPass makes a pass known: from now on, who suspends halts it.
func (l *loop) startPass(c model.Commit) {
	l.halt, l.withheld = make(chan struct{}), 0
	if l.stopping {
		l.haltPass()
	}
	l.progress = &progress{commit: c.ID, since: time.Now().UTC(), width: l.o.Width}
	l.enter(Checking, phaseTime)
}

// lockedBy reports who holds the write lock that the pass waits for, "" when it waits no
// longer.
type lockedBy string

func (b lockedBy) serve(l *loop) {
	if l.lockedBy = string(b); b == "" {
		l.enter(Checking, phaseTime)
		return
	}
	l.enter(Waiting, 0)
}

// suspendedManifests lists the manifests that are suspended one by one.
func suspendedManifests(list []ledger.Suspension) []string {
	out := make([]string, 0, len(list))
	for _, s := range list {
		if s.Manifest != "" {
			out = append(out, s.Manifest)
		}
	}
	slices.Sort(out)
	return out
}

// siteLoaded reports the manifests of the site that the pass is about.
type siteLoaded []string

func (s siteLoaded) serve(l *loop) {
	l.manifests = s
	l.moved()
}

// planned reports the plan of the pass under way.
type planned struct {
	steps []plan.Step
	usual []time.Duration // what each usually takes
}

func (p planned) serve(l *loop) {
	l.progress.planned(p.steps, p.usual)
	l.agent.checks.changing(p.steps)
	if len(p.steps) > 0 {
		l.enter(Converging, phaseTime)
	}
}

// stepEvent reports what happened to a step.
type stepEvent apply.Event

func (e *stepEvent) serve(l *loop) {
	event, now := (*apply.Event)(e), time.Now()
	removed := l.progress.event(event, now)
	if l.o.Forget != nil && isMadeAgain(event) {
		l.o.Forget(e.Step.Address.Name)
	}
	l.due = l.progress.due(now)
	if e.What == apply.Note {
		l.o.Log.Info("step", "address", e.Step.Address.String(), "note", e.Text)
	}
	if removed {
		l.memory.consumeGrant(&l.grants, e.Step.Address.Name)
	}
	l.notify()
}

// checkProgress reports how the check of a guest is doing. Only the status has it:
// Options.Notify is not called for it.
type checkProgress health.Progress

func (c checkProgress) serve(l *loop) {
	if l.progress != nil {
		w := health.Progress(c)
		l.progress.check(&w)
	}
}
