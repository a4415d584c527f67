package guest

import (
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/engine/model"
)

// NewMedia are the slots of the CD drives whose image is not in them in present, the present
// configuration.
func (v VMTarget) NewMedia(present map[string]string) []string {
	var out []string
	for _, slot := range v.CDSlots() {
		if volume := api.VolumeOf(v.Options[slot]); volume != api.EmptyMedium && volume != api.VolumeOf(present[slot]) {
			out = append(out, slot)
		}
	}
	return out
}

// NeedsMore reports whether a wanted guest needs something of the host that the observed one does not have, see
// Target.
func NeedsMore(want, have *model.Resource) bool {
	return TargetOf(want).needsMore(stateFor(want, have))
}

// needsMore implements Target. Options of a VM may need volumes, too.
func (v VMTarget) needsMore(other State) bool {
	have := other.(VMState)
	return len(v.NewMedia(have.Config.Next)) > 0 || guestNeedsMore(v, have) ||
		slices.ContainsFunc([]string{"efidisk0", "tpmstate0"}, func(key string) bool {
			return v.Options[key] != "" && api.StorageOf(v.Options[key]) != api.StorageOf(have.Config.Next[key])
		})
}

// needsMore implements Target.
func (c CTTarget) needsMore(have State) bool { return guestNeedsMore(c, have) }

// guestNeedsMore reports what VMs and containers have in common: whether the guest is to be
// started, a disk is to be on another storage, or a card is to get another bridge or MAC address.
func guestNeedsMore(want Target, have State) bool {
	if want.Common().Power == "running" && have.Common().Power != "running" {
		return true
	}
	volumes := have.Volumes().List
	for _, w := range want.Volumes().List {
		h, there := Find(volumes, w.Name)
		if !there || w.Storage != "" && w.Storage != h.Storage {
			return true
		}
	}
	has := have.Ports()
	return slices.ContainsFunc(want.Ports(), func(w Port) bool {
		h, there := Find(has, w.Name)
		return !there || w.Bridge != h.Bridge || w.MAC != "" && !strings.EqualFold(w.MAC, h.MAC)
	})
}
