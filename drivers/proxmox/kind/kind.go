// Package kind defines kinds of PVE objects: their schema, and how objects are listed, created, changed and
// removed. Kinds work on a Host, and on the Observation of it that a pass has made so far.
package kind

import (
	"context"
	"fmt"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// Of is a kind of PVE objects; S is the struct of its attributes. After a lost answer every
// function may be called again: it reads the host first, and counts work that is already done as
// success.
type Of[S any] struct {
	Model model.Kind

	// List returns the objects of this kind on the host: the managed ones in State, what could not be
	// read in Unknown. It is nil if another kind lists them, too.
	List func(context.Context, *Observation) (model.Observed, error)
	// Create creates an object. A managed one that exists under its address counts as created.
	Create func(ctx context.Context, h *Host, s plan.Step, want *S) error
	// Before is called before an update, and returns the step with the changes that are still to be
	// made. It is nil if nothing else can be working on the object.
	Before func(context.Context, *Host, plan.Step) (plan.Step, error)
	// Update carries out the changes of the step on what was observed as have.
	Update func(ctx context.Context, h *Host, s plan.Step, want, have *S) error
	// Adopt and Forget write the ownership tag of a guest, and take it away. Both are nil for other kinds.
	Adopt, Forget func(ctx context.Context, h *Host, s plan.Step) error
	// Remove destroys an object after verifying once more that it is managed. One that does not exist
	// counts as removed.
	Remove func(ctx context.Context, h *Host, s plan.Step) error
	// Privileges adds the privileges that an object needs.
	Privileges func(*S, *Needs)
	// More reports whether want needs something of the host that have does not have: room on a
	// storage, a bridge, a file. It is nil if no object ever does.
	More func(want, have *model.Resource) bool
}

// Kind is an Of whose type of attributes is not known.
type Kind interface {
	Schema() *model.Kind
	Observe(context.Context, *Observation) (model.Observed, error)
	Apply(context.Context, *Host, plan.Step) error
	// Needs adds the privileges, storages and bridges that an object needs.
	Needs(spec any, n *Needs)
	// NeedsMore reports whether want needs something of the host that have does not have.
	NeedsMore(want, have *model.Resource) bool
}

// Schema returns the description of the kind for the engine.
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

// Needs implements Kind.
func (k *Of[S]) Needs(spec any, n *Needs) {
	if k.Privileges != nil {
		k.Privileges(spec.(*S), n)
	}
}

// NeedsMore implements Kind.
func (k *Of[S]) NeedsMore(want, have *model.Resource) bool {
	_, alike := have.Spec.(*S)
	return k.More != nil && (!alike || k.More(want, have))
}

// Apply carries out a step.
func (k *Of[S]) Apply(ctx context.Context, h *Host, s plan.Step) error {
	switch s.Action {
	case plan.Create:
		return k.Create(ctx, h, s, s.Want.Spec.(*S))
	case plan.Adopt:
		return k.Adopt(ctx, h, s)
	case plan.Forget:
		return k.Forget(ctx, h, s)
	case plan.Update:
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
