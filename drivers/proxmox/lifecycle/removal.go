package lifecycle

// Removal of guests. It verifies ownership once more and applies the decommission policy of the ownership tag.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// Destroy destroys a guest after verifying once more that it is ours, and after
// what its ownership tag demands. In this order, so that nothing is shut down for nothing:
// wait for our own tasks, verify, refuse, run the scripts of before_destroy, shut down, back up, verify again, destroy. Each part reads
// first, so that an interrupted removal goes on where it was.
//
// run runs a script in the guest; nil where none can be.
func Destroy(ctx context.Context, h *kind.Host, s plan.Step, run func(ctx context.Context, at api.GuestRef, script string) error) error {
	at := api.GuestRef{VMID: s.VMID, LXC: s.Address.Kind == "ct"}
	for _, of := range []*model.Resource{s.Want, s.Have} {
		if of != nil && of.Guest != nil {
			at.Node, at.VMID = of.Guest.Node, cmp.Or(of.Guest.VMID, at.VMID)
		}
	}
	r := target{h, at}
	_, others, err := r.power().AwaitOwnTasks(ctx)
	if err != nil {
		return fmt.Errorf("removing %s: %w", at, err)
	}
	undo := s.Have == nil || s.Have.Guest.Digest == "" // taking back a create that was never observed
	cfg, is, err := r.departing(ctx, s.Address, undo)
	switch {
	case errors.Is(err, errGone):
		return r.mustBeGone(ctx, err)
	case errors.Is(err, errUnverified) && undo:
		return nil // the creation did not get far: this guest is another one
	case err != nil:
		return err
	}
	if lock := cfg.Now["lock"]; lock != "" {
		return fmt.Errorf("removing %s: %s", at, LockText(at, lock, others))
	}
	if len(others) > 0 { // it has the guest's lock file: the guest would be shut down, and then not be destroyed
		return fmt.Errorf("removing %s: task %s of another user works on it: try again when that task has ended", at, others[0])
	}
	policy := is.Tag.RemovalPolicy()
	if undo {
		policy = owner.RemoveAtOnce // it never was what the policy is to keep
	}
	leave := func(ctx context.Context) error { return r.runBefore(ctx, is.Tag, run) }
	if undo {
		leave = func(context.Context) error { return nil }
	}
	if err := r.takeLeave(ctx, is.Tag, policy, cfg, leave); err != nil {
		return fmt.Errorf("removing %s: %w", at, err)
	}
	cfg, is, err = r.departing(ctx, s.Address, undo)
	switch { // a shutdown or a backup takes time, in which much can happen
	case errors.Is(err, errGone):
		return r.mustBeGone(ctx, err)
	case err != nil:
		return err
	}
	if err := eject(ctx, r.host, at, is.Tag, cfg); err != nil {
		return err
	}
	return r.destroy(ctx)
}

// target is a guest that is to go.
type target struct {
	host *kind.Host
	at   api.GuestRef
}

func (r target) power() Guest { return GuestAt(r.host, r.at) }

// Why a guest is not there to be removed.
var (
	errGone       = errors.New("it cannot be read")
	errUnverified = errors.New("not changed")
)

// departing reads a guest that is to go: it must be provably ours, and nothing must
// speak against its going.
func (r target) departing(ctx context.Context, addr model.Address, undo bool) (api.GuestConfig, owner.Verdict, error) {
	cfg, err := r.host.API.ReadConfig(ctx, r.at)
	if c := api.ClassOf(err); c == api.NotFound || c == api.Denied {
		return cfg, owner.Verdict{}, errors.Join(errGone, err)
	}
	if err != nil {
		return cfg, owner.Verdict{}, fmt.Errorf("removing %s: reading it first: %w", r.at, err)
	}
	is := r.host.ID.Check(cfg, r.at)
	switch {
	case !is.IsOwnedAs(addr):
		return cfg, is, fmt.Errorf("%s can no longer be verified as %s (%s): %w", r.at, addr, is.Why(), errUnverified)
	case !is.Tag.AllowsRemoval() && !undo:
		return cfg, is, fmt.Errorf("removing %s: its ownership tag does not prove that the site may remove it: %w", r.at, errUnverified)
	case cfg.Next["protection"] == "1" && is.Tag.Type == owner.TemplateType:
		return cfg, is, fmt.Errorf("removing %s: it was protected by hand: `qm set %d --protection 0` on node %s", r.at, r.at.VMID, r.at.Node)
	case cfg.Next["protection"] == "1":
		return cfg, is, fmt.Errorf("removing %s: it is protected: set protection = false in the files and apply it first", r.at)
	case is.Tag.Type == owner.TemplateType:
		return cfg, is, r.mustHaveNoClones(ctx, cfg)
	case cfg.Now["template"] == "1" && is.Tag.Type != owner.TemplateType:
		return cfg, is, fmt.Errorf("removing %s: it was converted to a template by hand: remove it by hand, its linked clones first", r.at)
	}
	return cfg, is, nil
}

// takeLeave does what the policy demands and shuts the guest down. A backup is made of the stopped guest, so that
// it is complete. On failure the guest stays stopped, since the files want it gone and the next pass would stop it
// again.
func (r target) takeLeave(ctx context.Context, m owner.Tag, policy string, cfg api.GuestConfig, leave func(context.Context) error) error {
	switch policy {
	case owner.RemoveAtOnce:
		if err := leave(ctx); err != nil {
			return err
		}
		return r.stopForGood(ctx, m)
	case owner.RemoveUnused:
		if err := r.mustBeUnused(ctx); err != nil {
			return err
		}
		return r.stopForGood(ctx, m) // it does not run; now the HA manager knows that it shall not
	case owner.RemoveBackedUp:
	default:
		return fmt.Errorf("its decommission policy %s is not known here", policy)
	}
	if left := notBackedUp(cfg.Next); left != "" {
		return fmt.Errorf("no backup would hold its %s: %s", left, saveAll)
	}
	f, err := r.newFinalBackup(ctx, m)
	if err != nil {
		return err
	}
	was, err := r.power().State(ctx)
	if err != nil {
		return fmt.Errorf("checking whether it runs: %w", err)
	}
	if !was.Running {
		volid, err := f.found(ctx)
		if err != nil {
			return err
		}
		if volid != "" {
			model.RecordTask(ctx, volid)
			return r.verifyFinal(ctx, m, volid, cfg)
		}
	}
	if err := leave(ctx); err != nil {
		return err
	}
	if err := r.stopForGood(ctx, m); err != nil {
		return err
	}
	volid, err := f.make(ctx)
	if err != nil {
		return fmt.Errorf("its final backup to %s failed, so it is kept, stopped: %w", f.storage, err)
	}
	model.RecordTask(ctx, volid)
	return r.verifyFinal(ctx, m, volid, cfg)
}

// beforePatience limits one script of before_destroy.
const beforePatience = 5 * time.Minute

// runBefore runs the scripts of before_destroy in a guest that runs.
func (r target) runBefore(ctx context.Context, m owner.Tag, run func(context.Context, api.GuestRef, string) error) error {
	if len(m.BeforeDestroy()) == 0 {
		return nil
	}
	now, err := r.power().State(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("checking whether it runs: %w", err)
	case !now.Running:
		return nil // an earlier attempt ran them, or there is nothing to stop
	case run == nil || r.at.LXC:
		return errors.New("before_destroy needs a guest agent, which containers do not have: take it out of the node, and apply that first")
	}
	for _, script := range m.BeforeDestroy() {
		limited, cancel := context.WithTimeout(ctx, beforePatience)
		err := run(limited, r.at, script)
		cancel()
		if err != nil {
			return fmt.Errorf("before_destroy %q failed, so it is kept as it is: %w", script, err)
		}
	}
	return nil
}

// verifyFinal verifies the final backup where the tag says so.
func (r target) verifyFinal(ctx context.Context, m owner.Tag, volid string, cfg api.GuestConfig) error {
	if !m.VerifiesBackup() {
		return nil
	}
	if !r.host.ID.HasKey() {
		return errors.New("its final backup cannot be verified: the site has no ownership key")
	}
	vmid, err := r.freeVMID(ctx)
	if err == nil {
		at := api.GuestRef{Node: r.at.Node, VMID: vmid, LXC: r.at.LXC}
		err = verifyArchive(ctx, r.host, at, m.Addr().RestoreName(), volid, api.StorageOf(cfg.Now["rootfs"]))
	}
	if err != nil {
		return fmt.Errorf("its final backup is not proved, so it is kept, stopped: %w", err)
	}
	return nil
}

// freeVMID finds the highest free VMID of the site: plans draw the lowest ones.
func (r target) freeVMID(ctx context.Context) (int, error) {
	view, err := r.host.API.ReadView(ctx, r.host.Model)
	if err != nil {
		return 0, err
	}
	for _, ids := range r.host.VMIDs {
		for id := ids.To; id >= ids.From; id-- {
			if _, used := view.Guests[id]; used {
				continue
			}
			if taken, err := r.host.API.IsTaken(ctx, id); err != nil || !taken {
				return id, err
			}
		}
	}
	return 0, errors.New("no VMID of the site is free for it: widen a vmid_range")
}

// stopForGood stops a guest that shall go. If the HA manager cannot, the guest is
// taken out of its hands.
func (r target) stopForGood(ctx context.Context, m owner.Tag) error {
	err := r.power().Stop(ctx, m.ShutdownSeconds())
	if err == nil || ctx.Err() != nil || api.ClassOf(err) != api.Other {
		return err
	}
	now, stateErr := r.power().State(ctx)
	switch {
	case stateErr != nil, now.Running && !now.Managed:
		return err
	case !now.Running:
		return nil
	}
	if outErr := r.power().ReleaseFromHA(ctx); outErr != nil {
		return fmt.Errorf("%w; %w", err, outErr)
	}
	return r.power().Stop(ctx, m.ShutdownSeconds())
}

// destroy sends the request. Only volumes that the configuration names go: PVE's other
// option also takes every volume that carries the VMID. purge takes the guest out of
// HA, replication and backup jobs, which else forbid it or outlive it.
func (r target) destroy(ctx context.Context) error {
	upid, err := r.host.API.Delete(ctx, r.at.Path(), url.Values{"purge": {"1"}, "destroy-unreferenced-disks": {"0"}})
	err = r.host.API.AwaitWrite(ctx, upid, err)
	if err == nil {
		return nil
	}
	if errors.Is(err, api.ErrOutcomeLost) { // it may be at work
		if _, _, waitErr := r.power().AwaitOwnTasks(ctx); waitErr != nil {
			return fmt.Errorf("removing %s: %w; and %w", r.at, err, waitErr)
		}
	}
	if _, readErr := r.host.API.ReadConfig(ctx, r.at); api.ClassOf(readErr) == api.NotFound || api.ClassOf(readErr) == api.Denied {
		return r.mustBeGone(ctx, err)
	}
	if strings.Contains(err.Error(), "still in use by linked clone") { // PVE/QemuServer.pm, destroy_vm
		return fmt.Errorf("removing %s: guests that this token cannot see are linked clones of it (`pvesm list STORAGE` on node %s shows their disks, which begin with the name of its own; "+
			"with Datastore.Audit on the storage the plan does): remove them first, or move their disks, which makes them whole: %w", r.at, r.at.Node, err)
	}
	return fmt.Errorf("removing %s: %w", r.at, err)
}

// mustBeGone asks the list of guests whether one is gone: an error on the guest
// itself proves nothing, since with rights on a pool only a missing guest and a
// hidden one look the same.
func (r target) mustBeGone(ctx context.Context, why error) error {
	v, err := r.host.API.ReadView(ctx, r.host.Model)
	if err != nil {
		return err
	}
	for _, u := range v.Unknown {
		if u.All {
			return fmt.Errorf("cannot check whether %s is gone: %s (%w)", r.at, u.Why, why)
		}
	}
	if g, there := v.Guests[r.at.VMID]; there {
		return fmt.Errorf("%s is on node %s, but cannot be read there: %w", r.at, g.Node, why)
	}
	if !v.LimitedVisibility {
		return nil
	}
	switch hidden, err := r.host.API.IsTaken(ctx, r.at.VMID); {
	case err != nil:
		return fmt.Errorf("asking whether %s is gone: %w", r.at, err)
	case hidden:
		return fmt.Errorf("%s exists, but the token may not see it any more (VM.Audit): was it taken out of its pool? (%w)", r.at, why)
	}
	return nil
}

// mustHaveNoClones checks once more before a template is removed. PVE itself refuses if there are clones that the
// token may not see.
func (r target) mustHaveNoClones(ctx context.Context, cfg api.GuestConfig) error {
	ids, err := r.host.API.ClonesOfVolume(ctx, r.at.Node, api.VolumeOf(cfg.Now[TemplateSlot]))
	switch {
	case err != nil:
		return fmt.Errorf("removing template %d: %w", r.at.VMID, err)
	case len(ids) > 0:
		return fmt.Errorf("removing template %d: VM %d is a linked clone and stands on its disk: remove that first", r.at.VMID, ids[0])
	default:
		return nil
	}
}

// TemplateSlot is the slot of a template's disk.
const TemplateSlot = "scsi0"
