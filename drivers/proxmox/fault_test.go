package proxmox_test

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim"
)

// TestEveryRequestMayFail faults each request of a story in turn, once without
// and once with effect, and then lets passes go on: they must end converged, with
// nothing doubled and nothing foreign touched.
func TestEveryRequestMayFail(t *testing.T) {
	for _, status := range []int{595, 596, 500, -1} {
		for _, effect := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d effect=%v", status, effect), func(t *testing.T) {
				total := countRequests(t)
				require.Greater(t, total, 30)
				for n := 1; n <= total; n += stride {
					sweep(t, n, status, effect)
				}
			})
		}
	}
}

func countRequests(t *testing.T) int {
	t.Helper()
	var n atomic.Int32 // several requests are under way at once
	synctest.Test(t, func(t *testing.T) {
		lifeStory(t, func(*http.Request) (int, bool) { n.Add(1); return 0, false })
	})
	return int(n.Load())
}

func sweep(t *testing.T, at, status int, effect bool) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int32
		lifeStory(t, func(*http.Request) (int, bool) {
			if int(n.Add(1)) == at {
				return status, effect
			}
			return 0, false
		})
	})
}

// lifeStory creates two guests, changes one, removes the other; after each chapter
// passes run until nothing is left to do. Passes may fail, the end state may not.
func lifeStory(t *testing.T, fault func(*http.Request) (int, bool)) {
	t.Helper()
	w := newWorld(t, pvesim.Config{TaskTime: time.Second, Guests: 2, Fault: fault})
	foreign := w.host.Snapshot().Guests
	w.node("web-1", nil)
	w.node("web-2", nil)
	settle(w)
	v := w.vm("web-1")
	v.Memory, v.Restart, v.Disk = 4096, "allowed", 12
	v.Disks = []proxmox.Disk{{Name: "data", Size: 3}}
	w.drop("web-2")
	settle(w)

	s := w.host.Snapshot()
	require.Len(t, s.Guests, len(foreign)+1)
	names := map[string]int{}
	for _, g := range s.Guests {
		names[g.Name()]++
		require.Empty(t, g.Lock)
	}
	require.Equal(t, 1, names["web-1"])
	for _, f := range foreign {
		require.Equal(t, f.Config, w.guest(f.VMID).Config)
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

func settle(w *world) {
	w.t.Helper()
	for range 8 {
		want, _ := w.site.Want("father")
		have, err := w.d.Observe(w.t.Context(), want)
		if err == nil {
			p := planOf(w, want, have)
			if len(p.Steps) == 0 && len(p.Unknown) == 0 && !p.Findings.HasErrors() {
				return
			}
			w.run(p)
		}
		w.reopen()
		time.Sleep(time.Minute)
	}
	w.converged()
}
