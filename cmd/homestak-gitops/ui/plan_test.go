package ui_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
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
		"all seen, in sync":       {nil, nil, ui.ExitDone, ui.ExitDone},
		"all seen, changes":       {nil, step, ui.ExitDone, ui.ExitPending},
		"a node offline":          {[]model.Unknown{dark}, nil, ui.ExitFailed, ui.ExitFailed},
		"a node offline, changes": {[]model.Unknown{dark}, step, ui.ExitFailed, ui.ExitPending},
		"not permitted":           {[]model.Unknown{dark, denied}, nil, ui.ExitDenied, ui.ExitDenied},
		"nothing seen":            {[]model.Unknown{nothing}, nil, ui.ExitFailed, ui.ExitFailed},
		"nothing may be seen":     {[]model.Unknown{barred}, nil, ui.ExitDenied, ui.ExitDenied},
		"not permitted, changes":  {[]model.Unknown{denied}, step, ui.ExitDenied, ui.ExitPending},
	} {
		t.Run(name, func(t *testing.T) {
			r := engine.Report{Outcome: engine.Planned, Plan: &plan.Plan{Unknown: c.unknown, Steps: c.steps}}
			require.Equal(t, c.code, ui.ExitCode(ui.ExitOfPlan(r, false)))
			require.Equal(t, c.detailed, ui.ExitCode(ui.ExitOfPlan(r, true)))
		})
	}
}

// Exit code 2 is for steps and for drift that is only reported. Withheld, postponed and pending changes are neither, and apply exits with 0.
func TestN6WhatWaitsIsNoChange(t *testing.T) {
	left := diag.Finding{Severity: diag.Warning, Source: diag.FromGuard, Address: "vm.web-1", Summary: "vm.web-1 is not created: no server runs"}
	for name, c := range map[string]struct {
		plan plan.Plan
		code int
	}{
		"a step that is withheld": {plan.Plan{Findings: diag.List{left}}, ui.ExitDone},
		"a removal that waits":    {plan.Plan{Deferred: []model.Deferred{{Address: "pve.hv", Why: "not deleted", Differs: true}}}, ui.ExitDone},
		"a restart that waits":    {plan.Plan{Pending: []model.Pending{{Path: "cores"}}}, ui.ExitDone},
		"drift that is reported":  {plan.Plan{Findings: diag.List{left}, Drift: []model.Address{{Kind: "vm", Name: "web-1"}}}, ui.ExitPending},
	} {
		t.Run(name, func(t *testing.T) {
			r := engine.Report{Outcome: engine.Planned, Plan: &c.plan, Findings: c.plan.Findings}
			require.Equal(t, c.code, ui.ExitCode(ui.ExitOfPlan(r, true)))
			require.Equal(t, ui.ExitDone, ui.ExitCode(ui.ExitOfPlan(r, false)))
		})
	}
}
