package engine

import (
	"context"
	"maps"
	"slices"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// planChanged plans for the guests of Pass.Changed alone. It reports whether that is enough: they could be observed
// apart, and nothing has to be done but to update them. Of all else on the host nothing is concluded.
func (p *Pass) planChanged(ctx context.Context, d Driver, c *course) bool {
	if len(p.Changed) == 0 {
		return false
	}
	asked := *c.all
	asked.Changed = p.Changed
	have, err := p.observe(ctx, d, &asked)
	if err != nil || !have.Only {
		return false // what is wrong shows when the whole host is observed
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
		return false
	}
	c.want, c.have, c.plan, c.aside, c.findings = &want, have, made, aside, made.Findings
	return true
}
