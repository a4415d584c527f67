package provision

import (
	"context"
	"fmt"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/engine/model"
)

// lastSeen is a guest as it was last read, between several writes to it.
type lastSeen struct {
	at          api.GuestRef
	addr        model.Address
	cfg         api.GuestConfig
	fresh       bool            // nothing was written since
	wrote       bool            // the first request of a change succeeded
	changedByUs map[string]bool // slots whose volume this change has replaced
}

// withDigest sends a write that concerns one slot ("" for none) with the digest of the
// configuration as it was last read. After a write of its own, and if PVE says that the
// configuration changed, it reads the guest again: that must still be the same guest, with the same
// volume at the slot.
func (d writer) withDigest(ctx context.Context, l *lastSeen, slot string, send func(digest string) error) error {
	for again := false; ; again = true {
		if err := d.reread(ctx, l, slot); err != nil {
			return err
		}
		err := send(l.cfg.Digest)
		l.fresh = false
		if again || api.ClassOf(err) != api.Changed {
			return err
		}
	}
}

// reread reads a guest unless nothing was written to it since it was read.
func (d writer) reread(ctx context.Context, l *lastSeen, slot string) error {
	if l.fresh {
		return nil
	}
	cfg, err := d.API.ReadConfig(ctx, l.at)
	if err != nil {
		return fmt.Errorf("reading it again: %w", err)
	}
	if is := d.ID.Check(cfg, l.at); !is.IsOwnedAs(l.addr) {
		return fmt.Errorf("it can no longer be verified as %s (%s): not changed; plan again", l.addr, is.Why())
	}
	if slot != "" && !l.changedByUs[slot] && api.VolumeOf(cfg.Next[slot]) != api.VolumeOf(l.cfg.Next[slot]) {
		return fmt.Errorf("another volume is at %s since the plan was made: plan again", slot)
	}
	l.cfg, l.fresh = cfg, true
	return nil
}

// verifyOwner verifies once more that the guest at a reference is the one of an address.
func (d writer) verifyOwner(ctx context.Context, at api.GuestRef, addr model.Address) error {
	cfg, err := d.API.ReadConfig(ctx, at)
	if err != nil {
		return fmt.Errorf("reading it first: %w", err)
	}
	if is := d.ID.Check(cfg, at); !is.IsOwnedAs(addr) {
		return fmt.Errorf("it can no longer be verified as %s (%s): not changed; plan again", addr, is.Why())
	}
	return nil
}
