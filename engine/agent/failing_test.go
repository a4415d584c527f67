package agent_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Who takes a check out of the files hears of it no more.
func TestAnAgentForgetsChecksThatLeftTheFiles(t *testing.T) {
	live(t, func(w *world) {
		i := enginetest.NewInn()
		w.options = func(o *agent.Options) {
			o.Open = func(engine.Desired, *model.Host) (engine.Driver, error) { return i, nil }
		}
		i.Set("lone", true)
		w.repo.push("c1", engine.Desired{Site: enginetest.CheckedSite("continue")})
		w.start()
		s := w.pass(65 * time.Second)
		require.Equal(t, "box.db:true box.lone:false box.web:true", ready(s))
		require.Equal(t, []string{"box.lone"}, w.state().Failing)

		without := enginetest.CheckedSite("continue")
		for _, n := range without.Manifests["web"].Nodes {
			n.Checks = nil
		}
		w.repo.push("c2", engine.Desired{Site: without})
		s = w.pass(10 * time.Minute)
		require.Equal(t, "box.db:true box.lone:true box.web:true", ready(s))
		require.Empty(t, w.state().Failing)
		require.Zero(t, strings.Count(w.log.String(), "checks hold again"), "nobody asked")
	})
}

// An agent does not forget a guest whose check does not hold: it tries again until it
// does, also after a restart, and asks nobody from then on.
func TestAnAgentRemembersWhoWasUnwell(t *testing.T) {
	live(t, func(w *world) {
		i := enginetest.NewInn()
		w.options = func(o *agent.Options) {
			o.Open = func(engine.Desired, *model.Host) (engine.Driver, error) { return i, nil }
		}
		i.Set("lone", true)
		w.repo.push("c1", engine.Desired{Site: enginetest.CheckedSite("continue")})
		w.start()
		s := w.pass(15 * time.Second)
		require.Equal(t, "waiting for check up of box.lone: lone does not answer (10 s of 1m)", s.Running.Now[0].Waits)
		s = w.pass(50 * time.Second)
		require.Nil(t, s.Converged)
		require.Equal(t, "box.db:true box.lone:false box.web:true", ready(s))
		require.Contains(t, s.Nodes[1].Error, "check up (lone.hcl:7:3) failed: lone does not answer")

		w.end()
		w.start()
		s = w.pass(10 * time.Minute)
		require.Equal(t, "box.db:true box.lone:false box.web:true", ready(s))
		require.Equal(t, engine.Partly, s.Last.Outcome)

		i.Set("lone", false)
		s = w.pass(10 * time.Minute)
		require.Equal(t, engine.Done, s.Last.Outcome)
		require.Equal(t, "c1", s.Converged.ID)
		require.Equal(t, "box.db:true box.lone:true box.web:true", ready(s))
		require.Equal(t, 1, strings.Count(w.log.String(), "checks hold again"))

		before := i.Times("lone")
		w.pass(time.Hour)
		require.Equal(t, before, i.Times("lone"))
		require.Len(t, w.receipts(), 1, "to look is no change")
	})
}

func ready(s agent.Status) string {
	var out []string
	for _, n := range s.Nodes {
		out = append(out, fmt.Sprintf("%s:%v", n.Address, n.Ready))
	}
	return strings.Join(out, " ")
}
