package inventory

import (
	"context"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/model"
)

// A snapshot names the volumes that it is of. PVE takes none of them away from where
// they are: it refuses to move them, and to free them (qemu-server, API2/Qemu.pm,
// move_vm_disk; pve-container, API2/LXC.pm, move_volume; pve-guest-common,
// AbstractConfig.pm, is_volume_in_use_by_snapshots).

// findSnapshots asks for the snapshots of guests of which a volume is to be moved or
// freed, so that the plan says what cannot be. All other guests cost no request: that
// one has snapshots at all, its configuration tells.
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
		case err != nil: // where it cannot be seen, the step itself tells
			continue
		}
		from.Observed().Snapshots = inUse
	}
	return nil
}
