package engine_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/model"
)

// judged is a pass over one box whose rules say this.
func judged(h *enginetest.Host, found diag.List, asked *engine.Question) *engine.Pass {
	s := enginetest.Site(map[string]int{"a": 1})
	p := enginetest.Pass(s, h)
	p.Load = func(context.Context) engine.Desired {
		return engine.Desired{Site: s, Commit: "c0ffee", PolicyCheck: func(_ context.Context, q engine.Question) diag.List {
			*asked = q
			return found
		}}
	}
	return p
}

func TestADenialStopsThePass(t *testing.T) {
	for source, want := range map[string]engine.Outcome{diag.FromPolicy: engine.Invalid, diag.FromSite: engine.Invalid, diag.FromGuard: engine.Refused} {
		t.Run(source, func(t *testing.T) {
			h := &enginetest.Host{}
			var q engine.Question
			r := judged(h, enginetest.Said(diag.Error, source), &q).Run(t.Context())
			require.Equal(t, want, r.Outcome)
			require.True(t, r.Denied)
			require.False(t, r.Success)
			require.NoError(t, r.Err)
			require.Empty(t, h.Applied)
			require.Equal(t, enginetest.Said(diag.Error, source), r.Findings)
			require.Equal(t, r.Findings, r.Plan.Findings, "they belong to the document of the plan, too")
			require.Len(t, r.Plan.Steps, 2, "what would have been done is still to be seen")
		})
	}
}

func TestAWarningOfTheRulesIsToldAndStopsNothing(t *testing.T) {
	h := &enginetest.Host{}
	var q engine.Question
	r := judged(h, enginetest.Said(diag.Warning, diag.FromGuard), &q).Run(t.Context())
	require.Equal(t, engine.Done, r.Outcome)
	require.False(t, r.Denied)
	require.Len(t, h.Applied, 2)
	require.Equal(t, enginetest.Said(diag.Warning, diag.FromGuard), r.Findings)

	r = judged(h, enginetest.Said(diag.Warning, diag.FromGuard), &q).Run(t.Context())
	require.Equal(t, engine.Done, r.Outcome)
	require.Equal(t, "a:completed", enginetest.Statuses(r), "a warning of a rule holds no step back")
}

func TestWhereOnlyLookingWasAskedForADenialIsOnlyTold(t *testing.T) {
	h := &enginetest.Host{}
	var q engine.Question
	p := judged(h, enginetest.Said(diag.Error, diag.FromPolicy), &q)
	p.RefreshOnly, p.Verdict = true, nil
	r := p.Run(t.Context())
	require.Equal(t, engine.Planned, r.Outcome)
	require.False(t, r.Denied)
	require.Contains(t, r.Findings, enginetest.Said(diag.Error, diag.FromPolicy)[0])
	require.Empty(t, h.Applied)
}

func TestRulesAreToldWhatThePassIsAbout(t *testing.T) {
	h := &enginetest.Host{}
	var q engine.Question
	p := judged(h, nil, &q)
	p.Run(t.Context())
	require.Equal(t, model.Commit{ID: "c0ffee"}, q.Commit, "of a checkout no more is known")
	require.False(t, q.Destroy)
	require.Equal(t, "father", q.Want.Host.Name)
	require.Len(t, q.Plan.Steps, 2)

	p = judged(h, nil, &q)
	p.Commit, p.AllowDeletes, p.Unattended, p.Manifest, p.Destroy = &model.Commit{ID: "c0ffee", Subject: "x"}, 7, true, "web", true
	p.Run(t.Context())
	require.Equal(t, "x", q.Commit.Subject)
	require.Equal(t, 7, q.AllowDeletes)
	require.True(t, q.Unattended)
	require.True(t, q.Destroy)
	require.Len(t, q.Have.State, 2)
}

// A guard of the plan keeps a single step back; that is no denial.
func TestAStepThatIsKeptBackIsNoDenial(t *testing.T) {
	h := &enginetest.Host{Unmanaged: []model.Unmanaged{{VMID: 500, Name: "a", Kind: "vm", Why: "no ownership tag", Claims: enginetest.Addr("box", "a")}}}
	r := enginetest.Pass(enginetest.Site(map[string]int{"a": 1}), h).Run(t.Context())
	require.Equal(t, engine.Refused, r.Outcome)
	require.False(t, r.Denied)
	require.Equal(t, []string{"create disk.base"}, h.Applied)
}

// Rules that are cut off by a stop did not deny anything.
func TestAStopWhileRulesAreAskedIsNoDenial(t *testing.T) {
	h, stop := &enginetest.Host{}, make(chan struct{})
	s := enginetest.Site(map[string]int{"a": 1})
	p := enginetest.Pass(s, h)
	p.Stop = stop
	p.Load = func(context.Context) engine.Desired {
		return engine.Desired{Site: s, PolicyCheck: func(ctx context.Context, _ engine.Question) diag.List {
			close(stop)
			<-ctx.Done()
			return enginetest.Said(diag.Error, diag.FromPolicy)
		}}
	}
	r := p.Run(t.Context())
	require.Equal(t, engine.Interrupted, r.Outcome)
	require.False(t, r.Denied)
	require.Empty(t, h.Applied)
}

// Nor is a site that could not be read because there was no time.
func TestAStopWhileTheSiteIsReadIsNoBadSite(t *testing.T) {
	stop := make(chan struct{})
	p := enginetest.Pass(nil, &enginetest.Host{})
	p.Stop = stop
	p.Load = func(ctx context.Context) engine.Desired {
		close(stop)
		<-ctx.Done()
		return engine.Desired{Findings: enginetest.Said(diag.Error, diag.FromSite)}
	}
	r := p.Run(t.Context())
	require.Equal(t, engine.Interrupted, r.Outcome)
	require.False(t, r.Denied)
}
