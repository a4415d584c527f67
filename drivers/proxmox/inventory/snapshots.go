package inventory

import (
	"context"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/model"
)

// PVE refuses to move or free a volume that a snapshot contains (qemu-server, API2/Qemu.pm,
// move_vm_disk; pve-container, API2/LXC.pm, move_volume; pve-guest-common, AbstractConfig.pm,
// is_volume_in_use_by_snapshots).

// findSnapshots reads the snapshots of guests of which a volume is to be moved or removed, so that
// the plan says which change is not possible. All other guests cost no request: the configuration
// shows whether a guest has snapshots at all.
func (d finder) findSnapshots(ctx context.Context, obs *kind.Observation, out *model.Observed) error {
	for _, addr := range out.State.Addresses() {
		w := obs.Want.State[addr]
		if w == nil {
			continue
		}
		to, from := guest.TargetOf(w), guest.StateOf(out.State[addr])
		if to == nil || from == nil || from.Observed().Config.Now["parent"] == "" || !from.Volumes().MovesOrRemoves(to.Volumes()) {
			continue
		}
		inUse, err := view.InSnapshots(ctx, d.API, view.RefOf(out.State[addr]))
		switch {
		case api.EndsPass(ctx, err):
			return err
		case err != nil: // if it cannot be seen, the step itself shows it
			continue
		}
		from.Observed().Snapshots = inUse
	}
	return nil
}
