package agent

import (
	"context"
	"errors"
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

const verb = "agent"

// converge makes a pass while nobody else in this process may write to the host.
func (l *loop) converge(ctx context.Context) engine.Report {
	l.memory.expire(time.Now())
	began := time.Now()
	if err := l.acquireWrite(ctx); err != nil {
		r := notRun(l.o.Identity, engine.Failed, err)
		r.Seconds = seconds(time.Since(began))
		l.recordEnd(model.Commit{}, r, false)
		return r
	}
	defer func() { <-l.agent.write }()
	r := l.convergeHeadOrLastGood(ctx)
	l.progress = nil
	l.upstream.keep(ctx, l.memory.refs())
	return r
}

// acquireWrite takes the right to write from whoever paused the agent.
func (l *loop) acquireWrite(ctx context.Context) (err error) {
	write := l.agent.write
	select {
	case write <- struct{}{}:
		return nil
	default:
	}
	l.enter(Waiting, 0)
	l.during(ctx, func(ctx context.Context) {
		select {
		case write <- struct{}{}:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	})
	return err
}

// writeLock is the lock towards other processes, for one pass.
type writeLock struct {
	o       *Options
	send    func(request)
	release func() // nil while it is not held
}

// take waits for the lock; see engine.Pass.
func (k *writeLock) take(ctx context.Context, h *model.Host) error {
	blocked := false
	release, err := k.o.Exclusive(ctx, h, func(holder string) {
		blocked = true
		k.send(lockedBy(holder))
	})
	if blocked {
		k.send(lockedBy(""))
	}
	if err != nil {
		return fmt.Errorf("take the write lock of host %s: %w", k.o.Identity, err)
	}
	k.release = release
	return nil
}

func (k *writeLock) give() {
	if k.release != nil {
		k.release()
	}
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

var errNothingKnown = errors.New("no commit to converge to: none fetched yet and no last-good commit recorded")

// convergeHeadOrLastGood makes the pass: with head, and where that is refused with the
// last good commit.
func (l *loop) convergeHeadOrLastGood(ctx context.Context) engine.Report {
	head, good := l.memory.Head.ID, l.memory.Good.ID
	var refused *engine.Report
	if c, err := l.upstream.commit(ctx, head); head != "" && err == nil {
		r := l.runPass(ctx, c)
		switch {
		case errors.Is(r.Err, ErrUnknownIdentity):
			l.recordUnknownIdentity(c, r)
			return r
		case !r.Denied:
			l.recordAccepted(c, r)
			return r
		}
		l.recordRefused(c, r)
		refused = &r
	}
	unknown := l.memory.Unknown.ID // head may know the identity again
	c, err := l.upstream.commit(ctx, good)
	var r engine.Report
	switch {
	case good == "" && refused == nil:
		r = notRun(l.o.Identity, engine.Failed, errNothingKnown)
		l.recordEnd(c, r, false)
		return r
	case good == head && refused != nil, good == "":
		return *refused
	case unknown != "":
		r = notRun(l.o.Identity, engine.Invalid, fmt.Errorf("%w: commit %s took it out, and no good one has brought it back", ErrUnknownIdentity, short(unknown)))
		l.recordEnd(model.Commit{ID: good}, r, false)
	case err != nil:
		r = notRun(l.o.Identity, engine.Failed, fmt.Errorf("commit %s is in force, and is not here any more: %w", short(good), err))
		l.recordEnd(model.Commit{ID: good}, r, false)
	default:
		if r = l.runPass(ctx, c); r.Denied {
			l.recordEnd(c, r, false)
		}
	}
	if refused != nil {
		r.Findings = append(slices.Clone(refused.Findings), r.Findings...)
		if r.Outcome != engine.Interrupted {
			r.Outcome, r.Success = refused.Outcome, false
		}
	}
	return r
}

// countedByParent is how many removals are allowed to a child that left the site. Its parent reports that only for a commit whose
// removals its own policies allowed, those in the child included, so they are not counted again. A child that never
// converged could not count them as its parent did.
const countedByParent = 1 << 30

// runPass makes one pass with one commit, and records it. While everything is suspended
// it only plans, and nobody else needs to wait for it.
func (l *loop) runPass(ctx context.Context, c model.Commit) engine.Report {
	p := &engine.Pass{
		Verb: verb, Host: l.o.Identity, Commit: &c, Unattended: true, Width: l.o.Width,
		Health: l.o.Health, Failing: l.memory.failing(), Avoid: l.memory.UnusableVMIDs, SweepHints: l.memory.SweepHints,
	}
	if c.ID == l.memory.Converged.ID {
		p.Changed, p.StartFirst = l.changed, l.startFirst
	}
	p.Health.Notify = func(w health.Progress) { l.agent.send(checkProgress(w)) }
	p.Notify = func(e apply.Event) { l.agent.send((*stepEvent)(&e)) }
	aside := l.memory.Suspended
	l.startPass(c)
	p.Stop = l.halt
	if !suspended(aside, "") {
		p.Verdict = l.verdict
		if l.o.Exclusive != nil {
			lock := &writeLock{o: &l.o, send: l.agent.send}
			p.Lock = lock.take
			defer lock.give() // after the pass is recorded
		}
	}
	var warned diag.List
	l.grants, warned = l.upstream.grant(ctx, &l.memory.State, c)
	p.AllowDeletes, p.AllowOrphans, p.Untraced = l.grants.removals, l.grants.orphans, l.grants.untraced
	p.Children = childrenFor(ctx, l, c)
	p.Before, p.Earlier = siteBefore(ctx, l, c), sitesOfSpecs(ctx, l, c)
	var d engine.Desired
	var unknown error
	var course Course
	member := membership(ctx, l, c)
	var was model.Commit
	errBefore := errNothingKnown
	if member.Child && member.Before != "" {
		was, errBefore = l.upstream.commit(ctx, member.Before)
	}
	good := l.memory.Good.ID
	host := HostState{Converged: l.memory.Converged.ID}
	active := !suspended(aside, "") // else no child is to empty itself, and none hears that
	if active {
		host.Removed = slices.Sorted(maps.Keys(l.memory.Withdrawn))
	}
	harm := l.memory.harmful(c.ID, l.o.Program)
	p.Load = func(ctx context.Context) engine.Desired {
		if d = (engine.Desired{Findings: harm}); harm == nil {
			d = l.o.Load(ctx, c)
		}
		d.Commit, d.Findings = c.ID, slices.Concat(d.Findings, warned)
		if d.Site != nil && !d.Findings.HasErrors() {
			course, unknown = l.prepareSite(ctx, &d, &member, func() *model.Site {
				if errBefore != nil {
					return nil
				}
				return l.o.Load(ctx, was).Site
			}, aside)
			if course == Empty {
				p.AllowDeletes = max(p.AllowDeletes, countedByParent)
			}
		}
		if c.ID == good {
			l.o.inForce(ctx, d, host)
		}
		return d
	}
	p.Observed = func(have model.Observed) {
		if active && (len(host.Removed) > 0 || have.HasChild()) {
			want, _ := d.Site.Want(l.o.Identity)
			host.Removed = removedChildren(want, have, host.Removed)
		}
		if l.o.Observed != nil {
			l.o.Observed(have)
		}
	}
	shown := false
	if verdict := p.Verdict; verdict != nil {
		p.Verdict = func(ctx context.Context, made *plan.Plan) (bool, error) {
			if course == Vacant {
				if slices.ContainsFunc(made.Steps, func(s plan.Step) bool { return s.Have != nil && s.Have.Guest != nil }) {
					return false, errNotVacant
				}
				made.Steps = nil // nothing shows that this agent made what is here
			}
			shown = true
			l.o.inForce(ctx, d, host) // nodes that the pass makes fetch from this commit, and it waits for them
			return verdict(ctx, made)
		}
	}
	p.Open = func(h *model.Host) (engine.Driver, error) { return l.o.Open(d, h) }
	r := l.run(ctx, p, c)
	l.memory.noteHarmful(d, l.o.Program)
	if l.course = course; unknown != nil && r.Denied && course == Hold {
		r.Err = unknown
	}
	if now := stillThere(&r, host.Removed); len(now) < len(host.Removed) {
		host.Removed, shown = now, false
	}
	if r.Accepted && !shown {
		l.during(ctx, func(ctx context.Context) { l.o.inForce(ctx, d, host) })
	}
	if p.Verdict == nil && r.Plan != nil {
		l.withheld = len(r.Plan.Steps)
	}
	l.recordPass(c, r, aside)
	if now := l.memory.Converged.ID; now != host.Converged {
		host.Converged = now
		l.during(ctx, func(ctx context.Context) { l.o.inForce(ctx, d, host) })
	}
	return r
}

// inForce reports the site of the commit that is in force, if it is one to converge to.
func (o *Options) inForce(ctx context.Context, d engine.Desired, host HostState) {
	if o.InForce != nil && d.Site != nil && !d.Findings.HasErrors() {
		o.InForce(ctx, d, host)
	}
}

// showLastGood reports the last good commit before the first answer of the repository, which may be slow
// or away. What goes wrong here is reported by the pass that follows.
func showLastGood(ctx context.Context, l *loop) {
	c, known := l.upstream.commits[l.memory.Good.ID]
	if l.o.InForce == nil || !known {
		return
	}
	host := HostState{Converged: l.memory.Converged.ID}
	if !suspended(l.memory.Suspended, "") {
		host.Removed = slices.Sorted(maps.Keys(l.memory.Withdrawn))
	}
	l.during(ctx, func(ctx context.Context) {
		defer func() { _ = recover() }()
		d := l.o.Load(ctx, c)
		if d.Commit = c.ID; d.Site != nil && d.Site.HostFor(l.o.Identity) != nil {
			l.o.inForce(ctx, d, host)
		}
	})
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

// prepareSite makes of what a commit says what this pass is about: without what is
// suspended, and for a child that left the site nothing at all. It refuses a site that does not know the
// identity. It runs within the pass, and reads of the loop only what nobody writes to.
func (l *loop) prepareSite(ctx context.Context, d *engine.Desired, m *Membership, before func() *model.Site, aside []ledger.Suspension) (Course, error) {
	site, course, err := m.decide(d.Site, before, observed(ctx, l.o.Open, *d))
	if err != nil {
		found := engine.FindingOf(err)
		found[0].Source = diag.FromSite
		d.Findings = append(slices.Clone(d.Findings), found...)
		return course, err
	}
	switch course {
	case Vacant:
		d.Findings = append(slices.Clone(d.Findings), diag.Warnf(diag.Range{}, m.Identity+" left the site: nothing is on it", "its parent says that it left; no commit is known that had it and was in force here, and no guest is on the host"))
	case Empty:
		d.Findings = append(slices.Clone(d.Findings), diag.Warnf(diag.Range{}, m.Identity+" left the site: all that it manages is removed", "its parent says so for this commit, which it lacks, and the last one that converged had it"))
	default: // there is nothing to say
	}
	l.agent.send(siteLoaded(slices.Collect(maps.Keys(d.Site.Manifests))))
	d.Site = site
	if manifests := suspendedManifests(aside); len(manifests) > 0 {
		d.Site = d.Site.Suspend(manifests...)
	}
	return course, nil
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

// verdict lets every plan be carried out that no rule denies.
func (l *loop) verdict(_ context.Context, p *plan.Plan) (bool, error) {
	usual := make([]time.Duration, len(p.Steps))
	for i, s := range p.Steps {
		usual[i] = l.o.Ledger.Usual(s.Address.Kind, string(s.Action))
	}
	l.agent.send(planned{p.Steps, usual})
	return true, nil
}

// planned reports the plan of the pass under way.
type planned struct {
	steps []plan.Step
	usual []time.Duration // what each usually takes
}

func (p planned) serve(l *loop) {
	l.progress.planned(p.steps, p.usual)
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

// run makes the pass. A panic before the first step is the fault of the commit, which
// the program cannot cope with, so it is refused; but for a panic of the observation,
// which is a host that could not be seen.
func (l *loop) run(ctx context.Context, p *engine.Pass, c model.Commit) (r engine.Report) {
	var defect *defectError
	var phase engine.Phase
	p.Enter = func(next engine.Phase) {
		phase = next
		l.agent.send(moved{})
	}
	watch := &headWatch{source: l.o.Source, known: l.memory.Head.ID, every: l.o.Poll, send: l.agent.send}
	l.during(ctx, func(beside context.Context) { // a pass heeds its own Stop
		defer func() {
			if v := recover(); v != nil {
				defect = &defectError{phaseTexts[phase], v, debug.Stack()}
			}
		}()
		watch.during(beside, func() { r = p.Run(ctx) })
	})
	if defect == nil {
		return r
	}
	defect.log(l.o.Log, c.ID)
	r = engine.Report{Verb: verb, Host: p.Host, Commit: c.ID, Outcome: engine.Failed, Err: defect}
	switch {
	case phase == engine.Observing:
		r.Have = model.NotObserved(p.Host, defect)
	case !l.progress.begun:
		r.Findings, r.Outcome, r.Err, r.Denied = diag.List{defect.finding(phase)}, engine.Invalid, nil, true
	}
	return r
}
