package provision

import (
	"context"
	"fmt"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/power"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// changer turns the changes of a step into keys of PVE.
type changer interface {
	// add translates the path of one change.
	add(path string)
	// conclude adds what follows from all of them, and leaves out what only waits.
	conclude()
	// afterWrite does what a change that was carried out leaves to do, before the power is settled.
	afterWrite(ctx context.Context, h *kind.Host) error
}

// Update carries out the changes of a plan; see carryOut for the order of things.
func Update(ctx context.Context, h *kind.Host, s plan.Step) error {
	d, want, have := updater{writer{h}}, guest.TargetOf(s.Want), guest.StateOf(s.Have)
	at := view.RefOf(s.Have)
	w := want.Common()
	m := want.Resolved().OwnerTag
	m.Owner, m.CreationVMID = d.ID.Owner, at.VMID
	if have.Observed().Tag.Provisional() { // a clone whose making was cut off: what is missing of it is done now
		mk := maker(d)
		if err := mk.creatorOf(want).finish(ctx, s, at, m, have); err != nil {
			return err
		}
		return mk.completeGuest(ctx, want, at)
	}
	ch, changer := changeOf(at, m, s, want, have)
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

// changeOf prepares the change of a guest: the ownership tag as it will be, with the slots
// of all devices, and the disks that go to another bus.
func changeOf(at view.GuestRef, m owner.Tag, s plan.Step, want guest.Target, have guest.State) (*change, changer) {
	h := have.Observed()
	to, from := want.Volumes(), have.Volumes()
	old, apart := from.RememberedSlots(to), changedBuses(s.Changes)
	for _, name := range apart {
		delete(old, "disk."+name)
	}
	m.Slots, m.Detached = want.Slots(h.Config, old), map[string]string{}
	is := h.Tag // what no file says must not be lost by a write
	m.UUID, m.Linked, m.Seeded, m.Seed, m.Keys, m.MAC = is.UUID, is.Linked, is.Seeded, is.Seed, is.Keys, is.MAC
	ch := newChange(at, to, from, m)
	for _, name := range apart {
		ch.moveToBus(name)
	}
	if c, ok := want.(guest.CTTarget); ok {
		return ch, &ctChange{ch, c, have.(guest.CTState)}
	}
	return ch, &vmChange{ch, s, want.(guest.VMTarget), have.(guest.VMState)}
}

// undo deals with a change that failed: why. What PVE stored of a container's cards all the
// same is written back, and a guest that was stopped for the change is started again.
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

// resume starts a hibernated machine before anything else: its lock keeps PVE from
// changing it, and goes with that.
func (d updater) resume(ctx context.Context, at view.GuestRef, addr model.Address) error {
	if err := d.verifyOwner(ctx, at, addr); err != nil {
		return fmt.Errorf("resuming %s: %w", at, err)
	}
	return power.Of(d.Host, at).Start(ctx)
}
