package provision

import (
	"context"
	"fmt"
	"maps"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/model"
)

// readClone reads a clone of a template. It is provisional while it still has the configuration of
// its template; if an earlier run whose answer was lost got further, it is not, and keeps what it
// has. m is the ownership tag that it carries.
func (d maker) readClone(ctx context.Context, at api.GuestRef, addr model.Address) (cfg api.GuestConfig, m owner.Tag, provisional bool, err error) {
	cfg, err = d.API.ReadConfig(ctx, at)
	if err != nil {
		return cfg, m, false, fmt.Errorf("reading the clone %s back: %w", at, err)
	}
	is := d.ID.Check(cfg, at)
	if !is.IsOwnedAs(addr) {
		return cfg, m, false, fmt.Errorf("the clone %s is not the requested one (%s): not changed; plan again", at, is.Why())
	}
	return cfg, is.Tag, is.Tag.Provisional(), nil
}

// clone is a provisional clone of a template that is about to get its own configuration.
type clone struct {
	at          api.GuestRef
	cfg         api.GuestConfig // the present one
	provisional owner.Tag       // the present ownership tag
	want        owner.Tag       // the ownership tag to write
	notes       string
	template    string
}

// writeClone writes the configuration of a clone. The clone stays provisional until everything in
// the request with its ownership tag is done, and for a container until all its volumes exist
// before that.
func (d maker) writeClone(ctx context.Context, c clone, w patch) error {
	slotted, disc := false, w.setsCD()
	for key := range w.set {
		slotted = slotted || w.createsDisk(key) && key != api.CloudInitSlot && !api.HoldsState(key) || w.createsMount(key)
	}
	var steps []patch
	if slotted && !maps.Equal(c.provisional.Slots, c.want.Slots) {
		c.provisional.Slots = c.want.Slots
		steps = append(steps, patch{set: api.Params{"description": d.ID.Describe(c.notes, c.provisional, c.at, c.cfg)}})
	}
	if c.at.LXC {
		parts := w.perVolume() // the first part has the final ownership tag, so it comes last
		w, steps = parts[0], append(steps, parts[1:]...)
	}
	boot := patch{}
	if disc { // PVE would write the old boot order over one in the same request
		w, boot = w.partition(bootOrder)
	}
	l := &lastSeen{at: c.at, addr: c.want.Addr(), cfg: c.cfg, fresh: true}
	for _, step := range append(steps, w, boot) {
		if step.empty() {
			continue
		}
		err := d.withDigest(ctx, l, "", func(digest string) error {
			_, err := d.API.Put(ctx, c.at.Path("config"), step.body(digest))
			return err
		})
		if err != nil {
			return fmt.Errorf("configuring %s, a clone of %s: %w", c.at, c.template, err)
		}
	}
	return nil
}
