package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
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
	r := h.Pass(enginetest.Site(map[string]int{"a": 1, "b": 2})).Run(t.Context())
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
	r = h.Pass(enginetest.Site(map[string]int{"a": 1, "b": 2})).Run(t.Context())
	require.Equal(t, engine.Done, r.Outcome)
	require.Empty(t, h.Applied)
	require.Equal(t, "a:completed b:completed", enginetest.Statuses(r), "what is unchanged is as the site says, too")
}

func TestWithoutAVerdictNothingIsDone(t *testing.T) {
	h := &enginetest.Host{}
	p := h.Pass(enginetest.Site(map[string]int{"a": 1}))
	p.Verdict = nil
	r := p.Run(t.Context())
	require.Equal(t, engine.Planned, r.Outcome)
	require.Len(t, r.Plan.Steps, 2)
	require.Empty(t, h.Applied)
	require.Equal(t, "a:skipped", enginetest.Statuses(r))
}

func TestAVerdictMayRefuse(t *testing.T) {
	h := &enginetest.Host{}
	p := h.Pass(enginetest.Site(map[string]int{"a": 1}))
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
			p := (&enginetest.Host{}).Pass(nil)
			p.Load = func(context.Context) engine.Desired { return d }
			p.Open = func(engine.Desired, *model.Host) (engine.Driver, error) {
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
	p := h.Pass(enginetest.Site(nil))
	p.Host = "fahter"
	r := p.Run(t.Context())
	require.Equal(t, engine.Invalid, r.Outcome)
	require.Empty(t, h.Applied)
	require.Contains(t, r.Findings[0].Detail, "father")
}

func TestAnUnreadableHostIsUnknownAndNotEmpty(t *testing.T) {
	lost := errors.New("no route to host")
	h := &enginetest.Host{ObserveErr: lost}
	r := h.Pass(enginetest.Site(map[string]int{"a": 1})).Run(t.Context())
	require.Equal(t, engine.Failed, r.Outcome)
	require.ErrorIs(t, r.Err, lost)
	require.Empty(t, r.Plan.Steps)
	require.Equal(t, []model.Unknown{{Scope: "host father", Why: "no route to host", All: true}}, r.Plan.Unknown)
	require.Equal(t, "a:skipped", enginetest.Statuses(r))
	require.Contains(t, document(t, r), `"summary": "no route to host"`)
}

func TestAHostThatCannotBeOpened(t *testing.T) {
	p := (&enginetest.Host{}).Pass(enginetest.Site(map[string]int{"a": 1}))
	p.Open = func(engine.Desired, *model.Host) (engine.Driver, error) { return nil, errors.New("no token") }
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
	r := h.Pass(s).Run(t.Context())
	require.Equal(t, engine.Partly, r.Outcome)
	require.ErrorIs(t, r.Err, broken)
	require.Equal(t, "a:completed b:failed c:completed", enginetest.Statuses(r))
	require.Equal(t, "storage is full", r.Nodes[1].Error)
	require.Empty(t, r.Findings, "what is told at a node is not told twice")
}

func TestFailuresBesideTheNodesAreFindings(t *testing.T) {
	h := &enginetest.Host{Fail: map[string]error{"disk.base": errors.New("checksum mismatch")}}
	r := h.Pass(enginetest.Site(map[string]int{"a": 1})).Run(t.Context())
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
	p := h.Pass(s)
	p.Width = 1
	r := p.Run(t.Context())
	require.Equal(t, "a:destroyed b:failed", enginetest.Statuses(r))
	require.NotContains(t, h.Holds, enginetest.Addr("box", "a"))
}

func TestAGuardRefusesOneAndTheRestIsDone(t *testing.T) {
	h := &enginetest.Host{Unmanaged: []model.Unmanaged{{VMID: 500, Name: "b", Kind: "vm", Why: "no ownership tag", Claims: enginetest.Addr("box", "b"), Fix: "rename it"}}}
	r := h.Pass(enginetest.Site(map[string]int{"a": 1, "b": 2})).Run(t.Context())
	require.Equal(t, engine.Refused, r.Outcome)
	require.Equal(t, "a:completed b:skipped", enginetest.Statuses(r))
	require.Contains(t, r.Nodes[1].Error, "no ownership tag")
}

func TestUnseenPartsAreNotSuccess(t *testing.T) {
	h := &enginetest.Host{Unknown: []model.Unknown{{Scope: "node two", Why: "offline"}}}
	r := h.Pass(enginetest.Site(map[string]int{"a": 1})).Run(t.Context())
	require.Equal(t, engine.Partly, r.Outcome)
	r = h.Pass(enginetest.Site(map[string]int{"a": 1})).Run(t.Context())
	require.Equal(t, engine.Failed, r.Outcome, "nothing to do, but who knows")
}

func TestDestroyTakesTheManifestAndSaysSoTwice(t *testing.T) {
	h := &enginetest.Host{}
	s := enginetest.Site(map[string]int{"a": 1, "b": 2})
	require.Equal(t, engine.Done, h.Pass(s).Run(t.Context()).Outcome)
	for range 2 {
		p := h.Pass(s)
		p.Manifest, p.Destroy = "web", true
		r := p.Run(t.Context())
		require.Equal(t, engine.Done, r.Outcome)
		require.Equal(t, "a:destroyed b:destroyed", enginetest.Statuses(r))
	}
	require.Equal(t, []model.Address{enginetest.Addr("disk", "base")}, h.Holds.Addresses(), "only guests go")
}

func TestTargetsNarrowTheReport(t *testing.T) {
	h := &enginetest.Host{}
	p := h.Pass(enginetest.Site(map[string]int{"a": 1, "b": 2}))
	p.Targets = []model.Address{enginetest.Addr("box", "b")}
	r := p.Run(t.Context())
	require.Equal(t, engine.Done, r.Outcome)
	require.Equal(t, "b:completed", enginetest.Statuses(r))
}

func TestRefreshOnlyPlansNothing(t *testing.T) {
	h := &enginetest.Host{}
	s := enginetest.Site(map[string]int{"a": 1})
	require.Equal(t, engine.Done, h.Pass(s).Run(t.Context()).Outcome)
	h.Holds[enginetest.Addr("box", "a")].Spec.(*enginetest.Box).Size = 9
	h.Applied = nil
	p := h.Pass(s)
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
	p := h.Pass(enginetest.Site(map[string]int{"a": 1}))
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
		p := h.Pass(enginetest.Site(map[string]int{"a": 1}))
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
		r := h.Pass(enginetest.Site(map[string]int{"a": 1})).Run(ctx)
		require.Equal(t, engine.Failed, r.Outcome)
		require.ErrorIs(t, r.Err, late)
	})
}

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
		r := h.Pass(s).Run(t.Context())
		require.Equal(t, engine.Partly, r.Outcome)
		require.InDelta(t, 3, r.Nodes[0].Seconds, 0.1)
		require.Contains(t, r.Nodes[0].Error, "gave up after 3s")
	})
}

// A removal that restores the final backup is not cut short: otherwise each pass would begin it again.
func TestARemovalWithARestoreHasTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &enginetest.Host{}
		s := enginetest.Site(map[string]int{"a": 1})
		s.Manifests["web"].Settings = &model.Settings{Timeout: 3 * time.Second}
		require.Equal(t, engine.Done, h.Pass(s).Run(t.Context()).Outcome)
		h.Holds[enginetest.Addr("box", "a")].Guest.SlowRemoval = true
		h.During = func(ctx context.Context, _ plan.Step) error {
			select {
			case <-time.After(5 * time.Hour):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		p := h.Pass(s)
		p.Manifest, p.Destroy = "web", true
		require.Equal(t, engine.Done, p.Run(t.Context()).Outcome)
	})
}

// A step without a manifest, such as a download, may take an hour.
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
		r := h.Pass(enginetest.Site(map[string]int{"a": 1})).Run(t.Context())
		require.NotEqual(t, engine.Done, r.Outcome)
		require.InDelta(t, time.Hour.Seconds(), time.Since(began).Seconds(), 1)
	})
}

// An hour in which a person reads the plan is not an hour of work.
func TestAskingIsNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := (&enginetest.Host{}).Pass(enginetest.Site(map[string]int{"a": 1}))
		p.Verdict = func(context.Context, *plan.Plan) (bool, error) {
			<-time.After(time.Hour)
			return true, nil
		}
		r := p.Run(t.Context())
		require.Equal(t, engine.Done, r.Outcome)
		require.Less(t, r.Seconds, 60.0)
	})
}

// apart is a driver that can observe changed guests alone, as long as they are there.
type apart struct {
	*enginetest.Host
	looks []string
}

func (a *apart) Observe(ctx context.Context, w *model.Want) (model.Observed, error) {
	have, err := a.Host.Observe(ctx, w)
	have.State = maps.Clone(have.State)
	maps.DeleteFunc(have.State, func(addr model.Address, _ *model.Resource) bool {
		_, asked := w.Changed[addr]
		return len(w.Changed) > 0 && !asked
	})
	if have.Only = len(w.Changed) > 0 && len(have.State) == len(w.Changed); have.Only {
		a.looks = append(a.looks, "some")
		return have, err
	}
	a.looks = append(a.looks, "all")
	return a.Host.Observe(ctx, w)
}

// A pass about changed guests updates them, and says nothing of the others. Whatever else is to be done makes it a pass about
// all, and nothing that was not observed is taken for absent.
func TestAPassAboutChangedGuests(t *testing.T) {
	box := func(name string) model.Address { return enginetest.Addr("box", name) }
	for name, c := range map[string]struct {
		change  func(*enginetest.Host)
		looks   []string
		applied []string
	}{
		"as the files say": {looks: []string{"some"}},
		"another size":     {change: func(h *enginetest.Host) { h.Holds[box("a")].Spec.(*enginetest.Box).Size = 7 }, looks: []string{"some"}, applied: []string{"update box.a"}},
		"another one, too": {change: func(h *enginetest.Host) { h.Holds[box("b")].Spec.(*enginetest.Box).Size = 7 }, looks: []string{"some"}},
		"it is gone":       {change: func(h *enginetest.Host) { delete(h.Holds, box("a")) }, looks: []string{"all"}, applied: []string{"create box.a"}},
		"something is not seen": {change: func(h *enginetest.Host) {
			h.Unknown = []model.Unknown{{Scope: "box.a", Only: []model.Address{box("a")}}}
		}, looks: []string{"some", "all"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, h := enginetest.Site(map[string]int{"a": 1, "b": 1}), &enginetest.Host{}
			require.Equal(t, engine.Done, h.Pass(s).Run(t.Context()).Outcome)
			h.Applied = nil
			if c.change != nil {
				c.change(h)
			}
			d := &apart{Host: h}
			seen := 0
			p := h.Pass(s)
			p.Open = func(engine.Desired, *model.Host) (engine.Driver, error) { return d, nil }
			p.Changed = map[model.Address]model.Guest{box("a"): {}}
			p.Observer = observedFunc(func(model.Observed) { seen++ })
			r := p.Run(t.Context())
			require.Equal(t, len(h.Unknown) == 0, r.Outcome == engine.Done, "%v", r.Err)
			require.Equal(t, c.looks, d.looks)
			require.Equal(t, c.applied, h.Applied)
			require.Equal(t, len(c.looks) == 1 && c.looks[0] == "some", seen == 0, "what others keep of the host is about all of it")
		})
	}
}

// The status of nodes that a pass was not about stays as it was.
func TestTheStatusOfOtherNodesStays(t *testing.T) {
	s, h := enginetest.Site(map[string]int{"a": 1, "b": 1}), &enginetest.Host{}
	r := h.Pass(s).Run(t.Context())
	before := r.NodeStatus(nil, r.Began)
	require.Len(t, before, 2)
	h.Holds[enginetest.Addr("box", "a")].Spec.(*enginetest.Box).Size = 7
	h.Fail = map[string]error{"box.a": context.DeadlineExceeded}
	d := &apart{Host: h}
	p := h.Pass(s)
	p.Open = func(engine.Desired, *model.Host) (engine.Driver, error) { return d, nil }
	p.Changed = map[model.Address]model.Guest{enginetest.Addr("box", "a"): {}}
	r = p.Run(t.Context())
	after := r.NodeStatus(before, r.Began)
	require.Len(t, after, 2)
	require.False(t, after[0].Ready)
	require.Equal(t, before[1], after[1])
}

// observedFunc is an observer of observations.
type observedFunc func(model.Observed)

func (observedFunc) Enter(engine.Phase)          {}
func (observedFunc) Step(apply.Event)            {}
func (f observedFunc) Observed(o model.Observed) { f(o) }

// TestWarningsOfPresentObjectsAreOmitted: a warning of the site about an object beside the guests
// is told by a plan only as long as the object is not there as it is wanted. All others stay.
func TestWarningsOfPresentObjectsAreOmitted(t *testing.T) {
	warning := func(address string, source diag.Source) diag.Finding {
		return diag.Finding{Severity: diag.Warning, Source: source, Address: address, Summary: "of " + address + " by " + string(source)}
	}
	of := func(s *model.Site, h *enginetest.Host) []string {
		p := h.Pass(s)
		p.Verdict = nil
		p.Load = func(context.Context) engine.Desired {
			return engine.Desired{Site: s, Commit: "c0ffee", Findings: diag.List{
				warning("disk.base", diag.FromSite), warning("disk.base", diag.FromPolicy),
				warning("box.a", diag.FromSite), warning("", diag.FromSite), warning("disk.other", diag.FromSite),
			}}
		}
		r := p.Run(t.Context())
		require.Equal(t, engine.Planned, r.Outcome, "%v", r.Err)
		var out []string
		for _, f := range r.Findings {
			out = append(out, f.Summary)
		}
		slices.Sort(out)
		return out
	}
	others := []string{"of  by site", "of box.a by site", "of disk.base by policy", "of disk.other by site"}
	all := append(slices.Clone(others[:3]), "of disk.base by site", "of disk.other by site")

	s, h := enginetest.Site(map[string]int{"a": 1}), &enginetest.Host{}
	require.Equal(t, all, of(s, h), "it is to be got")
	h.Unknown = []model.Unknown{{Scope: "disks", Kind: "disk", Why: "403"}}
	require.Equal(t, all, of(s, h), "it may be there, and nothing is done")
	h.Unknown = nil
	require.Equal(t, engine.Done, h.Pass(s).Run(t.Context()).Outcome)
	require.Equal(t, others, of(s, h), "it is there")
	h.Holds[enginetest.Addr("disk", "other")] = &model.Resource{Addr: enginetest.Addr("disk", "other"), Spec: &enginetest.Box{Size: 1}}
	require.Equal(t, others, of(s, h), "one that is to go")
	s.Objects[enginetest.Addr("disk", "base")].Spec.(*enginetest.Box).Size = 2
	require.Equal(t, all, of(s, h), "it is to be got anew")
}

// once is what happens in place of the first try of a step, or with it.
func once(address string, do func(s plan.Step) error) func(context.Context, plan.Step) error {
	done := false
	return func(_ context.Context, s plan.Step) error {
		if s.Address.String() != address || done {
			return nil
		}
		done = true
		return do(s)
	}
}

// TestAPassGoesOn: a step whose answer was lost is looked at and gone on with, as far as
// that is what the plan showed.
func TestAPassGoesOn(t *testing.T) {
	held := func(h *enginetest.Host, s plan.Step, size int) {
		made := *s.Want
		made.Spec = &enginetest.Box{Size: size, IP: s.Want.Spec.(*enginetest.Box).IP}
		h.Holds[s.Address] = &made
	}
	for name, c := range map[string]struct {
		there   bool                                  // box.a is there, of another size
		happens func(h *enginetest.Host, s plan.Step) // with the first try, whose answer is lost
		judge   func(engine.Question) diag.List       // from the second question on
		applied []string                              // to box.a, after the first try
		err     string
		vmid    int
	}{
		"nothing was done":        {happens: func(*enginetest.Host, plan.Step) {}, applied: []string{"create box.a"}, vmid: 100},
		"all was done":            {happens: func(h *enginetest.Host, s plan.Step) { held(h, s, 1) }, vmid: 100},
		"a part was done":         {happens: func(h *enginetest.Host, s plan.Step) { held(h, s, 7) }, applied: []string{"update box.a"}, vmid: 100},
		"an update, nothing done": {there: true, happens: func(*enginetest.Host, plan.Step) {}, applied: []string{"update box.a"}, vmid: 100},
		"an update, all done":     {there: true, happens: func(h *enginetest.Host, s plan.Step) { held(h, s, 1) }, vmid: 100},
		"an update, and more to do than was shown": {
			there: true, vmid: 100, err: "ip 10.9.9.9 → ",
			happens: func(h *enginetest.Host, s plan.Step) {
				held(h, s, 7)
				h.Holds[s.Address].Spec.(*enginetest.Box).IP = "10.9.9.9"
			},
		},
		"an update, and the guest is gone": {
			there: true, vmid: 100, err: "the plan showed update, and the rest of it is create: plan again",
			happens: func(h *enginetest.Host, s plan.Step) { delete(h.Holds, s.Address) },
		},
		"its VMID is taken": {
			happens: func(h *enginetest.Host, s plan.Step) {
				h.Unmanaged = append(h.Unmanaged, model.Unmanaged{VMID: s.VMID, Name: "VM 100", Kind: "box", Unfinished: true, Fix: "qm unlock"})
			},
			applied: []string{"create box.a"}, vmid: 102,
		},
		"its VMID is taken, and a rule denies the other one": {
			happens: func(h *enginetest.Host, s plan.Step) {
				h.Unmanaged = append(h.Unmanaged, model.Unmanaged{VMID: s.VMID, Name: "VM 100", Kind: "box", Unfinished: true})
			},
			judge: func(q engine.Question) diag.List {
				if len(q.Plan.Steps) == 1 && q.Plan.Steps[0].VMID == 102 {
					return diag.List{{Severity: diag.Error, Source: diag.FromPolicy, Summary: "not 102"}}
				}
				return nil
			},
			err: "with VMID 102 it is denied: not 102", vmid: 100,
		},
		"it cannot be seen": {
			happens: func(h *enginetest.Host, s plan.Step) {
				h.Unknown = []model.Unknown{{Scope: "box 100", Why: "dark", VMID: s.VMID}}
			},
			err: "box 100 cannot be read (dark) and may be this guest", vmid: 100,
		},
		"another one that is being made cannot be seen": {
			happens: func(h *enginetest.Host, _ plan.Step) {
				h.Unknown = []model.Unknown{{Scope: "box 101", Why: "is being created", VMID: 101}}
			},
			applied: []string{"create box.a"}, vmid: 100,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := enginetest.Site(map[string]int{"a": 1, "b": 2})
				h := &enginetest.Host{Holds: model.State{}}
				if c.there {
					a := *s.Manifests["web"].Nodes[0].Resource
					if a.Addr.Name != "a" {
						a = *s.Manifests["web"].Nodes[1].Resource
					}
					a.Spec = &enginetest.Box{Size: 7, IP: enginetest.IPOf("a")}
					a.Guest = &model.Guest{VMID: 100}
					h.Holds[a.Addr] = &a
				}
				h.During = once("box.a", func(s plan.Step) error {
					h.Mu.Lock()
					defer h.Mu.Unlock()
					c.happens(h, s)
					h.Applied = append(h.Applied, "first")
					return enginetest.LostError("596")
				})
				p := h.Pass(s)
				p.Width = 1
				if c.judge != nil {
					load := p.Load
					p.Load = func(ctx context.Context) engine.Desired {
						d := load(ctx)
						d.PolicyCheck = func(_ context.Context, q engine.Question) diag.List { return c.judge(q) }
						return d
					}
				}
				r := p.Run(t.Context())
				var a engine.Node
				for _, n := range r.Nodes {
					if n.Name == "a" {
						a = n
					}
				}
				require.Equal(t, c.vmid, a.VMID)
				if c.err != "" {
					require.Equal(t, engine.NodeFailed, a.Status)
					require.Contains(t, a.Error, "596")
					require.Contains(t, a.Error, c.err)
				} else {
					require.Equal(t, engine.NodeCompleted, a.Status, "%v", r.Err)
				}
				var after []string
				for i, what := range h.Applied {
					if what == "first" {
						after = h.Applied[i+1:]
					}
				}
				for len(after) > 0 && after[len(after)-1] == "create box.b" {
					after = after[:len(after)-1]
				}
				require.Len(t, after, len(c.applied))
				require.Subset(t, after, c.applied)
			})
		})
	}
}

// TestAPassThatCannotRead: a host that went dark ends the pass after a few looks.
func TestAPassThatCannotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &enginetest.Host{}
		h.During = func(context.Context, plan.Step) error {
			h.Mu.Lock()
			defer h.Mu.Unlock()
			h.ObserveErr = errors.New("connection refused")
			return enginetest.LostError("EOF")
		}
		r := h.Pass(enginetest.Site(map[string]int{"a": 1})).Run(t.Context())
		require.Equal(t, engine.Failed, r.Outcome)
		require.ErrorContains(t, r.Err, "tried 4 times, checking the host before each retry; the outcome is still unknown: EOF; and checking it failed: connection refused")
	})
}

// passWithRules is a pass over one box whose rules say this.
func passWithRules(h *enginetest.Host, found diag.List, asked *engine.Question) *engine.Pass {
	s := enginetest.Site(map[string]int{"a": 1})
	p := h.Pass(s)
	p.Load = func(context.Context) engine.Desired {
		return engine.Desired{Site: s, Commit: "c0ffee", PolicyCheck: func(_ context.Context, q engine.Question) diag.List {
			*asked = q
			return found
		}}
	}
	return p
}

func TestADenialStopsThePass(t *testing.T) {
	for source, want := range map[diag.Source]engine.Outcome{diag.FromPolicy: engine.Invalid, diag.FromSite: engine.Invalid, diag.FromGuard: engine.Refused} {
		t.Run(string(source), func(t *testing.T) {
			h := &enginetest.Host{}
			var q engine.Question
			r := passWithRules(h, enginetest.Denial(diag.Error, source), &q).Run(t.Context())
			require.Equal(t, want, r.Outcome)
			require.True(t, r.Denied)
			require.False(t, r.Success)
			require.NoError(t, r.Err)
			require.Empty(t, h.Applied)
			require.Equal(t, enginetest.Denial(diag.Error, source), r.Findings)
			require.Equal(t, r.Findings, r.Plan.Findings, "they belong to the document of the plan, too")
			require.Len(t, r.Plan.Steps, 2, "what would have been done is still to be seen")
		})
	}
}

func TestAWarningOfTheRulesIsReportedAndStopsNothing(t *testing.T) {
	h := &enginetest.Host{}
	var q engine.Question
	r := passWithRules(h, enginetest.Denial(diag.Warning, diag.FromGuard), &q).Run(t.Context())
	require.Equal(t, engine.Done, r.Outcome)
	require.False(t, r.Denied)
	require.Len(t, h.Applied, 2)
	require.Equal(t, enginetest.Denial(diag.Warning, diag.FromGuard), r.Findings)

	r = passWithRules(h, enginetest.Denial(diag.Warning, diag.FromGuard), &q).Run(t.Context())
	require.Equal(t, engine.Done, r.Outcome)
	require.Equal(t, "a:completed", enginetest.Statuses(r), "a warning of a rule holds no step back")
}

func TestADenialIsOnlyReportedByAReadOnlyPass(t *testing.T) {
	h := &enginetest.Host{}
	var q engine.Question
	p := passWithRules(h, enginetest.Denial(diag.Error, diag.FromPolicy), &q)
	p.RefreshOnly, p.Verdict = true, nil
	r := p.Run(t.Context())
	require.Equal(t, engine.Planned, r.Outcome)
	require.False(t, r.Denied)
	require.Contains(t, r.Findings, enginetest.Denial(diag.Error, diag.FromPolicy)[0])
	require.Empty(t, h.Applied)
}

func TestRulesGetTheScopeOfThePass(t *testing.T) {
	h := &enginetest.Host{}
	var q engine.Question
	p := passWithRules(h, nil, &q)
	p.Run(t.Context())
	require.Equal(t, model.Commit{ID: "c0ffee"}, q.Commit, "of a checkout no more is known")
	require.False(t, q.Destroy)
	require.Equal(t, "father", q.Want.Host.Name)
	require.Len(t, q.Plan.Steps, 2)

	p = passWithRules(h, nil, &q)
	p.Commit, p.AllowDeletes, p.Unattended, p.Manifest, p.Destroy = &model.Commit{ID: "c0ffee", Subject: "x"}, 7, true, "web", true
	p.Run(t.Context())
	require.Equal(t, "x", q.Commit.Subject)
	require.Equal(t, 7, q.AllowDeletes)
	require.True(t, q.Unattended)
	require.True(t, q.Destroy)
	require.Len(t, q.Have.State, 2)
}

// A guard of the plan keeps a single step back; that is no denial.
func TestAWithheldStepIsNotADenial(t *testing.T) {
	h := &enginetest.Host{Unmanaged: []model.Unmanaged{{VMID: 500, Name: "a", Kind: "vm", Why: "no ownership tag", Claims: enginetest.Addr("box", "a")}}}
	r := h.Pass(enginetest.Site(map[string]int{"a": 1})).Run(t.Context())
	require.Equal(t, engine.Refused, r.Outcome)
	require.False(t, r.Denied)
	require.Equal(t, []string{"create disk.base"}, h.Applied)
}

// Rules that are cut off by a stop did not deny anything.
func TestAStopDuringEvaluationIsNotADenial(t *testing.T) {
	h, stop := &enginetest.Host{}, make(chan struct{})
	s := enginetest.Site(map[string]int{"a": 1})
	p := h.Pass(s)
	p.Stop = stop
	p.Load = func(context.Context) engine.Desired {
		return engine.Desired{Site: s, PolicyCheck: func(ctx context.Context, _ engine.Question) diag.List {
			close(stop)
			<-ctx.Done()
			return enginetest.Denial(diag.Error, diag.FromPolicy)
		}}
	}
	r := p.Run(t.Context())
	require.Equal(t, engine.Interrupted, r.Outcome)
	require.False(t, r.Denied)
	require.Empty(t, h.Applied)
}

// Nor is a site that could not be read because there was no time.
func TestAStopDuringLoadingIsNotABadSite(t *testing.T) {
	stop := make(chan struct{})
	p := (&enginetest.Host{}).Pass(nil)
	p.Stop = stop
	p.Load = func(ctx context.Context) engine.Desired {
		close(stop)
		<-ctx.Done()
		return engine.Desired{Findings: enginetest.Denial(diag.Error, diag.FromSite)}
	}
	r := p.Run(t.Context())
	require.Equal(t, engine.Interrupted, r.Outcome)
	require.False(t, r.Denied)
}
