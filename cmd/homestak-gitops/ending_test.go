package main

import (
	"testing"

	"github.com/stretchr/testify/require"

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
		"all seen, in sync":       {nil, nil, exitDone, exitDone},
		"all seen, changes":       {nil, step, exitDone, exitPending},
		"a node offline":          {[]model.Unknown{dark}, nil, exitError, exitError},
		"a node offline, changes": {[]model.Unknown{dark}, step, exitError, exitPending},
		"not permitted":           {[]model.Unknown{dark, denied}, nil, exitDenied, exitDenied},
		"nothing seen":            {[]model.Unknown{nothing}, nil, exitError, exitError},
		"nothing may be seen":     {[]model.Unknown{barred}, nil, exitDenied, exitDenied},
		"not permitted, changes":  {[]model.Unknown{denied}, step, exitDenied, exitPending},
	} {
		t.Run(name, func(t *testing.T) {
			r := engine.Report{Outcome: engine.Planned, Plan: &plan.Plan{Unknown: c.unknown, Steps: c.steps}}
			require.Equal(t, c.code, codeOf(endingOfPlan(r, false)))
			require.Equal(t, c.detailed, codeOf(endingOfPlan(r, true)))
		})
	}
}
