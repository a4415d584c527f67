package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/homestak/homestak-gitops/engine/durable"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// Node is a machine that applies its own spec.
type Node struct {
	Folder  Folder
	Machine converge.Machine
	Options converge.Options
	// Seen gets what the machine had before anything is changed. May be nil.
	Seen func(*converge.State)
	// Left gets how many settings differ and are left so, since the spec only reports drift. May be nil.
	Left func(differ int)
}

// staleError reports that no spec could be fetched, and that the one that is here was applied.
type staleError struct{ Cause error }

func (e *staleError) Error() string {
	return e.Cause.Error() + "\nthe spec that was fetched before stays in force: it is applied"
}

func (e *staleError) Unwrap() error { return e.Cause }

// Run fetches the spec and applies it. Without a response it applies the stored one, so that manual changes are
// reverted even while the parent is unreachable; the error is then a *staleError. A spec that is pushed is not applied. With drift = "report" a spec is
// applied once, and then only compared. It returns the applied spec, and how many settings differed at first.
func (n Node) Run(ctx context.Context, fetch func(context.Context) error) (want *spec.Spec, changed int, err error) {
	fetchErr := fetch(ctx)
	if fetchErr != nil && ctx.Err() != nil {
		return nil, 0, fetchErr
	}
	want, err = n.Folder.Spec()
	switch {
	case errors.Is(err, fs.ErrNotExist) && fetchErr != nil:
		return nil, 0, errors.Join(fetchErr, n.Folder.Fail(fetchErr, time.Now()))
	case err != nil:
		return nil, 0, errors.Join(fetchErr, err, n.Folder.Fail(err, time.Now()))
	}
	if want.Run != nil && want.Run.Pushed { // another machine applies it
		if fetchErr != nil {
			return want, 0, errors.Join(fetchErr, n.Folder.Fail(fetchErr, time.Now()))
		}
		return want, 0, n.Folder.Recovered()
	}
	if complete, bad := n.Folder.Complete(); want.Config.Drift == "report" && bad == nil && complete != nil {
		changed, err = n.observe(ctx, want)
	} else {
		changed, err = n.apply(ctx, want)
	}
	if err == nil && fetchErr == nil {
		return want, changed, n.Folder.Recovered()
	}
	if err == nil {
		err = &staleError{fetchErr}
	}
	if ctx.Err() != nil { // a stop is not a failure
		return want, changed, err
	}
	return want, changed, errors.Join(err, n.Folder.Fail(err, time.Now()))
}

// Apply makes the machine match a spec, and records the result in the folder. It returns how many settings differed
// at first. A run that was stopped on the way has not failed.
func (n Node) Apply(ctx context.Context, want *spec.Spec) (changed int, err error) {
	changed, err = n.apply(ctx, want)
	switch {
	case err == nil:
		return changed, n.Folder.Recovered()
	case ctx.Err() != nil:
		return changed, err
	}
	return changed, errors.Join(err, n.Folder.Fail(err, time.Now()))
}

// observe compares the machine with a spec that was applied before.
func (n Node) observe(ctx context.Context, want *spec.Spec) (differ int, err error) {
	s, err := converge.Observe(ctx, n.Machine, want)
	if err != nil {
		return 0, err
	}
	if n.Seen != nil {
		n.Seen(s)
	}
	if differ = len(s.Changes()); differ > 0 && n.Left != nil {
		n.Left(differ)
	}
	return differ, nil
}

func (n Node) apply(ctx context.Context, want *spec.Spec) (changed int, err error) {
	first, err := converge.Observe(ctx, n.Machine, want)
	if err != nil {
		return 0, err
	}
	if n.Seen != nil {
		n.Seen(first)
	}
	changed = len(first.Changes())
	if _, err = first.Converge(ctx, n.Machine, n.Options); err != nil {
		return changed, err
	}
	if err := n.Folder.Applied(want, changed, time.Now()); err != nil {
		return changed, fmt.Errorf("the spec is applied, but that cannot be recorded: %w", err)
	}
	return changed, nil
}

// Plan is the plan of applying a spec, in the form of any other plan.
func Plan(s *converge.State, at time.Time) *plan.Plan {
	addr, have := converge.Address(s.Want.Node), s.Observed()
	have.At = at.UTC()
	return plan.Make(plan.Input{
		Host: s.Want.Node, Kinds: model.Kinds{converge.Kind()}, Have: have,
		Want: &model.Want{Host: &model.Host{Name: s.Want.Node}, State: model.State{addr: {Addr: addr, Spec: s.Want, Node: s.Want.Node, Sensitive: s.Want.Sensitive}}},
	})
}

// lockPoll is the pause between two attempts to get the folder.
const lockPoll = 200 * time.Millisecond

// Lock waits until no other run uses the folder; it ends with the process at the latest. Waiting
// is called once if there is another one, and may be nil.
func (f Folder) Lock(ctx context.Context, waiting func()) (unlock func(), err error) {
	if err := os.MkdirAll(f.Path, 0o755); err != nil { //nolint:gosec // its files are 0600
		return nil, fmt.Errorf("making the folder for the spec: %w", err)
	}
	again := time.NewTicker(lockPoll)
	defer again.Stop()
	for first := true; ; first = false {
		unlock, err := durable.TryLock(f.Path + "/")
		switch {
		case err == nil:
			return unlock, nil
		case !errors.Is(err, durable.ErrLocked):
			return nil, err
		case first && waiting != nil:
			waiting()
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for another run on this machine: %w", context.Cause(ctx))
		}
	}
}
