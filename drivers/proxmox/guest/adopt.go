package guest

import (
	"maps"
	"slices"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
)

// AdoptedTag is the ownership tag by which a guest that exists becomes the wanted one. A device has the slot that it is
// named after, else the one that a new guest would have it at; the root disk is the one that the guest boots from.
func AdoptedTag(want Target, id owner.Identity, at api.GuestRef, cfg api.GuestConfig) owner.Tag {
	m := want.Resolved().OwnerTag
	m.Content = "" // nothing shows what it was made from
	m.Owner, m.CreationVMID, m.Adopted = id.Owner, at.VMID, true
	if at.LXC {
		m.MAC = owner.IdentityOf(cfg.Next, at)
	} else {
		m.UUID = owner.IdentityOf(cfg.Next, at)
	}
	var known map[string]string
	if !at.LXC && want.Volumes().Has("root") {
		known = map[string]string{"disk.root": BootDisk(cfg.Next)}
	}
	m.Slots = want.Slots(api.GuestConfig{}, known)
	maps.DeleteFunc(m.Slots, func(_, slot string) bool { return cfg.Next[slot] == "" })
	m.Options = slices.Sorted(maps.Keys(want.Declared()))
	return m
}
