package push

import (
	"context"
	"errors"
	"fmt"

	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/aspect"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// Apply carries out one step: inside a guest by its spec, any other by the driver of the host.
func (d *Driver) Apply(ctx context.Context, s plan.Step) error {
	if !isInside(s.Address) {
		if s.Action != plan.Update && s.Action != plan.Adopt && isGuest(s.Want, s.Have) {
			if err := d.forget(s.Address); err != nil {
				return err
			}
		}
		return d.Driver.Apply(ctx, s)
	}
	if s.Action == plan.Delete {
		return nil // it goes with its guest
	}
	if s.Want != nil && s.Want.Inside.Kind == model.HostKind {
		return ownMachine{d: d}.apply(ctx, s)
	}
	if s.Want == nil || s.Inside == nil {
		return fmt.Errorf("%s: the location of its guest is unknown: plan again", s.Address)
	}
	m := d.Machine(s.Address, *s.Inside, nil)
	if m == nil {
		return fmt.Errorf("%s: no access to the guests of this host is configured", s.Address)
	}
	if s.Address.Kind == kindName {
		return outcome(d.applyAgent(ctx, m, s))
	}
	if d.wayOf(s.Address).delivers {
		return delivery{d}.apply(ctx, s, delivery{d}.into(s.Address, *s.Inside))
	}
	if err := (delivery{d}).takeOver(ctx, s, m); err != nil {
		return err
	}
	if err := applySpec(ctx, d.cfg.Inside, m, s, converge.Options{Confirm: confirm(m), ConfirmWithin: d.cfg.Confirm}); err != nil {
		return err
	}
	return d.left(s.Address)
}

// applySpec makes a machine what the spec of a step says.
func applySpec(ctx context.Context, in inside, m guest.Machine, s plan.Step, o converge.Options) error {
	want := s.Want.Spec.(*spec.Spec)
	if s.Action == plan.Update { // what is done is what was shown
		now, err := in.Observe(ctx, m, want)
		if err != nil {
			return err // nothing was done yet
		}
		if c, more := now.Unplanned(s.Changes); more {
			return fmt.Errorf("%s: %s has changed since it was planned: plan again", s.Address, c.Path)
		}
	}
	o.Stop = apply.Stopping(ctx)
	o.Started = func(step aspect.Step) { apply.Report(ctx, fmt.Sprintf("%s: %s", s.Address, step.Text)) }
	o.Progress = func(step aspect.Step, state string) {
		apply.Report(ctx, fmt.Sprintf("%s: %s: %s", s.Address, step.Text, state))
	}
	err := in.Apply(ctx, m, want, o)
	if errors.Is(err, converge.ErrStopped) {
		return &apply.NotYetError{Err: err}
	}
	return outcome(err)
}

// isGuest reports whether a step is about a guest.
func isGuest(want, have *model.Resource) bool {
	return want != nil && want.Guest != nil || have != nil && have.Guest != nil
}

// confirm proves by a fresh connection that a guest can still be entered; nil where no connection can
// be lost.
func confirm(m guest.Machine) func(context.Context, *spec.Spec, aspect.Step) error {
	l, ok := m.(*line)
	if !ok {
		return nil
	}
	return func(ctx context.Context, want *spec.Spec, step aspect.Step) error {
		if step.Change != "" { // of the address: the connection that we have may be cut
			return l.move(ctx, step.Address)
		}
		use := []int{sshPort}
		if want.Posture.SSH != nil {
			use = ports(want.Posture.SSH.Port)
		}
		return l.again(ctx, use)
	}
}
