package inventory

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/lifecycle"
	"github.com/homestak/homestak-gitops/engine/model"
)

// seedUse is the use of seed images, before the storages are read.
type seedUse struct {
	storages map[api.NodeStorage]bool // where images may be
	hints    []api.NodeStorage        // where the next pass is to look, too
	inDrive  map[string]bool          // volumes that a VM has in its drive
	coming   map[string]bool          // names of VMs whose creation overwrites, or may still attach, what is there
}

// seedUse says where to look for seed images, and which are needed.
func (d finder) seedUse(want *model.Want, found model.Observed) seedUse {
	u := seedUse{storages: map[api.NodeStorage]bool{}, inDrive: map[string]bool{}, coming: map[string]bool{}}
	for addr, r := range want.State {
		v, ok := guest.TargetOf(r).(guest.VMTarget)
		if !ok || !v.Seeded() {
			continue
		}
		u.storages[api.NodeStorage{Node: cmp.Or(r.Guest.Node, d.Model.PVENode()), Storage: v.SeedStorage}] = true
		if u.coming[addr.Name] = found.State[addr] == nil; u.coming[addr.Name] {
			for _, node := range r.Guest.Nodes { // an attempt to create it elsewhere may have left one
				u.storages[api.NodeStorage{Node: node, Storage: v.SeedStorage}] = true
			}
		}
	}
	for addr, r := range found.State {
		v, ok := guest.StateOf(r).(guest.VMState)
		switch {
		case !ok:
		case v.Tag.HasNocloudISO():
			u.storages[api.NodeStorage{Node: r.Guest.Node, Storage: api.StorageOf(v.Tag.Seed.Volume)}] = true
			u.inDrive[v.Seed] = true
		case v.Tag.UUID == "":
			u.coming[addr.Name] = true // a clone that is still provisional
		}
	}
	u.hints = slices.Collect(maps.Keys(u.storages))
	for _, word := range want.SweepHints {
		if at, ok := parseSeedSweepHint(word); ok {
			u.storages[at] = true
		}
	}
	for _, f := range found.Unmanaged {
		if f.Unfinished {
			u.coming[f.Claims.Name], u.coming[f.Name] = true, true
		}
	}
	return u
}

// readSeeds finds the seed images that no VM needs: those of a VM that was never created, and those that a crash left. It
// costs a request for each storage in question, and none if no VM is seeded. Sweep hints of earlier passes name the
// storages where images may be left after the last such VM left the files.
func (d finder) readSeeds(ctx context.Context, obs *kind.Observation, found model.Observed) (model.Observed, error) {
	out := model.Observed{State: model.State{}}
	use := d.seedUse(obs.Want, found)
	for _, at := range slices.SortedFunc(maps.Keys(use.storages), func(a, b api.NodeStorage) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Storage, b.Storage))
	}) {
		if !obs.View.Nodes[at.Node] {
			use.hints = append(use.hints, at)
			continue // the view reports that node
		}
		list, err := obs.Volumes(ctx, at, "iso")
		if err != nil {
			if api.EndsPass(ctx, err) {
				return out, err
			}
			if api.ClassOf(err) == api.NotFound && !slices.Contains(use.hints, at) {
				continue // only a hint, and the storage does not exist any more
			}
			use.hints = append(use.hints, at)
			out.Unknown = append(out.Unknown, model.Unknown{Scope: "seed images on storage " + at.Storage, Why: err.Error(), Kind: "seed", Only: []model.Address{}, Denied: api.IsDenied(err)}) // it concerns no declared resource
			continue
		}
		for _, v := range lifecycle.SeedsAmong(d.Host, list) {
			addr := model.Address{Kind: "seed", Name: v.Node}
			old := out.State[addr]
			if v.Emptied {
				continue
			}
			use.hints = append(use.hints, at) // until the image is removed, in this pass or a later one
			if use.inDrive[v.VolID] || use.coming[v.Node] || old != nil && old.Spec.(*lifecycle.SeedImage).Volume < v.VolID {
				continue
			}
			out.State[addr] = &model.Resource{Addr: addr, Spec: &lifecycle.SeedImage{Volume: v.VolID, Node: at.Node}}
		}
	}
	for _, at := range use.hints {
		out.SweepHints = append(out.SweepHints, seedSweepHint(at))
	}
	slices.Sort(out.SweepHints)
	out.SweepHints = slices.Compact(out.SweepHints)
	return out, nil
}

// seedSweepHint returns the name of a storage that may have seed images, as in Observed.SweepHints.
func seedSweepHint(s api.NodeStorage) string { return "seeds " + s.Node + " " + s.Storage }

// parseSeedSweepHint reads such a hint.
func parseSeedSweepHint(word string) (api.NodeStorage, bool) {
	p := strings.Split(word, " ")
	if len(p) != 3 || p[0] != "seeds" {
		return api.NodeStorage{}, false
	}
	return api.NodeStorage{Node: p[1], Storage: p[2]}, true
}
