package apply

import (
	"context"
	"slices"

	"github.com/homestak/homestak-gitops/engine/plan"
)

// place is what a worker asks of the run about its place among those at work.
type place struct {
	task  *task
	again chan struct{} // closed when it has one again; nil: it gives it up
	off   bool          // it does not wait for one any more
	left  bool          // it gives it up for good
	says  string        // not about its place: a sentence to report, see Report
}

type (
	seatKey struct{}
	asking  func(context.Context, place) error
)

// seat lets the work of a task ask for that.
func (r *run) seat(ctx context.Context, t *task) context.Context {
	ask := func(ctx context.Context, p place) error {
		p.task = t
		r.moves <- p
		if p.again == nil { // nothing to wait for
			return nil
		}
		select {
		case <-p.again:
			return nil
		case <-ctx.Done():
			r.moves <- place{task: t, off: true}
			return context.Cause(ctx)
		}
	}
	return context.WithValue(ctx, seatKey{}, asking(ask))
}

// YieldForever gives up the place of a step among those at work, since it only waits from now
// on for what is no work of the host, such as a health check: other steps are begun
// meanwhile. It is called with the context of a Do, by the goroutine of that; with any
// other, nothing happens.
//
// Of one manifest no more than Options.Width steps are begun and not over, with a place
// or without, so that a failure stops it before it came further than it ever did.
// Creations that left do not count where a failure stops nothing.
func YieldForever(ctx context.Context) {
	if ask, seated := ctx.Value(seatKey{}).(asking); seated {
		_ = ask(ctx, place{left: true})
	}
}

// Report reports a sentence about a step at work, as a Note. It is called as YieldForever is.
func Report(ctx context.Context, text string) {
	if ask, seated := ctx.Value(seatKey{}).(asking); seated {
		_ = ask(ctx, place{says: text})
	}
}

// Yield is YieldForever for a step that has work to do yet. The function that comes of it waits
// until there is a place again, before anything new is begun; it answers the cause if
// its context ends first.
func Yield(ctx context.Context) (back func(context.Context) error) {
	ask, seated := ctx.Value(seatKey{}).(asking)
	if !seated {
		return func(context.Context) error { return nil }
	}
	_ = ask(ctx, place{})
	return func(ctx context.Context) error { return ask(ctx, place{again: make(chan struct{})}) }
}

// moved takes in what a worker asks about its place.
func (r *run) moved(m place) {
	switch {
	case m.says != "":
		r.notify(Event{What: Note, Step: m.task.step, Text: m.says})
	case m.off:
		r.back = slices.DeleteFunc(r.back, func(b place) bool { return b.task == m.task })
	case m.again != nil && m.task.rests:
		r.back = append(r.back, m)
	case m.again != nil:
		close(m.again)
	case !m.task.rests:
		m.task.rests = true
		r.resting++
		if m.task.aside = m.left && !r.proves(m.task); m.task.aside {
			r.manifests[m.task.step.Manifest].aside++
		}
	}
}

// stand is the end of a rest.
func (r *run) stand(t *task) {
	t.rests = false
	r.resting--
	if t.aside {
		t.aside = false
		r.manifests[t.step.Manifest].aside--
	}
}

// admit gives those places that are free to who waits for one again.
func (r *run) admit() {
	for len(r.back) > 0 && r.running-r.resting < r.o.Width {
		b := r.back[0]
		r.back = r.back[1:]
		r.stand(b.task)
		close(b.again)
	}
}

// proves reports whether it matters to the rest of its manifest how a step ends: it
// would stop the others, or it may have taken a guest down that ran.
func (r *run) proves(t *task) bool {
	name := t.step.Manifest
	return name != "" && (t.step.Action != plan.Create || r.policy(name) != Continue)
}

// policy is what a manifest wants when a step of it fails.
func (r *run) policy(name string) string {
	if r.o.OnError == nil {
		return Stop
	}
	return r.o.OnError(name)
}

// next takes out the first of those that may start now whose manifest lets it; nil
// if there is none.
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
