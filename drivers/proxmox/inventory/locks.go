package inventory

import (
	"context"
	"fmt"
	"slices"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/power"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/model"
)

// findLocks tells which of our guests nothing can be done to, since PVE locked them, and
// names those on which no task works: they stay so until somebody clears the lock. For
// what this token ordered itself a step waits; a hibernated guest can be started, and
// nothing else. Free guests cost no request.
func (d finder) findLocks(ctx context.Context, _ *kind.Observation, out *model.Observed) error {
	for _, addr := range out.State.Addresses() {
		g := out.State[addr].Guest
		if g == nil || g.Lock == "" {
			continue
		}
		at := view.RefOf(out.State[addr])
		tasks, err := power.Of(d.Host, at).Tasks(ctx)
		if api.EndsPass(ctx, err) {
			return err
		}
		if len(tasks) == 0 { // what held it may have ended since it was listed
			cfg, readErr := view.ReadConfig(ctx, d.API, at)
			if api.EndsPass(ctx, readErr) {
				return readErr
			}
			if readErr == nil {
				g.Lock = cfg.Now["lock"]
			}
			if g.Lock == "" {
				continue
			}
		}
		if g.Lock == "suspended" && !g.Running {
			g.Hibernated = power.LockText(at, g.Lock, nil)
		}
		if g.Lock != "suspended" && !slices.ContainsFunc(tasks, d.API.StartedByUs) {
			g.Locked = power.LockText(at, g.Lock, tasks)
		}
		if err != nil || len(tasks) > 0 { // one node's list that does not come keeps nothing else from being seen
			continue
		}
		out.Findings = append(out.Findings, guest.Warning(addr, fmt.Sprintf("%s is locked (%s) and cannot be changed", addr, g.Lock), power.LockText(at, g.Lock, nil)))
	}
	return nil
}
