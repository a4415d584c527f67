package provision

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/lifecycle"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// AwaitOwnTasks waits until tasks of this token that still work on the guest of a step end, since a
// second order would repeat what they do: move a disk, grow it, back it up. It waits once, then
// reads the guest again, and returns the step with those changes of the plan that are not made yet.
// If the end of a task cannot be seen, the error says so (OutcomeUnknown), and the engine observes
// again and repeats the step.
func AwaitOwnTasks(ctx context.Context, h *kind.Host, s plan.Step) (left plan.Step, err error) {
	d := updater{writer{h}}
	if s.Have == nil || s.Have.Guest == nil {
		return s, nil
	}
	at := api.RefOf(s.Have)
	waited, _, err := lifecycle.GuestAt(d.Host, at).AwaitOwnTasks(ctx)
	if err != nil {
		return s, fmt.Errorf("changing %s: %w", at, err)
	}
	if !waited {
		return s, nil
	}
	if left, err = d.readStep(ctx, s); err != nil {
		return s, fmt.Errorf("%s was still being changed by a task of this program, which has now ended: %w", at, err)
	}
	return left, nil
}

// readStep reads the guest of a step again and removes from the step the changes that are made. It
// adds nothing that the plan did not show.
func (d updater) readStep(ctx context.Context, s plan.Step) (plan.Step, error) {
	want := guest.TargetOf(s.Want)
	if want == nil {
		return s, errors.New("plan again")
	}
	at := api.RefOf(s.Have)
	cfg, err := d.API.ReadConfig(ctx, at)
	if err != nil {
		return s, fmt.Errorf("reading it again: %w", err)
	}
	is := d.ID.Check(cfg, at)
	if !is.IsOwnedAs(s.Have.Addr) {
		return s, fmt.Errorf("it can no longer be verified as %s (%s): not changed; plan again", s.Have.Addr, is.Why())
	}
	now, err := lifecycle.GuestAt(d.Host, at).State(ctx)
	if err == nil && !now.Running && lifecycle.GuestAt(d.Host, at).AwaitReboot(ctx) { // the task that ended was the first half of a restart
		now, err = lifecycle.GuestAt(d.Host, at).State(ctx)
	}
	if err != nil {
		return s, fmt.Errorf("reading its power: %w", err)
	}
	have, state := *s.Have, *s.Have.Guest
	fresh := guest.FromConfig(api.ListedGuest{VMID: at.VMID, Node: at.Node, LXC: at.LXC, Running: now.Running}, cfg, is.Notes, is.Tag)
	state.Running, state.Digest, state.Lock = now.Running, cfg.Digest, cfg.Now["lock"]
	have.Spec, have.Private, have.Guest = fresh.Spec, fresh.Private, &state
	differs := map[string]any{} // path → wanted value
	seen := guest.StateOf(&have)
	was, shall := guest.ValuesByPath(guest.Aligned(want, seen, cfg).Spec()), guest.ValuesByPath(s.Want.Spec)
	for path, val := range shall {
		if old, there := was[path]; !there && val != nil || there && !reflect.DeepEqual(old, val) {
			differs[path] = val
		}
	}
	for path, val := range was {
		if _, wanted := shall[path]; !wanted && val != nil {
			differs[path] = nil
		}
	}
	for _, r := range guest.Reverts(want, seen) {
		differs[r.Path] = r.Before
	}
	left := s
	left.Have, left.Changes = &have, nil
	for _, c := range s.Changes {
		if after, still := differs[c.Path]; still && reflect.DeepEqual(after, c.After) {
			left.Changes = append(left.Changes, c)
			delete(differs, c.Path)
		}
	}
	delete(differs, "pending")
	if len(differs) > 0 {
		return s, errChanged
	}
	restarts := func(c plan.Change) bool { return c.Class == model.ClassRestart }
	if now.Running && slices.ContainsFunc(s.Changes, restarts) && !slices.ContainsFunc(left.Changes, restarts) && want.RestartHelps(seen) {
		left.Changes = append(left.Changes, plan.Change{Path: "pending", Before: true, After: false, Class: model.ClassRestart})
	}
	return left, nil
}
