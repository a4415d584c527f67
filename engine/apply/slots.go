package apply

import (
	"context"
	"slices"

	"github.com/homestak/homestak-gitops/engine/plan"
)

// slotRequest is a worker's request to the run: to give up or get back its slot, or to report a sentence.
type slotRequest struct {
	task      *task
	again     chan struct{} // closed when it has a slot again; nil: it gives its slot up
	withdrawn bool          // it does not wait for a slot any more
	forever   bool          // it gives its slot up for good
	message   string        // a sentence to report, see Report; not about its slot
}

type (
	slotKey struct{}
	asking  func(context.Context, slotRequest) error
)

// withSlots returns a context by which the work of a task sends such requests.
func (r *run) withSlots(ctx context.Context, t *task) context.Context {
	ask := func(ctx context.Context, p slotRequest) error {
		p.task = t
		r.moves <- p
		if p.again == nil { // nothing to wait for
			return nil
		}
		select {
		case <-p.again:
			return nil
		case <-ctx.Done():
			r.moves <- slotRequest{task: t, withdrawn: true}
			return context.Cause(ctx)
		}
	}
	return context.WithValue(context.WithValue(ctx, slotKey{}, asking(ask)), stopKey{}, r.o.Stop)
}

// YieldForever gives up the slot of a running step, because from now on it only waits for something
// that is not work of the host, such as a health check: other steps start meanwhile. It is called
// with the context of a Do, by the goroutine of that; with any other, nothing happens.
//
// Of one manifest no more than Options.Width steps are begun and not over, with a slot
// or without, so that a failure stops it before it came further than it ever did.
// Creations that left do not count where a failure stops nothing.
func YieldForever(ctx context.Context) {
	if ask, ok := ctx.Value(slotKey{}).(asking); ok {
		_ = ask(ctx, slotRequest{forever: true})
	}
}

type stopKey struct{}

// Stopping is closed when a run is to start nothing new, with the context of a Do; nil with any other. A Do of
// several parts may return NotYetError between two of them if it can be repeated.
func Stopping(ctx context.Context) <-chan struct{} {
	stop, _ := ctx.Value(stopKey{}).(<-chan struct{})
	return stop
}

// Report reports a sentence about a running step, as a Note. It is called as YieldForever is.
func Report(ctx context.Context, text string) {
	if ask, ok := ctx.Value(slotKey{}).(asking); ok {
		_ = ask(ctx, slotRequest{message: text})
	}
}

// Yield is YieldForever for a step that has more work to do. The returned function waits for a
// slot, with priority over new steps; it returns the cause if its context ends first.
func Yield(ctx context.Context) (back func(context.Context) error) {
	ask, ok := ctx.Value(slotKey{}).(asking)
	if !ok {
		return func(context.Context) error { return nil }
	}
	_ = ask(ctx, slotRequest{})
	return func(ctx context.Context) error { return ask(ctx, slotRequest{again: make(chan struct{})}) }
}

// moved handles a slot request.
func (r *run) moved(m slotRequest) {
	switch {
	case m.message != "":
		r.notify(Event{What: Note, Step: m.task.step, Text: m.message})
	case m.withdrawn:
		r.resuming = slices.DeleteFunc(r.resuming, func(b slotRequest) bool { return b.task == m.task })
	case m.again != nil && m.task.yielded:
		r.resuming = append(r.resuming, m)
	case m.again != nil:
		close(m.again)
	case !m.task.yielded:
		m.task.yielded = true
		r.yielded++
		if m.task.aside = m.forever && !r.decisive(m.task); m.task.aside {
			r.manifests[m.task.step.Manifest].aside++
		}
	}
}

// resume gives a task its slot again.
func (r *run) resume(t *task) {
	t.yielded = false
	r.yielded--
	if t.aside {
		t.aside = false
		r.manifests[t.step.Manifest].aside--
	}
}

// grantSlots gives free slots to the tasks that wait for one.
func (r *run) grantSlots() {
	for len(r.resuming) > 0 && r.running-r.yielded < r.o.Width {
		b := r.resuming[0]
		r.resuming = r.resuming[1:]
		r.resume(b.task)
		close(b.again)
	}
}

// decisive reports whether it matters to the rest of its manifest how a step ends: it
// would stop the others, or it may have taken a guest down that ran.
func (r *run) decisive(t *task) bool {
	name := t.step.Manifest
	return name != "" && (t.step.Action != plan.Create || r.policy(name) != onErrorContinue)
}

// policy is the on_error policy of a manifest.
func (r *run) policy(name string) string {
	if r.o.OnError == nil {
		return onErrorStop
	}
	return r.o.OnError(name)
}

// next removes and returns the first ready step whose manifest allows it to start; nil if there is
// none.
func (r *run) next() *task {
	for i, t := range r.ready {
		m := r.manifests[t.step.Manifest]
		if t.state == waiting && m.running-m.aside >= r.o.Width {
			continue
		}
		r.ready = slices.Delete(r.ready, i, i+1)
		return t
	}
	return nil
}
