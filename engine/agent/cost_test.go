package agent_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// An idle check of 1,000 guests costs little beyond the pass itself, which looks and plans.
func TestAnIdleCheckIsCheap(t *testing.T) {
	live(t, func(w *world) {
		sizes := map[string]int{}
		for i := range 1000 {
			sizes[fmt.Sprintf("box-%d", i)] = 1
		}
		d := boxes(sizes)
		w.repo.push("c1", d)
		w.start()
		cost := func(f func()) (bytes uint64) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range 5 {
				f()
			}
			runtime.ReadMemStats(&after)
			return (after.TotalAlloc - before.TotalAlloc) / 5
		}
		pure := cost(func() { enginetest.Pass(d.Site, w.host.Host).Run(w.t.Context()) })
		all := cost(func() { w.look() })
		t.Logf("a pass %d KiB, with the agent %d KiB", pure>>10, all>>10)
		require.Less(t, all, pure+pure/4)
	})
}

// Between two passes the agent holds no site, no observation and no plan.
func TestNothingLargeIsKept(t *testing.T) {
	live(t, func(w *world) {
		var sites []weak.Pointer[model.Site]
		var plans []weak.Pointer[plan.Plan]
		w.options = func(o *agent.Options) {
			o.Load = func(context.Context, model.Commit) engine.Desired {
				d := boxes(map[string]int{"a": 1})
				d.PolicyCheck = func(_ context.Context, q engine.Question) diag.List {
					plans = append(plans, weak.Make(q.Plan))
					return nil
				}
				sites = append(sites, weak.Make(d.Site))
				return d
			}
		}
		w.repo.push("c1", engine.Desired{})
		w.start()
		w.pass(16 * time.Minute)
		runtime.GC()
		require.Len(t, sites, 4)
		require.Len(t, plans, 4)
		for i := range sites {
			require.Nil(t, sites[i].Value())
			require.Nil(t, plans[i].Value())
		}
	})
}
