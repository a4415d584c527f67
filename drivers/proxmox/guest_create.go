package proxmox

import (
	"context"

	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// createGuest makes a guest and returns when it is complete: what was ordered is read back
// before it counts, since PVE has creates that die without a word.
func createGuest(ctx context.Context, d worker, s plan.Step, want target) error {
	c := want.common()
	at := view.GuestRef{Node: s.Want.Guest.Node, VMID: s.VMID, LXC: c.lxc}
	m := c.ownerTag
	m.Owner, m.CreationVMID = d.ID.Owner, at.VMID
	if err := want.create(ctx, d, s, at, m); err != nil {
		return d.withLeft(ctx, at, s.Want, err)
	}
	return d.completeGuest(ctx, want, at)
}

// completeGuest brings a new guest to what is wanted.
func (d worker) completeGuest(ctx context.Context, want target, at view.GuestRef) error {
	c := want.common()
	m, err := d.complete(ctx, at, want.volumes(), c.tags, c.power)
	if err == nil {
		want.completed(ctx, d, at, m)
	}
	return err
}
