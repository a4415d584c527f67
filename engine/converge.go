package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

const agentVerb = "agent"

// converge makes a pass as the one writer of the host.
func (a *Agent) converge(ctx context.Context, stop <-chan struct{}) Report {
	a.expire(time.Now())
	began := time.Now()
	release, mayWrite, err := a.acquire(ctx, stop)
	defer release()
	if err != nil {
		r := a.nothing(Failed, err)
		r.Seconds = seconds(time.Since(began))
		a.ended(model.Commit{}, r, false)
		return r
	}
	r := a.choose(ctx, mayWrite)
	a.edit(func(d *desk) { d.running = nil })
	a.limits = nil // it holds the site
	a.keep()
	return r
}

// nothing is the report of a pass that could not begin.
func (a *Agent) nothing(o Outcome, err error) Report {
	r := &Report{Verb: agentVerb, Host: a.o.Identity, began: time.Now()}
	return r.end(o, err)
}

// acquire makes the agent the one writer, towards whoever holds the pen and towards
// other processes. While everything is suspended it will not write, and nobody
// else needs to wait for it.
func (a *Agent) acquire(ctx context.Context, stop <-chan struct{}) (release func(), mayWrite bool, err error) {
	waiting, done := until(ctx, stop)
	defer done()
	select {
	case a.pen <- struct{}{}:
	default:
		a.enter(Waiting, 0)
		select {
		case a.pen <- struct{}{}:
		case <-waiting.Done():
			return func() {}, false, context.Cause(waiting)
		}
	}
	put := func() { <-a.pen }
	mayWrite = !suspended(a.suspensions(), "")
	if a.o.Exclusive == nil || !mayWrite {
		return put, mayWrite, nil
	}
	a.moved()
	unlock, err := a.o.Exclusive(waiting, func(holder string) {
		a.edit(func(d *desk) { d.blocker = holder })
		a.enter(Waiting, 0)
	})
	a.edit(func(d *desk) { d.blocker = "" })
	if err != nil {
		put()
		return func() {}, false, why(waiting, fmt.Errorf("become the one writer of host %s: %w", a.o.Identity, err))
	}
	return func() { unlock(); put() }, mayWrite, nil
}

func (a *Agent) suspensions() (list []ledger.Suspension) {
	a.edit(func(d *desk) { list = d.state.Suspended }) // replaced when it changes, so it may be read
	return list
}

func suspended(list []ledger.Suspension, manifest string) bool {
	return slices.ContainsFunc(list, of(manifest))
}

var errNothingKnown = errors.New("nothing is known to converge to: no commit was fetched, and none was good before")

// choose makes the pass: with head, and where that is refused with the last good commit.
func (a *Agent) choose(ctx context.Context, mayWrite bool) Report {
	var head, good, unknown string
	a.edit(func(d *desk) { head, good, unknown = d.state.Head.ID, d.state.Good.ID, d.state.Unknown.ID })
	var refused *Report
	if c, err := a.commit(ctx, head); head != "" && err == nil {
		r := a.attempt(ctx, c, mayWrite)
		switch {
		case errors.Is(r.Err, ErrUnknownIdentity):
			a.strange(c, r)
			return r
		case !r.Denied:
			a.accept(c, r)
			return r
		}
		a.refuse(c, r)
		a.edit(func(d *desk) { unknown = d.state.Unknown.ID }) // head may know the identity again
		refused = &r
	}
	c, err := a.commit(ctx, good)
	var r Report
	switch {
	case good == "" && refused == nil:
		r = a.nothing(Failed, errNothingKnown)
		a.ended(c, r, false)
		return r
	case good == head && refused != nil, good == "":
		return *refused
	case unknown != "":
		r = a.nothing(Invalid, fmt.Errorf("%w: commit %s took it out, and no good one has brought it back", ErrUnknownIdentity, short(unknown)))
		a.ended(model.Commit{ID: good}, r, false)
	case err != nil:
		r = a.nothing(Failed, fmt.Errorf("commit %s is in force, and is not here any more: %w", short(good), err))
		a.ended(model.Commit{ID: good}, r, false)
	default:
		if r = a.attempt(ctx, c, mayWrite); r.Denied {
			a.ended(c, r, false)
		}
	}
	if refused != nil {
		r.refusing(*refused)
	}
	return r
}

// refusing adds to the report of a pass with the good commit why head was refused.
func (r *Report) refusing(head Report) {
	r.Findings = append(slices.Clone(head.Findings), r.Findings...)
	if r.Outcome != Interrupted {
		r.Outcome, r.Success = head.Outcome, false
	}
}

// attempt makes one pass with one commit, and books it.
func (a *Agent) attempt(ctx context.Context, c model.Commit, mayWrite bool) Report {
	p := &Pass{
		Verb: agentVerb, Host: a.o.Identity, Commit: &c, Unattended: true,
		Width: a.o.Width, Notify: a.notify, Health: a.prober(), Unwell: a.unwell(), Avoid: a.leftovers(), Recall: a.remembered(),
	}
	held, stopped := a.start(c)
	if all := suspended(held, ""); mayWrite && !all {
		p.Verdict = a.verdict
	}
	p.Stop = stopped
	var warned diag.List
	a.grants, warned = a.grant(ctx, c)
	p.AllowDeletes, p.Untraced = a.grants.removals, a.grants.untraced
	var d Desired
	var stranger error
	p.Load = func(ctx context.Context) Desired {
		d = a.safely(a.o.Load)(ctx, c)
		stranger = a.adjust(&d, c, held, warned)
		return d
	}
	p.Open = func(h *model.Host) (Driver, error) { return a.open(d, h) }
	r := a.run(ctx, p, c)
	if stranger != nil && r.Denied {
		r.Err = stranger
	}
	drift := a.drifted(c, r)
	if p.Verdict == nil && r.Plan != nil {
		a.edit(func(k *desk) { k.waits = len(r.Plan.Steps) })
	}
	a.booked(c, r, drift, held)
	return r
}

// start begins a pass on the desk: from now on, who suspends closes stopped.
func (a *Agent) start(c model.Commit) (held []ledger.Suspension, stopped chan struct{}) {
	stopped = make(chan struct{})
	a.edit(func(d *desk) {
		held, d.halt, d.waits = d.state.Suspended, stopped, 0
		if d.stopping {
			d.stop()
		}
		d.running = &progress{commit: c.ID, since: time.Now().UTC(), width: a.o.Width}
	})
	a.enter(Looking, lookTime)
	return held, stopped
}

// adjust makes of what a commit says what this pass is about: without what is
// suspended. It refuses a site that does not know the identity.
func (a *Agent) adjust(d *Desired, c model.Commit, held []ledger.Suspension, warned diag.List) error {
	d.Commit = c.ID
	d.Findings = slices.Concat(d.Findings, warned)
	d.Judge = a.watched(d.Judge)
	if d.Site == nil || d.Findings.HasErrors() {
		return nil
	}
	if d.Site.Hosts[a.o.Identity] == nil {
		err := strangerError(a.o.Identity, d.Site, c)
		d.Findings = append(d.Findings, FindingOf(err)...)
		d.Findings[len(d.Findings)-1].Source = diag.FromSite
		return err
	}
	a.moved()
	site := d.Site
	want := sync.OnceValue(func() *model.Want { w, _ := site.Want(a.o.Identity); return w })
	a.limits = func(s plan.Step) time.Duration { return limit(site, want(), s) }
	names := make([]string, 0, len(d.Site.Manifests))
	for name := range d.Site.Manifests {
		names = append(names, name)
	}
	a.edit(func(k *desk) { k.manifests = names })
	if manifests := resting(held); len(manifests) > 0 {
		d.Site = d.Site.Suspend(manifests...)
	}
	return nil
}

// resting lists the manifests that are suspended one by one.
func resting(held []ledger.Suspension) []string {
	out := make([]string, 0, len(held))
	for _, s := range held {
		if s.Manifest != "" {
			out = append(out, s.Manifest)
		}
	}
	slices.Sort(out)
	return out
}

// run makes the pass. Where the program panics before the first step it is the
// commit that it cannot cope with, and the commit is refused.
func (a *Agent) run(ctx context.Context, p *Pass, c model.Commit) (r Report) {
	defer func() {
		if v := recover(); v != nil {
			e := &defectError{"while a pass was made", v, debug.Stack()}
			r = a.nothing(Failed, e)
			a.blame(&r, e, c)
		}
	}()
	r = p.Run(ctx)
	if e, ok := errors.AsType[*defectError](r.Err); ok && r.Plan == nil {
		a.blame(&r, e, c) // of Open
	}
	return r
}

// blame refuses a commit for a panic, unless steps were begun.
func (a *Agent) blame(r *Report, e *defectError, c model.Commit) {
	logDefect(a.o.Log, e, c.ID)
	begun := false
	a.edit(func(d *desk) { begun = d.running != nil && d.running.begun() })
	r.Commit = c.ID
	if !begun {
		r.found(diag.List{e.finding(diag.FromSite)})
		r.Outcome, r.Err, r.Denied = Invalid, nil, true
	}
}

// verdict lets every plan be carried out that no rule denies.
func (a *Agent) verdict(_ context.Context, p *plan.Plan) (bool, error) {
	usual := make([]time.Duration, len(p.Steps))
	for i, s := range p.Steps {
		usual[i] = a.o.Ledger.Usual(s.Address.Kind, string(s.Action))
	}
	a.edit(func(d *desk) { d.running.planned(p.Steps, usual) })
	if len(p.Steps) > 0 {
		a.enter(Converging, lookTime)
	}
	return true, nil
}

// notify takes in what a pass tells of its steps.
func (a *Agent) notify(e apply.Event) {
	now, removed := time.Now(), false
	a.edit(func(d *desk) {
		var limit time.Duration
		if a.limits != nil {
			limit = a.limits(e.Step)
		}
		removed = d.running.event(e, now, limit)
		d.due = d.running.due(now)
	})
	if e.What == apply.Note {
		a.o.Log.Info("step", "address", e.Step.Address.String(), "note", e.Text)
	}
	if removed {
		a.spend()
	}
	a.tell()
}
