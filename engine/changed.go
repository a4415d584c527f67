package engine

import (
	"context"
	"maps"
	"slices"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// planChanged plans for the guests of Pass.Changed only. Enough reports whether that plan suffices: the driver could
// observe these guests alone, and they need nothing but updates. Otherwise planChanged returns an observation of the
// whole host.
func (p *Pass) planChanged(ctx context.Context, d Driver, c *progress) (have model.Observed, enough bool, err error) {
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
		r.Needs = nil // what it needs existed when it was created
		want.State[addr] = &r
	}
	made, omitted := p.plan(c.desired, &want, have, c.findings)
	more := func(s plan.Step) bool { return s.Action != plan.Update }
	if len(have.State) != len(p.Changed) || len(made.Unknown) > 0 || made.Findings.HasErrors() || slices.ContainsFunc(made.Steps, more) {
		have, err = p.observe(ctx, d, c.all)
		return have, false, err
	}
	c.want, c.have, c.plan, c.omitted, c.findings = &want, have, made, omitted, made.Findings
	return have, true, nil
}
