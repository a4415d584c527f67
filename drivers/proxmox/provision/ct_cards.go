package provision

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
)

// restoreCards undoes what PVE stored of network cards although the change failed. PVE writes a
// card into the configuration before it connects it, or before it finds that LXC cannot have it,
// and answers with an error (pve-container, PVE/LXC.pm, update_net and update_lxc_config). The
// container would run on without the card that its configuration shows, nothing would be pending,
// and the next plan would find nothing to do. So the former cards are written back, and the next
// plan shows the change again. An answer that was lost, or an error of a later request, says
// nothing about the cards.
func (d updater) restoreCards(ctx context.Context, ch *change, why error) error {
	at, old := ch.lastSeen.at, ch.from.Config
	refused, answered := errors.AsType[*api.Error](why)
	if !answered || refused.Status != http.StatusBadRequest && refused.Status != http.StatusInternalServerError || api.ClassOf(why) == api.Changed || ch.lastSeen.wrote || ctx.Err() != nil {
		return why
	}
	cfg, err := d.API.ReadConfig(ctx, at)
	if err != nil {
		return fmt.Errorf("%w; and reading it failed: %w", why, err)
	}
	back, cards := patch{api.Params{}, map[string]bool{}, map[string]bool{}}, map[string]bool{}
	for key, val := range ch.set {
		if was, there := old.Now[key]; api.IsNet(key) && sameNIC(fmt.Sprint(val), cfg.Next[key]) && (cfg.Next[key] != was || cfg.IsPending(key)) {
			cards[key] = true
			if back.del[key] = !there; there {
				back.set[key] = was
			}
		}
	}
	for key := range ch.del {
		if was, there := old.Now[key]; api.IsNet(key) && there && cfg.Now[key] == "" && len(cards) > 0 {
			back.set[key] = was
		}
	}
	maps.DeleteFunc(back.del, func(_ string, goes bool) bool { return !goes })
	if is := d.ID.Check(cfg, at); len(cards) == 0 || !is.IsOwnedAs(ch.lastSeen.addr) {
		return why
	} else if m := is.Tag; !keepsMAC(cfg, back, m.MAC) {
		m.MAC = ch.from.Tag.MAC // the MAC address of a card that it has again
		back.set["description"] = d.ID.Describe(is.Notes, m, at, cfg)
	}
	back.preferReverts(cfg, true, func(string, string, string) bool { return false })
	for _, w := range back.withReverts([]patch{{set: back.set, del: back.del}}) {
		if cfg, err = d.API.ReadConfig(ctx, at); err == nil {
			_, err = d.API.Put(ctx, at.Path("config"), w.body(cfg.Digest))
		}
		if err != nil {
			return fmt.Errorf("%w; PVE stored it anyway, and restoring the previous value failed, so no plan will find it: `pct reboot %d` on node %s applies it: %w", why, at.VMID, at.Node, err)
		}
	}
	return fmt.Errorf("%w; PVE stored it anyway: the previous value is restored, and the next plan shows the change again", why)
}

// keepsMAC reports whether a container still has a card with a MAC address after a patch.
func keepsMAC(cfg api.GuestConfig, w patch, mac string) bool {
	after := maps.Clone(cfg.Next)
	for key, val := range w.set {
		after[key] = fmt.Sprint(val)
	}
	for key, val := range after {
		if api.IsNet(key) && !w.del[key] && strings.EqualFold(guest.ReadCTNIC("", val).MAC, mac) {
			return true
		}
	}
	return false
}

// sameNIC compares a card as it was sent with one as PVE stores it, which adds its type.
func sameNIC(sent, stored string) bool {
	a, b := api.ParseProperty(sent).Values, api.ParseProperty(stored).Values
	delete(a, "type")
	delete(b, "type")
	return maps.Equal(a, b)
}
