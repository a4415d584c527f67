package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// repeater continues steps of one pass whose outcome is unknown: a busy host fails to start
// the process of a task, a proxy gives up, a connection breaks. It observes the host, plans
// again, and applies what remains of the step, if the plan had shown that. A deletion needs
// no new plan, since it observes the guest itself.
//
// Steps call it concurrently. Turn admits one goroutine at a time to observe and plan.
type repeater struct {
	pass    *Pass
	desired Desired
	want    *model.Want
	plan    *plan.Plan
	driver  Driver
	turn    chan struct{} // of length 1

	seen  model.Observed // the last observation; guarded by turn
	began time.Time      // when it began; guarded by turn

	mu    sync.Mutex
	vmids map[model.Address]int // of guests that got another VMID than in the plan
	found diag.List
}

func (p *Pass) repeater(c progress, driver Driver) *repeater {
	return &repeater{pass: p, desired: c.desired, want: c.all, plan: c.plan, driver: driver, turn: make(chan struct{}, 1), vmids: map[model.Address]int{}}
}

// around wraps do so that it continues steps whose outcome is unknown.
func (r *repeater) around(do apply.Do) apply.Do {
	again := apply.Backoff{}.Repeat(do, r.left, r.pass.Stop)
	return func(ctx context.Context, s plan.Step) error { return again(ctx, r.now(s)) }
}

// now returns the step with the current VMID of its guest.
func (r *repeater) now(s plan.Step) plan.Step {
	r.mu.Lock()
	vmid, moved := r.vmids[s.Address]
	of, movedGuest := r.vmids[guestOf(s)]
	r.mu.Unlock()
	if s.Inside != nil && movedGuest {
		at := *s.Inside
		at.VMID, s.Inside = of, &at
	}
	if !moved {
		return s
	}
	s.VMID = vmid
	if s.Want != nil {
		s.Want = withVMID(s.Want, vmid)
	}
	if s.Have != nil && s.Action == plan.Delete { // the rollback of a creation
		s.Have = withVMID(s.Have, vmid)
	}
	return s
}

// notify reports events with the current VMIDs of guests. It is nil without an observer.
func (r *repeater) notify() func(apply.Event) {
	if r.pass.Observer == nil {
		return nil
	}
	return func(e apply.Event) {
		e.Step, e.Result.Step = r.now(e.Step), r.now(e.Result.Step)
		r.pass.Observer.Step(e)
	}
}

// renumbered sets the current VMIDs of guests in results.
func (r *repeater) renumbered(results []apply.Result) []apply.Result {
	for i := range results {
		results[i].Step = r.now(results[i].Step)
	}
	return results
}

// renumberedPlan returns a copy of the plan with the current VMIDs.
func (r *repeater) renumberedPlan() *plan.Plan {
	if len(r.vmids) == 0 {
		return r.plan
	}
	made := *r.plan
	made.Steps = slices.Clone(made.Steps)
	for i := range made.Steps {
		made.Steps[i] = r.now(made.Steps[i])
	}
	return &made
}

// left returns what remains to do of a step that failed after since; see apply.observe.
func (r *repeater) left(ctx context.Context, s plan.Step, since time.Time) (*plan.Step, error) {
	if s.Action == plan.Delete {
		return &s, nil
	}
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if err := r.observe(ctx, since); err != nil {
		return nil, err
	}
	have := r.seen
	have.Unknown = r.unknownTo(s)
	made := plan.Make(plan.Input{
		Site: r.desired.Site.Name, Commit: r.desired.Commit, Host: r.pass.Host, Kinds: r.desired.Site.Kinds, Want: withFurther(r.wanted(s), have.Further), Have: have,
		Manifest: r.pass.Manifest, Targets: r.pass.Targets, Destroy: r.pass.Destroy, Avoid: r.pass.Avoid,
		Children: r.pass.Children, AllowOrphans: r.pass.AllowOrphans,
	})
	i := slices.IndexFunc(made.Steps, func(t plan.Step) bool { return t.Address == s.Address })
	if i < 0 {
		return nil, r.ended(s, made)
	}
	next := made.Steps[i]
	if err := continues(s, next); err != nil {
		return nil, err
	}
	if next.VMID != s.VMID {
		if err := r.denied(ctx, made, next); err != nil {
			return nil, err
		}
		r.renumber(s, next)
	}
	return &next, nil
}

// observe observes the host, unless the last observation began after since.
func (r *repeater) observe(ctx context.Context, since time.Time) error {
	if r.began.After(since) {
		return nil
	}
	began := time.Now()
	have, err := r.pass.observe(ctx, r.driver, r.want)
	if err == nil {
		if i := slices.IndexFunc(have.Unknown, func(u model.Unknown) bool { return u.All }); i >= 0 {
			err = fmt.Errorf("%s: %s", have.Unknown[i].Scope, have.Unknown[i].Why)
		}
	}
	if err != nil {
		return &notObservedError{err}
	}
	r.seen, r.began = have, began
	return nil
}

// notObservedError means that an observation did not show the outcome of a step.
type notObservedError struct{ err error }

// Error implements error.
func (e *notObservedError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *notObservedError) Unwrap() error { return e.err }

// OutcomeUnknown means that another observation may show it; see apply.Repeat.
func (*notObservedError) OutcomeUnknown() bool { return true }

// unknownTo returns what could not be observed and may matter to a step. That excludes the guests
// that other steps of the pass are creating.
func (r *repeater) unknownTo(s plan.Step) []model.Unknown {
	others := map[int]bool{}
	for _, t := range r.plan.Steps {
		if t.Address != s.Address {
			others[r.now(t).VMID] = true
		}
	}
	delete(others, 0)
	return slices.DeleteFunc(slices.Clone(r.seen.Unknown), func(u model.Unknown) bool { return others[u.VMID] })
}

// wanted returns the wanted state in which each guest that is being created has the VMID
// that it was given. The guest of s keeps its VMID only while that is free.
func (r *repeater) wanted(s plan.Step) *model.Want {
	w := *r.want
	w.State = maps.Clone(w.State)
	for _, t := range r.plan.Steps {
		res := w.State[t.Address]
		vmid := r.now(t).VMID
		if res == nil || res.Guest == nil || res.Guest.VMID != 0 || vmid == 0 {
			continue
		}
		if t.Address != s.Address || !r.taken(vmid) {
			w.State[t.Address] = withVMID(res, vmid)
		}
	}
	return &w
}

// taken reports whether the last observation has a guest with this VMID.
func (r *repeater) taken(vmid int) bool {
	return r.seen.Taken[vmid] != "" || slices.ContainsFunc(r.seen.Unmanaged, func(f model.Unmanaged) bool { return f.VMID == vmid })
}

// withVMID returns a copy of a guest with a VMID. The copy shares the spec.
func withVMID(res *model.Resource, vmid int) *model.Resource {
	if res.Guest == nil {
		return res
	}
	c, g := *res, *res.Guest
	g.VMID = vmid
	c.Guest = &g
	return &c
}

// ended returns the error of a step for which the new plan has no step. It is nil if the step is done.
func (r *repeater) ended(s plan.Step, made *plan.Plan) error {
	for _, u := range made.Unknown {
		if u.Scope == s.Address.String() {
			return &notObservedError{errors.New(u.Why)}
		}
	}
	var why []string
	for _, f := range made.Findings {
		known := slices.ContainsFunc(r.plan.Findings, func(g diag.Finding) bool { return same(f, g) })
		if f.Address == s.Address.String() && !known && (f.Severity == diag.Error || r.seen.State[s.Address] == nil) {
			why = append(why, strings.TrimSpace(f.Summary+"\n"+f.Detail))
		}
	}
	// The agent of a child that left the site is observed only until it can reach its parent.
	reconnected := s.Inside != nil && r.want.State[s.Address] == nil
	switch {
	case len(why) > 0:
		return errors.New(strings.Join(why, "\n"))
	case r.seen.State[s.Address] == nil && !reconnected:
		return errors.New("it is not on the host, and nothing more is planned for it: plan again")
	default:
		return nil
	}
}

// continues returns an error if next is more than the rest of s, which was confirmed. The rest of an
// incomplete creation may be an update.
func continues(s, next plan.Step) error {
	switch {
	case s.Action == plan.Create && (next.Action == plan.Create || next.Action == plan.Update):
		return nil
	case s.Action == plan.Replace && next.Action != plan.Delete:
		return nil
	case s.Action == plan.Update && next.Action == plan.Update:
		for _, c := range next.Changes {
			if !agreed(s, c) {
				return fmt.Errorf("%s is not what the plan showed: plan again", c)
			}
		}
		if next.Class.Worse(s.Class) {
			return fmt.Errorf("the rest of it costs more than the plan showed (%s, not %s): plan again", next.Class, s.Class)
		}
		return nil
	default:
		return fmt.Errorf("the plan showed %s, and the rest of it is %s: plan again", s.Action, next.Action)
	}
}

// agreed reports whether a step had a change. A change of power is always agreed, since the step
// itself may have stopped the guest for other changes.
func agreed(s plan.Step, c plan.Change) bool {
	return c.Path == "power" || slices.ContainsFunc(s.Changes, func(d plan.Change) bool {
		return d.Path == c.Path && reflect.DeepEqual(d.After, c.After)
	})
}

// denied checks the policies for a guest that gets another VMID than in the plan.
func (r *repeater) denied(ctx context.Context, made *plan.Plan, next plan.Step) error {
	if r.desired.PolicyCheck == nil {
		return nil
	}
	one := *made
	one.Steps = []plan.Step{next}
	found := r.desired.PolicyCheck(ctx, r.pass.question(r.desired, r.want, r.seen, &one))
	for _, f := range found {
		if f.Severity == diag.Error {
			return fmt.Errorf("with VMID %d it is denied: %s", next.VMID, f.Summary)
		}
	}
	return nil
}

// renumber records the new VMID of a guest, and reports the unfinished guest that has its old one.
func (r *repeater) renumber(s, next plan.Step) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.vmids[s.Address] = next.VMID
	for _, f := range r.seen.Unmanaged {
		if f.VMID == s.VMID && f.Unfinished {
			r.found = append(r.found, diag.Finding{
				Severity: diag.Warning, Source: diag.FromGuard, Address: s.Address.String(),
				Summary: fmt.Sprintf("%s %d is unfinished, since PVE aborted the creation of %s; %s has VMID %d now", f.Kind, f.VMID, s.Address, s.Address, next.VMID),
				Detail:  f.Fix,
			})
		}
	}
}
