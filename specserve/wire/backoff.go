package wire

// The pauses between requests to a parent, of a node in mode pull and of the agent of a child.

import (
	"cmp"
	"context"
	"math/rand/v2"
	"time"
)

// MinPollInterval is the shortest time between the beginnings of two long polls. A poll usually lasts most of a minute: only a parent that
// answers at once, again and again, is asked as often as that.
const MinPollInterval = 2 * time.Second

// Backoff returns the pauses after failed attempts: the first one, then twice as long each time, up to the longest.
// Its zero value goes from 5 s to 5 min.
type Backoff struct {
	First, Most time.Duration

	next time.Duration
}

// Next is the next pause, with jitter.
func (b *Backoff) Next() time.Duration {
	first, most := b.First, b.Most
	first = cmp.Or(first, 5*time.Second)
	most = cmp.Or(most, 5*time.Minute)
	now := min(max(b.next, first), most)
	b.next = 2 * now
	return Jitter(now)
}

// Reset makes the next pause the first one: an attempt succeeded.
func (b *Backoff) Reset() { b.next = 0 }

// Jitter makes a pause up to a fifth shorter or longer, so that clients which lost their parent together do not come back together.
func Jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64())) //nolint:gosec // jitter is not a secret
}

// Sleep waits for a time, or until something comes before; nil: nothing does. It is false when ctx ended.
func Sleep(ctx context.Context, d time.Duration, before <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-before:
	case <-ctx.Done():
		return false
	}
	return true
}
