package engine_test

import (
	"context"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/health"
	"github.com/homestak/homestak-gitops/engine/model"
)

// What needs a guest that was unwell in an earlier pass costs an agent one try of it,
// and not the time of its checks in each pass while pushes wait.
func TestWhatNeedsAnUnwellGuestTriesItOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := enginetest.NewInn()
		i.Set("db", true)
		require.Equal(t, engine.Partly, i.Pass(enginetest.CheckedSite("stop")).Run(t.Context()).Outcome)

		i.Asked = map[string]int{}
		p := i.Pass(enginetest.CheckedSite("stop"))
		p.Failing = []model.Address{enginetest.Addr("box", "db")}
		began := time.Now()
		r := p.Run(t.Context())
		require.Zero(t, time.Since(began))
		require.Equal(t, 1, i.Times("db"))
		require.ErrorContains(t, r.Err, "create box.web: it needs box.db, which is not healthy: check up (db.hcl:7:3) failed: db does not answer")

		i.Set("db", false)
		p = i.Pass(enginetest.CheckedSite("stop"))
		p.Failing = []model.Address{enginetest.Addr("box", "db")}
		r = p.Run(t.Context())
		require.Equal(t, engine.Done, r.Outcome, "%v", r.Err)
	})
}

// However many guests need a sick one, its checks have their time once in a pass.
func TestManyWaitForASickGuestOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := enginetest.NewInn()
		i.Set("db", true)
		s := enginetest.CheckedSite("continue")
		require.Equal(t, engine.Partly, i.Pass(s).Run(t.Context()).Outcome)
		for _, n := range s.Manifests["web"].Nodes {
			if n.Name == "lone" {
				n.Resource.Needs = append(n.Resource.Needs, enginetest.Addr("box", "db"))
			}
		}
		delete(i.Holds, enginetest.Addr("box", "lone"))
		i.Asked = map[string]int{}
		began := time.Now()
		r := i.Pass(s).Run(t.Context())
		require.Equal(t, 50*time.Second, time.Since(began))
		require.Equal(t, 6, i.Times("db"))
		require.Equal(t, "db:failed lone:failed web:failed", enginetest.Statuses(r))
		require.ErrorContains(t, r.Err, "create box.lone: it needs box.db")
		require.ErrorContains(t, r.Err, "create box.web: it needs box.db")
	})
}

// Guests that answer nothing at all cannot hold up an agent: after a minute it leaves
// the rest of them to its next pass, and forgets none.
func TestManyDeadGuestsDoNotHoldUpAnAgent(t *testing.T) {
	for unattended, want := range map[bool]int{true: 3, false: 5} {
		synctest.Test(t, func(t *testing.T) {
			i := enginetest.NewInn()
			boxes := map[string]int{"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}
			require.Equal(t, engine.Done, i.Pass(enginetest.Site(boxes)).Run(t.Context()).Outcome)
			s := enginetest.Site(boxes)
			for _, n := range s.Manifests["web"].Nodes {
				n.Checks = []model.Check{{Name: "up", TCP: "22"}}
			}
			p := i.Pass(s)
			p.Width, p.Unattended = 1, unattended
			p.Health = health.Prober{Connect: 25 * time.Second, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}}
			for name := range boxes {
				p.Failing = append(p.Failing, enginetest.Addr("box", name))
			}
			began := time.Now()
			r := p.Run(t.Context())
			require.Equal(t, time.Duration(want)*25*time.Second, time.Since(began))
			require.Equal(t, engine.Partly, r.Outcome)
			require.Len(t, r.Checks, want)
		})
	}
}

// Who waits for the checks of another guest is told as the one that waits.
func TestItIsToldWhoWaitsForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := enginetest.NewInn()
		i.Set("db", true)
		require.Equal(t, engine.Partly, i.Pass(enginetest.CheckedSite("stop")).Run(t.Context()).Outcome)
		var told []string
		p := i.Pass(enginetest.CheckedSite("stop"))
		p.Health.Notify = func(w health.Progress) { told = append(told, fmt.Sprint(w.Step(), ": ", w.String())) }
		time.AfterFunc(5*time.Second, func() { i.Set("db", false) })
		require.Equal(t, engine.Done, p.Run(t.Context()).Outcome)
		require.Equal(t, []string{"box.web: waiting for check up of box.db: db does not answer (0 s of 1m)", "box.web: "}, told, "what comes then is no wait")
	})
}
