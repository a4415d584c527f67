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

// repeater goes on with the steps of one pass whose outcome is not known: a host that is
// busy fails to start the process of a task, a proxy in between gives up, a connection
// breaks. It looks at the host, plans again, and does what is left of the step, if that
// is no more than was agreed to. A deletion needs no new plan: it looks by itself.
//
// Steps call it from many goroutines: the lock is for what it keeps, turn has one at a
// time for each look at the host.
type repeater struct {
	pass    *Pass
	desired Desired
	want    *model.Want
	plan    *plan.Plan
	driver  Driver
	turn    chan struct{} // of length 1, full while the host is looked at and planned for

	seen  model.Observed // by the last look
	began time.Time      // of that look; both belong to whoever has the turn

	mu    sync.Mutex
	vmids map[model.Address]int // of guests that got another VMID than the plan shows
	found diag.List
}

func (p *Pass) repeater(c course, driver Driver) *repeater {
	return &repeater{pass: p, desired: c.desired, want: c.all, plan: c.plan, driver: driver, turn: make(chan struct{}, 1), vmids: map[model.Address]int{}}
}

// around makes a Do that goes on where the outcome of a step is not known.
func (r *repeater) around(do apply.Do) apply.Do {
	again := apply.Repeat(do, r.left, apply.Backoff{}, r.pass.Stop)
	return func(ctx context.Context, s plan.Step) error { return again(ctx, r.now(s)) }
}

// now is a step with the VMID that its guest has by now.
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
	if s.Have != nil && s.Action == plan.Delete { // of a creation that is rolled back
		s.Have = withVMID(s.Have, vmid)
	}
	return s
}

// notify reports events with the VMIDs that guests have by now; nil without a listener.
func (r *repeater) notify() func(apply.Event) {
	if r.pass.Notify == nil {
		return nil
	}
	return func(e apply.Event) {
		e.Step, e.Result.Step = r.now(e.Step), r.now(e.Result.Step)
		r.pass.Notify(e)
	}
}

// renumbered gives results with the VMIDs that guests have by now.
func (r *repeater) renumbered(results []apply.Result) []apply.Result {
	for i := range results {
		results[i].Step = r.now(results[i].Step)
	}
	return results
}

// renumberedPlan is the plan with these VMIDs; the one that was shown stays as it is.
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

// left finds out what is left of a step that failed at a moment since; see apply.Observe.
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
		Site: r.desired.Site.Name, Commit: r.desired.Commit, Host: r.pass.Host, Kinds: r.desired.Site.Kinds, Want: r.wanted(s), Have: have,
		Manifest: r.pass.Manifest, Targets: r.pass.Targets, Destroy: r.pass.Destroy, Avoid: r.pass.Avoid,
		Children: r.pass.Children, AllowOrphans: r.pass.AllowOrphans,
	})
	i := slices.IndexFunc(made.Steps, func(t plan.Step) bool { return t.Address == s.Address })
	if i < 0 {
		return nil, r.ended(s, made)
	}
	next := made.Steps[i]
	if err := goesOn(s, next); err != nil {
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

// observe observes the host, unless somebody else began to after that moment.
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

// notObservedError is a look at the host that did not show how a step ended.
type notObservedError struct{ err error }

// Error says what could not be seen.
func (e *notObservedError) Error() string { return e.err.Error() }

// Unwrap gives the cause.
func (e *notObservedError) Unwrap() error { return e.err }

// OutcomeUnknown says that another look may show it; see apply.OutcomeUnknown.
func (*notObservedError) OutcomeUnknown() bool { return true }

// unknownTo is what of the host could not be seen and may matter to a step: not what
// the other steps of the pass are making at this moment.
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

// wanted is what the site wants, where every other guest that is being made has the
// VMID that it was given, and this one keeps its own as long as that is free.
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

// taken reports whether the last look showed anything under a VMID.
func (r *repeater) taken(vmid int) bool {
	return r.seen.Taken[vmid] != "" || slices.ContainsFunc(r.seen.Unmanaged, func(f model.Unmanaged) bool { return f.VMID == vmid })
}

// withVMID copies a guest with a VMID; the spec is shared.
func withVMID(res *model.Resource, vmid int) *model.Resource {
	if res.Guest == nil {
		return res
	}
	c, g := *res, *res.Guest
	g.VMID = vmid
	c.Guest = &g
	return &c
}

// ended classifies a step of which the new plan has none: nil where all of it is done.
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
	switch {
	case len(why) > 0:
		return errors.New(strings.Join(why, "\n"))
	case r.seen.State[s.Address] == nil:
		return errors.New("it is not on the host, and nothing more is planned for it: plan again")
	default:
		return nil
	}
}

// goesOn reports whether a step is no more than what is left of another one, which was
// agreed to. A creation that got half-way is left to be finished by a change.
func goesOn(s, next plan.Step) error {
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
			return fmt.Errorf("what is left of it costs more than the plan showed (%s, not %s): plan again", next.Class, s.Class)
		}
		return nil
	default:
		return fmt.Errorf("the plan showed %s, and what is left of it is %s: plan again", s.Action, next.Action)
	}
}

// agreed reports whether a step showed a change. That of the power may be its own
// doing: a guest is stopped for some changes, and started again.
func agreed(s plan.Step, c plan.Change) bool {
	return c.Path == "power" || slices.ContainsFunc(s.Changes, func(d plan.Change) bool {
		return d.Path == c.Path && reflect.DeepEqual(d.After, c.After)
	})
}

// denied asks the rules about a guest that gets another VMID than the plan showed.
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

// renumber notes that a guest gets another VMID than before, and what is in its way there.
func (r *repeater) renumber(s, next plan.Step) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.vmids[s.Address] = next.VMID
	for _, f := range r.seen.Unmanaged {
		if f.VMID == s.VMID && f.Unfinished {
			r.found = append(r.found, diag.Finding{
				Severity: diag.Warning, Source: diag.FromGuard, Address: s.Address.String(),
				Summary: fmt.Sprintf("%s %d is left unfinished by a creation of %s that PVE broke off; %s has VMID %d now", f.Kind, f.VMID, s.Address, s.Address, next.VMID),
				Detail:  f.Fix,
			})
		}
	}
}
