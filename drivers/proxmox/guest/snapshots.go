package guest

import (
	"fmt"
	"slices"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/engine/model"
)

// MovesOrRemoves reports whether a volume is to be moved or removed for what is wanted.
func (v *Volumes) MovesOrRemoves(want *Volumes) bool {
	moves := func(h Volume) bool {
		w, stays := Find(want.List, h.Name)
		return stays && w.Storage != "" && w.Storage != h.Storage || !stays && h.Remove
	}
	return slices.ContainsFunc(v.List, moves) || len(v.stillThere()) > 0
}

// refuseSnapshots lists the volumes that are to be moved or removed although a snapshot contains
// them.
func (v *Volumes) refuseSnapshots(want *Volumes, at api.GuestRef) []model.Problem {
	var out []model.Problem
	refuse := func(name, id, what string) {
		if s := v.Snapshots[id]; s != "" {
			out = append(out, model.Problem{
				Path: "disk." + name, Summary: fmt.Sprintf("disk %s cannot be %s: snapshot %s uses it", name, what, s),
				Detail: fmt.Sprintf("PVE takes no volume away from its snapshots: remove them first (`%s listsnapshot %d` on node %s), or leave the disk as it is", at.Tool(), at.VMID, at.Node),
			})
		}
	}
	for _, h := range v.List {
		id := api.VolumeOf(v.Config.Next[v.Tag.Slots["disk."+h.Name]])
		switch w, stays := Find(want.List, h.Name); {
		case stays && w.Storage != "" && w.Storage != h.Storage:
			refuse(h.Name, id, "moved to "+w.Storage)
		case !stays && h.Remove:
			refuse(h.Name, id, "removed")
		}
	}
	for _, name := range v.stillThere() {
		if !want.Has(name) {
			refuse(name, v.Tag.Detached[name], "removed")
		}
	}
	return out
}
