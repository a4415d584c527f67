package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
)

const (
	firstRetry = 10 * time.Second // after a pass that did not come to its end; then twice as long, up to Drift
	longRetry  = 10 * time.Minute // the longest pause after the repository did not answer, unless Poll is longer
)

// begin makes the agent ready for Run or Once, and gives what ends it again.
func (a *Agent) begin(ctx context.Context, stop <-chan struct{}) func() {
	ended, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		select {
		case <-stop:
			a.edit(func(d *desk) { d.stopping = true; d.stop() })
		case <-ended:
		}
	}()
	a.edit(func(d *desk) { d.status.Started = time.Now().UTC() })
	a.enter(Starting, lookTime)
	a.recall(ctx)
	return func() {
		close(ended)
		<-gone
		a.edit(func(d *desk) {
			for _, w := range d.asked.waiters {
				close(w)
			}
			d.asked, d.stopping, d.due, d.running = ask{}, true, time.Time{}, nil
		})
		close(a.over)
	}
}

// rest waits until there is something to do, and says what; false when the agent
// shall end.
func (a *Agent) rest(ctx context.Context, stop <-chan struct{}) (ask, bool) {
	for {
		if isClosed(stop) || ctx.Err() != nil {
			return ask{}, false
		}
		now := time.Now()
		want := a.take()
		want.full = a.expire(now) || want.full // first, or it would not be asked
		look, full, expiry := a.timers()
		want.fetch = want.fetch || !now.Before(look)
		want.full = want.full || !now.Before(full)
		if want.fetch || want.full {
			return want, true
		}
		next := look
		for _, t := range []time.Time{full, expiry} {
			if !t.IsZero() && t.Before(next) {
				next = t
			}
		}
		a.enter(Idle, next.Sub(now))
		timer := time.NewTimer(next.Sub(now))
		select {
		case <-timer.C:
		case <-a.wake:
		case <-stop:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// timers says when the repository is asked and the host is checked next, and when
// the next suspension ends (zero: none does).
func (a *Agent) timers() (look, full, expiry time.Time) {
	a.edit(func(d *desk) {
		look, full = a.look, a.full
		for _, s := range d.state.Suspended {
			if s.Until != nil && (expiry.IsZero() || s.Until.Before(expiry)) {
				expiry = *s.Until
			}
		}
	})
	return look, full, expiry
}

// cycle looks at the repository if that is wanted, and makes a pass if that is
// wanted or there is a new commit.
func (a *Agent) cycle(ctx context.Context, stop <-chan struct{}, want ask) Report {
	changed := want.fetch && a.fetch(ctx, stop)
	var r Report
	switch {
	case isClosed(stop) || ctx.Err() != nil:
		r = Report{Verb: agentVerb, Host: a.o.Identity, Outcome: Interrupted, Err: ErrInterrupted}
	case want.full || changed:
		r = a.converge(ctx, stop)
		a.schedule()
	}
	for _, w := range want.waiters {
		if r.Outcome != Interrupted || !isClosed(stop) && ctx.Err() == nil {
			a.edit(func(d *desk) { w <- *d.status.Last }) // it has room for one
		}
		close(w)
	}
	return r
}

// schedule says when the next full check is, by how the last pass ended.
func (a *Agent) schedule() {
	var last PassStatus
	a.edit(func(d *desk) { last = *d.status.Last })
	pause := a.o.Drift
	switch {
	case last.Outcome == Failed, last.Outcome == Partly, last.Unknown > 0:
		pause = jitter(backoff(firstRetry, a.tries, a.o.Drift))
		a.tries++
	case last.Outcome != Interrupted:
		a.tries = 0
	}
	a.full = time.Now().Add(pause)
	a.edit(func(d *desk) { d.status.NextFull = shown(a.full) })
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
// where time is made up, the same comes again.
func jitter(d time.Duration) time.Duration {
	r := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0)) //nolint:gosec // no secret depends on it
	return d - d/10 + time.Duration(r.Int64N(int64(d/5+1)))
}

// fetch asks the repository for its head, and reports whether that is one to look at.
func (a *Agent) fetch(ctx context.Context, stop <-chan struct{}) bool {
	a.enter(Looking, fetchTime)
	looking, release := until(ctx, stop)
	defer release()
	var head model.Commit
	err := guarded(func() (err error) {
		head, err = a.o.Source.Head(looking)
		return err
	})
	if err == nil && head.ID == "" {
		err = fmt.Errorf("branch %s has no commit", a.o.Branch)
	}
	if err != nil {
		if looking.Err() == nil {
			a.unanswered(err)
		}
		return false
	}
	a.answered()
	before, known := "", false
	a.edit(func(d *desk) {
		before = d.state.Head.ID
		_, known = d.commits[head.ID]
		d.commits[head.ID] = head
	})
	if before != head.ID {
		a.o.Log.Info("new commit", "commit", head.ID, "subject", head.Subject, "author", personOf(head))
		a.note(func(s *ledger.State) { s.Head = mark(head.ID) })
		a.edit(func(d *desk) { d.status.Refused = nil })
		a.tries = 0
	}
	a.keep()
	return before != head.ID || !known
}

// unanswered books that the repository did not answer. What was good stays good.
func (a *Agent) unanswered(err error) {
	if a.lost == nil {
		a.o.Log.Warn("the repository does not answer; the last good commit stays in force", "error", err)
	}
	a.lost = err
	a.look = time.Now().Add(jitter(backoff(a.o.Poll, a.fails, max(longRetry, a.o.Poll))))
	a.fails++
	a.edit(func(d *desk) {
		d.status.Repository.Error, d.status.NextLook = err.Error(), shown(a.look)
		if d.status.Repository.Failing == nil {
			d.status.Repository.Failing = now()
		}
	})
}

func (a *Agent) answered() {
	if a.lost != nil {
		a.o.Log.Info("the repository answers again", "repository", a.o.URL)
	}
	a.lost, a.fails = nil, 0
	a.look = time.Now().Add(jitter(a.o.Poll))
	a.edit(func(d *desk) {
		d.status.Repository.Error, d.status.Repository.Failing, d.status.Repository.Checked = "", nil, now()
		d.status.NextLook = shown(a.look)
	})
}

func now() *time.Time { return shown(time.Now()) }

// shown is a time for people. It is no longer one to wait for: UTC takes the reading of
// the monotonic clock off, and a wait would be as long as somebody sets the clock back.
func shown(t time.Time) *time.Time {
	t = t.UTC()
	return &t
}

func mark(id string) ledger.Mark { return ledger.Mark{ID: id, Since: time.Now().UTC()} }
