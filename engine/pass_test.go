package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// document gives the report as JSON, without its times.
func document(t *testing.T, r engine.Report) string {
	t.Helper()
	r.Seconds = 0
	for i := range r.Nodes {
		r.Nodes[i].Seconds = 0
	}
	b, err := json.MarshalIndent(r, "", "  ")
	require.NoError(t, err)
	return string(b)
}

func TestAPassConvergesAndTheNextOneDoesNothing(t *testing.T) {
	h := &enginetest.Host{}
	r := enginetest.Pass(enginetest.Site(map[string]int{"a": 1, "b": 2}), h).Run(t.Context())
	require.Equal(t, engine.Done, r.Outcome, "%v", r.Err)
	require.Equal(t, "create disk.base", h.Applied[0], "what is needed comes first")
	require.Len(t, h.Applied, 3)
	require.JSONEq(t, `{
		"verb": "apply", "success": true, "commit": "c0ffee", "duration_seconds": 0,
		"nodes": [
			{"name": "a", "status": "completed", "vmid": 100, "ip": "`+enginetest.IPOf("a")+`", "duration_seconds": 0},
			{"name": "b", "status": "completed", "vmid": 101, "ip": "`+enginetest.IPOf("b")+`", "duration_seconds": 0}
		],
		"findings": []
	}`, document(t, r))

	h.Applied = nil
	r = enginetest.Pass(enginetest.Site(map[string]int{"a": 1, "b": 2}), h).Run(t.Context())
	require.Equal(t, engine.Done, r.Outcome)
	require.Empty(t, h.Applied)
	require.Equal(t, "a:completed b:completed", enginetest.Statuses(r), "what is unchanged is as the site says, too")
}

func TestWithoutAVerdictNothingIsDone(t *testing.T) {
	h := &enginetest.Host{}
	p := enginetest.Pass(enginetest.Site(map[string]int{"a": 1}), h)
	p.Verdict = nil
	r := p.Run(t.Context())
	require.Equal(t, engine.Planned, r.Outcome)
	require.Len(t, r.Plan.Steps, 2)
	require.Empty(t, h.Applied)
	require.Equal(t, "a:skipped", enginetest.Statuses(r))
}

func TestAVerdictMayRefuse(t *testing.T) {
	h := &enginetest.Host{}
	p := enginetest.Pass(enginetest.Site(map[string]int{"a": 1}), h)
	no := errors.New("not today\ncome back tomorrow")
	p.Verdict = func(context.Context, *plan.Plan) (bool, error) { return true, no }
	r := p.Run(t.Context())
	require.Equal(t, engine.Failed, r.Outcome)
	require.ErrorIs(t, r.Err, no)
	require.Empty(t, h.Applied)
	require.Contains(t, document(t, r), `"summary": "not today"`)
	require.Contains(t, document(t, r), `"detail": "come back tomorrow"`)
}

func TestABadSiteReachesNoHost(t *testing.T) {
	bad := diag.List{diag.Errorf(diag.Range{File: "a.hcl"}, "no good", "")}
	for name, d := range map[string]engine.Desired{
		"with errors": {Site: enginetest.Site(nil), Findings: bad},
		"none at all": {Findings: bad},
		"empty":       {},
	} {
		t.Run(name, func(t *testing.T) {
			p := enginetest.Pass(nil, &enginetest.Host{})
			p.Load = func(context.Context) engine.Desired { return d }
			p.Open = func(*model.Host) (engine.Driver, error) {
				t.Error("the host was reached")
				return nil, errors.New("not here")
			}
			r := p.Run(t.Context())
			require.Equal(t, engine.Invalid, r.Outcome)
			require.True(t, r.Findings.HasErrors())
			require.False(t, r.Success)
		})
	}
}

func TestAHostTheSiteDoesNotKnowConvergesNothing(t *testing.T) {
	h := &enginetest.Host{Holds: model.State{enginetest.Addr("box", "a"): {Addr: enginetest.Addr("box", "a"), Spec: &enginetest.Box{}, Node: "a", Manifest: "web", Guest: &model.Guest{VMID: 100}}}}
	p := enginetest.Pass(enginetest.Site(nil), h)
	p.Host = "fahter"
	r := p.Run(t.Context())
	require.Equal(t, engine.Invalid, r.Outcome)
	require.Empty(t, h.Applied)
	require.Contains(t, r.Findings[0].Detail, "father")
}

func TestABlindHostIsUnknownAndNotEmpty(t *testing.T) {
	lost := errors.New("no route to host")
	h := &enginetest.Host{ObserveErr: lost}
	r := enginetest.Pass(enginetest.Site(map[string]int{"a": 1}), h).Run(t.Context())
	require.Equal(t, engine.Failed, r.Outcome)
	require.ErrorIs(t, r.Err, lost)
	require.Empty(t, r.Plan.Steps)
	require.Equal(t, []model.Unknown{{Scope: "host father", Why: "no route to host", All: true}}, r.Plan.Unknown)
	require.Equal(t, "a:skipped", enginetest.Statuses(r))
	require.Contains(t, document(t, r), `"summary": "no route to host"`)
}

func TestAHostThatCannotBeOpened(t *testing.T) {
	p := enginetest.Pass(enginetest.Site(map[string]int{"a": 1}), &enginetest.Host{})
	p.Open = func(*model.Host) (engine.Driver, error) { return nil, errors.New("no token") }
	r := p.Run(t.Context())
	require.Equal(t, engine.Failed, r.Outcome)
	require.EqualError(t, r.Err, "open host father: no token")
	require.Empty(t, r.Nodes)
}

func TestPartOfTheStepsFail(t *testing.T) {
	broken := errors.New("storage is full")
	h := &enginetest.Host{Fail: map[string]error{"box.b": broken}}
	s := enginetest.Site(map[string]int{"a": 1, "b": 2, "c": 3})
	s.Manifests["web"].OnError = "continue"
	r := enginetest.Pass(s, h).Run(t.Context())
	require.Equal(t, engine.Partly, r.Outcome)
	require.ErrorIs(t, r.Err, broken)
	require.Equal(t, "a:completed b:failed c:completed", enginetest.Statuses(r))
	require.Equal(t, "storage is full", r.Nodes[1].Error)
	require.Empty(t, r.Findings, "what is told at a node is not told twice")
}

func TestWhatFailsBesideTheNodesIsAFinding(t *testing.T) {
	h := &enginetest.Host{Fail: map[string]error{"disk.base": errors.New("checksum mismatch")}}
	r := enginetest.Pass(enginetest.Site(map[string]int{"a": 1}), h).Run(t.Context())
	require.Equal(t, engine.Failed, r.Outcome)
	require.Equal(t, "a:skipped", enginetest.Statuses(r))
	require.Len(t, r.Findings, 1)
	require.Equal(t, "disk.base: create failed", r.Findings[0].Summary)
	require.Equal(t, "checksum mismatch", r.Findings[0].Detail)
}

func TestOnErrorComesFromTheManifest(t *testing.T) {
	s := enginetest.Site(map[string]int{"a": 1, "b": 2})
	s.Manifests["web"].OnError = "rollback"
	h := &enginetest.Host{Fail: map[string]error{"box.b": errors.New("no")}}
	p := enginetest.Pass(s, h)
	p.Width = 1
	r := p.Run(t.Context())
	require.Equal(t, "a:destroyed b:failed", enginetest.Statuses(r))
	require.NotContains(t, h.Holds, enginetest.Addr("box", "a"))
}

func TestAGuardRefusesOneAndTheRestIsDone(t *testing.T) {
	h := &enginetest.Host{Unmanaged: []model.Unmanaged{{VMID: 500, Name: "b", Kind: "vm", Why: "no ownership tag", Claims: enginetest.Addr("box", "b"), Fix: "rename it"}}}
	r := enginetest.Pass(enginetest.Site(map[string]int{"a": 1, "b": 2}), h).Run(t.Context())
	require.Equal(t, engine.Refused, r.Outcome)
	require.Equal(t, "a:completed b:skipped", enginetest.Statuses(r))
	require.Contains(t, r.Nodes[1].Error, "no ownership tag")
}

func TestWhatIsOutOfSightIsNoSuccess(t *testing.T) {
	h := &enginetest.Host{Unknown: []model.Unknown{{Scope: "node two", Why: "offline"}}}
	r := enginetest.Pass(enginetest.Site(map[string]int{"a": 1}), h).Run(t.Context())
	require.Equal(t, engine.Partly, r.Outcome)
	r = enginetest.Pass(enginetest.Site(map[string]int{"a": 1}), h).Run(t.Context())
	require.Equal(t, engine.Failed, r.Outcome, "nothing to do, but who knows")
}

func TestDestroyTakesTheManifestAndSaysSoTwice(t *testing.T) {
	h := &enginetest.Host{}
	s := enginetest.Site(map[string]int{"a": 1, "b": 2})
	require.Equal(t, engine.Done, enginetest.Pass(s, h).Run(t.Context()).Outcome)
	for range 2 {
		p := enginetest.Pass(s, h)
		p.Manifest, p.Destroy = "web", true
		r := p.Run(t.Context())
		require.Equal(t, engine.Done, r.Outcome)
		require.Equal(t, "a:destroyed b:destroyed", enginetest.Statuses(r))
	}
	require.Equal(t, []model.Address{enginetest.Addr("disk", "base")}, h.Holds.Addresses(), "only guests go")
}

func TestTargetsNarrowTheReport(t *testing.T) {
	h := &enginetest.Host{}
	p := enginetest.Pass(enginetest.Site(map[string]int{"a": 1, "b": 2}), h)
	p.Targets = []model.Address{enginetest.Addr("box", "b")}
	r := p.Run(t.Context())
	require.Equal(t, engine.Done, r.Outcome)
	require.Equal(t, "b:completed", enginetest.Statuses(r))
}

func TestRefreshOnlyTellsAndPlansNothing(t *testing.T) {
	h := &enginetest.Host{}
	s := enginetest.Site(map[string]int{"a": 1})
	require.Equal(t, engine.Done, enginetest.Pass(s, h).Run(t.Context()).Outcome)
	h.Holds[enginetest.Addr("box", "a")].Spec.(*enginetest.Box).Size = 9
	h.Applied = nil
	p := enginetest.Pass(s, h)
	p.RefreshOnly = true
	r := p.Run(t.Context())
	require.Empty(t, h.Applied)
	require.Empty(t, r.Plan.Steps)
	require.Equal(t, 1, r.Omitted)
	require.False(t, r.Plan.InSync(), "a difference is not in sync")
	require.Equal(t, "box.a", r.Plan.Deferred[0].Address)
	require.Contains(t, r.Plan.Deferred[0].Why, "size")
}

func TestStopBeforeTheFirstStepEndsAtOnce(t *testing.T) {
	stop := make(chan struct{})
	h := &enginetest.Host{}
	p := enginetest.Pass(enginetest.Site(map[string]int{"a": 1}), h)
	p.Stop = stop
	p.Verdict = func(ctx context.Context, _ *plan.Plan) (bool, error) {
		close(stop)
		<-ctx.Done()
		return true, nil
	}
	r := p.Run(t.Context())
	require.Equal(t, engine.Interrupted, r.Outcome)
	require.ErrorIs(t, r.Err, engine.ErrInterrupted)
	require.Empty(t, h.Applied)
}

// Once: what runs is finished. Then nothing new is begun.
func TestStopDuringTheStepsFinishesWhatRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		h := &enginetest.Host{During: func(ctx context.Context, _ plan.Step) error {
			select {
			case <-time.After(time.Minute):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}}
		p := enginetest.Pass(enginetest.Site(map[string]int{"a": 1}), h)
		p.Stop = stop
		var events []apply.What
		p.Observer = engine.StepFunc(func(e apply.Event) { events = append(events, e.What) })
		time.AfterFunc(time.Second, func() { close(stop) })
		r := p.Run(t.Context())
		require.Equal(t, engine.Interrupted, r.Outcome)
		require.Equal(t, []string{"create disk.base"}, h.Applied, "it ran, and box.a was not begun")
		require.Equal(t, []apply.What{apply.Started, apply.Waiting, apply.Finished, apply.Finished}, events)
		require.InDelta(t, 60, r.Seconds, 1)
	})
}

func TestACancelledContextSaysWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := errors.New("time is over")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, late)
		defer cancel()
		h := &enginetest.Host{During: func(ctx context.Context, _ plan.Step) error { <-ctx.Done(); return ctx.Err() }}
		r := enginetest.Pass(enginetest.Site(map[string]int{"a": 1}), h).Run(ctx)
		require.Equal(t, engine.Failed, r.Outcome)
		require.ErrorIs(t, r.Err, late)
	})
}
