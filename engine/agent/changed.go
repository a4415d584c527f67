package agent

import (
	"time"

	"github.com/homestak/homestak-gitops/engine/plan"
)

const (
	// ownTime is how long after a pass that changed something a change counts as its own.
	ownTime = 2 * time.Second
	// quietTime is how long after such a pass another one has nothing to do with it.
	quietTime = time.Minute
)

// HostChanged reports that guests on the host are not as they were, so that the host is checked at once. What
// the agent itself changes is reported, too: it is checked a little later, and later each time as long as it changes
// again and again. After a pass that was not completed its next attempt does that.
func (a *Agent) HostChanged() { a.send(hostChanged{}) }

type hostChanged struct{}

func (hostChanged) serve(l *loop) {
	working := l.progress != nil && len(l.progress.steps) > 0
	if !working && time.Since(l.own.at) >= ownTime {
		l.requested.check = true
		return
	}
	l.own.noticed = true
	if !working {
		l.own.check(l)
	}
}

// ownChanges distinguishes changes of others from those of the agent.
type ownChanges struct {
	at      time.Time // when the last pass that changed something ended
	inRow   int       // such passes in a row
	noticed bool      // guests changed, perhaps by the agent itself
}

// check schedules a check of what may have been changed by others beside the agent.
func (o *ownChanges) check(l *loop) {
	if !o.noticed || l.incomplete > 0 {
		return
	}
	o.noticed = false
	if next := time.Now().Add(backoff(ownTime, max(o.inRow-3, 0), l.o.Drift)); next.Before(l.nextCheck) {
		l.nextCheck, l.status.NextFull = next, shown(next)
	}
}

// passed notes what a pass changed.
func (o *ownChanges) passed(s plan.Summary) {
	switch {
	case s.Create+s.Update+s.Replace+s.Delete == 0:
		o.inRow = 0
		return
	case time.Since(o.at) > quietTime:
		o.inRow = 0
	}
	o.at = time.Now()
	o.inRow++
}
