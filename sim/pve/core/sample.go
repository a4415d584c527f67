package core

import (
	"fmt"
	"hash/fnv"
	"time"
)

// Sample is the status daemon's data about a guest.
type Sample struct {
	Name     string
	Status   string
	Qmp      string // Of a VM whose processors do not run: what QEMU calls it.
	Template bool
	Cpus     float64 // Of a container with a limit perhaps half a one.
	Maxmem   int64
	Maxdisk  int64
	Disk     int64     // Used part of it; known of containers only.
	Since    time.Time // Start of the process; zero while stopped.
	Vmid     int
}

// Uptime is for how many seconds the guest runs.
func (s Sample) Uptime(now time.Time) int64 {
	if s.Since.IsZero() {
		return 0
	}
	return max(int64(now.Sub(s.Since)/time.Second), 0)
}

// CPU is the share of its processors that it uses.
func (s Sample) CPU(now time.Time) float64 {
	if s.Since.IsZero() {
		return 0
	}
	return float64(s.Hash(now.Unix()/10)%1000) / 20000
}

// Mem is the memory that it uses, in bytes.
func (s Sample) Mem(now time.Time) int64 {
	if s.Since.IsZero() {
		return 0
	}
	return s.Maxmem/4 + int64(s.Hash(now.Unix()/10)%uint64(s.Maxmem/4+1))
}

// Traffic grows with the time a guest runs.
func (s Sample) Traffic(now time.Time) int64 {
	return s.Uptime(now) * int64(1000+s.Hash(0)%9000)
}

// Hash is a number that depends on the guest and on salt alone.
func (s Sample) Hash(salt int64) uint64 {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, s.Vmid, salt)
	return h.Sum64()
}
