package pull

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// Plan is what applying a spec would change, in the form of any other plan.
func Plan(s *converge.State, at time.Time) *plan.Plan {
	addr, have := converge.Address(s.Want.Node), s.Observed()
	have.At = at.UTC()
	return plan.Make(plan.Input{
		Host: s.Want.Node, Kinds: model.Kinds{converge.Kind()}, Have: have,
		Want: &model.Want{Host: &model.Host{Name: s.Want.Node}, State: model.State{addr: {Addr: addr, Spec: s.Want, Node: s.Want.Node, Sensitive: s.Want.Sensitive}}},
	})
}

// Apply makes the machine what a spec says, and records in the folder how that ended. It gives how
// many settings differed at first; seen gets that observation, and may be nil. A spec that was
// stopped on the way has not failed.
func Apply(ctx context.Context, f Folder, m converge.Machine, want *spec.Spec, seen func(*converge.State), o converge.Options) (changed int, err error) {
	first, err := converge.Observe(ctx, m, want)
	if err == nil {
		if seen != nil {
			seen(first)
		}
		changed = len(first.Changes())
		_, err = first.Converge(ctx, m, o)
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
