package inventory

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Without a bound, a guest that does not react to a shutdown, or has a pending value that PVE cannot
// apply, would be restarted by every pass. The bound needs no memory: PVE keeps the list of the tasks
// that this token started.
const (
	// restartPause is how long a guest is not restarted after a restart that failed.
	restartPause = time.Hour
	// maxRestarts is how many restarts within that time may leave changes pending.
	maxRestarts = 3
)

// skipUselessRestarts removes the restart from the plan of a guest that restarts do not help, and
// reports it. Its pending changes stay listed. Only guests whose restart is due cost a request.
func (d finder) skipUselessRestarts(ctx context.Context, obs *kind.Observation, out *model.Observed) error {
	for _, addr := range out.State.Addresses() {
		have, w := out.State[addr], obs.Want.State[addr]
		if w == nil || have.Guest == nil {
			continue
		}
		to, from := guest.TargetOf(w), guest.StateOf(have)
		if to == nil || from == nil || !guest.RestartDue(to, from) {
			continue
		}
		at := view.RefOf(have)
		why, err := d.uselessRestarts(ctx, at)
		switch {
		case api.EndsPass(ctx, err):
			return err
		case err != nil || why == "": // if it cannot be seen, the restart itself shows it
			continue
		}
		from.SetPendingRestart(false)
		out.Findings = append(out.Findings, guest.Warning(addr, fmt.Sprintf("%s is not restarted again for its pending changes: %s", addr, why),
			fmt.Sprintf("it is tried again an hour after that; find out why (does the guest react to a shutdown? is startup { down } long enough?), or restart it yourself: `%s stop %d && %s start %d` on node %s",
				at.Tool(), at.VMID, at.Tool(), at.VMID, at.Node)))
	}
	return nil
}

// uselessRestarts says why the last restarts of a guest by this token speak against another one
// now; "" if they do not. A restart whose worker was killed does not count.
func (d finder) uselessRestarts(ctx context.Context, at view.GuestRef) (string, error) {
	var list []api.TaskEntry
	path := fmt.Sprintf("%s?limit=500&source=archive&vmid=%s&since=%d", api.Path("nodes", at.Node, "tasks"), strconv.Itoa(at.VMID), time.Now().Add(-restartPause).Unix())
	if err := api.ReadList(ctx, d.API, path, &list); err != nil {
		return "", fmt.Errorf("asking how %s was restarted before: %w", at, err)
	}
	list = slices.DeleteFunc(list, func(e api.TaskEntry) bool {
		return !d.API.StartedByUs(e.UPID) || !slices.Contains([]string{"qmreboot", "vzreboot"}, api.TaskType(e.UPID)) || e.Status == "unexpected status"
	})
	switch {
	case len(list) == 0:
		return "", nil
	case list[0].Status != "OK" && !strings.HasPrefix(list[0].Status, "WARNINGS: "): // PVE lists the newest first
		return "the last restart ended with: " + list[0].Status, nil
	case len(list) >= maxRestarts:
		return fmt.Sprintf("%d restarts within an hour have not brought it into force", len(list)), nil
	default:
		return "", nil
	}
}
