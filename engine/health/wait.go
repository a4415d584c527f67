package health

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Defaults of a check without values.
const (
	defaultTimeout  = 5 * time.Minute
	defaultInterval = 5 * time.Second
)

// Run tries the checks one after the other, each until it passes or times out; it does not try
// those after a failed one. It returns soon after ctx ended.
func (p Prober) Run(ctx context.Context, s Subject, checks []model.Check) Report {
	return p.run(ctx, s, checks, false)
}

// Once is Run with a single try of each check, for a guest that already used up its timeouts.
func (p Prober) Once(ctx context.Context, s Subject, checks []model.Check) Report {
	return p.run(ctx, s, checks, true)
}

func (p Prober) run(ctx context.Context, s Subject, checks []model.Check, once bool) Report {
	var out Report
	a := &attempt{Prober: p, Subject: s}
	for _, c := range checks {
		if out.Err != nil {
			out.Results = append(out.Results, Result{Name: c.Name, Detail: "not tried, because an earlier check failed"})
			continue
		}
		r, err := a.until(ctx, &c, once)
		out.Results, out.Err = append(out.Results, r), err
	}
	if a.last.IsValid() {
		out.IP = a.last.String()
	}
	return out
}

// Limit returns the time limit of all checks together.
func Limit(checks []model.Check) time.Duration {
	var sum time.Duration
	for _, c := range checks {
		sum += cmp.Or(c.Timeout, defaultTimeout)
	}
	return sum
}

// until tries one check until it passes.
func (a *attempt) until(ctx context.Context, c *model.Check, once bool) (Result, error) {
	began := time.Now()
	timeout, interval := cmp.Or(c.Timeout, defaultTimeout), cmp.Or(c.Interval, a.Every, defaultInterval)
	end := began.Add(timeout)
	r := Result{Name: c.Name}
	for {
		r.Tries++
		saw, err := a.once(ctx, c, time.Until(end))
		cut := err != nil && r.Tries > 1 && !time.Now().Before(end) // the check ended it, and what went before says more
		r.OK = err == nil
		if err != nil {
			saw = err.Error()
		}
		if ctx.Err() == nil && !cut || err == nil || r.Detail == "" { // what a cancelled try saw says nothing of the guest
			r.Detail = a.show(c, saw)
		}
		r.Seconds = float64(time.Since(began).Milliseconds()) / 1000
		report := func() {
			if a.Notify != nil {
				a.Notify(Progress{Address: a.Address, Check: c.Name, Saw: r.Detail, Tries: r.Tries, Waited: time.Since(began), Timeout: timeout, Passed: r.OK})
			}
		}
		if r.OK {
			if r.Tries > 1 {
				report()
			}
			return r, nil
		}
		fail := &Error{Check: c.Name, At: c.At, Saw: r.Detail, Tries: r.Tries, Since: began, Waiting: waiting(err) && (once || timeout <= interval)}
		switch {
		case ctx.Err() != nil:
			fail.Err = context.Cause(ctx)
			return r, fail
		case once, guest.Hopeless(err), time.Until(end) <= interval:
			return r, fail
		}
		report()
		if pause(ctx, interval) != nil {
			r.Seconds = float64(time.Since(began).Milliseconds()) / 1000
			fail.Err = context.Cause(ctx)
			return r, fail
		}
	}
}

// once is one try, within its own time and what is left of the check's.
func (a *attempt) once(ctx context.Context, c *model.Check, left time.Duration) (string, error) {
	total := cmp.Or(a.Total, 30*time.Second)
	ctx, cancel := context.WithTimeoutCause(ctx, min(total, left), fmt.Errorf("not finished after %s", short(min(total, left))))
	defer cancel()
	saw, err := a.try(ctx, c)
	if err != nil && !a.at.Declared {
		a.at = guest.Address{} // a lease may have changed
	}
	return saw, err
}

// waiting reports whether an error says that nothing is wrong so far.
func waiting(err error) bool {
	var w interface{ Waiting() bool }
	return errors.As(err, &w) && w.Waiting()
}

// pause waits, or returns the context's error at once when it ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
