package inventory

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/model"
)

// lostTagFix says what to do about a guest without an ownership tag that has the VMID, or the name,
// of a wanted one: how to restore the tag if it was lost, and otherwise, if it is another guest.
// Snapshots do not help: PVE does not keep the description of a guest in them (pve-guest-common,
// AbstractConfig.pm, __snapshot_copy_config).
func (c *classifier) lostTagFix(at api.GuestRef, cfg api.GuestConfig, addr model.Address, otherwise string) string {
	if api.GuestKind(addr) != at.Kind() {
		return "it is not " + addr.String() + ": " + otherwise
	}
	where := fmt.Sprintf("if it is %s and only lost its ownership tag, put that back as the last line of its Notes in the web interface (`%s set %d --description` would replace all other lines)",
		addr, at.Tool(), at.VMID)
	if line := c.tagLine(at, cfg, addr); line != "" {
		return where + ":\n" + line + "\nthis line makes the guest managed: check the next plan before you apply it\nif it is another guest: " + otherwise
	}
	return where + ": as its last backup has it (`pvesm extractconfig VOLUME` on the node, where %3A stands for a colon), or a new one (docs/howto/adopt-a-guest.md)\nif it is another guest: " + otherwise
}

// tagLine is the ownership tag that a guest would have if it were the wanted one, with its present
// identity. It is "" unless name, identity and slots match those of the wanted guest.
func (c *classifier) tagLine(at api.GuestRef, cfg api.GuestConfig, addr model.Address) string {
	w := c.want.State[addr]
	if w == nil || cmp.Or(cfg.Next["name"], cfg.Next["hostname"]) != guest.NameOf(w) {
		return ""
	}
	want := guest.TargetOf(w)
	if v, isVM := w.Spec.(*guest.VM); want == nil || isVM && v.Clone == guest.LinkedClone {
		return ""
	}
	common := want.Common()
	m := want.Resolved().OwnerTag
	m.Content = "" // nothing shows what it was made from
	m.Slots, m.Options = want.Slots(api.GuestConfig{}, nil), slices.Sorted(maps.Keys(common.Options))
	if ports := want.Ports(); !common.LXC {
		m.UUID = owner.UUID(cfg.Next["smbios1"])
	} else if len(ports) > 0 {
		m.MAC = api.PropertyValue(cfg.Next[m.Slots["nic."+ports[0].Name]], "hwaddr")
	}
	if m.Provisional() || !slotsFit(m.Slots, cfg.Next) {
		return ""
	}
	m.Owner, m.CreationVMID = c.id.Owner, at.VMID
	return m.Line() // not signed: a pass signs it if the guest is as the files say
}

// slotsFit reports whether a guest has a device at each of these slots, and no disk or network card
// at others.
func slotsFit(slots, next map[string]string) bool {
	named := map[string]bool{}
	for _, slot := range slots {
		if next[slot] == "" {
			return false
		}
		named[slot] = true
	}
	for key, val := range next {
		disk := (api.IsDrive(key) || api.IsMount(key)) && !api.HoldsState(key) && api.HoldsData(val)
		if (disk || api.IsNet(key)) && !named[key] {
			return false
		}
	}
	return true
}
