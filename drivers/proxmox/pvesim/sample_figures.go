package pvesim

import (
	"fmt"
	"hash/fnv"
	"time"
)

func (s sample) uptime(now time.Time) int64 {
	if s.since.IsZero() {
		return 0
	}
	return max(int64(now.Sub(s.since)/time.Second), 0)
}

func (s sample) cpu(now time.Time) float64 {
	if s.since.IsZero() {
		return 0
	}
	return float64(s.hash(now.Unix()/10)%1000) / 20000
}

func (s sample) mem(now time.Time) int64 {
	if s.since.IsZero() {
		return 0
	}
	return s.maxmem/4 + int64(s.hash(now.Unix()/10)%uint64(s.maxmem/4+1))
}

// traffic grows with the time a guest runs.
func (s sample) traffic(now time.Time) int64 {
	return s.uptime(now) * int64(1000+s.hash(0)%9000)
}

func (s sample) hash(salt int64) uint64 {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, s.vmid, salt)
	return h.Sum64()
}
