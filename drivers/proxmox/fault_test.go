package proxmox_test

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// tale is a story whose requests may fail: it makes its world by the run that it is given,
// and settles each of its chapters.
type tale func(*testing.T, *storyRun)

// tally counts requests, which come from many goroutines.
type tally struct{ all, writes atomic.Int64 }

// counts are those of a tally at one moment.
type counts struct{ all, writes int64 }

// of is how many requests can go wrong that way.
func (c counts) of(effect bool) int64 {
	if effect {
		return c.writes
	}
	return c.all
}

// is counts a request, and reports whether it is the one at that place: of all, or
// with effect of those that write, since a read has none.
func (c *tally) is(r *http.Request, at int64, effect bool) bool {
	n, write := c.all.Add(1), int64(0)
	if r.Method != http.MethodGet {
		write = c.writes.Add(1)
	}
	if effect {
		return write == at && write > 0
	}
	return n == at
}

func (c *tally) add(n counts) {
	c.all.Add(n.all)
	c.writes.Add(n.writes)
}

func (c *tally) now() counts { return counts{c.all.Load(), c.writes.Load()} }

// tellWithFaults tells a tale once for each request that fails with each status, once
// without and once with effect. The first status is tried everywhere; the others take
// samples: see thinned.
func tellWithFaults(t *testing.T, name string, statuses []int, story tale) {
	t.Helper()
	var whole storyRun
	synctest.Test(t, func(t *testing.T) { story(t, &whole) })
	require.Greater(t, len(whole.asked), 12, "there is too little to break")
	require.Greater(t, len(whole.ordered), 3, "there is too little to break")
	t.Logf("%s: %d requests, %d of them write", name, len(whole.asked), len(whole.ordered))
	for i, status := range statuses {
		first, step := 1, stride
		if i > 0 {
			first, step = thinned(i)
		}
		for _, effect := range []bool{false, true} {
			for _, at := range whole.places(effect, first, step) {
				t.Run(fmt.Sprintf("%s %d effect=%v request %d", name, status, effect, at), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						story(t, &storyRun{way: way{status: status, effect: effect}, at: at, healthy: whole.passes})
					})
				})
			}
		}
	}
}

// TestEveryRequestMayFail faults each request of a story in turn, once without
// and once with effect, and then lets passes go on: they must end converged, with
// nothing doubled and nothing foreign touched.
func TestEveryRequestMayFail(t *testing.T) {
	tellWithFaults(t, "life", []int{596, 595, 500, -1}, lifeStory)
}

// lifeStory creates two guests, changes one, removes the other; after each chapter
// passes run until nothing is left to do. Passes may fail, the end state may not.
func lifeStory(t *testing.T, r *storyRun) {
	t.Helper()
	w := r.world(t, pve.Config{TaskTime: time.Second, Guests: 2})
	others := w.Host.Snapshot().Guests
	w.Node("web-1", nil)
	w.Node("web-2", nil)
	settle(w)
	v := w.VM("web-1")
	v.Memory, v.Restart, v.Disk = 4096, "allowed", 12
	v.Disks = []guest.Disk{{Name: "data", Size: 3}}
	w.Drop("web-2")
	settle(w)

	s := w.Host.Snapshot()
	require.Len(t, s.Guests, len(others)+1)
	names := map[string]int{}
	for _, g := range s.Guests {
		names[g.Name()]++
		require.Empty(t, g.Lock)
	}
	require.Equal(t, 1, names["web-1"])
	for _, f := range others {
		require.Equal(t, f.Config, w.Guest(f.VMID).Config)
	}
	for _, g := range s.Guests {
		if g.Name() != "web-1" {
			continue
		}
		require.Equal(t, "4096", g.Config["memory"])
		require.Contains(t, g.Config["scsi0"], "size=12G")
		volumes := 0
		for _, v := range s.Volumes["local-lvm"] {
			if v.VMID == g.VMID {
				volumes++
			}
		}
		require.Equal(t, 3, volumes, "root, data, cloud-init: an order repeated would have made another")
	}
}
