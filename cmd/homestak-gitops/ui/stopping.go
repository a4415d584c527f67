package ui

import (
	"context"

	"github.com/homestak/homestak-gitops/engine"
)

// Stopping knows how often the user asked the program to end. Once means: start
// nothing new, finish what runs. Twice means: leave now.
type Stopping struct {
	Context context.Context // of the process; ends at the second signal, with engine.ErrInterrupted as its cause
	Once    <-chan struct{} // closed at the first signal

	leave context.CancelCauseFunc
	done  chan struct{}
}

// Watch counts the signals of a process until Close. The context is that of Stopping.
func (p Process) Watch(ctx context.Context) (context.Context, *Stopping) {
	ctx, leave := context.WithCancelCause(ctx)
	once := make(chan struct{})
	s := &Stopping{Context: ctx, Once: once, leave: leave, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		select {
		case <-p.Signals:
			close(once)
		case <-ctx.Done():
			return
		}
		select {
		case <-p.Signals:
			leave(engine.ErrInterrupted)
		case <-ctx.Done():
		}
	}()
	return ctx, s
}

// Close ends the watching and waits for its goroutine.
func (s *Stopping) Close() {
	s.leave(nil)
	<-s.done
}

// Soon returns a context that ends at the first request already: for work that has
// nothing to finish, such as reading or waiting for an answer.
func (s *Stopping) Soon(ctx context.Context) (context.Context, context.CancelFunc) {
	return engine.Until(ctx, s.Once)
}
