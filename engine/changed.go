package engine

import (
	"context"
	"maps"
	"slices"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// planChanged plans for the guests of Pass.Changed only, or for those that are to be started first. Enough reports whether
// that plan suffices: the driver could observe these guests alone, and they need nothing but updates. Otherwise planChanged
// returns an observation of the whole host.
func (p *Pass) planChanged(ctx context.Context, d Driver, c *progress) (have model.Observed, enough bool, err error) {
	asked := *c.all
	asked.Changed, asked.StartFirst = p.Changed, p.StartFirst
	if have, err = p.observe(ctx, d, &asked); err != nil || !have.Only {
		return have, false, err
	}
	changed := p.Changed
	if len(changed) == 0 { // the driver chose those that are off
		changed = map[model.Address]model.Guest{}
		for addr := range have.State {
			changed[addr] = model.Guest{}
		}
	}
	want := asked
	want.State, want.Deferred = model.State{}, nil
	have.State = maps.Clone(have.State)
	maps.DeleteFunc(have.State, func(a model.Address, _ *model.Resource) bool { _, is := changed[a]; return !is })
	for addr := range have.State {
		r := *c.all.State[addr]
		r.Needs = slices.DeleteFunc(slices.Clone(r.Needs), func(a model.Address) bool { return have.State[a] == nil }) // they existed when it was created
		want.State[addr] = &r
	}
	nameless := have // the logs are read only for a plan that is used
	nameless.ReadEdits = nil
	made, omitted := p.plan(ctx, c.desired, &want, nameless, c.findings)
	more := func(s plan.Step) bool { return s.Action != plan.Update }
	idle := len(p.Changed) == 0 && len(made.Steps) == 0
	if idle || len(have.State) != len(changed) || len(made.Unknown) > 0 || made.Findings.HasErrors() || slices.ContainsFunc(made.Steps, more) {
		if have.Rest != nil {
			have, err = p.observed(have.Rest(ctx))
		} else {
			have, err = p.observe(ctx, d, c.all)
		}
		return have, false, err
	}
	if len(made.Differing) > 0 {
		made, omitted = p.plan(ctx, c.desired, &want, have, c.findings)
	}
	have.Rest, have.ReadEdits = nil, nil // the report keeps this observation
	c.want, c.have, c.plan, c.omitted, c.findings = &want, have, made, omitted, made.Findings
	return have, true, nil
}
