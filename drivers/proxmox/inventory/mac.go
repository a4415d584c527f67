package inventory

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// claimed is a MAC address that the files declare and that is to be given to a card.
type claimed struct {
	by     *model.Resource
	path   string // of the card
	bridge string
	runs   bool // it shall run
}

// addresses checks whether an unmanaged guest has a MAC address which is about
// to be given to a managed one. Others' configurations are read for that alone.
func (s *check) addresses(ctx context.Context, changed []model.Address) error {
	wants := map[string]claimed{}
	for _, addr := range changed {
		claimAddresses(s.obs.Want.State[addr], s.have.State[addr], wants)
	}
	if len(wants) == 0 {
		return nil
	}
	var others, unread []api.ListedGuest
	for _, f := range s.have.Unmanaged {
		g := api.ListedGuest{VMID: f.VMID, Node: f.Node, LXC: f.Kind == "ct", Name: f.Name}
		if f.VMID == 0 || f.Unfinished || !s.obs.View.Nodes[f.Node] {
			continue
		}
		others = append(others, g)
		if _, done := s.obs.Configs[g.Ref()]; !done {
			unread = append(unread, g)
		}
	}
	if err := s.obs.ReadConfigs(ctx, unread); err != nil {
		return err
	}
	for _, g := range others {
		cfg := s.obs.Configs[g.Ref()].Config
		for _, key := range cardKeys(cfg.Next) {
			p := api.ParseProperty(cfg.Next[key])
			c, clash := wants[strings.ToUpper(p.MAC())]
			if !clash {
				continue
			}
			runs, same := s.obs.Guests[g.VMID].Running, p.Values["bridge"] == c.bridge
			o := model.PreflightProblem{
				Path: c.path + ".mac", Severity: diag.Warning,
				Summary: fmt.Sprintf("the MAC address of %s is that of %s of %s %q, which is unmanaged", c.path, key, g.Ref(), g.Name),
				Detail:  "two guests with one address on one network disturb each other: declare another one, or none and PVE makes one up",
			}
			switch {
			case runs && same && c.runs:
				o.Severity = diag.Error
				o.Detail += "; if this guest takes the place of that one, stop that first"
			case !runs:
				o.Detail += "; that one is stopped now, so see that they never run at once"
			case same:
				o.Detail += "; this one shall not run now, so see that they never run at once"
			default:
				o.Detail += "; they are not on one bridge, so this may be intended"
			}
			s.report(o, c.by, c.path+".mac")
		}
	}
	return nil
}

// claimAddresses notes the MAC addresses that a guest is to get and does not have.
func claimAddresses(want, have *model.Resource, into map[string]claimed) {
	w := guest.TargetOf(want)
	if w == nil {
		return
	}
	var has []guest.Port
	if have != nil {
		if h := guest.StateOf(have); h != nil {
			has = h.Ports()
		}
	}
	for _, p := range w.Ports() {
		if h, _ := guest.Find(has, p.Name); p.MAC != "" && !strings.EqualFold(p.MAC, h.MAC) {
			into[strings.ToUpper(p.MAC)] = claimed{want, "nic." + p.Name, p.Bridge, w.Common().Power == "running"}
		}
	}
}

// cardKeys are the keys of network cards, in order.
func cardKeys(c map[string]string) []string {
	var out []string
	for key := range c {
		if api.IsNet(key) {
			out = append(out, key)
		}
	}
	slices.SortFunc(out, model.CompareNames)
	return out
}
