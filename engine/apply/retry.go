package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"time"

	"github.com/homestak/homestak-gitops/engine/plan"
)

// Backoff says how often a step is tried and how long the pauses are. The zero
// value tries four times within some seven seconds.
type Backoff struct {
	Tries int           // in all; 4 unless set
	First time.Duration // the first pause; 1s unless set. Each further one is twice as long
	Most  time.Duration // the longest pause; 30s unless set
}

// Retry retries a step if its error is Temporary, such as a lock that is held elsewhere. Each pause has a random
// jitter, down to half, so that steps which failed together do not retry together. It never outlasts the context.
func (b Backoff) Retry(do Do) Do {
	b = b.complete()
	return func(ctx context.Context, s plan.Step) error {
		for try := 1; ; try++ {
			err := do(ctx, s)
			if err == nil || !temporary(err) {
				return err
			}
			if try == b.Tries {
				return fmt.Errorf("tried %d times: %w", try, err)
			}
			wait := b.pause(s, try)
			if end, ok := ctx.Deadline(); ok && time.Until(end) < wait {
				return err
			}
			if !sleep(ctx, wait, nil) {
				return err
			}
		}
	}
}

// complete fills in what is not set.
func (b Backoff) complete() Backoff {
	b.Tries = cmp.Or(max(b.Tries, 0), 4)
	b.First = cmp.Or(max(b.First, 0), time.Second)
	b.Most = cmp.Or(max(b.Most, 0), 30*time.Second)
	return b
}

// pause returns the time to wait after a try, counted from 1.
func (b Backoff) pause(s plan.Step, try int) time.Duration {
	pause := b.First
	for range try - 1 {
		pause = min(2*pause, b.Most)
	}
	return pause/2 + drawn(s, pause/2)
}

// drawn is a pause of at most d, other ones for steps that failed at one moment. It is
// drawn from the clock and the step: where time is made up, the same comes again.
func drawn(s plan.Step, d time.Duration) time.Duration {
	h := fnv.New64a()
	_, _ = io.WriteString(h, s.Address.String())                         // never fails
	r := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), h.Sum64())) //nolint:gosec // no secret depends on it
	return time.Duration(r.Int64N(int64(d) + 1))
}

// temporary reports whether an error says that the same may succeed later.
func temporary(err error) bool {
	var t interface{ Temporary() bool }
	return errors.As(err, &t) && t.Temporary()
}

// sleep waits, and reports whether neither the context ended meanwhile nor stop was closed.
func sleep(ctx context.Context, d time.Duration, stop <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-stop:
		return false
	case <-timer.C:
		return true
	}
}
