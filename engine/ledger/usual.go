package ledger

import (
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	usualReceipts = 200 // the newest, which the medians are made of
	usualTimes    = 200 // the newest of one kind and action
	longestStep   = 1e6 // seconds; longer steps are ignored
	usualKinds    = 256 // of kinds and actions: more than there are, since files may hold anything
)

// Usual is the median time that steps of this kind and action took, by the newest
// receipts; 0 if there is none. The first call reads those; no other reads a file,
// so that it is cheap enough for every event.
func (l *Ledger) Usual(kind, action string) time.Duration {
	if !l.usual.ready() {
		if ids, err := l.ids(); err == nil {
			l.usual.learn(l, ids)
		}
	}
	return l.usual.of(kind + " " + action)
}

// medians knows how long steps took. The lock is for what is below it.
type medians struct {
	mu     sync.Mutex
	last   string // the newest receipt that went in
	learnt bool
	times  map[string][]time.Duration // by kind and action, the newest last
	median map[string]time.Duration
}

func (m *medians) ready() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.learnt
}

func (m *medians) of(key string) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.median[key]
}

// learn adds new receipts, also those of another process. It ignores unreadable ones.
func (m *medians) learn(l *Ledger, ids []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.times == nil {
		m.times, m.median = map[string][]time.Duration{}, map[string]time.Duration{}
	}
	m.learnt = true
	from, known := slices.BinarySearch(ids, m.last)
	if known {
		from++
	}
	changed := map[string]bool{}
	for _, id := range ids[max(from, len(ids)-usualReceipts):] {
		m.last = id
		r, _, err := l.read(id)
		if err != nil {
			continue
		}
		for _, s := range r.Steps {
			m.add(s, changed)
		}
	}
	for key := range changed {
		sorted := slices.Sorted(slices.Values(m.times[key]))
		m.median[key] = sorted[len(sorted)/2]
	}
}

func (m *medians) add(s Step, changed map[string]bool) {
	kind, _, _ := strings.Cut(s.Address, ".")
	key := kind + " " + s.Action
	if s.Status != "done" || s.Seconds <= 0 || s.Seconds > longestStep || m.times[key] == nil && len(m.times) >= usualKinds {
		return
	}
	times := m.times[key]
	times = append(times, time.Duration(s.Seconds*float64(time.Second)))
	if len(times) > usualTimes {
		times = slices.Delete(times, 0, len(times)-usualTimes)
	}
	m.times[key], changed[key] = times, true
}
