package limit

import (
	"net/netip"
	"sync"
	"time"
)

// Rate is how often something may happen: Every so often, and a number of times at once after a rest.
type Rate struct {
	Every time.Duration
	Burst int
}

// Key is what is counted: a client, and what it asks about.
type Key struct {
	Client netip.Prefix
	About  string // "" for everything
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

// Take counts an occurrence of a key. Where it comes too early it is not counted, and wait says when
// to try again.
func (r *Rates) Take(key Key, now time.Time) (wait time.Duration, ok bool) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	full, known := r.full[key]
	if !known || full.Before(now) {
		full = now
	}
	if ahead := full.Sub(now) - time.Duration(r.rate.Burst-1)*r.rate.Every; ahead > 0 {
		return ahead, false
	}
	if !known && len(r.full) >= r.most {
		r.forget(now)
	}
	r.full[key] = full.Add(r.rate.Every)
	return 0, true
}

// forget makes room for a key. Where all are in use, some key gets its burst back early: that a
// client from very many addresses is limited less is better than that new clients are locked out.
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
