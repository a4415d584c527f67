package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/service"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
	"github.com/homestak/homestak-gitops/sim"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// In an hour without changes, checks over the network add no request to the API of the host. HOMESTAK_CHECKED_GUESTS is the
// number of guests.
func TestChecksAskTheHostNothing(t *testing.T) {
	checkedGuests := 5
	if n, err := strconv.Atoi(os.Getenv("HOMESTAK_CHECKED_GUESTS")); err == nil {
		checkedGuests = n
	}
	synctest.Test(t, func(t *testing.T) {
		site := func(every string) string {
			var b strings.Builder
			b.WriteString("manifest \"web\" {\n  pattern = \"flat\"\n  host    = host.father\n")
			for i := range checkedGuests {
				fmt.Fprintf(&b, "  node \"web-%d\" {\n    type   = \"vm\"\n    preset = preset.vm-small\n    image  = image.debian-12\n    nic \"lan\" {\n      ip = \"10.0.12.%d/24\"\n    }\n    check \"web\" {\n      tcp = 80%s\n    }\n  }\n", i, i+10, every)
			}
			return b.String() + "}\n"
		}
		repo := sourcetest.New(t)
		repo.Commit(map[string]string{"site.hcl": dayFrame, "web.hcl": site("\n      every = \"off\"")}, "Checked")
		var requests atomic.Int64
		host := pve.New(pve.Config{Node: "father", TaskTime: time.Second, Fault: func(*http.Request) (int, bool) {
			requests.Add(1)
			return 0, false
		}})
		cfg := &service.Config{AgentFile: model.AgentFile{Identity: "father", DataDir: filepath.Join(t.TempDir(), "agent"), DriftEvery: 5 * time.Minute, Concurrency: 16}}
		cfg.Repository = &model.AgentRepository{URL: repo.Dir, Branch: "main", Poll: time.Minute, Auth: &model.AgentAuth{}}
		hosts := sim.Hosts{"father": host}
		s, err := newService(cfg, session.Network{Transport: hosts.Transport, Reaches: hosts.Reaches}, nil, slog.New(slog.DiscardHandler), func(string) string { return "" })
		require.NoError(t, err)
		ended, stop := make(chan error, 1), make(chan struct{})
		go func() { ended <- s.Agent.Run(context.Background(), stop) }()
		hour := func(want agent.CheckState) int64 {
			_, err := s.Agent.Reconcile(t.Context())
			require.NoError(t, err)
			before := requests.Load()
			time.Sleep(time.Hour)
			synctest.Wait()
			st := s.Status()
			require.Len(t, st.Checks, checkedGuests)
			for _, c := range st.Checks {
				require.Equal(t, want, c.State, "%+v", c)
			}
			return requests.Load() - before
		}
		time.Sleep(time.Hour) // they are made
		without := hour(agent.CheckUnknown)
		repo.Commit(map[string]string{"web.hcl": site("")}, "Check them all the time")
		require.Equal(t, without, hour(agent.CheckPassing))
		require.Positive(t, without)
		t.Logf("%d guests: %d requests an hour, with and without checks", checkedGuests, without)
		close(stop)
		require.NoError(t, <-ended)
	})
}
