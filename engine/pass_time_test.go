package engine_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

func TestTheTimeOfAStepComesFromTheManifest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := enginetest.Site(map[string]int{"a": 1})
		s.Manifests["web"].Settings = &model.Settings{Timeout: 3 * time.Second}
		h := &enginetest.Host{During: func(ctx context.Context, s plan.Step) error {
			if s.Node == "" {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}}
		r := enginetest.Pass(s, h).Run(t.Context())
		require.Equal(t, engine.Partly, r.Outcome)
		require.InDelta(t, 3, r.Nodes[0].Seconds, 0.1)
		require.Contains(t, r.Nodes[0].Error, "gave up after 3s")
	})
}

// What belongs to no manifest, as a download does, may take an hour.
func TestTheTimeOfAStepBesideTheManifests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &enginetest.Host{During: func(ctx context.Context, s plan.Step) error {
			if s.Node != "" {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}}
		began := time.Now()
		r := enginetest.Pass(enginetest.Site(map[string]int{"a": 1}), h).Run(t.Context())
		require.NotEqual(t, engine.Done, r.Outcome)
		require.InDelta(t, time.Hour.Seconds(), time.Since(began).Seconds(), 1)
	})
}

// A person who looks at the plan for an hour is no hour of work.
func TestAskingIsNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := enginetest.Pass(enginetest.Site(map[string]int{"a": 1}), &enginetest.Host{})
		p.Verdict = func(context.Context, *plan.Plan) (bool, error) {
			<-time.After(time.Hour)
			return true, nil
		}
		r := p.Run(t.Context())
		require.Equal(t, engine.Done, r.Outcome)
		require.Less(t, r.Seconds, 60.0)
	})
}
