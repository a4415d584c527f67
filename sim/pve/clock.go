package pve

import (
	"context"
	"time"
)

// clock is that of a simulated host. It shows the time of this machine when the host is made, and then runs as many
// times as fast as [Config.Speed] says. Everything on the host uses it; only connections, whose other end is
// outside of the simulation, have their limits by the clock of this machine.
type clock struct {
	begin time.Time
	speed int
}

func newClock(speed int) clock { return clock{begin: time.Now(), speed: speed} }

func (c clock) now() time.Time {
	now := time.Now()
	return now.Add(now.Sub(c.begin) * time.Duration(c.speed-1))
}

// wait lets time pass until the clock shows t. It gives up when the context ends: the
// client is gone.
func (c clock) wait(ctx context.Context, t time.Time) error {
	d := t.Sub(c.now())
	if d <= 0 {
		return ctx.Err()
	}
	// Rounded up: after the wait the clock shows t, not a moment before it.
	timer := time.NewTimer((d + time.Duration(c.speed) - 1) / time.Duration(c.speed))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
