package pull

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// inside is the kind of what a spec says inside a guest: guest.web-1.
var inside = &model.Kind{
	Name: "guest", Doc: "What a spec says inside a node.", AppliesSpecs: true,
	New:   func() any { return spec.Empty("") },
	Brief: func(want *model.Resource) string { return "spec " + want.Spec.(*spec.Spec).Name },
}

// Plan is what applying a spec would change, in the form of any other plan.
func Plan(s *converge.State, at time.Time) *plan.Plan {
	addr := model.Address{Kind: inside.Name, Name: s.Want.Node}
	resource := func(of *spec.Spec) model.State {
		return model.State{addr: &model.Resource{Addr: addr, Spec: of, Node: s.Want.Node}}
	}
	have := model.Observed{At: at.UTC(), State: resource(s.Have)}
	for _, u := range s.Unknown {
		have.Unknown = append(have.Unknown, model.Unknown{Scope: u.Aspect + " of " + s.Want.Node, Why: u.Why, Only: []model.Address{addr}})
	}
	for _, u := range s.Unmanaged {
		have.Findings = append(have.Findings, diag.Finding{
			Severity: diag.Warning, Source: diag.FromHost, Address: addr.String(),
			Summary: u + " is unmanaged", Detail: "nothing is done to it: declare it in the spec, or remove it",
		})
	}
	return plan.Make(plan.Input{
		Host: s.Want.Node, Kinds: model.Kinds{inside},
		Want: &model.Want{Host: &model.Host{Name: s.Want.Node}, State: resource(s.Want)}, Have: have,
	})
}

// Apply makes the machine what a spec says, and records in the folder how that ended. It gives how
// many settings differed at first. A spec that was stopped on the way has not failed.
func Apply(ctx context.Context, f Folder, m converge.Machine, want *spec.Spec, o converge.Options) (changed int, err error) {
	first, err := converge.Observe(ctx, m, want)
	if err == nil {
		changed = len(first.Changes())
		_, err = converge.Apply(ctx, m, want, o)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return changed, err
	case err != nil:
		return changed, errors.Join(err, f.Fail(CodeInternal, err, time.Now()))
	}
	if err := f.Succeeded(want, changed, time.Now()); err != nil {
		return changed, fmt.Errorf("the spec is applied, but that cannot be recorded: %w", err)
	}
	return changed, nil
}
