package pvesim

import (
	"time"
)

// A node serves a few requests at a time; the others wait for a free worker.
// That needs neither a queue nor a goroutine: each worker is the time at which
// it will be free again, and a request that comes in takes the one that is free
// first. It knows at once when it will be served.

// admission is when a request will be served.
type admission struct {
	begin time.Time // Its effect happens then,
	end   time.Time // its answer is sent then.
}

// admit books the next free worker of a node.
func (w *world) admit(nodeName string, now time.Time) admission {
	n := w.nodes[nodeName]
	if n == nil {
		n = w.nodes[w.cfg.Node]
	}
	first := 0
	for i := range n.free {
		if n.free[i].Before(n.free[first]) {
			first = i
		}
	}
	a := admission{begin: now}
	if n.free[first].After(now) {
		a.begin = n.free[first]
	}
	a.end = a.begin.Add(w.cfg.Latency)
	n.free[first] = a.end
	w.count.peakRequests = max(w.count.peakRequests, w.busyAt(a.begin), 1)
	return a
}

// busyAt counts the workers of all nodes that serve somebody at a time not
// before now. Each is busy from now until it is free: there are no gaps.
func (w *world) busyAt(t time.Time) int {
	busy := 0
	for _, n := range w.nodes {
		for _, free := range n.free {
			busy += boolInt(free.After(t))
		}
	}
	return busy
}
