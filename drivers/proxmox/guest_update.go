package proxmox

import (
	"context"
	"fmt"

	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/power"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// changer turns the changes of a step into keys of PVE.
type changer interface {
	// add translates the path of one change.
	Add(path string)
	// conclude adds what follows from all of them, and leaves out what only waits.
	conclude()
	// done does what a change that was carried out leaves to do, before the power is settled.
	done(ctx context.Context, d worker) error
}

// updateGuest carries out the changes of a plan; see carryOut for the order of things.
func updateGuest(ctx context.Context, d worker, s plan.Step, want target, have state) error {
	at := refOf(s.Have)
	w, h := want.common(), have.common()
	m := w.ownerTag
	m.Owner, m.CreationVMID = d.ID.Owner, at.VMID
	if h.tag.Provisional() { // a clone whose making was cut off: what is missing of it is done now
		if err := want.finish(ctx, d, s, at, m, have); err != nil {
			return err
		}
		return d.completeGuest(ctx, want, at)
	}
	ch, changer := changeOf(at, m, s, want, have)
	for _, c := range ch.revertOnly(want, have, s) {
		changer.Add(c.Path)
	}
	changer.conclude()
	ch.describe(w.notes, want.declared())
	if s.Have.Guest.Lock == "suspended" && ch.power && w.power == "running" && !ch.empty() {
		if err := d.resume(ctx, at, s.Address); err != nil {
			return err
		}
	}
	halted, err := d.carryOut(ctx, s, ch)
	if err != nil {
		return d.undo(ctx, s, ch, halted, w.power, err)
	}
	if err := changer.done(ctx, d); err != nil {
		return err
	}
	return d.applyPower(ctx, s, ch, halted, w.power)
}

// changeOf prepares the change of a guest: the ownership tag as it will be, with the slots
// of all devices, and the disks that go to another bus.
func changeOf(at view.GuestRef, m owner.Tag, s plan.Step, want target, have state) (*change, changer) {
	h := have.common()
	to, from := want.volumes(), have.volumes()
	old, apart := from.remembered(to), rebussed(s.Changes)
	for _, name := range apart {
		delete(old, "disk."+name)
	}
	m.Slots, m.Detached = want.slots(h.observe, old), map[string]string{}
	is := h.tag // what no file says must not be lost by a write
	m.UUID, m.Linked, m.Seeded, m.Seed, m.Keys, m.MAC = is.UUID, is.Linked, is.Seeded, is.Seed, is.Keys, is.MAC
	ch := newChange(at, to, from, m)
	for _, name := range apart {
		ch.rebus(name)
	}
	return ch, want.change(ch, s, have)
}

// undo deals with a change that failed: why. What PVE stored of a container's cards all the
// same is written back, and a guest that was stopped for the change is started again.
func (d worker) undo(ctx context.Context, s plan.Step, ch *change, halted bool, power string, why error) error {
	switch {
	case !halted && ch.lastSeen.at.LXC && s.Have.Guest.Running:
		return d.takeBackCards(ctx, ch, why)
	case halted && power == "running" && (len(ch.apart) == 0 || d.whole(ctx, ch)):
		return d.backUp(ctx, ch, why)
	default:
		return why
	}
}

// resume starts a hibernated machine before anything else: its lock keeps PVE from
// changing it, and goes with that.
func (d worker) resume(ctx context.Context, at view.GuestRef, addr model.Address) error {
	if err := d.verifyOwner(ctx, at, addr); err != nil {
		return fmt.Errorf("resuming %s: %w", at, err)
	}
	return power.Of(d.Host, at).Start(ctx)
}
