package engine_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Guests whose checks do not hold keep no other manifest from being made, whether it is
// their own check that is waited for or that of what they need.
func TestGuestsThatAreWaitedForHoldUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := enginetest.NewInn()
		sizes := map[string]int{"db": 1}
		for n := range 6 {
			sizes[fmt.Sprint("ill-", n)], sizes[fmt.Sprint("on-", n)] = 1, 1
			i.Set(fmt.Sprint("ill-", n), true)
		}
		s := enginetest.Site(sizes)
		m := s.Manifests["web"]
		m.OnError = "stop"
		web := model.Manifest{Name: "other", Host: "father", OnError: "stop"}
		for _, n := range m.Nodes {
			n.Checks = []model.Check{{Name: "up", Agent: true, Timeout: 5 * time.Minute, Interval: 10 * time.Second}}
			if n.Name[:2] == "on" {
				n.Resource.Needs = append(n.Resource.Needs, enginetest.Addr("box", "db"))
			}
		}
		for n := range 30 {
			r := *m.Nodes[0].Resource
			name := fmt.Sprint("z-", n)
			r.Addr, r.Node, r.Manifest, r.Guest, r.Needs = enginetest.Addr("box", name), name, "other", &model.Guest{}, nil
			r.Spec = &enginetest.Box{Size: 1, IP: enginetest.IPOf(name)}
			web.Nodes = append(web.Nodes, &model.Node{Name: name, Type: "box", Manifest: &web, Resource: &r})
		}
		s.Manifests["other"] = &web
		begun, lastOther := time.Now(), time.Duration(0)
		p := i.Pass(s)
		p.Width = 2
		p.Observer = engine.StepFunc(func(e apply.Event) {
			if e.What == apply.Finished && e.Step.Manifest == "other" {
				require.Equal(t, apply.Done, e.Result.Status)
				lastOther = time.Since(begun)
			}
		})
		r := p.Run(t.Context())
		require.Equal(t, engine.Partly, r.Outcome)
		require.Less(t, lastOther, 10*time.Second)
		require.Greater(t, time.Since(begun), 4*time.Minute)
		ill := 0
		for _, a := range i.Applied {
			if len(a) > len("create box.ill") && a[:len("create box.ill")] == "create box.ill" {
				ill++
			}
		}
		require.LessOrEqual(t, ill, 2, "a failure stops the manifest where it did before")
	})
}
