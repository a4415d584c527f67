package exit_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/exit"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// A plan of a host that was seen in part does not end as one that is all there is to do.
func TestAPartlySeenHostIsNoGoodNews(t *testing.T) {
	dark := model.Unknown{Scope: "node pve2", Why: "offline"}
	denied := model.Unknown{Scope: "images on storage local", Why: "403", Denied: true}
	nothing := model.Unknown{Scope: "all guests", All: true}
	barred := model.Unknown{Scope: "all guests", All: true, Denied: true}
	step := []plan.Step{{Action: plan.Create}}
	for name, c := range map[string]struct {
		unknown        []model.Unknown
		steps          []plan.Step
		code, detailed int
	}{
		"all seen, in sync":       {nil, nil, exit.Done, exit.Done},
		"all seen, changes":       {nil, step, exit.Done, exit.Pending},
		"a node offline":          {[]model.Unknown{dark}, nil, exit.Failed, exit.Failed},
		"a node offline, changes": {[]model.Unknown{dark}, step, exit.Failed, exit.Pending},
		"not permitted":           {[]model.Unknown{dark, denied}, nil, exit.Denied, exit.Denied},
		"nothing seen":            {[]model.Unknown{nothing}, nil, exit.Failed, exit.Failed},
		"nothing may be seen":     {[]model.Unknown{barred}, nil, exit.Denied, exit.Denied},
		"not permitted, changes":  {[]model.Unknown{denied}, step, exit.Denied, exit.Pending},
	} {
		t.Run(name, func(t *testing.T) {
			r := engine.Report{Outcome: engine.Planned, Plan: &plan.Plan{Unknown: c.unknown, Steps: c.steps}}
			require.Equal(t, c.code, exit.Code(exit.OfPlan(r, false)))
			require.Equal(t, c.detailed, exit.Code(exit.OfPlan(r, true)))
		})
	}
}
