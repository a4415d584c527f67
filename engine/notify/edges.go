package notify

import (
	"maps"
	"slices"
	"sort"
	"time"

	"github.com/homestak/homestak-gitops/engine/model"
)

// What a notifier is told of incidents follows from the set of now, and from those that it was told of before. Incidents that
// begin together are one message, and end by one, when the last of them is over. One that is back before that, but was away for
// longer than what flaps, is another incident.

// told is what a notifier was told: incidents that began together.
type told struct {
	ID      string     `json:"id"`
	Since   time.Time  `json:"since"`
	Last    time.Time  `json:"last"`            // message about it, a reminder included
	Flaps   bool       `json:"flaps,omitempty"` // it was back soon after its end
	Members []incident `json:"members"`

	gone    time.Time  // when the last of them was over; zero: one is there
	present []incident // those that are there, since the last step
}

// pending is an incident that is not told yet.
type pending struct {
	rounds int
	round  string
	due    time.Time // when it was there for long enough; zero: it was not
}

// edge is a notifier in one step.
type edge struct {
	rule    *model.Notify
	fold    time.Duration
	pending map[string]*pending // by key; not stored, since a restart only begins to count again
}

// step compares the incidents of now with those that were told, and appends the messages that follow to the queue.
func (s *notifierState) step(e edge, now *incidents, at time.Time) {
	all, there := map[string]incident{}, map[string]incident{}
	for _, i := range now.list {
		all[i.key()] = i
		if e.rule.Tells(string(i.Condition)) && e.rule.Covers(i.Host) {
			there[i.key()] = i
		}
	}
	known := map[string]bool{}
	for n := range s.Open {
		s.last(&s.Open[n], all, known, e, now, at)
	}
	s.Open = slices.DeleteFunc(s.Open, func(t told) bool {
		over := !t.gone.IsZero() && (!t.Flaps || past(at, t.gone, e.rule.Flap))
		if over {
			s.end(t, e, at)
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
	s.begin(there, e, at)
}

// last notes which incidents of a message are there still, and reminds of them. What is on a host that is not seen is there
// as far as anyone knows; so is one that the notifier does not want any more, until it is over.
func (s *notifierState) last(t *told, all map[string]incident, known map[string]bool, e edge, now *incidents, at time.Time) {
	var present []incident
	again := map[string]bool{}
	t.Members = slices.Clone(t.Members)
	for n := range t.Members {
		m := &t.Members[n]
		i, is := all[m.key()]
		switch {
		case is && !m.gone.IsZero() && past(at, m.gone, e.rule.Flap):
			again[m.key()] = true
		case is:
			known[m.key()] = true
			m.gone = time.Time{}
			present = append(present, i)
		case !m.gone.IsZero():
		case now.unseen(m.Host):
			present = append(present, *m)
		default:
			m.gone = at
		}
	}
	if len(present) > 0 {
		t.Members = slices.DeleteFunc(t.Members, func(m incident) bool { return again[m.key()] })
	}
	t.present = present
	switch {
	case len(present) > 0:
		t.gone = time.Time{}
		if r := e.rule.Remind; r > 0 && past(at, t.Last, r) {
			t.Last = at
			s.queue(message(kindReminder, *t, at, present))
		}
	case t.gone.IsZero():
		t.gone = at
	}
}

// end tells that all incidents of a message are over.
func (s *notifierState) end(t told, e edge, at time.Time) {
	for _, i := range t.Members {
		s.Ended[i.key()] = at
	}
	if e.rule.Tells(model.Recovered) {
		s.queue(message(kindResolved, t, at, t.Members))
	}
}

// join adds an incident to a message that has the same cause, without another message.
func (s *notifierState) join(i incident) bool {
	n := slices.IndexFunc(s.Open, func(t told) bool {
		return i.Cause != "" && t.gone.IsZero() && t.Members[0].Condition == i.Condition && t.Members[0].Cause == i.Cause
	})
	if n >= 0 {
		s.Open[n].Members = append(slices.Clone(s.Open[n].Members), i)
	}
	return n >= 0
}

// count counts the passes, or reports, that an incident is there for.
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

// begin tells of new incidents: those of a condition together, once the first of them has waited for others.
func (s *notifierState) begin(there map[string]incident, e edge, at time.Time) {
	ready := map[Condition]bool{}
	for key, p := range e.pending {
		if !p.due.IsZero() && past(at, p.due, e.fold) {
			ready[there[key].Condition] = true
		}
	}
	for _, c := range []Condition{refused, failed, drifted, expiring} {
		if !ready[c] {
			continue
		}
		t := told{ID: newID(), Since: at, Last: at}
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
		s.queue(message(kindFiring, t, at, t.Members))
	}
}

// lasting is the announcement of all that lasts; it is not stored.
func (s *notifierState) lasting(at time.Time) Message {
	m := Message{Kind: kindFiring, At: at.UTC()}
	for _, t := range s.Open {
		for _, i := range t.present {
			i.since = t.Since
			m.Members = append(m.Members, i)
		}
	}
	return m
}

// message is a message about incidents.
func message(k kind, t told, at time.Time, members []incident) Message {
	m := Message{ID: newID(), Kind: k, At: at.UTC(), Incident: t.ID, Since: t.Since.UTC(), Flaps: t.Flaps, Members: slices.Clone(members)}
	if more := len(m.Members) - mostMembers; more > 0 {
		m.Members, m.More = m.Members[:mostMembers], more
	}
	return m
}

// mostMembers is the number of incidents that a message names.
const mostMembers = 100
