package agent

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/ledger"
)

// request is a request to the agent, or a report. The goroutine that owns the loop serves it, between two of its
// own acts or while it waits for one.
type request interface{ serve(l *loop) }

// envelope is a request on its way. Served is closed when the request is done.
type envelope struct {
	request request
	served  chan struct{}
}

// send has a request served and returns when it is: by the loop, or here while no loop
// runs. It must not be called from the loop's goroutine.
func (a *Agent) send(r request) {
	e := envelope{r, make(chan struct{})}
	select {
	case a.inbox <- e:
		<-e.served
	case l := <-a.idle:
		defer func() { a.idle <- l }()
		l.serve(e)
	}
}

// work is the next work of the loop: to fetch the repository, to check the host, or some guests of it.
type work struct {
	fetch, check bool
	changed      []int // VMIDs
	waiters      []chan<- PassStatus
}

func (w work) and(more work) work {
	return work{w.fetch || more.fetch, w.check || more.check, append(w.changed, more.changed...), append(w.waiters, more.waiters...)}
}

// take takes all of it.
func (w *work) take() work {
	all := *w
	*w = work{}
	return all
}

func (w work) serve(l *loop) { l.requested = l.requested.and(w) }

// CheckNow asks for a check of repository and host as soon as possible, and does not
// wait for it. Any number of calls before that check count as one.
func (a *Agent) CheckNow() { a.send(work{fetch: true, check: true}) }

// Reconcile is CheckNow, and waits for the end of the first pass that began after the call. If head was refused,
// that is the pass with the last good commit; Status says so. It returns ErrInterrupted if the agent stops first;
// before Run it waits for it.
func (a *Agent) Reconcile(ctx context.Context) (PassStatus, error) {
	answer := make(chan PassStatus, 1)
	a.send(work{fetch: true, check: true, waiters: []chan<- PassStatus{answer}})
	select {
	case s, ok := <-answer:
		return reconciled(s, ok)
	case <-ctx.Done():
		return PassStatus{}, context.Cause(ctx)
	case <-a.ended:
	}
	select {
	case s, ok := <-answer: // both at once
		return reconciled(s, ok)
	default:
		return PassStatus{}, engine.ErrInterrupted
	}
}

func reconciled(s PassStatus, ok bool) (PassStatus, error) {
	if !ok {
		return PassStatus{}, engine.ErrInterrupted
	}
	return s, nil
}

type suspend struct {
	s   ledger.Suspension
	err error
}

// Suspend keeps the agent from converging a manifest, or everything; a second call
// about the same replaces the first. It is in force when it returns, but for steps that
// run. A manifest that the site in force does not have is an error, and so is an end
// in the past. After any other error it is in force until the agent ends.
func (a *Agent) Suspend(s ledger.Suspension) error {
	now := time.Now().UTC()
	if s.Until != nil && !s.Until.After(now) {
		return fmt.Errorf("suspend until %s: that time has passed", s.Until.UTC().Format(time.RFC3339))
	}
	if s.Since.IsZero() {
		s.Since = now
	}
	r := &suspend{s: s}
	a.send(r)
	return r.err
}

func (r *suspend) serve(l *loop) {
	m, name := &l.memory, r.s.Manifest
	if name != "" && l.manifests != nil && !slices.Contains(l.manifests, name) && !suspended(m.Suspended, name) {
		hint := cmp.Or(diag.DidYouMean(name, l.manifests), "the site has none")
		r.err = fmt.Errorf("unknown manifest %q: %s", name, hint)
		return
	}
	m.Suspended = append(slices.DeleteFunc(slices.Clone(m.Suspended), of(name)), r.s)
	l.haltPass() // what it planned may be about the manifest; the next pass begins at once
	l.requested.check = true
	if err := m.save(); err != nil {
		r.err = fmt.Errorf("suspended, but only until the agent ends: %w", err)
	}
	l.o.Log.Info("suspended", "manifest", everything(name), "by", r.s.By, "reason", r.s.Reason, "until", r.s.Until)
}

type resume struct {
	manifest string
	found    bool
	err      error
}

// Resume takes a suspension back and checks at once; false if there was none. After
// an error it is taken back, but may return with a restart of the agent.
func (a *Agent) Resume(manifest string) (bool, error) {
	r := &resume{manifest: manifest}
	a.send(r)
	return r.found, r.err
}

func (r *resume) serve(l *loop) {
	m := &l.memory
	if r.found = suspended(m.Suspended, r.manifest); !r.found {
		return
	}
	m.Suspended = slices.DeleteFunc(slices.Clone(m.Suspended), of(r.manifest))
	r.err = m.save()
	l.o.Log.Info("resumed", "manifest", everything(r.manifest))
	l.requested = l.requested.and(work{fetch: true, check: true})
}

func suspended(list []ledger.Suspension, manifest string) bool {
	return slices.ContainsFunc(list, of(manifest))
}

func of(manifest string) func(ledger.Suspension) bool {
	return func(s ledger.Suspension) bool { return s.Manifest == manifest }
}

func everything(manifest string) string {
	if manifest == "" {
		return "(everything)"
	}
	return manifest
}

// pausedBy reports who paused the agent, or "" if it is not paused.
type pausedBy string

func (p pausedBy) serve(l *loop) { l.pausedBy = string(p) }

// Pause gives the caller the right to write to the host until release is called or ctx ends: it waits for the
// current pass, and keeps the next from beginning.
func (a *Agent) Pause(ctx context.Context, who string) (release func(), err error) {
	select {
	case a.write <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	a.send(pausedBy(who))
	done := sync.OnceFunc(func() {
		a.send(pausedBy(""))
		<-a.write
	})
	cancel := context.AfterFunc(ctx, done)
	return func() { cancel(); done() }, nil
}
