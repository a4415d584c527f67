package proxmox

import (
	"context"
	"fmt"
	"net/url"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// removeGuest destroys a guest after proving once more that it is ours.
func removeGuest(ctx context.Context, d *Driver, s plan.Step) error {
	at := place{vmid: s.VMID, lxc: s.Address.Kind == "ct"}
	for _, r := range []*model.Resource{s.Want, s.Have} {
		if r != nil && r.Guest != nil {
			at.node, at.vmid = r.Guest.Node, or(r.Guest.VMID, at.vmid)
		}
	}
	cfg, err := d.readConfig(ctx, at)
	if c := classOf(err); c == classNotFound || c == classDenied {
		return d.mustBeGone(ctx, at, err)
	}
	if err != nil {
		return fmt.Errorf("removing %s: looking at it first: %w", at, err)
	}
	is := d.proof(cfg, at)
	if !is.of(s.Address) {
		if s.Have == nil || s.Have.Guest.Digest == "" {
			return nil // taking back a create, which was never observed, that did not get far: what stands there is somebody else's
		}
		return fmt.Errorf("%s is not provably %s any more (%s): left alone", at, s.Address, is.why())
	}
	if cfg.next["protection"] == "1" { // asked before the guest is shut down for nothing
		return fmt.Errorf("removing %s: it is protected: set protection = false in the files and let that be applied first", at)
	}
	if err := d.dropSeed(ctx, at, is.mark, cfg); err != nil {
		return err
	}
	if err := d.stop(ctx, at, is.mark); err != nil {
		return err
	}
	// Only disks that the configuration names go; PVE's other option also takes every volume that carries the VMID.
	upid, err := d.c.remove(ctx, at.path(), url.Values{"purge": {"1"}, "destroy-unreferenced-disks": {"0"}})
	err = d.settled(ctx, upid, err)
	if err == nil {
		return nil
	}
	if _, lookErr := d.readConfig(ctx, at); classOf(lookErr) == classNotFound || classOf(lookErr) == classDenied {
		return d.mustBeGone(ctx, at, err)
	}
	return fmt.Errorf("removing %s: %w", at, err)
}

// mustBeGone asks the list of guests whether one is gone: an error on the guest
// itself proves nothing, since with rights on a pool only a missing guest and a
// hidden one look the same.
func (d *Driver) mustBeGone(ctx context.Context, at place, why error) error {
	v, err := d.readView(ctx)
	if err != nil {
		return err
	}
	for _, u := range v.unknown {
		if u.All {
			return fmt.Errorf("whether %s is gone cannot be seen: %s (%w)", at, u.Why, why)
		}
	}
	if g, there := v.guests[at.vmid]; there {
		return fmt.Errorf("%s is on node %s, but cannot be read there: %w", at, g.node, why)
	}
	if !v.narrow {
		return nil
	}
	switch hidden, err := d.taken(ctx, at.vmid); {
	case err != nil:
		return fmt.Errorf("asking whether %s is gone: %w", at, err)
	case hidden:
		return fmt.Errorf("%s exists, but the token may not see it any more (VM.Audit): was it taken out of its pool? (%w)", at, why)
	}
	return nil
}
