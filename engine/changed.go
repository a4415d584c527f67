package engine

import (
	"context"
	"maps"
	"slices"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// planChanged plans for the guests of Pass.Changed alone. Enough reports whether that will do: they could be observed
// apart, and nothing has to be done but to update them. Of all else on the host nothing is concluded. Otherwise it gives
// what is observed of the whole host.
func (p *Pass) planChanged(ctx context.Context, d Driver, c *course) (have model.Observed, enough bool, err error) {
	asked := *c.all
	asked.Changed = p.Changed
	if have, err = p.observe(ctx, d, &asked); err != nil || !have.Only {
		return have, false, err
	}
	want := asked
	want.State, want.Deferred = model.State{}, nil
	have.State = maps.Clone(have.State)
	maps.DeleteFunc(have.State, func(a model.Address, _ *model.Resource) bool { _, is := p.Changed[a]; return !is })
	for addr := range have.State {
		r := *c.all.State[addr]
		r.Needs = nil // it is there, so what it needs is, or was when it was made
		want.State[addr] = &r
	}
	made, aside := p.plan(c.desired, &want, have, c.findings)
	more := func(s plan.Step) bool { return s.Action != plan.Update }
	if len(have.State) != len(p.Changed) || len(made.Unknown) > 0 || !sound(made.Findings) || slices.ContainsFunc(made.Steps, more) {
		have, err = p.observe(ctx, d, c.all)
		return have, false, err
	}
	c.want, c.have, c.plan, c.aside, c.findings = &want, have, made, aside, made.Findings
	return have, true, nil
}
