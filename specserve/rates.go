package specserve

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

// rateKey is the unit of counting: a client, and the subject of its request.
type rateKey struct {
	Client netip.Prefix
	About  string // "" for all
}

// rates counts how often keys occur. It remembers a bounded number of them. Requests come from many
// goroutines, and each changes what the next one sees, so a mutex guards the map.
type rates struct {
	rate Rate
	most int

	mutex sync.Mutex
	full  map[rateKey]time.Time // when a key has all of its burst again; absent: it has
	swept time.Time
}

// newRates makes a count of at most so many keys.
func newRates(rate Rate, most int) *rates {
	return &rates{rate: rate, most: most, full: map[rateKey]time.Time{}}
}

// Take counts an occurrence of a key. If it comes too early it is not counted, and wait says when to try again.
func (r *rates) Take(key rateKey, now time.Time) (wait time.Duration, ok bool) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if wait = r.wait(key, now); wait > 0 {
		return wait, false
	}
	r.count(key, now)
	return 0, true
}

// Wait is the time until a key may occur again; 0 if it may now.
func (r *rates) Wait(key rateKey, now time.Time) time.Duration {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.wait(key, now)
}

// Count counts an occurrence of a key, for what is known to count only when it is over.
func (r *rates) Count(key rateKey, now time.Time) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.count(key, now)
}

func (r *rates) wait(key rateKey, now time.Time) time.Duration {
	full := r.full[key]
	if !full.After(now) {
		return 0
	}
	return max(0, full.Sub(now)-time.Duration(r.rate.Burst-1)*r.rate.Every)
}

func (r *rates) count(key rateKey, now time.Time) {
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
func (r *rates) forget(now time.Time) {
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

// networkOf is whom limits count as one, from the address of a connection, with or without a port. An
// address that cannot be read is the zero Prefix: such clients share their limits.
func networkOf(remote string) netip.Prefix {
	peer, err := netip.ParseAddrPort(remote)
	if err != nil {
		ip, err := netip.ParseAddr(remote)
		if err != nil {
			return netip.Prefix{}
		}
		peer = netip.AddrPortFrom(ip, 0)
	}
	ip := peer.Addr().Unmap().WithZone("")
	bits := 32
	if ip.Is6() {
		bits = 64
	}
	network, err := ip.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return network
}
