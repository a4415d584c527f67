package notify

import (
	"maps"
	"slices"
	"sort"
	"time"

	"github.com/homestak/homestak-gitops/engine/model"
)

// The messages of a notifier follow from the current incidents and from its open groups. Incidents that begin together form a
// group: it fires once, and resolves once its last member ended. A member that recurs before that, after more than flap, is a new
// incident.

// group is a set of incidents that fired together.
type group struct {
	ID      string     `json:"id"`
	Since   time.Time  `json:"since"`
	Last    time.Time  `json:"last"`            // message about it, including reminders
	Flaps   bool       `json:"flaps,omitempty"` // a member recurred within flap
	Members []incident `json:"members"`

	ended   time.Time  // when the last member ended; zero: one lasts
	present []incident // members that last, as of the last step
}

// pending is an incident that has not fired yet.
type pending struct {
	rounds int
	round  string
	due    time.Time // when it reached the threshold; zero: it has not
}

// edge is a notifier in one step.
type edge struct {
	rule    *model.Notify
	fold    time.Duration
	pending map[string]*pending // by key; not stored: a restart counts again
}

// step compares the current incidents with the open groups, and queues the messages that follow.
func (s *notifierState) step(e edge, now *incidents, at time.Time) {
	all, there := map[string]incident{}, map[string]incident{}
	for _, i := range now.list {
		all[i.key()] = i
		if e.rule.Reports(string(i.Condition)) && e.rule.Covers(i.Host) {
			there[i.key()] = i
		}
	}
	known := map[string]bool{}
	for n := range s.Open {
		s.follow(&s.Open[n], all, known, e, now, at)
	}
	s.Open = slices.DeleteFunc(s.Open, func(t group) bool {
		over := !t.ended.IsZero() && (!t.Flaps || past(at, t.ended, e.rule.Flap))
		if over {
			s.resolve(t, e, at)
		}
		return over
	})
	for key, since := range s.Ended {
		if past(at, since, e.rule.Flap) {
			delete(s.Ended, key)
		}
	}
	for key := range e.pending {
		if _, is := there[key]; !is || known[key] {
			delete(e.pending, key)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(there)) { // they join in this order
		if i := there[key]; !known[key] && !s.join(i) {
			e.count(key, i, at)
		}
	}
	s.fire(there, e, at)
}

// follow updates which members of a group last, and queues reminders. Members on a host without a current report last, and so do
// those that the rule no longer covers, until they end.
func (s *notifierState) follow(t *group, all map[string]incident, known map[string]bool, e edge, now *incidents, at time.Time) {
	var present []incident
	again := map[string]bool{}
	t.Members = slices.Clone(t.Members)
	for n := range t.Members {
		m := &t.Members[n]
		i, is := all[m.key()]
		switch {
		case is && !m.ended.IsZero() && past(at, m.ended, e.rule.Flap):
			again[m.key()] = true
		case is:
			known[m.key()] = true
			m.ended = time.Time{}
			present = append(present, i)
		case !m.ended.IsZero():
		case now.unseen(m.Host):
			present = append(present, *m)
		default:
			m.ended = at
		}
	}
	if len(present) > 0 {
		t.Members = slices.DeleteFunc(t.Members, func(m incident) bool { return again[m.key()] })
	}
	t.present = present
	switch {
	case len(present) > 0:
		t.ended = time.Time{}
		if r := e.rule.Remind; r > 0 && past(at, t.Last, r) {
			t.Last = at
			s.queue(newMessage(kindReminder, *t, at, present))
		}
	case t.ended.IsZero():
		t.ended = at
	}
}

// resolve queues the message that all members of a group ended.
func (s *notifierState) resolve(t group, e edge, at time.Time) {
	for _, i := range t.Members {
		s.Ended[i.key()] = at
	}
	if e.rule.Reports(model.Recovered) {
		s.queue(newMessage(kindResolved, t, at, t.Members))
	}
}

// join adds an incident to an open group with the same cause, without a message.
func (s *notifierState) join(i incident) bool {
	n := slices.IndexFunc(s.Open, func(t group) bool {
		return i.Cause != "" && t.ended.IsZero() && t.Members[0].Condition == i.Condition && t.Members[0].Cause == i.Cause
	})
	if n >= 0 {
		s.Open[n].Members = append(slices.Clone(s.Open[n].Members), i)
	}
	return n >= 0
}

// count counts the passes or reports with an incident.
func (e edge) count(key string, i incident, at time.Time) {
	p := e.pending[key]
	if p == nil {
		p = &pending{}
		e.pending[key] = p
	}
	if p.round != i.round {
		p.round = i.round
		p.rounds++
	}
	if p.due.IsZero() && p.rounds >= e.rule.After {
		p.due = at
	}
}

// fire opens groups of pending incidents, one for each condition, once the first of them has waited for others.
func (s *notifierState) fire(there map[string]incident, e edge, at time.Time) {
	ready := map[condition]bool{}
	for key, p := range e.pending {
		if !p.due.IsZero() && past(at, p.due, e.fold) {
			ready[there[key].Condition] = true
		}
	}
	for _, c := range []condition{refused, failed, drifted, expiring} {
		if !ready[c] {
			continue
		}
		t := group{ID: newID(), Since: at, Last: at}
		for key, p := range e.pending {
			i := there[key]
			if i.Condition != c || p.due.IsZero() {
				continue
			}
			if ended, was := s.Ended[key]; was && !past(at, ended, e.rule.Flap) {
				t.Flaps = true
			}
			t.Members = append(t.Members, i)
			delete(e.pending, key)
		}
		sort.Slice(t.Members, func(i, j int) bool { return t.Members[i].key() < t.Members[j].key() })
		s.Open = append(s.Open, t)
		s.queue(newMessage(kindFiring, t, at, t.Members))
	}
}

// lasting announces all members that last; it is not stored.
func (s *notifierState) lasting(at time.Time) message {
	m := message{Kind: kindFiring, At: at.UTC()}
	for _, t := range s.Open {
		for _, i := range t.present {
			i.since = t.Since
			m.Members = append(m.Members, i)
		}
	}
	return m
}

// newMessage is a message about members of a group.
func newMessage(k kind, t group, at time.Time, members []incident) message {
	m := message{ID: newID(), Kind: k, At: at.UTC(), Incident: t.ID, Since: t.Since.UTC(), Flaps: t.Flaps, Members: slices.Clone(members)}
	if more := len(m.Members) - mostMembers; more > 0 {
		m.Members, m.More = m.Members[:mostMembers], more
	}
	return m
}

// mostMembers is the number of incidents that a message lists.
const mostMembers = 100
