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
	"github.com/homestak/homestak-gitops/engine/model"
)

// Without a bound, a guest that does not react to a shutdown, or has a pending value that PVE cannot
// apply, would be restarted by every pass. The bound needs no memory: PVE keeps the list of the tasks
// that this token started.
const (
	// restartPause is the time after a failed restart in which a guest is not restarted.
	restartPause = time.Hour
	// maxRestarts is the number of restarts within that time that may leave changes pending.
	maxRestarts = 3
)

// readRestarts says why recent restarts of a guest by this token speak against another one; "" if they do not, or
// none is due. A restart whose worker was killed does not count. Only guests whose restart is due cost a request.
// Recent is by the clock of the agent; see docs/limits.md.
func (d finder) readRestarts(ctx context.Context, want, have *model.Resource) (string, error) {
	if !guest.RestartAsked(want, have) {
		return "", nil
	}
	at := api.RefOf(have)
	var list []api.TaskEntry
	path := fmt.Sprintf("%s?limit=500&source=archive&vmid=%s&since=%d", api.Path("nodes", at.Node, "tasks"), strconv.Itoa(at.VMID), time.Now().Add(-restartPause).Unix())
	if err := api.ReadList(ctx, d.API, path, &list); api.EndsPass(ctx, err) {
		return "", fmt.Errorf("asking how %s was restarted before: %w", at, err)
	} else if err != nil {
		return "", nil //nolint:nilerr // the restart itself shows it
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
