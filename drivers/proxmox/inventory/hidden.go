package inventory

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/engine/model"
)

const (
	// hiddenReach is the number of VMIDs above the highest known one in which hidden guests are searched.
	hiddenReach = 32
	// maxQuestions bounds the requests of one pass.
	maxQuestions = 256
)

// findHidden finds guests that the token may not see, if something is about to be created: a
// managed guest that was taken out of the pool disappears from every list without an error, and
// must not be created again. Every token may ask PVE whether a VMID is taken (pve-manager,
// PVE/API2/Cluster.pm, nextid). If the token sees all guests, or nothing is to be created, this
// sends no request.
func (d finder) findHidden(ctx context.Context, obs *kind.Observation, found model.Observed) (model.Observed, error) {
	out := model.Observed{Taken: map[int]string{}}
	if !obs.View.LimitedVisibility {
		return out, nil
	}
	may, whole := candidates(obs.Want, found)
	if !whole {
		out.Unknown = append(out.Unknown, model.Unknown{
			Scope: "all guests", Only: notFound(obs.Want, found.State),
			Why: "the token sees the guests of its pools only, and there are too many VMIDs where a managed one may be: give the site a vmid_range of at most 256, or the token VM.Audit on /vms",
		})
		return out, nil
	}
	ask := slices.Sorted(maps.Keys(may))
	taken := make([]bool, len(ask))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(d.Width)
	for i, id := range ask {
		g.Go(func() error {
			var err error
			taken[i], err = d.API.IsTaken(gctx, id)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return out, fmt.Errorf("asking which VMIDs are free: %w", err)
	}
	for i, id := range ask {
		if taken[i] {
			out.Taken[id] = "a guest that the token may not see"
			out.Unknown = append(out.Unknown, model.Unknown{
				Scope: fmt.Sprintf("vm %d", id), VMID: id, Denied: true, Only: may[id],
				Why: "it exists, but the token may not see it (VM.Audit): was it taken out of its pool?",
			})
		}
	}
	return out, nil
}

// notFound are the wanted guests that were not found.
func notFound(w *model.Want, have model.State) []model.Address {
	list := []model.Address{}
	for _, addr := range w.State.Addresses() {
		if w.State[addr].Guest != nil && have[addr] == nil {
			list = append(list, addr)
		}
	}
	return list
}

// candidates are the VMIDs that seem free, each with the wanted guests that were not found and may
// have it. whole is false if there are too many to ask for.
func candidates(w *model.Want, found model.Observed) (may map[int][]model.Address, whole bool) {
	highest := 0
	for id := range found.Taken {
		highest = max(highest, id)
	}
	may = map[int][]model.Address{}
	for _, addr := range notFound(w, found.State) {
		r := w.State[addr]
		ranges := r.Guest.Choose
		switch {
		case r.Guest.VMID != 0:
			ranges = []model.VMIDRange{{From: r.Guest.VMID, To: r.Guest.VMID}}
		case len(ranges) == 0:
			ranges = []model.VMIDRange{{From: 100, To: 999_999_999}}
		}
		for _, rg := range ranges {
			last := rg.To
			if rg.To-rg.From >= maxQuestions {
				last = min(rg.To, max(highest, rg.From)+hiddenReach)
			}
			for id := rg.From; id <= last; id++ {
				if found.Taken[id] == "" && !slices.Contains(may[id], addr) {
					may[id] = append(may[id], addr)
				}
				if len(may) > maxQuestions {
					return nil, false
				}
			}
		}
	}
	return may, true
}
