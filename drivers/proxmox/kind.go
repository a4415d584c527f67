package proxmox

import (
	"context"
	"fmt"

	"github.com/homestak/homestak-gitops/drivers/proxmox/rights"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// kind is one sort of PVE object: its schema, and how it is listed and changed.
// S is the struct of its attributes. Every function may be called again after a
// lost answer: it looks first, and work that is done already is success.
type kind[S any] struct {
	model model.Kind

	// list tells what of this kind is on the host: ours, proved, into State; anything that
	// could not be read into Unknown. May be nil where another kind lists it too.
	list func(context.Context, *Driver, *look) (model.Observed, error)
	// create makes it; what exists already under its address and is ours counts as made.
	create func(ctx context.Context, d *Driver, s plan.Step, want *S) error
	// update carries out the step's changes on what was observed as have.
	update func(ctx context.Context, d *Driver, s plan.Step, want, have *S) error
	// remove destroys it after proving once more that it is ours; what is gone already is success.
	remove func(ctx context.Context, d *Driver, s plan.Step) error
	// needs says which privileges one of it asks for, see Needs.
	needs func(*S, *rights.Needs)
	// anew reports whether one asks the host for something that what was observed of it has
	// not got from there: room on a storage, a bridge, a file. Nil where none ever does.
	anew func(want, have *S) bool
}

// driverKind is a kind without its type.
type driverKind interface {
	schema() *model.Kind
	look(context.Context, *Driver, *look) (model.Observed, error)
	apply(context.Context, *Driver, plan.Step) error
	rights(spec any, n *rights.Needs)
	asksAnew(want, have any) bool
}

func (k *kind[S]) schema() *model.Kind {
	m := k.model
	return &m
}

func (k *kind[S]) look(ctx context.Context, d *Driver, l *look) (model.Observed, error) {
	if k.list == nil {
		return model.Observed{}, nil
	}
	return k.list(ctx, d, l)
}

func (k *kind[S]) rights(spec any, n *rights.Needs) {
	if k.needs != nil {
		k.needs(spec.(*S), n)
	}
}

func (k *kind[S]) asksAnew(want, have any) bool {
	h, alike := have.(*S)
	return k.anew != nil && (!alike || k.anew(want.(*S), h))
}

func (k *kind[S]) apply(ctx context.Context, d *Driver, s plan.Step) error {
	switch s.Action {
	case plan.Create:
		return k.create(ctx, d, s, s.Want.Spec.(*S))
	case plan.Update, plan.Adopt:
		s, err := d.undisturbed(ctx, s)
		if err != nil || len(s.Changes) == 0 {
			return err
		}
		return k.update(ctx, d, s, s.Want.Spec.(*S), s.Have.Spec.(*S))
	case plan.Delete:
		return k.remove(ctx, d, s)
	case plan.Replace:
		if err := k.remove(ctx, d, s); err != nil {
			return err
		}
		return k.create(ctx, d, s, s.Want.Spec.(*S))
	default:
		return fmt.Errorf("step %s has the unknown action %q", s.Address, s.Action)
	}
}
