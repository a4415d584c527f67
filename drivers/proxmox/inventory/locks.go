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

// findLocks notes which managed guests cannot be changed because PVE locked them, and reports those
// on which no task works: they stay locked until somebody clears the lock. A step waits for tasks
// of this token. A hibernated guest can only be started. A guest without a lock costs no request.
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
		if len(tasks) == 0 { // its task may have ended since it was listed
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
		if err != nil || len(tasks) > 0 { // tasks that cannot be listed do not end the observation
			continue
		}
		out.Findings = append(out.Findings, guest.Warning(addr, fmt.Sprintf("%s is locked (%s) and cannot be changed", addr, g.Lock), power.LockText(at, g.Lock, nil)))
	}
	return nil
}
