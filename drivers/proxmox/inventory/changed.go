package inventory

import (
	"cmp"
	"context"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/power"
	"github.com/homestak/homestak-gitops/drivers/proxmox/property"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Changed reads the guests of want.Changed alone, two requests for each: its configuration, and its power as its node
// sees it. That is enough to compare a guest with the files if it is there, is the one that it was, and nothing has to
// be known of the host beside it. Otherwise ok is false, and the whole host is to be observed: that a guest does not
// answer is no evidence of anything.
func Changed(ctx context.Context, h *kind.Host, want *model.Want) (out model.Observed, ok bool, err error) {
	d := finder{h}
	out = model.Observed{State: model.State{}, Taken: map[int]string{}, Only: true}
	addrs := make([]model.Address, 0, len(want.Changed))
	for addr := range want.Changed {
		addrs = append(addrs, addr)
	}
	slices.SortFunc(addrs, model.Address.Compare)
	listed, configs := make([]view.Listed, len(addrs)), make([]view.Config, len(addrs))
	alone := make([]bool, len(addrs))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(h.Width)
	for i, addr := range addrs {
		g.Go(func() error {
			var err error
			listed[i], configs[i], alone[i], err = d.readChanged(gctx, addr, want.Changed[addr])
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return out, false, err
	}
	if slices.Contains(alone, false) {
		return out, false, nil
	}
	c := classifier{id: d.ID, want: want, wanted: wantedGuests(want), out: &out, verified: map[model.Address][]*model.Resource{}, names: map[string]bool{}, view: &view.View{}}
	for i, g := range listed {
		out.Taken[g.VMID] = g.Kind() + " " + g.Name
		c.add(g, configs[i])
	}
	c.finish()
	obs := &kind.Observation{Host: h, Want: want, View: c.view}
	for _, read := range []func(context.Context, *kind.Observation, *model.Observed) error{d.skipUselessRestarts, d.findSnapshots} {
		if err := read(ctx, obs, &out); err != nil {
			return out, false, err
		}
	}
	for _, addr := range addrs {
		r, w := out.State[addr], want.State[addr]
		if r == nil || w == nil || guest.TargetOf(w).NeedsMore(guest.StateOf(r)) {
			return out, false, nil
		}
		if v, is := guest.StateOf(r).(guest.VMState); is {
			d.noteFirstBoot(v, addr, w, &out)
		}
	}
	return out, len(out.Unmanaged) == 0 && len(out.Unknown) == 0, nil
}

// readChanged reads one guest. Alone is false if that does not show all that matters of it. The error is that of a
// login that the host refuses.
func (d finder) readChanged(ctx context.Context, addr model.Address, at model.Guest) (g view.Listed, cfg view.Config, alone bool, err error) {
	ref := view.GuestRef{Node: at.Node, VMID: at.VMID, LXC: view.GuestKind(addr) == "ct"}
	cfg, err = view.ReadConfig(ctx, d.API, ref)
	var now power.State
	if err == nil {
		now, err = power.Of(d.Host, ref).State(ctx)
	}
	switch {
	case api.EndsPass(ctx, err):
		return g, cfg, false, err
	case err != nil:
		return g, cfg, false, nil //nolint:nilerr // the whole host is observed then, and shows what is wrong
	}
	tag := cfg.Now["lock"] == "" && cfg.Now["template"] != "1"
	runs := now.QMP == "" || now.QMP == "running" || now.QMP == "stopped"
	g = view.Listed{
		VMID: at.VMID, Node: at.Node, LXC: ref.LXC, Name: cmp.Or(cfg.Now["name"], cfg.Now["hostname"]),
		Tags: property.SplitTags(cfg.Now["tags"]), Running: now.Running, Uptime: now.Uptime,
	}
	return g, cfg, tag && runs && !now.Managed, nil
}

// noteFirstBoot notes what a VM read at its first boot and the files have changed since, and whether that boot is over.
func (d finder) noteFirstBoot(v guest.VMState, addr model.Address, w *model.Resource, out *model.Observed) {
	if w != nil {
		out.Pending = append(out.Pending, v.FirstBootChanges(addr, w)...)
	}
	if hasSeed(v.Tag) {
		v.Reported = v.Tag.Seed.Pull && d.Parent != nil && d.Parent.HasReported(v.Tag.Node)
	}
}

func hasSeed(m owner.Tag) bool { return m.Seed != nil && m.Seed.Volume != "" }
