package agent

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"time"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

const (
	firstRetry = 10 * time.Second // after a pass that was not completed; then twice as long, up to Drift
	longRetry  = 10 * time.Minute // the longest pause after the repository did not answer, unless Poll is longer
)

// Time limits after which the agent counts as stuck. Operations with deadlines of their own (a request to the
// repository, a step) get those and grace; others (reading a site, evaluating rules, observing a host) get
// phaseTime each.
const (
	fetchTime = 30 * time.Minute // two downloads, of which each may take ten times as long as an answer
	phaseTime = 10 * time.Minute
	grace     = 2 * time.Minute // between the end of a step's time and its answer
)

// loop is the state of an agent. The goroutine of Run or Once owns it; before and after these, the goroutine that
// took it from Agent.idle.
type loop struct {
	o     Options
	agent *Agent
	stop  <-chan struct{} // closed: start nothing new

	memory    memory
	upstream  upstream
	manifests []string // of the site in force; nil before one was read
	requested work

	// Published state.
	status          Status    // what does not follow from the rest
	progress        *progress // of the pass under way
	due             time.Time // when the agent must have made progress; zero: it waits for others
	pausedBy        string
	lockedBy        string // who holds the write lock, as Exclusive reports
	unknownIdentity string // the sentence about an identity that is not in the site
	trouble         string // why the last pass was not completed
	course          course // of the last pass
	withheld        int    // steps that were planned while everything is suspended
	stopping        bool

	halt   chan struct{} // of the pass under way, closed when it must start nothing new
	grants allowance     // of the pass under way, less what it has used

	incomplete int       // passes in a row that were not completed
	nextFetch  time.Time // time of the next fetch, by the monotonic clock
	nextCheck  time.Time // when the host is checked next, by the same
	journal    journal

	own     ownChanges
	waivers []model.Waiver                   // of the site of the last pass
	life    map[model.Address]plan.LifeFacts // of the nodes of the status; replaced, never written to
	changed map[model.Address]model.Guest    // that the pass under way is about; nil: all of the host

	startFirst bool // the pass under way may be about guests that are off alone
	started    bool // the last one was: now all of the host is checked
}

// begin makes the loop ready for Run or Once; end ends it again.
func (l *loop) begin(ctx context.Context, stop <-chan struct{}) {
	l.stop = stop
	l.status.Started = time.Now().UTC()
	if err := settle(l); err != nil {
		l.o.Log.Warn("a pass that was cut off is not recorded", "error", err)
	}
	l.enter(Starting, phaseTime)
	l.upstream.keep(ctx, l.memory.refs())
	for _, id := range l.memory.refs() {
		_, _ = l.upstream.commit(ctx, id) // a commit that is missing is reported when it is needed
	}
}

func (l *loop) end() {
	for _, w := range l.requested.waiters {
		close(w)
	}
	l.requested, l.stopping, l.due, l.progress = work{}, true, time.Time{}, nil
	l.publish()
	close(l.agent.ended)
	l.agent.idle <- l
}

// publish makes the present state visible to readers.
func (l *loop) publish() { l.agent.published.Store(l.view()) }

// enter says what the agent does now, and how long it may: 0 is as long as others like.
func (l *loop) enter(s State, limit time.Duration) {
	l.status.State, l.due = s, time.Time{}
	if limit > 0 {
		l.due = time.Now().Add(limit + grace)
	}
	l.notify()
}

func (l *loop) notify() {
	l.publish()
	if l.o.Notify != nil {
		l.o.Notify(l.agent.Status())
	}
}

// moved records the start of an operation without a limit of its own. Operations of a step are bounded by the time
// of the step.
func (l *loop) moved() {
	l.due = time.Now().Add(phaseTime + grace)
	if l.progress != nil && len(l.progress.running) > 0 {
		l.due = l.progress.due(time.Now())
	}
}

// serve does what a request asks for.
func (l *loop) serve(e envelope) {
	defer close(e.served)
	defer l.publish()
	e.request.serve(l)
}

// during does something that may take long in a goroutine of its own, and serves
// requests until it is done. Work must not touch the loop. Its context ends with ctx or
// at a stop.
func (l *loop) during(ctx context.Context, work func(ctx context.Context)) {
	l.publish()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended, returned := make(chan struct{}), false
	go func() {
		defer close(ended)
		work(ctx)
		returned = true
	}()
	for stop := l.stop; ; {
		select {
		case e := <-l.agent.inbox:
			l.serve(e)
		case <-stop:
			stop = nil
			l.noteStop()
			cancel(engine.ErrInterrupted)
		case <-ended:
			if !returned {
				runtime.Goexit() // as work did: a test that failed in it
			}
			return
		}
	}
}

func (l *loop) noteStop() {
	l.stopping = true
	l.haltPass()
	l.publish()
}

// haltPass makes the pass under way start nothing new.
func (l *loop) haltPass() {
	if l.halt != nil && !engine.IsClosed(l.halt) {
		close(l.halt)
	}
}

// wait waits for work, and returns it; false when the agent should end.
func (l *loop) wait(ctx context.Context) (work, bool) {
	for {
		if engine.IsClosed(l.stop) || ctx.Err() != nil {
			return work{}, false
		}
		if l.o.Replaced != nil && l.o.Replaced() {
			l.o.Log.Info("another version of the program is installed: the agent ends, and the service manager starts that one")
			return work{}, false
		}
		now := time.Now()
		next := l.requested.take()
		next.check = l.memory.expire(now) || next.check || !now.Before(l.nextCheck)
		next.fetch = next.fetch || !now.Before(l.nextFetch)
		if next = next.and(l.own.due(now)); next.fetch || next.check || len(next.changed) > 0 {
			return next, true
		}
		pause := l.wakeup().Sub(now)
		l.enter(Idle, pause)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case e := <-l.agent.inbox:
			l.serve(e)
		case <-l.stop:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// wakeup returns the time at which there is something to do next without a request.
func (l *loop) wakeup() time.Time {
	next := l.nextFetch
	for _, t := range []time.Time{l.nextCheck, l.own.next} {
		if !t.IsZero() && t.Before(next) {
			next = t
		}
	}
	for _, s := range l.memory.Suspended {
		if s.Until != nil && s.Until.Before(next) {
			next = *s.Until
		}
	}
	return next
}

// cycle asks the repository if that is wanted, and makes a pass if that is wanted or
// there is a new commit.
func (l *loop) cycle(ctx context.Context, w work) engine.Report {
	changed := w.fetch && l.fetch(ctx)
	interrupted := engine.IsClosed(l.stop) || ctx.Err() != nil
	var r engine.Report
	switch {
	case interrupted:
		r = notRun(l.o.Identity, engine.Interrupted, engine.ErrInterrupted)
	case w.check || changed || len(w.changed) > 0:
		if !w.check && !changed {
			l.changed = knownGuests(l, w.changed)
		}
		l.own.checked(l.changed)
		l.startFirst = w.check && !changed && !l.started && leftNothing(l)
		r = l.converge(ctx)
		l.changed, l.started = nil, l.startFirst && r.Have.Only
		if l.started {
			l.own.passed(r.Plan)
			l.requested = l.requested.and(work{check: true, waiters: w.waiters})
			l.publish()
			return r
		}
		l.schedule(r)
	}
	interrupted = engine.IsClosed(l.stop) || ctx.Err() != nil
	l.publish()
	for _, waiter := range w.waiters {
		if r.Outcome != engine.Interrupted || !interrupted {
			waiter <- *l.status.Last // it has room for one
		}
		close(waiter)
	}
	return r
}

// schedule says when the next full check is, by how the last pass ended.
func (l *loop) schedule(r engine.Report) {
	last, pause := l.status.Last, l.o.Drift
	switch {
	case r.Have.Only && r.Outcome == engine.Done: // a full check is due when it was due before
		l.own.passed(r.Plan)
		l.own.check(l)
		return
	case last.Outcome == engine.Failed, last.Outcome == engine.Partly, last.Unknown > 0:
		pause = jitter(backoff(firstRetry, l.incomplete, l.o.Drift))
		l.incomplete++
	case last.Outcome != engine.Interrupted:
		l.incomplete = 0
	}
	l.nextCheck = time.Now().Add(pause)
	l.status.NextFull = shown(l.nextCheck)
	l.own.passed(r.Plan)
	l.own.check(l)
}

// fetch asks the repository for its head, and reports whether that is one to check.
func (l *loop) fetch(ctx context.Context) bool {
	l.enter(Checking, fetchTime)
	head, ok := l.upstream.head(ctx, l.memory.Head.ID)
	if !ok && (engine.IsClosed(l.stop) || ctx.Err() != nil) {
		return false
	}
	l.scheduleFetch()
	if !ok {
		return false
	}
	before := l.memory.Head.ID
	_, known := l.upstream.commits[head.ID]
	l.upstream.commits[head.ID] = head
	if before != head.ID {
		l.o.Log.Info("new commit", "commit", head.ID, "subject", head.Subject, "author", personOf(head))
		l.upstream.follows(ctx, before, head.ID)
		l.memory.Head = refNow(head.ID)
		l.memory.persist()
		l.status.Refused = nil
		l.incomplete = 0
	}
	l.upstream.keep(ctx, l.memory.refs())
	return before != head.ID || !known
}

// scheduleFetch says when the repository is asked next, by how it answered.
func (l *loop) scheduleFetch() {
	l.nextFetch = time.Now().Add(l.upstream.pause(l.o.Poll))
	l.status.NextCheck = shown(l.nextFetch)
}

// notRun is the report of a pass that could not begin.
func notRun(host string, o engine.Outcome, err error) engine.Report {
	if errors.Is(err, engine.ErrInterrupted) {
		o = engine.Interrupted
	}
	return engine.Report{Verb: verb, Host: host, Outcome: o, Err: err}
}

// backoff is first, doubled n times, but not more than most.
func backoff(first time.Duration, n int, most time.Duration) time.Duration {
	d := first
	for range n {
		if d >= most {
			break
		}
		d *= 2
	}
	return min(d, most)
}

// jitter makes a pause up to a tenth shorter or longer, so that agents which began
// together do not stay together. It is drawn from the clock, as the other pauses are:
// where time is simulated, the same comes again.
func jitter(d time.Duration) time.Duration {
	r := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0)) //nolint:gosec // no secret depends on it
	return d - d/10 + time.Duration(r.Int64N(int64(d/5+1)))
}

func now() *time.Time { return shown(time.Now()) }

// shown converts a time for display. Do not wait for it: UTC removes the monotonic clock reading, so a wait would
// change when the clock is set.
func shown(t time.Time) *time.Time {
	t = t.UTC()
	return &t
}
