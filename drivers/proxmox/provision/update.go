package provision

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/lifecycle"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// updater changes guests that exist.
type updater struct{ writer }

// changer turns the changes of a step into a patch.
type changer interface {
	// add adds the change of the attribute at path.
	add(path string)
	// conclude adds what follows from all changes, and replaces writes by reverts where they suffice.
	conclude()
	// afterWrite completes the change after the write, before the power is changed.
	afterWrite(ctx context.Context, h *kind.Host) error
}

// Update carries out an update step of the plan; see applyChange for the order of the requests.
func Update(ctx context.Context, h *kind.Host, s plan.Step) error {
	d, want, have := updater{writer{h}}, guest.TargetOf(s.Want), guest.StateOf(s.Have)
	at := api.RefOf(s.Have)
	w := want.Common()
	m := want.Resolved().OwnerTag
	m.Owner, m.CreationVMID = d.ID.Owner, at.VMID
	if have.Observed().Tag.Provisional() { // an interrupted creation
		if missing := s.Want.MissingToCreate; len(missing) > 0 {
			return fmt.Errorf("%s is half made, and the value of %s is not known here", at, strings.Join(missing, ", "))
		}
		mk := maker(d)
		if err := mk.creatorOf(want).resumeClone(ctx, s, at, m, have); err != nil {
			return err
		}
		return mk.completeGuest(ctx, want, at)
	}
	if err := ensureFiles(ctx, h, at.Node, s, want.Resolved().Files); err != nil {
		return err
	}
	ch, changer := changeOf(d.ID, at, m, s, want, have)
	for _, c := range ch.takeReverts(want, have, s) {
		changer.add(c.Path)
	}
	changer.conclude()
	ch.describe(w.Description, want.Declared())
	if s.Have.Guest.Lock == "suspended" && ch.changesPower && w.Power == "running" && !ch.empty() {
		if err := d.resume(ctx, at, s.Address); err != nil {
			return err
		}
	}
	halted, err := d.applyChange(ctx, s, ch)
	if err != nil {
		return d.undo(ctx, s, ch, halted, w.Power, err)
	}
	if err := changer.afterWrite(ctx, h); err != nil {
		return err
	}
	return d.applyPower(ctx, s, ch, halted, w.Power)
}

// changeOf prepares the change of a guest: its future ownership tag, the slots of all devices, and
// the disks that go to another bus.
func changeOf(id owner.Identity, at api.GuestRef, m owner.Tag, s plan.Step, want guest.Target, have guest.State) (*change, changer) {
	h := have.Observed()
	to, from := want.Volumes(), have.Volumes()
	old, moved := from.RememberedSlots(to), changedBuses(s.Changes)
	for _, name := range moved {
		delete(old, "disk."+name)
	}
	m.Slots, m.Detached = want.Slots(h.Config, old), map[string]string{}
	is := h.Tag // keep what the files do not decide
	m.UUID, m.Linked, m.Seeded, m.Seed, m.Keys, m.MAC, m.Content, m.Recreate = is.UUID, is.Linked, is.Seeded, is.Seed, is.Keys, is.MAC, is.Content, is.Recreate
	m.Adopted = is.Adopted
	ch := newChange(id, at, to, from, m)
	for _, name := range moved {
		ch.moveToBus(name)
	}
	if c, ok := want.(guest.CTTarget); ok {
		return ch, &ctChange{ch, c, have.(guest.CTState)}
	}
	return ch, &vmChange{ch, s, want.(guest.VMTarget), have.(guest.VMState)}
}

// undo handles a change that failed with why. It restores what PVE stored of a container's cards
// nevertheless, and starts a guest again that was stopped for the change. It returns why with what
// that adds.
func (d updater) undo(ctx context.Context, s plan.Step, ch *change, halted bool, power string, why error) error {
	switch {
	case !halted && ch.lastSeen.at.LXC && s.Have.Guest.Running:
		return d.restoreCards(ctx, ch, why)
	case halted && power == "running" && (len(ch.oldSlot) == 0 || d.allAttached(ctx, ch)):
		return d.restartAfterFailure(ctx, ch, why)
	default:
		return why
	}
}

// resume starts a hibernated VM before all else: its lock, which keeps PVE from changing it, ends
// with that.
func (d updater) resume(ctx context.Context, at api.GuestRef, addr model.Address) error {
	if err := d.verifyOwner(ctx, at, addr); err != nil {
		return fmt.Errorf("resuming %s: %w", at, err)
	}
	return lifecycle.GuestAt(d.Host, at).Start(ctx)
}

// applyChange writes exactly the keys that the plan shows, with the digest of what was observed,
// then makes the changes of disks that are not keys. halted reports whether the guest was stopped
// for it.
func (d updater) applyChange(ctx context.Context, s plan.Step, ch *change) (halted bool, err error) {
	at := ch.lastSeen.at
	// PVE does not move a volume of a running container, and a pending value would name the old
	// volume. Nor may a disk of a running VM go to another bus.
	halt := (at.LXC && len(ch.move) > 0 || len(ch.oldSlot) > 0) && s.Have.Guest.Running
	if ch.empty() || halt { // no request with a digest verifies the guest
		if err := d.verifyOwner(ctx, at, s.Address); err != nil {
			return false, fmt.Errorf("changing %s: %w", at, err)
		}
	}
	if halt {
		if err := d.checkMovable(ctx, ch); err != nil {
			return false, fmt.Errorf("changing %s: %w", at, err)
		}
		if err := d.revertBeforeStop(ctx, &s, ch); err != nil {
			return false, fmt.Errorf("changing %s: %w", at, err)
		}
		if err := lifecycle.GuestAt(d.Host, at).Stop(ctx, ch.from.Tag.ShutdownSeconds()); err != nil {
			return false, err
		}
	}
	ch.lastSeen.fresh = ch.empty() && !halt // a write and a stop renew the digest
	write := func() error { return d.withVolumes(ctx, &ch.lastSeen, ch.patch, s.Have, ch.from.Config) }
	if len(ch.oldSlot) > 0 {
		write = func() error { return d.writeInTwo(ctx, s, ch) }
	}
	if err := write(); err != nil {
		return halt, fmt.Errorf("changing %s: %w", at, err)
	}
	return halt, d.applyDisks(ctx, ch, at.LXC && s.Have.Guest.Running && !halt)
}

// applyPower brings a changed guest to the wanted power, or restarts it for its pending changes.
func (d updater) applyPower(ctx context.Context, s plan.Step, ch *change, halted bool, want string) error {
	restarts := func(c plan.Change) bool { return c.Class == model.ClassRestart }
	switch at, m := ch.lastSeen.at, ch.from.Tag; {
	case halted && want == "stopped":
		return nil
	case ch.changesPower && want == "stopped":
		return lifecycle.GuestAt(d.Host, at).Stop(ctx, m.ShutdownSeconds())
	case halted:
		return lifecycle.GuestAt(d.Host, at).Start(ctx)
	case ch.changesPower && s.Have.Guest.Running: // a paused VM does not shut down
		if err := lifecycle.GuestAt(d.Host, at).Unpause(ctx); err != nil || !slices.ContainsFunc(s.Changes, restarts) {
			return err
		}
		return lifecycle.GuestAt(d.Host, at).Restart(ctx, m.ShutdownSeconds())
	case ch.changesPower:
		if lifecycle.GuestAt(d.Host, at).AwaitReboot(ctx) {
			return nil
		}
		return lifecycle.GuestAt(d.Host, at).Start(ctx)
	case s.Have.Guest.Running && slices.ContainsFunc(s.Changes, restarts):
		return lifecycle.GuestAt(d.Host, at).Restart(ctx, m.ShutdownSeconds())
	default:
		return nil
	}
}

// restartAfterFailure starts a guest again that was stopped for a change, which failed with why.
func (d updater) restartAfterFailure(ctx context.Context, ch *change, why error) error {
	if ctx.Err() != nil || d.verifyOwner(ctx, ch.lastSeen.at, ch.lastSeen.addr) != nil {
		return why
	}
	if err := lifecycle.GuestAt(d.Host, ch.lastSeen.at).Start(ctx); err != nil {
		return fmt.Errorf("%w; it was stopped for that: %w", why, err)
	}
	return why
}
