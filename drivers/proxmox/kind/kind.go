// Package kind is what a kind of PVE objects is made of: its schema, how objects are listed,
// created, changed and removed, and the values that this works on: a Host, and the
// Observation of it that a pass has made so far.
package kind

import (
	"context"
	"fmt"

	"github.com/homestak/homestak-gitops/drivers/proxmox/rights"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// Of is a kind of PVE objects; S is the struct of its attributes. Every function may be
// called again after a lost answer: it reads the host first, and work that is done already
// is success.
type Of[S any] struct {
	Model model.Kind

	// List reports what of this kind is on the host: what is verified to be ours in State,
	// what could not be read in Unknown. May be nil where another kind lists it, too.
	List func(context.Context, *Observation) (model.Observed, error)
	// Create makes it; what exists already under its address and is ours counts as made.
	Create func(ctx context.Context, h *Host, s plan.Step, want *S) error
	// Before is asked before an update, and returns the step with the changes that are still
	// to be made. Nil where nothing else may be at work on the object.
	Before func(context.Context, *Host, plan.Step) (plan.Step, error)
	// Update carries out the step's changes on what was observed as have.
	Update func(ctx context.Context, h *Host, s plan.Step, want, have *S) error
	// Remove destroys it after verifying once more that it is ours; what is gone already is
	// success.
	Remove func(ctx context.Context, h *Host, s plan.Step) error
	// Privileges adds the privileges that one of it needs.
	Privileges func(*S, *rights.Needs)
	// More reports whether one needs something of the host that what was observed of it
	// does not have from there: room on a storage, a bridge, a file. Nil where none ever does.
	More func(want, have *model.Resource) bool
}

// Kind is a kind without its type.
type Kind interface {
	Schema() *model.Kind
	Observe(context.Context, *Observation) (model.Observed, error)
	Apply(context.Context, *Host, plan.Step) error
	// Needs adds the privileges, storages and bridges that one needs.
	Needs(spec any, n *rights.Needs)
	// NeedsMore reports whether one needs something of the host that have does not have yet.
	NeedsMore(want, have *model.Resource) bool
}

// Schema is what the engine knows of the kind.
func (k *Of[S]) Schema() *model.Kind {
	m := k.Model
	return &m
}

// Observe lists the objects of the kind.
func (k *Of[S]) Observe(ctx context.Context, obs *Observation) (model.Observed, error) {
	if k.List == nil {
		return model.Observed{}, nil
	}
	return k.List(ctx, obs)
}

// Needs is as Kind has it.
func (k *Of[S]) Needs(spec any, n *rights.Needs) {
	if k.Privileges != nil {
		k.Privileges(spec.(*S), n)
	}
}

// NeedsMore is as Kind has it.
func (k *Of[S]) NeedsMore(want, have *model.Resource) bool {
	_, alike := have.Spec.(*S)
	return k.More != nil && (!alike || k.More(want, have))
}

// Apply carries out a step.
func (k *Of[S]) Apply(ctx context.Context, h *Host, s plan.Step) error {
	switch s.Action {
	case plan.Create:
		return k.Create(ctx, h, s, s.Want.Spec.(*S))
	case plan.Update, plan.Adopt:
		if k.Before != nil {
			var err error
			if s, err = k.Before(ctx, h, s); err != nil {
				return err
			}
		}
		if len(s.Changes) == 0 {
			return nil
		}
		return k.Update(ctx, h, s, s.Want.Spec.(*S), s.Have.Spec.(*S))
	case plan.Delete:
		return k.Remove(ctx, h, s)
	case plan.Replace:
		if err := k.Remove(ctx, h, s); err != nil {
			return err
		}
		return k.Create(ctx, h, s, s.Want.Spec.(*S))
	default:
		return fmt.Errorf("step %s has the unknown action %q", s.Address, s.Action)
	}
}
