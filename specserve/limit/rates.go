package limit

import (
	"net/netip"
	"sync"
	"time"
)

// Rate is a limit: one event every Every, and a burst after a rest.
type Rate struct {
	Every time.Duration
	Burst int
}

// Key is the unit of counting: a client, and the subject of its request.
type Key struct {
	Client netip.Prefix
	About  string // "" for all
}

// Rates counts how often keys occur. It remembers a bounded number of them. Requests come from many
// goroutines, and each changes what the next one sees, so a mutex guards the map.
type Rates struct {
	rate Rate
	most int

	mutex sync.Mutex
	full  map[Key]time.Time // when a key has all of its burst again; absent: it has
	swept time.Time
}

// NewRates makes a count of at most so many keys.
func NewRates(rate Rate, most int) *Rates {
	return &Rates{rate: rate, most: most, full: map[Key]time.Time{}}
}

// Take counts an occurrence of a key. If it comes too early it is not counted, and wait says when to try again.
func (r *Rates) Take(key Key, now time.Time) (wait time.Duration, ok bool) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if wait = r.wait(key, now); wait > 0 {
		return wait, false
	}
	r.count(key, now)
	return 0, true
}

// Wait is the time until a key may occur again; 0 if it may now.
func (r *Rates) Wait(key Key, now time.Time) time.Duration {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.wait(key, now)
}

// Count counts an occurrence of a key, for what is known to count only when it is over.
func (r *Rates) Count(key Key, now time.Time) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.count(key, now)
}

func (r *Rates) wait(key Key, now time.Time) time.Duration {
	full := r.full[key]
	if !full.After(now) {
		return 0
	}
	return max(0, full.Sub(now)-time.Duration(r.rate.Burst-1)*r.rate.Every)
}

func (r *Rates) count(key Key, now time.Time) {
	full, known := r.full[key]
	if !known && len(r.full) >= r.most {
		r.forget(now)
	}
	if full.Before(now) {
		full = now
	}
	full = full.Add(r.rate.Every)
	if latest := now.Add(time.Duration(r.rate.Burst) * r.rate.Every); full.After(latest) {
		full = latest // of several that were under way at the same time
	}
	r.full[key] = full
}

// forget makes room for a key. If all are in use, some key gets its burst back early: limiting a client with very
// many addresses less is better than locking out new clients.
func (r *Rates) forget(now time.Time) {
	if now.Sub(r.swept) >= time.Second { // not at each request: it goes over all keys
		r.swept = now
		for key, full := range r.full {
			if !full.After(now) {
				delete(r.full, key)
			}
		}
	}
	for key := range r.full {
		if len(r.full) < r.most {
			break
		}
		delete(r.full, key)
	}
}
