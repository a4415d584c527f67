package proxmox

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/drives"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/property"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/model"
)

// A snapshot names the volumes that it is of. PVE takes none of them away from where
// they are: it refuses to move them, and to free them (qemu-server, API2/Qemu.pm,
// move_vm_disk; pve-container, API2/LXC.pm, move_volume; pve-guest-common,
// AbstractConfig.pm, is_volume_in_use_by_snapshots).

// inSnapshots maps the volumes that snapshots of a guest hold to one snapshot that does.
// It costs a request for each snapshot, and one more.
func (d worker) inSnapshots(ctx context.Context, at view.GuestRef) (map[string]string, error) {
	var list []struct {
		Name string `json:"name"`
	}
	if err := api.ReadList(ctx, d.API, at.Path("snapshot"), &list); err != nil {
		return nil, fmt.Errorf("asking for the snapshots of %s: %w", at, err)
	}
	out := map[string]string{}
	for _, s := range list {
		if s.Name == "current" { // PVE's word for what is no snapshot
			continue
		}
		var conf map[string]json.RawMessage
		if err := d.API.Get(ctx, at.Path("snapshot", s.Name, "config"), &conf); err != nil {
			return nil, fmt.Errorf("asking for snapshot %s of %s: %w", s.Name, at, err)
		}
		for key, val := range conf {
			if drives.IsDrive(key) || drives.IsMount(key) {
				out[property.VolumeOf(api.Text(val))] = s.Name
			}
		}
	}
	return out, nil
}

// findSnapshots asks for the snapshots of guests of which a volume is to be moved or
// freed, so that the plan says what cannot be. All other guests cost no request: that
// one has snapshots at all, its configuration tells.
func (d worker) findSnapshots(ctx context.Context, obs *kind.Observation, out *model.Observed) error {
	for _, addr := range out.State.Addresses() {
		w := obs.Want.State[addr]
		if w == nil {
			continue
		}
		to, from := targetOf(w), stateOf(out.State[addr])
		if to == nil || from == nil || from.volumes().observe.Now["parent"] == "" || !from.volumes().uproots(to.volumes()) {
			continue
		}
		inUse, err := d.inSnapshots(ctx, refOf(out.State[addr]))
		switch {
		case api.EndsPass(ctx, err):
			return err
		case err != nil: // where it cannot be seen, the step itself tells
			continue
		}
		from.common().snapshots = inUse
	}
	return nil
}

// uproots reports whether volumes leave the place where they are for what is wanted.
func (v *volumes) uproots(want *volumes) bool {
	moves := func(h volume) bool {
		w, stays := find(want.list, h.name)
		return stays && w.storage != "" && w.storage != h.storage || !stays && h.remove
	}
	return slices.ContainsFunc(v.list, moves) || len(v.left()) > 0
}

// snapped says which of the volumes that are to leave their place a snapshot holds there.
func (v *volumes) snapped(want *volumes, at view.GuestRef) []model.Problem {
	var out []model.Problem
	refuse := func(name, id, what string) {
		if s := v.snapshots[id]; s != "" {
			out = append(out, model.Problem{
				Path: "disk." + name, Summary: fmt.Sprintf("disk %s cannot be %s: snapshot %s holds it", name, what, s),
				Detail: fmt.Sprintf("PVE takes no volume away from its snapshots: remove them first (`%s listsnapshot %d` on node %s), or leave the disk as it is", at.Tool(), at.VMID, at.Node),
			})
		}
	}
	for _, h := range v.list {
		id := property.VolumeOf(v.observe.Next[v.tag.Slots["disk."+h.name]])
		switch w, stays := find(want.list, h.name); {
		case stays && w.storage != "" && w.storage != h.storage:
			refuse(h.name, id, "moved to "+w.storage)
		case !stays && h.remove:
			refuse(h.name, id, "removed")
		}
	}
	for _, name := range v.left() {
		if !want.has(name) {
			refuse(name, v.tag.Detached[name], "removed")
		}
	}
	return out
}

// mustBeMovable refuses before a container is stopped for a volume to be moved, and PVE
// would not move it.
func (d worker) mustBeMovable(ctx context.Context, ch *change) error {
	inUse, err := d.inSnapshots(ctx, ch.lastSeen.at)
	if err != nil {
		return err
	}
	for slot := range ch.move {
		if s := inUse[property.VolumeOf(ch.from.observe.Next[slot])]; s != "" {
			return fmt.Errorf("%s cannot be moved to %s: snapshot %s holds it; it was not stopped for that", slot, ch.move[slot], s)
		}
	}
	return nil
}
