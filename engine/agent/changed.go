package agent

import (
	"slices"
	"time"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

const (
	// ownTime is the time after a pass that changed something in which a change counts as its own.
	ownTime = 2 * time.Second
	// quietTime is the time after such a pass after which a change was not caused by it.
	quietTime = time.Minute
	// mostChanged is of how many guests a pass may be that leaves out the others.
	mostChanged = 16
)

// HostChanged reports the VMIDs of guests that changed on the host, so that they are checked at once; without any,
// the whole host is checked. The agent's own changes are reported too: these checks are delayed, and more so while
// changes repeat. After an incomplete pass the retry covers the check.
func (a *Agent) HostChanged(guests ...int) { a.send(hostChanged(guests)) }

type hostChanged []int

func (h hostChanged) serve(l *loop) {
	working := l.progress != nil && len(l.progress.steps) > 0
	var others []int
	for _, id := range h {
		if (!working || !l.progress.concerns(id)) && !l.own.recent(id) {
			others = append(others, id)
		}
	}
	switch {
	case len(h) > 0 && len(others) > 0:
		l.requested.changed = append(l.requested.changed, others...)
		if len(others) == len(h) {
			return
		}
	case len(h) == 0 && !working && !l.own.recent(0):
		l.requested.check = true
		return
	}
	l.own.noticed = append(l.own.noticed, slices.DeleteFunc(slices.Clone(h), func(id int) bool { return slices.Contains(others, id) })...)
	l.own.all = l.own.all || len(h) == 0
	if !working {
		l.own.check(l)
	}
}

// concerns reports whether a step of the pass works on a guest.
func (p *progress) concerns(vmid int) bool {
	return slices.ContainsFunc(p.steps, func(s stepProgress) bool { return s.vmid == vmid })
}

// knownGuests are those of some VMIDs as they were observed last, for a pass over them alone. Nil requests a pass
// over the whole host, since one of them is unknown, there are many, or the last pass left something to do.
func knownGuests(l *loop, vmids []int) map[model.Address]model.Guest {
	if !leftNothing(l) {
		return nil
	}
	out := map[model.Address]model.Guest{}
	for _, id := range vmids {
		known := false
		for _, n := range l.status.Nodes {
			if addr, err := model.ParseAddress(n.Address); err == nil && n.VMID == id && n.PVENode != "" {
				out[addr], known = model.Guest{VMID: id, Node: n.PVENode}, true
			}
		}
		if !known || len(out) > mostChanged {
			return nil
		}
	}
	return out
}

// leftNothing reports whether the last pass left nothing to do.
func leftNothing(l *loop) bool {
	last := l.status.Last
	return l.incomplete == 0 && len(l.memory.Suspended) == 0 && l.status.Refused == nil && last != nil && last.Outcome == engine.Done
}

// ownChanges distinguishes changes of others from those of the agent.
type ownChanges struct {
	at     time.Time // when the last pass that changed something ended
	guests []int     // that it changed
	inRow  int       // such passes in a row

	noticed []int     // guests that changed, perhaps by the agent itself
	all     bool      // others may have changed as well
	next    time.Time // when they are checked; zero: they are not
}

// recent reports whether the agent itself may have changed a guest a moment ago; 0 is any.
func (o *ownChanges) recent(vmid int) bool {
	return time.Since(o.at) < ownTime && (vmid == 0 || slices.Contains(o.guests, vmid))
}

// check schedules a check of what may have been changed by others beside the agent.
func (o *ownChanges) check(l *loop) {
	if len(o.noticed) == 0 && !o.all {
		return
	}
	if l.incomplete > 0 {
		o.noticed, o.all = nil, false
		return
	}
	if next := time.Now().Add(backoff(ownTime, max(o.inRow-3, 0), l.o.Drift)); o.next.IsZero() || next.Before(o.next) {
		o.next = next
	}
}

// due is the check that was scheduled, once its time has come.
func (o *ownChanges) due(now time.Time) (w work) {
	if o.next.IsZero() || now.Before(o.next) {
		return w
	}
	w = work{check: o.all, changed: o.noticed}
	o.noticed, o.all, o.next = nil, false, time.Time{}
	return w
}

// checked notes that a pass begins, about some guests or about all.
func (o *ownChanges) checked(guests map[model.Address]model.Guest) {
	for _, g := range guests {
		o.noticed = slices.DeleteFunc(o.noticed, func(id int) bool { return id == g.VMID })
	}
	if guests == nil {
		o.noticed, o.all = nil, false
	}
	if len(o.noticed) == 0 && !o.all {
		o.next = time.Time{}
	}
}

// passed notes what a pass changed.
func (o *ownChanges) passed(p *plan.Plan) {
	switch {
	case p == nil || len(p.Steps) == 0:
		o.inRow = 0
		return
	case time.Since(o.at) > quietTime:
		o.inRow = 0
	}
	o.at, o.guests = time.Now(), nil
	for _, s := range p.Steps {
		o.guests = append(o.guests, s.VMID)
	}
	o.inRow++
}
