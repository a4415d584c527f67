package agent_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/model"
)

// A node that loses its spec is entered by what the agent converged to before, until nothing of the spec is left; from then
// on nobody enters it.
func TestAnAgentWithdrawsALostSpec(t *testing.T) {
	live(t, func(w *world) {
		i := enginetest.NewInn()
		w.options = func(o *agent.Options) {
			o.Open = func(engine.Desired, *model.Host) (engine.Driver, error) { return i, nil }
		}
		w.repo.push("c1", engine.Desired{Site: enginetest.InsideSite(map[string]int{"a": 1})})
		w.start()
		w.pass(10 * time.Minute)
		inner := enginetest.Addr("inner", "a")
		require.Equal(t, &enginetest.Room{Packages: []string{"nginx"}}, i.Holds[inner].Spec)

		byHand := func(change func()) {
			i.Mu.Lock()
			defer i.Mu.Unlock()
			change()
		}
		without := enginetest.InsideSite(map[string]int{"a": 1})
		without.Manifests["web"].Nodes[0].Spec = ""
		byHand(func() { i.Fail = map[string]error{"inner.a": errors.New("no route to host")} })
		w.repo.push("c2", engine.Desired{Site: without})
		w.pass(10 * time.Minute)
		require.Equal(t, &enginetest.Room{Packages: []string{"nginx"}}, i.Holds[inner].Spec)
		byHand(func() { i.Fail = nil })
		w.pass(time.Hour)
		require.Equal(t, &enginetest.Room{}, i.Holds[inner].Spec)

		byHand(func() {
			i.Applied, i.Holds[inner].Spec = nil, &enginetest.Room{Packages: []string{"by hand"}}
		})
		w.pass(time.Hour)
		require.Empty(t, i.Applied, "what somebody does inside is no business of the site any more")
	})
}
