package inventory

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// sweepVolumes in Observed.SweepHints asks the next pass to check for left volumes again.
const sweepVolumes = "volumes"

// readLeftVolumes reports volumes without a guest, on storages that the token may audit. It sends
// requests only if a creation died in this pass, or an earlier pass found such volumes.
func (d finder) readLeftVolumes(ctx context.Context, obs *kind.Observation, found model.Observed) (model.Observed, error) {
	var out model.Observed
	died := slices.ContainsFunc(found.Unmanaged, func(f model.Unmanaged) bool { return f.Unfinished && f.Fix != "" && obs.Want.MayUse(f.VMID) })
	if !died && !slices.Contains(obs.Want.SweepHints, sweepVolumes) {
		return out, nil
	}
	again, done := died, map[string]bool{}
	for _, at := range slices.SortedFunc(maps.Keys(obs.View.Storages), func(a, b api.NodeStorage) int {
		return strings.Compare(seedSweepHint(a), seedSweepHint(b))
	}) {
		if !obs.View.Nodes[at.Node] || !slices.Contains(strings.Split(obs.View.Storages[at], ","), "images") || !slices.Contains(guest.DiskStorages(obs.Want), at.Storage) {
			continue
		}
		left, err := d.API.LeftVolumes(ctx, at, obs.Want, 0, found.Taken)
		switch {
		case api.EndsPass(ctx, err):
			return out, err
		case err != nil:
			again = true // the next pass tries again; nothing depends on it
			continue
		}
		left = slices.DeleteFunc(left, func(v string) bool { return done[v] }) // another node has listed it, of a shared storage
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
			Detail:  fmt.Sprintf("they are left over from an interrupted creation or removal; on node %s, if nothing uses them: `%s`", at.Node, strings.Join(api.FreeCommands(left), " && ")),
		})
	}
	if again {
		out.SweepHints = append(out.SweepHints, sweepVolumes)
	}
	return out, nil
}
