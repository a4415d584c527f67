package proxmox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/seed"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// A creation whose worker was killed leaves volumes behind, and `qm destroy` removes only those that a
// configuration names. Nothing that a check reads shows them: it takes the list of the disks on a storage, and a token
// that may see disks of a guest that does not exist (PVE/Storage.pm, check_volume_access). To make that list is
// slow where PVE starts qemu-img for each file, so it is asked for only where something speaks for a leftover: a guest
// whose creation died, what such a look found before, a creation that failed just now, and `doctor`.
// They are reported and never removed: that nothing else uses them only a person can tell.

// sweepVolumes is the word of Observed.SweepHints for another look in the next pass.
const sweepVolumes = "volumes"

// LeftVolumes are the volumes on a storage whose VMID no guest has but one of ours may have, sorted. exists tells who
// has a VMID, as far as that was seen; PVE is asked once more about the others. Only one VMID counts unless it is 0.
func LeftVolumes(ctx context.Context, c *api.Client, at view.NodeStorage, want *model.Want, only int, exists map[int]string) ([]string, error) {
	path := api.Path("nodes", at.Node, "storage", at.Storage, "content") + "?content=images"
	if only != 0 {
		path += "&vmid=" + strconv.Itoa(only)
	}
	var list []map[string]json.RawMessage
	if err := api.ReadList(ctx, c, path, &list); err != nil {
		return nil, err
	}
	free := map[int]bool{}
	var out []string
	for _, e := range list {
		id := api.Number(e["vmid"])
		if id == 0 || only != 0 && id != only || exists[id] != "" || !inReach(want, id) {
			continue
		}
		if _, asked := free[id]; !asked {
			taken, err := view.IsTaken(ctx, c, id)
			if err != nil {
				return nil, err
			}
			free[id] = !taken
		}
		if free[id] {
			out = append(out, api.Text(e["volid"]))
		}
	}
	slices.Sort(out)
	return out, nil
}

// FreeCommands are the commands that free volumes.
func FreeCommands(volids []string) []string {
	out := make([]string, len(volids))
	for i, v := range volids {
		out[i] = "pvesm free " + v
	}
	return out
}

// findLeftVolumes looks for volumes without a guest, where something speaks for some, on the storages that the token
// may audit.
func (d worker) findLeftVolumes(ctx context.Context, obs *kind.Observation, out *model.Observed) error {
	died := slices.ContainsFunc(out.Unmanaged, func(f model.Unmanaged) bool { return f.Unfinished && f.Fix != "" && inReach(obs.Want, f.VMID) })
	if !died && !slices.Contains(obs.Want.SweepHints, sweepVolumes) {
		return nil
	}
	again, done := died, map[string]bool{}
	for _, at := range slices.SortedFunc(maps.Keys(obs.View.Storages), func(a, b view.NodeStorage) int { return strings.Compare(seed.SweepHint(a), seed.SweepHint(b)) }) {
		if !obs.View.Nodes[at.Node] || !slices.Contains(strings.Split(obs.View.Storages[at], ","), "images") || !slices.Contains(diskStorages(obs.Want), at.Storage) {
			continue
		}
		left, err := LeftVolumes(ctx, d.API, at, obs.Want, 0, out.Taken)
		switch {
		case api.EndsPass(ctx, err):
			return err
		case err != nil:
			again = true // to be asked another time; nothing depends on it
			continue
		}
		left = slices.DeleteFunc(left, func(v string) bool { return done[v] }) // of a shared storage another node said so
		if len(left) == 0 {
			continue
		}
		again = true
		for _, v := range left {
			done[v] = true
		}
		out.Findings = append(out.Findings, diag.Finding{
			Severity: diag.Warning, Source: diag.FromSite, Address: "host." + obs.Want.Host.Name, At: obs.Want.Host.At,
			Summary: fmt.Sprintf("storage %s on node %s has volumes of VMIDs that no guest has: %s", at.Storage, at.Node, strings.Join(left, ", ")),
			Detail:  fmt.Sprintf("they are left over from a creation or removal that died; on node %s, if nothing uses them: `%s`", at.Node, strings.Join(FreeCommands(left), " && ")),
		})
	}
	if again {
		out.SweepHints = append(out.SweepHints, sweepVolumes)
		slices.Sort(out.SweepHints)
	}
	return nil
}

// diskStorages are the storages on which the site wants disks of guests.
func diskStorages(w *model.Want) []string {
	var out []string
	for _, r := range w.State {
		g := targetOf(r)
		if g == nil {
			continue
		}
		for _, disk := range g.volumes().list {
			if disk.storage != "" && !slices.Contains(out, disk.storage) {
				out = append(out, disk.storage)
			}
		}
	}
	slices.Sort(out)
	return out
}

// withLeft adds to the error of a creation which volumes it left, if no guest has the VMID now and the token may see
// them. A creation that ended badly mostly leaves none: PVE frees them.
func (d worker) withLeft(ctx context.Context, at view.GuestRef, want *model.Resource, err error) error {
	if _, known := errors.AsType[*model.UnusableVMIDError](err); known || errors.Is(err, api.ErrOutcomeLost) || api.EndsPass(ctx, err) {
		return err
	}
	if _, readErr := view.ReadConfig(ctx, d.API, at); !d.vacant(ctx, at, readErr) {
		return err
	}
	only := &model.Want{State: model.State{want.Addr: want}}
	var left []string
	for _, storage := range diskStorages(only) {
		if on, readErr := LeftVolumes(ctx, d.API, view.NodeStorage{Node: at.Node, Storage: storage}, only, at.VMID, nil); readErr == nil {
			left = append(left, on...)
		}
	}
	if len(left) == 0 {
		return err
	}
	return fmt.Errorf("%w; no guest has VMID %d now, and this is left of it: on node %s, `%s` frees it", err, at.VMID, at.Node, strings.Join(FreeCommands(left), " && "))
}
