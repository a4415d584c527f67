package proxmox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/power"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// removeGuest destroys a guest after proving once more that it is ours, and after
// what its mark demands. In this order, so that nothing is shut down for nothing:
// wait for our own tasks, prove, refuse, shut down, back up, prove again, destroy.
func removeGuest(ctx context.Context, d worker, s plan.Step) error {
	at := view.GuestRef{VMID: s.VMID, LXC: s.Address.Kind == "ct"}
	for _, r := range []*model.Resource{s.Want, s.Have} {
		if r != nil && r.Guest != nil {
			at.Node, at.VMID = r.Guest.Node, cmp.Or(r.Guest.VMID, at.VMID)
		}
	}
	_, others, err := power.Of(d.Host, at).AwaitOwnTasks(ctx)
	if err != nil {
		return fmt.Errorf("removing %s: %w", at, err)
	}
	undo := s.Have == nil || s.Have.Guest.Digest == "" // taking back a create that was never observed
	cfg, is, err := d.departing(ctx, at, s.Address)
	switch {
	case errors.Is(err, errGone):
		return d.mustBeGone(ctx, at, err)
	case errors.Is(err, errNotOurs) && undo:
		return nil // it did not get far: what stands there is somebody else's
	case err != nil:
		return err
	}
	if lock := cfg.Now["lock"]; lock != "" {
		return fmt.Errorf("removing %s: %s", at, power.LockText(at, lock, others))
	}
	if len(others) > 0 { // it holds the guest's lock file: the guest would be shut down, and then not be destroyed
		return fmt.Errorf("removing %s: task %s of somebody else works on it: try again when that has ended", at, others[0])
	}
	policy := is.Tag.RemovalPolicy()
	if undo {
		policy = owner.RemoveAtOnce // it never was what the policy is to keep
	}
	if err := d.takeLeave(ctx, at, is.Tag, policy, cfg); err != nil {
		return fmt.Errorf("removing %s: %w", at, err)
	}
	cfg, is, err = d.departing(ctx, at, s.Address)
	switch { // a shutdown or a backup takes time, in which much can happen
	case errors.Is(err, errGone):
		return d.mustBeGone(ctx, at, err)
	case err != nil:
		return err
	}
	if err := d.dropSeed(ctx, at, is.Tag, cfg); err != nil {
		return err
	}
	return d.destroy(ctx, at)
}

// Why a guest is not there to be removed.
var (
	errGone    = errors.New("it cannot be read")
	errNotOurs = errors.New("not changed")
)

// departing reads a guest that is to go: it must be provably ours, and nothing must
// speak against its going.
func (d worker) departing(ctx context.Context, at view.GuestRef, addr model.Address) (view.Config, owner.Verdict, error) {
	cfg, err := view.ReadConfig(ctx, d.API, at)
	if c := api.ClassOf(err); c == api.NotFound || c == api.Denied {
		return cfg, owner.Verdict{}, errors.Join(errGone, err)
	}
	if err != nil {
		return cfg, owner.Verdict{}, fmt.Errorf("removing %s: looking at it first: %w", at, err)
	}
	is := d.ID.Check(cfg, at)
	switch {
	case !is.IsOwnedAs(addr):
		return cfg, is, fmt.Errorf("%s is not provably %s any more (%s): %w", at, addr, is.Why(), errNotOurs)
	case cfg.Next["protection"] == "1" && is.Tag.Type == owner.TemplateType:
		return cfg, is, fmt.Errorf("removing %s: somebody protected it: `qm set %d --protection 0` on node %s", at, at.VMID, at.Node)
	case cfg.Next["protection"] == "1":
		return cfg, is, fmt.Errorf("removing %s: it is protected: set protection = false in the files and let that be applied first", at)
	case is.Tag.Type == owner.TemplateType:
		return cfg, is, d.mustHaveNoClones(ctx, at, cfg)
	case cfg.Now["template"] == "1" && is.Tag.Type != owner.TemplateType:
		return cfg, is, fmt.Errorf("removing %s: somebody converted it to a template: remove it by hand, its linked clones first", at)
	}
	return cfg, is, nil
}

// takeLeave does what the policy demands and shuts the guest down. A backup is made
// of the stopped guest: nothing it wrote is missing. Where it fails the guest stays
// stopped, since the files want it gone and the next pass would stop it again.
func (d worker) takeLeave(ctx context.Context, at view.GuestRef, m owner.Tag, policy string, cfg view.Config) error {
	switch policy {
	case owner.RemoveAtOnce:
		return d.stopForGood(ctx, at, m)
	case owner.RemoveUnused:
		if err := d.mustBeUnused(ctx, at); err != nil {
			return err
		}
		return d.stopForGood(ctx, at, m) // it does not run; now the HA manager knows that it shall not
	case owner.RemoveBackedUp:
	default:
		return fmt.Errorf("its decommission policy %s is not known here", policy)
	}
	if left := unsaved(cfg.Next); left != "" {
		return fmt.Errorf("no backup would hold its %s: %s", left, saveAll)
	}
	f, err := d.newFarewell(ctx, at, m)
	if err != nil {
		return err
	}
	was, err := power.Of(d.Host, at).State(ctx)
	if err != nil {
		return fmt.Errorf("looking whether it runs: %w", err)
	}
	if !was.Running {
		volid, err := f.found(ctx)
		if err != nil {
			return err
		}
		if volid != "" {
			model.RecordTask(ctx, volid)
			return nil
		}
	}
	if err := d.stopForGood(ctx, at, m); err != nil {
		return err
	}
	volid, err := f.make(ctx)
	if err != nil {
		return fmt.Errorf("its final backup to %s failed, so it is kept, stopped: %w", f.storage, err)
	}
	model.RecordTask(ctx, volid)
	return nil
}

// stopForGood stops a guest that shall go. If the HA manager cannot, the guest is
// taken out of its hands.
func (d worker) stopForGood(ctx context.Context, at view.GuestRef, m owner.Tag) error {
	err := power.Of(d.Host, at).Stop(ctx, m.ShutdownSeconds())
	if err == nil || ctx.Err() != nil || api.ClassOf(err) != api.Other {
		return err
	}
	now, lookErr := power.Of(d.Host, at).State(ctx)
	switch {
	case lookErr != nil, now.Running && !now.Managed:
		return err
	case !now.Running:
		return nil
	}
	if outErr := power.Of(d.Host, at).ReleaseFromHA(ctx); outErr != nil {
		return fmt.Errorf("%w; %w", err, outErr)
	}
	return power.Of(d.Host, at).Stop(ctx, m.ShutdownSeconds())
}

// destroy gives the order. Only volumes that the configuration names go: PVE's other
// option also takes every volume that carries the VMID. purge takes the guest out of
// HA, replication and backup jobs, which else forbid it or outlive it.
func (d worker) destroy(ctx context.Context, at view.GuestRef) error {
	upid, err := d.API.Delete(ctx, at.Path(), url.Values{"purge": {"1"}, "destroy-unreferenced-disks": {"0"}})
	err = d.API.Settle(ctx, upid, err)
	if err == nil {
		return nil
	}
	if errors.Is(err, api.ErrOutcomeLost) { // it may be at work
		if _, _, waitErr := power.Of(d.Host, at).AwaitOwnTasks(ctx); waitErr != nil {
			return fmt.Errorf("removing %s: %w; and %w", at, err, waitErr)
		}
	}
	if _, lookErr := view.ReadConfig(ctx, d.API, at); api.ClassOf(lookErr) == api.NotFound || api.ClassOf(lookErr) == api.Denied {
		return d.mustBeGone(ctx, at, err)
	}
	if strings.Contains(err.Error(), "still in use by linked clone") { // PVE/QemuServer.pm, destroy_vm
		return fmt.Errorf("removing %s: guests that this token cannot see are linked clones of it (`pvesm list STORAGE` on node %s shows their disks, which begin with the name of its own; "+
			"with Datastore.Audit on the storage the plan does): remove them first, or move their disks, which makes them whole: %w", at, at.Node, err)
	}
	return fmt.Errorf("removing %s: %w", at, err)
}

// mustBeGone asks the list of guests whether one is gone: an error on the guest
// itself proves nothing, since with rights on a pool only a missing guest and a
// hidden one look the same.
func (d worker) mustBeGone(ctx context.Context, at view.GuestRef, why error) error {
	v, err := view.Read(ctx, d.API, d.Model)
	if err != nil {
		return err
	}
	for _, u := range v.Unknown {
		if u.All {
			return fmt.Errorf("whether %s is gone cannot be seen: %s (%w)", at, u.Why, why)
		}
	}
	if g, there := v.Guests[at.VMID]; there {
		return fmt.Errorf("%s is on node %s, but cannot be read there: %w", at, g.Node, why)
	}
	if !v.LimitedVisibility {
		return nil
	}
	switch hidden, err := view.IsTaken(ctx, d.API, at.VMID); {
	case err != nil:
		return fmt.Errorf("asking whether %s is gone: %w", at, err)
	case hidden:
		return fmt.Errorf("%s exists, but the token may not see it any more (VM.Audit): was it taken out of its pool? (%w)", at, why)
	}
	return nil
}
