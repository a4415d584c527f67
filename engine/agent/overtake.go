package agent

import (
	"context"
	"time"

	"github.com/homestak/homestak-gitops/engine/model"
)

// A pass may take long: guests boot, fetch packages, wait for another program. A push during a pass does not wait
// for its end. The repository is polled meanwhile, and a new head ends the pass as a suspension does: no step
// starts, running steps are finished (inside a guest: up to the next part of its spec), and the next pass begins at
// once with the new commit. A pass that has not started a step continues, so that each pass makes progress even
// with frequent pushes.

// headWatch asks the repository beside a pass. Its fields are not written to while it runs.
type headWatch struct {
	source source
	known  string // the head as the loop knows it
	every  time.Duration
	send   func(request)
}

// during runs a pass and the watch beside it. Nothing else asks the source meanwhile.
func (w *headWatch) during(ctx context.Context, pass func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.run(ctx)
	}()
	defer func() {
		cancel()
		<-ended
	}()
	pass()
}

func (w *headWatch) run(ctx context.Context) {
	timer := time.NewTimer(jitter(w.every))
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		// The fetch after the pass reports errors.
		if head, err := w.head(ctx); err == nil && head.ID != "" && head.ID != w.known && ctx.Err() == nil {
			o := &overtaken{head: head.ID}
			if w.send(o); o.halted {
				return
			}
		}
		timer.Reset(jitter(w.every))
	}
}

// head asks the source. A panic is none of the pass: the next question meets it again, and reports it.
func (w *headWatch) head(ctx context.Context) (head model.Commit, err error) {
	defer func() { _ = recover() }()
	return w.source.Head(ctx)
}

// overtaken reports that the repository has another head than the one that the pass under way began with.
type overtaken struct {
	head   string
	halted bool
}

func (o *overtaken) serve(l *loop) {
	if l.progress == nil || !l.progress.yields() {
		return
	}
	o.halted = true
	l.requested = l.requested.and(work{fetch: true, check: true})
	l.haltPass()
	l.o.Log.Info("new commit: the running pass starts no new steps", "commit", o.head)
}
