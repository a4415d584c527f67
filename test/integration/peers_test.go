package integration_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// ST-6: nodes without a parent are peers. No order stands between them, and they
// are made side by side, but never more at once than was agreed.
func TestPeersAreMadeSideBySide(t *testing.T) {
	t.Parallel()
	for _, peers := range []int{3, 50} {
		t.Run(fmt.Sprintf("%d vms", peers), func(t *testing.T) {
			s := begin(t, pve.Config{TaskTime: 100 * time.Millisecond})
			s.deploy("workers", vm("worker", fmt.Sprintf("count = %d", peers)))

			p := s.plan()
			require.Len(t, p.Steps, peers+1, "an image, and the peers")
			for _, step := range p.Steps {
				for _, first := range step.After {
					require.Equal(t, "image", first.Kind, "%s waits for %s", step.Address, first)
				}
			}

			s.together(min(peers, width), "POST", "/nodes/father/qemu")
			s.apply()

			require.Len(t, s.ours(), peers)
			snap := s.host.Snapshot()
			require.Greater(t, snap.PeakByType["qmcreate"], 1, "one after the other")
			require.LessOrEqual(t, snap.PeakTasks, width)
			for name, g := range s.ours() {
				require.True(t, g.Running, name)
			}
			s.inSync()
		})
	}
}

// together holds the first n requests of a kind until all of them have come: who
// sends them one after the other does not get on.
func (s *story) together(n int, method, path string) {
	s.t.Helper()
	all := make(chan struct{})
	var mu sync.Mutex // The requests come in on goroutines of their own.
	came := 0
	hold := func(r *http.Request) (int, bool) {
		if r.Method != method || strings.TrimPrefix(r.URL.Path, "/api2/json") != path {
			return 0, false
		}
		mu.Lock()
		came++
		if came == n {
			close(all)
		}
		mu.Unlock()
		select {
		case <-all:
		case <-r.Context().Done():
		}
		return 0, false
	}
	s.fault.Store(&hold)
}
