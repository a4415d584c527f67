package control

import (
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// kept is the number of events that a log keeps.
const kept = 1000

// EventLog keeps the last events of one run of an agent. It may be used from several goroutines.
type EventLog struct {
	run string // distinguishes the IDs of two runs

	mu     sync.Mutex // for a moment only: the agent adds, and those who follow read
	before agent.Status
	events []Event
	first  uint64        // number of events[0]
	more   chan struct{} // closed when there is another event
}

// NewEventLog returns the log of a run that started at a time.
func NewEventLog(began time.Time) *EventLog {
	return &EventLog{run: strconv.FormatInt(began.UnixMilli(), 36), first: 1, more: make(chan struct{})}
}

// Record adds the events since the previous status. Call it with each status, in order.
func (l *EventLog) Record(s agent.Status) {
	l.mu.Lock()
	defer l.mu.Unlock()
	events := between(l.before, s)
	l.before = s
	l.add(events)
}

// Reported adds the events since the previous report of a child. Before has no identity if there was none. Below reports whether
// a host may be below the child.
func (l *EventLog) Reported(before, after wire.Report, at time.Time, below func(host string) bool) {
	events := hostsBetween(before, after, at, below)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.add(events)
}

// add adds events, and gives them their IDs. The caller has the mutex.
func (l *EventLog) add(events []Event) {
	if len(events) == 0 {
		return
	}
	for _, e := range events {
		e.ID = l.run + "-" + strconv.FormatUint(l.first+uint64(len(l.events)), 10)
		l.events = append(l.events, e)
	}
	if over := len(l.events) - kept; over > 0 {
		l.events = append([]Event(nil), l.events[over:]...)
		l.first += uint64(over)
	}
	close(l.more)
	l.more = make(chan struct{})
}

// After lists the events after the one with an ID, or all stored events for "". Missed is set if
// events in between were dropped: the ID is too old, or from another run. The channel is closed
// when there are more.
func (l *EventLog) After(id string) (events []Event, missed bool, more <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	from := l.first
	if id != "" {
		run, text, _ := strings.Cut(id, "-")
		n, err := strconv.ParseUint(text, 10, 64)
		switch end := l.first + uint64(len(l.events)); {
		case err != nil || run != l.run || n+1 < l.first || n >= end:
			missed = true
		default:
			from = n + 1
		}
	}
	return append([]Event(nil), l.events[from-l.first:]...), missed, l.more
}
