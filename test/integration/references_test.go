package integration_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// TestALiveReferenceRefusesARemoval: exit code 4, with the place and the next step, and the host stays as it is. When the reference
// is gone, the guest goes.
func TestALiveReferenceRefusesARemoval(t *testing.T) {
	s := begin(t, pve.Config{})
	s.deploy("web", vm("web", brief)+vm("old", brief))
	s.apply()
	s.deploy("web", vm("web", brief))
	before := s.host.Snapshot().Guests
	live := "it is still referenced at /srv/registry/hosts:12 (old)"
	var asked map[model.Address][]string
	remove := func() engine.Report {
		return s.pass("apply", func(p *engine.Pass) {
			p.Load = func(ctx context.Context) engine.Desired {
				d := s.load(ctx)
				d.References = func(_ context.Context, words map[model.Address][]string) map[model.Address]string {
					asked = words
					if live == "" {
						return nil
					}
					return map[model.Address]string{{Kind: "vm", Name: "old"}: live}
				}
				return d
			}
		})
	}
	r := remove()
	require.Equal(t, engine.Refused, r.Outcome, describe(r))
	require.Contains(t, describe(r), live)
	require.Len(t, asked, 1, "only of what is to go")
	require.ElementsMatch(t, []string{"old", "10000"}, asked[model.Address{Kind: "vm", Name: "old"}])
	require.Equal(t, before, s.host.Snapshot().Guests)
	live = ""
	require.Equal(t, engine.Done, remove().Outcome)
	require.Equal(t, []string{"web"}, s.names())
	asked = nil
	require.Equal(t, engine.Done, remove().Outcome)
	require.Nil(t, asked, "nothing is searched where nothing is removed")
	suspended := s.pass("plan", func(p *engine.Pass) {
		p.Load = func(ctx context.Context) engine.Desired {
			d := s.load(ctx)
			d.Site = d.Site.Suspend("web")
			d.References = func(_ context.Context, words map[model.Address][]string) map[model.Address]string {
				asked = words
				return nil
			}
			return d
		}
	})
	require.Empty(t, suspended.Plan.Steps)
	require.Nil(t, asked, "nor for guests of a suspended manifest, which stay")
}
