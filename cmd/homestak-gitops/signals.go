package main

import (
	"context"

	"github.com/homestak/homestak-gitops/engine"
)

// stopping knows how often the user asked the program to end. Once means: start
// nothing new, finish what runs. Twice means: leave now; then the context that
// watch gave is cancelled.
type stopping struct {
	ctx   context.Context // of the process; ends at the second signal
	once  chan struct{}   // closed at the first signal
	leave context.CancelCauseFunc
	done  chan struct{}
}

// watch counts the signals of a process until close.
func watch(ctx context.Context, p process) (context.Context, *stopping) {
	ctx, leave := context.WithCancelCause(ctx)
	s := &stopping{ctx: ctx, once: make(chan struct{}), leave: leave, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		select {
		case <-p.signals:
			close(s.once)
		case <-ctx.Done():
			return
		}
		select {
		case <-p.signals:
			leave(engine.ErrInterrupted)
		case <-ctx.Done():
		}
	}()
	return ctx, s
}

// close ends the watching and waits for it.
func (s *stopping) close() {
	s.leave(nil)
	<-s.done
}

// soon gives a context that ends at the first request already: for work that has
// nothing to finish, such as reading or waiting for an answer.
func (s *stopping) soon(ctx context.Context) (context.Context, context.CancelFunc) {
	return engine.Until(ctx, s.once)
}
