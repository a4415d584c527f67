package inventory

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/property"
	"github.com/homestak/homestak-gitops/drivers/proxmox/seed"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/model"
)

// findSeeds finds out what VMs read from their seeds, and the seed images that no VM needs: those
// of a VM that was never created, and those that a crash left. It costs a request for each storage
// in question, and none if no VM is seeded. Sweep hints of earlier passes name the storages
// where images may be left after the last such VM left the files.
func (d finder) findSeeds(ctx context.Context, obs *kind.Observation, out *model.Observed) error {
	storages := map[view.NodeStorage]bool{}
	inDrive, coming := map[string]bool{}, map[string]bool{}
	for addr, r := range obs.Want.State {
		v, ok := guest.TargetOf(r).(guest.VMTarget)
		if !ok || !v.Seeded() {
			continue
		}
		storages[view.NodeStorage{Node: cmp.Or(r.Guest.Node, d.Model.PVENode()), Storage: v.SeedStorage}] = true
		coming[addr.Name] = out.State[addr] == nil // its creation overwrites what is there
	}
	for addr, r := range out.State {
		v, ok := guest.StateOf(r).(guest.VMState)
		if !ok {
			continue
		}
		d.noteFirstBoot(v, addr, obs.Want.State[addr], out)
		if hasSeed(v.Tag) {
			storages[view.NodeStorage{Node: r.Guest.Node, Storage: property.StorageOf(v.Tag.Seed.Volume)}] = true
			inDrive[v.Seed] = true
		} else if v.Tag.UUID == "" {
			coming[addr.Name] = true // a clone that is still provisional
		}
	}
	sweepHints := slices.Collect(maps.Keys(storages))
	for _, word := range obs.Want.SweepHints {
		if at, ok := seed.ParseSweepHint(word); ok {
			storages[at] = true
		}
	}
	for _, f := range out.Unmanaged {
		if f.Unfinished {
			coming[f.Claims.Name], coming[f.Name] = true, true
		}
	}
	for _, at := range slices.SortedFunc(maps.Keys(storages), func(a, b view.NodeStorage) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Storage, b.Storage))
	}) {
		if !obs.View.Nodes[at.Node] {
			sweepHints = append(sweepHints, at)
			continue // the view reports that node
		}
		list, err := obs.Volumes(ctx, at, "iso")
		if err != nil {
			if api.EndsPass(ctx, err) {
				return err
			}
			if api.ClassOf(err) == api.NotFound && !slices.Contains(sweepHints, at) {
				continue // only a hint, and the storage does not exist any more
			}
			sweepHints = append(sweepHints, at)
			out.Unknown = append(out.Unknown, model.Unknown{Scope: "seed images on storage " + at.Storage, Why: err.Error(), Kind: "seed", Only: []model.Address{}, Denied: api.IsDenied(err)}) // it concerns no declared resource
			continue
		}
		for _, v := range seed.Among(d.Host, list) {
			addr := model.Address{Kind: "seed", Name: v.Node}
			old := out.State[addr]
			if v.Emptied {
				continue
			}
			sweepHints = append(sweepHints, at) // until the image is removed, in this pass or a later one
			if inDrive[v.VolID] || coming[v.Node] || old != nil && old.Spec.(*seed.Image).Volume < v.VolID {
				continue
			}
			out.State[addr] = &model.Resource{Addr: addr, Spec: &seed.Image{Volume: v.VolID, Node: at.Node}}
		}
	}
	for _, at := range sweepHints {
		out.SweepHints = append(out.SweepHints, seed.SweepHint(at))
	}
	slices.Sort(out.SweepHints)
	out.SweepHints = slices.Compact(out.SweepHints)
	slices.SortStableFunc(out.Pending, func(a, b model.Pending) int { return a.Address.Compare(b.Address) })
	return nil
}
