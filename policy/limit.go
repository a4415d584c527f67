package policy

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"

	"github.com/open-policy-agent/opa/v1/topdown"
)

// The default limits of one evaluation.
const (
	defaultTime   = 5 * time.Second
	defaultMemory = 256 << 20
)

// patience is the limit of an evaluation in wall-clock time, as a multiple of its processor time: the rules are not
// to blame for a busy machine. It is a minute at least.
const (
	patience  = 12
	leastWall = time.Minute
)

// checkEvery is the interval at which a running evaluation is checked. Its allocations in between add to its limit.
const checkEvery = 10 * time.Millisecond

// grace limits the time in which an evaluation notices that it was stopped, and says
// where it was.
const grace = 2 * time.Second

// limits enforces the limits of time and memory. Evaluations may run in parallel; the calling
// goroutine watches each of them.
type limits struct {
	time   time.Duration // of a processor
	memory uint64

	// stray counts evaluations that were stopped and have not ended. A goroutine that does not
	// check for cancellation cannot be stopped, so it is abandoned; as long as it runs, no other
	// evaluation starts.
	stray atomic.Int32
}

// stopped is an evaluation that was cancelled. Its own error is less useful: it may only say that
// something took too long.
type stopped struct {
	why   string
	cause error // nil for a limit
}

// Error says why it was ended.
func (s *stopped) Error() string { return s.why }

// Unwrap returns the cause.
func (s *stopped) Unwrap() error { return s.cause }

// brake stops an evaluation, or pauses it for a moment: OPA checks it before every step, in the goroutine of the
// evaluation. Its mutex is what a paused one waits for; only the watcher locks it for longer than that.
type brake struct {
	state atomic.Int32
	hold  sync.Mutex
}

const (
	rolling = iota
	paused
	ended
)

// Cancel stops the evaluation for good.
func (b *brake) Cancel() { b.state.Store(ended) }

// Cancelled reports whether it was stopped. While it is paused, the answer is not known,
// and waited for.
func (b *brake) Cancelled() bool {
	if b.state.Load() == paused {
		b.hold.Lock()
		defer b.hold.Unlock()
	}
	return b.state.Load() == ended
}

// still runs a function while the evaluation makes no further step.
func (b *brake) still(f func()) {
	b.hold.Lock()
	defer b.hold.Unlock()
	b.state.CompareAndSwap(rolling, paused)
	f()
	b.state.CompareAndSwap(paused, rolling)
}

// within runs an evaluation in a separate goroutine and waits until it ends or exceeds a limit:
// then it is cancelled by context and cancel. A panic in it is an error.
func within[T any](ctx context.Context, l *limits, run func(context.Context, topdown.Cancel) (T, error)) (T, error) {
	var none T
	if l.stray.Load() > 0 {
		return none, &stopped{why: "a policy that was stopped still runs; nothing is checked until it ends"}
	}
	type outcome struct {
		value T
		err   error
	}
	inner, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	inner, position := positioned(inner)
	stop, done := &brake{}, make(chan outcome, 1)
	began, base, gone := time.Now(), heap(), ctx.Done()
	clock := make(chan func() time.Duration, 1)
	go func() {
		read, release := ThreadClock()
		defer release()
		start := read()
		clock <- func() time.Duration { return read() - start }
		var o outcome
		defer func() {
			if p := recover(); p != nil {
				o.err = fmt.Errorf("internal error of the policy engine: %v\n%s", p, debug.Stack())
			}
			done <- o
		}()
		o.value, o.err = run(inner, stop)
	}()

	used := <-clock
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	var why error       // it was asked to stop
	var since time.Time // when
	for {
		select {
		case o := <-done:
			if why == nil {
				return o.value, o.err
			}
			debug.FreeOSMemory() // what it has left behind must not be charged to the next one, nor kept
			if o.err != nil {
				o.err = errors.Join(why, o.err) // the second one knows where it was
			}
			return o.value, o.err
		case <-gone:
			why, gone = &stopped{ctx.Err().Error(), ctx.Err()}, nil
		case <-tick.C:
			if why == nil {
				why = l.exceeded(used(), time.Since(began), base, stop)
				position.stopped.CompareAndSwap(false, why != nil)
			}
		}
		switch {
		case why == nil:
		case since.IsZero():
			since = time.Now()
			stop.Cancel()
			end()
		case time.Since(since) > grace:
			l.stray.Add(1)
			go func() {
				<-done
				l.stray.Add(-1)
			}()
			return none, atPosition(why, position)
		}
	}
}

// atPosition adds to an error the call that does not end.
func atPosition(why error, p *Position) error {
	if at := p.at.Load(); at != nil {
		return errors.Join(why, &topdown.Error{Code: topdown.CancelErr, Message: "it does not end", Location: at})
	}
	return why
}

// exceeded says which limit an evaluation has passed, nil for none.
func (l *limits) exceeded(used, took time.Duration, base uint64, stop *brake) error {
	if used > l.time {
		return &stopped{why: fmt.Sprintf("it did not finish within %s of processor time", l.time)}
	}
	if wall := max(patience*l.time, leastWall); took > wall {
		return &stopped{why: fmt.Sprintf("it did not finish within %s", wall)}
	}
	if heap() < base+l.memory {
		return nil
	}
	var err error
	stop.still(func() {
		runtime.GC() // what it has dropped is not counted; this happens once in so many MiB
		if heap() >= base+l.memory {
			err = &stopped{why: fmt.Sprintf("it took more than %d MiB of memory", l.memory>>20)}
			stop.Cancel()
		}
	})
	return err
}

// heap is the size of the objects of this process in bytes, including garbage that is not yet freed. Allocations of
// other goroutines meanwhile are charged to the policy.
func heap() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}
