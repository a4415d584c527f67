package proxmox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/model"
)

// watching are types of tasks that only look at a guest, and may go on for days.
var watching = []string{"vncproxy", "vncshell", "spiceproxy", "spiceshell", "termproxy"}

// guestTasks are the running tasks on one guest that change it. Those of others are
// in it only as far as the token may see them (Sys.Audit on the node).
func (d worker) guestTasks(ctx context.Context, at view.GuestRef) ([]string, error) {
	var list []api.TaskEntry
	path := api.Path("nodes", at.Node, "tasks") + "?limit=500&source=active&vmid=" + strconv.Itoa(at.VMID)
	if err := api.ReadList(ctx, d.API, path, &list); err != nil {
		return nil, fmt.Errorf("asking what works on %s now: %w", at, err)
	}
	var out []string
	for _, e := range list {
		if e.Running() && !slices.Contains(watching, taskType(e.UPID)) {
			out = append(out, e.UPID)
		}
	}
	return out, nil
}

// rejoin waits for what an earlier run of this program started on a guest and did not
// live to see end. How it ended is seen by looking at the guest, so it does not
// matter here. waited tells that there was something; others are tasks of somebody
// else, which are not waited for. A start that the node itself ordered is: it mostly is
// the second half of a restart of ours, and it is short.
func (d worker) rejoin(ctx context.Context, at view.GuestRef) (waited bool, others []string, err error) {
	tasks, err := d.guestTasks(ctx, at)
	if err != nil {
		return false, nil, err
	}
	for _, upid := range tasks {
		if !d.API.StartedByUs(upid) && !startsAgain(upid) {
			others = append(others, upid)
			continue
		}
		waited = true
		if err := d.API.Tasks.Wait(ctx, upid); err != nil {
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

// lockText says that a guest is locked, by what, and what clears it. Such an error is
// not temporary on purpose: a backup may take hours, and the lock of a task that died
// stays until somebody at the node takes it away (no token may).
func lockText(at view.GuestRef, lock string, tasks []string) string {
	switch {
	case len(tasks) > 0:
		return fmt.Sprintf("%s is locked (%s): task %s works on it, try again when that has ended", at, lock, tasks[0])
	case lock == "suspended":
		return fmt.Sprintf("%s is hibernated (lock suspended): PVE changes and removes nothing of it until it has run again. Start it once (power = \"running\" in the files does), or `%s unlock %d` on node %s, which loses what it had in memory", at, at.Tool(), at.VMID, at.Node)
	case lock == "create" || lock == "clone":
		return fmt.Sprintf("%s is locked (%s), and no task works on it that can be seen: its making died; %s clears it", at, lock, at.Rescue())
	default:
		return fmt.Sprintf("%s is locked (%s), and no task works on it that can be seen: if it died, `%s unlock %d` on node %s clears it", at, lock, at.Tool(), at.VMID, at.Node)
	}
}

// watchLocks tells which of our guests nothing can be done to, since PVE locked them, and
// names those on which no task works: they stay so until somebody clears the lock. For
// what this token ordered itself a step waits; a hibernated guest can be started, and
// nothing else. Free guests cost no request.
func (d worker) watchLocks(ctx context.Context, out *model.Observed) error {
	for _, addr := range out.State.Addresses() {
		g := out.State[addr].Guest
		if g == nil || g.Lock == "" {
			continue
		}
		at := placeOf(out.State[addr])
		tasks, err := d.guestTasks(ctx, at)
		if api.EndsPass(ctx, err) {
			return err
		}
		if len(tasks) == 0 { // what held it may have ended since it was listed
			cfg, lookErr := view.ReadConfig(ctx, d.API, at)
			if api.EndsPass(ctx, lookErr) {
				return lookErr
			}
			if lookErr == nil {
				g.Lock = cfg.Now["lock"]
			}
			if g.Lock == "" {
				continue
			}
		}
		if g.Lock == "suspended" && !g.Running {
			g.Hibernated = lockText(at, g.Lock, nil)
		}
		if g.Lock != "suspended" && !slices.ContainsFunc(tasks, d.API.StartedByUs) {
			g.Locked = lockText(at, g.Lock, tasks)
		}
		if err != nil || len(tasks) > 0 { // one node's list that does not come keeps nothing else from being seen
			continue
		}
		out.Findings = append(out.Findings, seen(addr, fmt.Sprintf("%s is locked (%s) and cannot be changed", addr, g.Lock), lockText(at, g.Lock, nil)))
	}
	return nil
}
