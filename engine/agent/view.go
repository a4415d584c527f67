package agent

import (
	"maps"
	"slices"
	"time"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/ledger"
)

// view is the immutable state of an agent at one moment. at adds what depends on the time of the reader.
type view struct {
	status   Status
	running  *running
	due      time.Time
	pausedBy string
	lockedBy string
	unknown  string // the sentence about an identity that is not in the site
	trouble  string
	withheld int
	stopping bool
}

// view is the state of the loop as it is now.
func (l *loop) view() *view {
	v := &view{
		status: l.status, running: l.progress.view(), due: l.due, pausedBy: l.pausedBy, lockedBy: l.lockedBy,
		unknown: l.unknownIdentity, trouble: l.trouble, withheld: l.withheld, stopping: l.stopping,
	}
	v.status.Head, v.status.InForce, v.status.Converged = l.upstream.ref(l.memory.Head), l.upstream.ref(l.memory.Good), l.upstream.ref(l.memory.Converged)
	v.status.Hosts = []HostBelow{}
	for _, name := range slices.Sorted(maps.Keys(l.memory.Hosts)) {
		if h := l.memory.Hosts[name]; !h.Moved {
			v.status.Hosts = append(v.status.Hosts, HostBelow{Name: name, Leaving: h.Left != ""})
		}
	}
	v.status.Suspended, v.status.Repository = l.memory.Suspended, l.upstream.status
	return v
}

// at is the status at a moment, with the checks as they are then.
func (v *view) at(now time.Time, checks []CheckStatus) Status {
	s := v.status
	s.At, s.Checks = now.UTC(), checks
	s.Suspended = []ledger.Suspension{}
	for _, sus := range v.status.Suspended {
		if sus.Until == nil || sus.Until.After(now) {
			s.Suspended = append(s.Suspended, sus)
		}
	}
	if v.running != nil && v.lockedBy == "" {
		s.Running = v.running.at(now)
	}
	switch {
	case v.stopping:
		s.State = Stopping
	case v.pausedBy != "" && v.running == nil:
		s.State = Waiting
	}
	completed := s.Last != nil && (s.Last.Outcome == engine.Done || s.Last.Outcome == engine.Planned)
	reachable := s.Repository.Condition != NotAnswering && s.Repository.Condition != BranchMissing
	s.Healthy = completed && s.Refused == nil && v.unknown == "" && reachable
	s.Summary = v.summary(&s, now)
	return s
}
