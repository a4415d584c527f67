package pvesim

import (
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
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
func admit(w *core.World, nodeName string, now time.Time) admission {
	n := w.Nodes[nodeName]
	if n == nil {
		n = w.Nodes[w.Cfg.Node]
	}
	first := 0
	for i := range n.Free {
		if n.Free[i].Before(n.Free[first]) {
			first = i
		}
	}
	a := admission{begin: now}
	if n.Free[first].After(now) {
		a.begin = n.Free[first]
	}
	a.end = a.begin.Add(w.Cfg.Latency)
	n.Free[first] = a.end
	w.Count.PeakRequests = max(w.Count.PeakRequests, busyAt(w, a.begin), 1)
	return a
}

// busyAt counts the workers of all nodes that serve somebody at a time not
// before now. Each is busy from now until it is free: there are no gaps.
func busyAt(w *core.World, t time.Time) int {
	busy := 0
	for _, n := range w.Nodes {
		for _, free := range n.Free {
			busy += perl.BoolInt(free.After(t))
		}
	}
	return busy
}
