package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
)

// watchingTasks are types of tasks that only observe a guest, and may go on for days.
var watchingTasks = []string{"vncproxy", "vncshell", "spiceproxy", "spiceshell", "termproxy"}

// Tasks are the running tasks on one guest that change it. Those of others are
// in it only as far as the token may see them (Sys.Audit on the node).
func (g Guest) Tasks(ctx context.Context) ([]string, error) {
	var list []api.TaskEntry
	path := api.Path("nodes", g.Ref.Node, "tasks") + "?limit=500&source=active&vmid=" + strconv.Itoa(g.Ref.VMID)
	if err := api.ReadList(ctx, g.Host.API, path, &list); err != nil {
		return nil, fmt.Errorf("listing the tasks on %s: %w", g.Ref, err)
	}
	var out []string
	for _, e := range list {
		if e.Running() && !slices.Contains(watchingTasks, api.TaskType(e.UPID)) {
			out = append(out, e.UPID)
		}
	}
	return out, nil
}

// AwaitOwnTasks waits for tasks that an interrupted run of this program started on a guest. Their
// result shows in the state of the guest, so it does not matter here. waited reports that there
// were any; it does not wait for others, the tasks of other users, except for a start by the node
// itself: that is mostly the second half of one of our restarts, and short.
func (g Guest) AwaitOwnTasks(ctx context.Context) (waited bool, others []string, err error) {
	tasks, err := g.Tasks(ctx)
	if err != nil {
		return false, nil, err
	}
	for _, upid := range tasks {
		if !g.Host.API.StartedByUs(upid) && !startsAgain(upid) {
			others = append(others, upid)
			continue
		}
		waited = true
		if err := g.Host.API.Tasks.Wait(ctx, upid); err != nil {
			if _, ended := errors.AsType[*api.TaskError](err); !ended {
				return true, others, err
			}
		}
	}
	return waited, others, nil
}

// startsAgain reports whether a task is the start of a VM by the node itself.
func startsAgain(upid string) bool {
	id := api.ParseUPID(upid)
	return id.Type == "qmstart" && id.User == "root@pam"
}

// LockText describes the lock of a guest, and what clears it. Such an error is deliberately not temporary: a backup
// may take hours, and the lock of a task that died stays until it is removed on the node (no token may).
func LockText(at api.GuestRef, lock string, tasks []string) string {
	switch {
	case len(tasks) > 0:
		return fmt.Sprintf("%s is locked (%s): task %s works on it, try again when it has ended", at, lock, tasks[0])
	case lock == "suspended":
		return fmt.Sprintf("%s is hibernated (lock suspended): PVE refuses changes and removal until it has run again. Start it once (power = \"running\" in the files does), or `%s unlock %d` on node %s, which loses what it had in memory", at, at.Tool(), at.VMID, at.Node)
	case lock == "create" || lock == "clone":
		return fmt.Sprintf("%s is locked (%s), and no visible task works on it: its creation failed; %s clears it", at, lock, at.Rescue())
	default:
		return fmt.Sprintf("%s is locked (%s), and no visible task works on it: if its task died, `%s unlock %d` on node %s clears it", at, lock, at.Tool(), at.VMID, at.Node)
	}
}
