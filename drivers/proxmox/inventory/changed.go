package inventory

import (
	"cmp"
	"context"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/lifecycle"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Changed reads only the guests of want.Changed, with two requests for each: its configuration, and its power as
// its node sees it. That is enough to compare a guest with the files if it exists, is the same as before, and
// nothing else of the host matters. Otherwise enough is false, and the whole host must be observed: a missing
// response proves nothing.
func Changed(ctx context.Context, h *kind.Host, want *model.Want) (seen model.Observed, enough bool, err error) {
	d := finder{h}
	addrs := make([]model.Address, 0, len(want.Changed))
	for addr := range want.Changed {
		addrs = append(addrs, addr)
	}
	slices.SortFunc(addrs, model.Address.Compare)
	listed, configs := make([]api.ListedGuest, len(addrs)), make([]api.GuestConfig, len(addrs))
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
		return model.Observed{}, false, err
	}
	if slices.Contains(alone, false) {
		return model.Observed{}, false, nil
	}
	obs := &kind.Observation{Host: h, Want: want, View: &api.View{}}
	c := newClassifier(obs, wantedGuests(want), nil)
	taken := map[int]string{}
	for i, g := range listed {
		taken[g.VMID] = g.Kind() + " " + g.Name
		c.add(g, kind.Reading{Config: configs[i]})
	}
	out := c.result()
	out.Taken, out.Only = taken, true
	if out.State, err = d.withFacts(ctx, obs, out.State); err != nil {
		return model.Observed{}, false, err
	}
	for _, addr := range addrs {
		r, w := out.State[addr], want.State[addr]
		if r == nil || w == nil || guest.NeedsMore(w, r) {
			return model.Observed{}, false, nil
		}
	}
	return out, len(out.Unmanaged) == 0 && len(out.Unknown) == 0, nil
}

// readChanged reads one guest. Alone is false if that does not show all that matters of it. The error is that of a
// login that the host refuses.
func (d finder) readChanged(ctx context.Context, addr model.Address, at model.Guest) (g api.ListedGuest, cfg api.GuestConfig, alone bool, err error) {
	ref := api.GuestRef{Node: at.Node, VMID: at.VMID, LXC: api.GuestKind(addr) == "ct"}
	cfg, err = d.API.ReadConfig(ctx, ref)
	var now lifecycle.GuestState
	if err == nil {
		now, err = lifecycle.GuestAt(d.Host, ref).State(ctx)
	}
	switch {
	case api.EndsPass(ctx, err):
		return g, cfg, false, err
	case err != nil:
		return g, cfg, false, nil //nolint:nilerr // the whole host is observed then, and shows what is wrong
	}
	tag := cfg.Now["lock"] == "" && cfg.Now["template"] != "1"
	runs := now.QMP == "" || now.QMP == "running" || now.QMP == "stopped"
	g = api.ListedGuest{
		VMID: at.VMID, Node: at.Node, LXC: ref.LXC, Name: cmp.Or(cfg.Now["name"], cfg.Now["hostname"]),
		Tags: api.SplitTags(cfg.Now["tags"]), Running: now.Running, Uptime: now.Uptime,
	}
	return g, cfg, tag && runs && !now.Managed, nil
}

// hasReported reports whether a guest in mode pull that still has its seed has reported to its parent.
func (d finder) hasReported(tag owner.Tag) bool {
	return tag.HasNocloudISO() && tag.Seed.Pull && d.Parent != nil && d.Parent.HasReported(tag.Node)
}
