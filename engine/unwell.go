package engine

import (
	"fmt"
	"slices"
	"time"

	"github.com/homestak/homestak-gitops/engine/health"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
)

// An agent does not ask guests how they are as long as nothing changes: a host with
// hundreds of them would be asked all day. But a guest whose checks did not hold is
// not forgotten when the next pass finds nothing to change in it. Its address is kept
// as a hint, and passes try its checks again until they hold. Losing the hint loses no
// more than that: what depends on the guest waits for its checks anyway.

// unwell lists the guests whose checks did not hold when they were tried last.
func (a *Agent) unwell() []model.Address {
	var out []model.Address
	a.edit(func(d *desk) {
		for _, text := range d.state.Unwell {
			if addr, err := model.ParseAddress(text); err == nil {
				out = append(out, addr)
			}
		}
	})
	return out
}

// noteUnwell keeps which checks do not hold after a pass.
func (a *Agent) noteUnwell(r Report) {
	if r.want == nil {
		return
	}
	before := a.unwell()
	after := slices.DeleteFunc(slices.Clone(before), func(addr model.Address) bool {
		tried, ok := r.Checks[addr]
		gone := r.want.State[addr] == nil && len(r.want.Suspended) == 0 // else nobody knows whose it is now
		return gone || ok && tried.Err == nil || slices.Contains(r.uncheckable, addr)
	})
	for _, addr := range sortedReports(r.Checks) {
		if r.Checks[addr].Err != nil && !slices.Contains(after, addr) {
			after = append(after, addr)
		}
	}
	slices.SortFunc(after, model.Address.Compare)
	if slices.Equal(before, after) {
		return
	}
	for _, addr := range before {
		if !slices.Contains(after, addr) && r.want.State[addr] != nil && !slices.Contains(r.uncheckable, addr) {
			a.o.Log.Info("checks hold again", "address", addr.String())
		}
	}
	a.note(func(s *ledger.State) {
		s.Unwell = nil
		for _, addr := range after {
			s.Unwell = append(s.Unwell, addr.String())
		}
	})
}

// prober tries checks and lets the desk know how that goes. Nobody else is told: that
// happens on the goroutine of the agent only.
func (a *Agent) prober() health.Prober {
	p := a.o.Health
	p.Tell = func(w health.Progress) { // from the goroutine of a step
		a.edit(func(d *desk) {
			if d.running != nil {
				d.running.waits(w)
			}
		})
	}
	return p
}

// waits takes in that a step waits for a check, or does no more.
func (p *progress) waits(w health.Progress) {
	for i := range p.now {
		if p.now[i].address == w.Step() {
			p.now[i].Waits = WaitsFor(w)
		}
	}
}

// WaitsFor says in a line which check is waited for, and what it saw last; "" when it
// holds.
func WaitsFor(w health.Progress) string {
	if w.Held {
		return ""
	}
	return fmt.Sprintf("waiting for check %s of %s: %s (%d s of %s)", w.Check, w.Address, w.Saw, int(w.Waited.Seconds()), whole(w.Timeout))
}

// whole writes a duration without the units that are zero: 5m, not 5m0s.
func whole(d time.Duration) string {
	switch {
	case d >= time.Hour && d%time.Hour == 0:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d >= time.Minute && d%time.Minute == 0:
		return fmt.Sprintf("%dm", d/time.Minute)
	default:
		return d.String()
	}
}
