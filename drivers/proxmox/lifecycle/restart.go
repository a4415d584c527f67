package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
)

// A restart of a VM is two tasks. The one that we order, qmreboot, ends when the VM has
// stopped. qmeventd notices the end of the process and runs `qm cleanup`, which starts the
// VM in a task of root@pam, some seconds later (qemu-server, PVE/QemuServer.pm, vm_reboot;
// PVE/CLI/qm.pm, cleanup). Under the HA manager that second task files a request with it.
// A container is restarted by its task alone (pve-container, PVE/LXC.pm, vm_reboot).
const (
	// restartPatience limits the time from the end of qmreboot until the VM runs:
	// the cleanup waits a minute for the VM's lock and half a minute for the end of its
	// process; the rest is for the start.
	restartPatience = 2 * time.Minute
	restartPoll     = 2 * time.Second
	// startLasts is the number of seconds that a process must have lived to count as a
	// start that did not fail. QEMU has a process while it finds out that it cannot start.
	startLasts = 2
	// lockPatience is the time for which a power task is retried while something of the node
	// has the guest's lock file. `qm cleanup` may have it for 30 s where a VM was started
	// again before it ran (qemu-server since 9.1.13, PVE/CLI/qm.pm, cleanup).
	lockPatience = time.Minute
	lockPoll     = 2 * time.Second
)

// Restart shuts a guest down (within shutdown seconds) and starts it, which applies what is pending, and waits until
// it runs with a newer start than before.
func (g Guest) Restart(ctx context.Context, shutdown int) error {
	before, err := g.State(ctx)
	if err != nil {
		return fmt.Errorf("restarting %s: checking it first: %w", g.Ref, err)
	}
	if !before.Running { // it was stopped meanwhile, and what is pending needs a start only
		return g.Start(ctx)
	}
	upid, err := g.whenUnlocked(ctx, func() (string, error) {
		return g.Host.API.Post(ctx, g.Ref.Path("status", "reboot"), api.Params{"timeout": shutdown})
	})
	lost := err
	if errors.Is(err, api.ErrOutcomeLost) { // it may be at work, or be done
		if _, _, waitErr := g.AwaitOwnTasks(ctx); waitErr != nil {
			return fmt.Errorf("restarting %s: %w; and %w", g.Ref, err, waitErr)
		}
		now, stateErr := g.State(ctx)
		if stateErr != nil || now.Running && !now.newerThan(before) {
			return fmt.Errorf("restarting %s: %w", g.Ref, err)
		}
		err = nil
	}
	switch {
	case err == nil:
		if err := g.runsAgain(ctx, before, upid); err != nil {
			return fmt.Errorf("restarting %s: %w", g.Ref, errors.Join(err, lost))
		}
		return nil
	case strings.Contains(err.Error(), fmt.Sprintf("%d not running", g.Ref.VMID)): // of a container PVE says VM, too (LXC/Status.pm, vm_reboot)
		return g.Start(ctx)
	case strings.Contains(err.Error(), "powerdown failed"):
		return fmt.Errorf("restarting %s: it did not shut down within %d s, and is not stopped by force: the changes are pending until its next full restart; check its guest agent or ACPI, or allow more time with startup { down }: %w", g.Ref, shutdown, err)
	default:
		return fmt.Errorf("restarting %s: %w", g.Ref, err)
	}
}

// newerThan reports whether a guest runs by another start than it did before. The process
// shows it; where a list has no process, the uptime does: it would have grown since, by our
// own clock.
func (p GuestState) newerThan(before GuestState) bool {
	if !p.Running {
		return false
	}
	if p.PID != 0 && before.PID != 0 {
		return p.PID != before.PID
	}
	return time.Duration(p.Uptime+startLasts)*time.Second < time.Duration(before.Uptime)*time.Second+p.Read.Sub(before.Read)
}

// runsAgain waits until a guest runs with a newer start than before. reboot is the task that
// stopped it, "" where its answer was lost. The later task is searched for as soon as the
// guest was seen stopped: it says why, where it fails, to a token that may see it.
func (g Guest) runsAgain(ctx context.Context, before GuestState, reboot string) error {
	patience := restartPatience
	if before.Managed {
		patience = haPatience
	}
	deadline := time.Now().Add(patience)
	for {
		now, err := g.State(ctx)
		switch {
		case err != nil && api.EndsPass(ctx, err):
			return err
		case err == nil && now.newerThan(before) && (g.Ref.LXC || now.Uptime >= startLasts):
			return nil
		case err == nil && now.HA == "error":
			return errors.New(HAError(g.Ref))
		case err == nil && g.Ref.LXC && !now.Running && !now.Managed: // it had stopped before its task had the lock
			return g.Start(ctx)
		}
		if upid := g.laterStart(ctx, reboot); upid != "" {
			err := g.Host.API.Tasks.Wait(ctx, upid)
			switch {
			case err == nil, strings.Contains(err.Error(), "already running"):
				if now, err = g.State(ctx); err == nil && now.newerThan(before) {
					return nil
				}
			case strings.Contains(err.Error(), noLock): // that start is not retried
				return g.Start(ctx)
			case ctx.Err() != nil || !before.Managed: // the HA manager retries
				return err
			}
		}
		if time.Now().After(deadline) {
			return g.staysDown(ctx, now, err, patience)
		}
		if err := api.Sleep(ctx, restartPoll); err != nil {
			return fmt.Errorf("waiting until it runs again: %w", err)
		}
	}
}

// laterStart is the newest start of a VM after a reboot; "" where none can be seen. Both
// times are those in the ids, of one clock. A token without Sys.Audit on the node sees its
// own tasks only, and the list says nothing of that.
func (g Guest) laterStart(ctx context.Context, reboot string) string {
	if g.Ref.LXC {
		return ""
	}
	tasks, err := g.recentTasks(ctx)
	if err != nil {
		return ""
	}
	if reboot == "" {
		if i := slices.IndexFunc(tasks, func(e api.TaskEntry) bool {
			return api.TaskType(e.UPID) == "qmreboot" && g.Host.API.StartedByUs(e.UPID)
		}); i >= 0 {
			reboot = tasks[i].UPID
		}
	}
	for _, e := range tasks {
		if reboot != "" && api.TaskType(e.UPID) == "qmstart" && startOf(e.UPID) >= startOf(reboot) {
			return e.UPID
		}
	}
	return ""
}

// recentTasks are the last tasks about a guest, running ones first, then the newest.
func (g Guest) recentTasks(ctx context.Context) ([]api.TaskEntry, error) {
	var list []api.TaskEntry
	err := api.ReadList(ctx, g.Host.API, api.Path("nodes", g.Ref.Node, "tasks")+"?limit=20&source=all&vmid="+strconv.Itoa(g.Ref.VMID), &list)
	return list, err
}

// staysDown returns an error for a VM that did not start again, with the observations and what to
// do.
func (g Guest) staysDown(ctx context.Context, now GuestState, seen error, patience time.Duration) error {
	switch missing, err := lacksPrivilege(ctx, g.Host.API, "/nodes/"+g.Ref.Node, "Sys.Audit"); {
	case seen != nil:
		return fmt.Errorf("the check whether it runs again failed: %w", seen)
	case now.Managed:
		return fmt.Errorf("the HA manager has not started it again within %s (its state there: %s): `ha-manager status` shows why", patience, cmp.Or(now.HA, "none"))
	case now.Running:
		return fmt.Errorf("its task succeeded, but after %s its old process still runs (process %d, up for %d s): plan again", patience, now.PID, now.Uptime)
	case err == nil && missing != "":
		return fmt.Errorf("it has been down for %s. PVE starts it in a task of root@pam, and the reason why that did not happen is hidden: the token lacks %s on /nodes/%s. Check `pvenode task list --vmid %d` on node %s, or plan again: the start that follows is a task of this token", patience, missing, g.Ref.Node, g.Ref.VMID, g.Ref.Node)
	default:
		return fmt.Errorf("it has been down for %s, and no task has started it: read `journalctl -u qmeventd` on node %s, or plan again, which starts it", patience, g.Ref.Node)
	}
}

// AwaitReboot waits for a start that is under way, and for the one that follows a reboot
// which an earlier run ordered, so that the VM is not started a second time beside it. It
// reports whether the VM runs. No clock shows how old that reboot is, so the wait is short.
func (g Guest) AwaitReboot(ctx context.Context) bool {
	if g.Ref.LXC {
		return false
	}
	tasks, err := g.recentTasks(ctx)
	if err != nil {
		return false
	}
	i := slices.IndexFunc(tasks, func(e api.TaskEntry) bool {
		return slices.Contains([]string{"qmreboot", "qmstart", "qmshutdown", "qmstop", "hastart", "hastop"}, api.TaskType(e.UPID))
	})
	if i < 0 {
		return false
	}
	last := tasks[i]
	switch {
	case api.TaskType(last.UPID) == "qmstart" && last.Running():
		return g.Host.API.Tasks.Wait(ctx, last.UPID) == nil
	case api.TaskType(last.UPID) != "qmreboot" || !g.Host.API.StartedByUs(last.UPID):
		return false
	}
	for range 4 {
		if api.Sleep(ctx, restartPoll) != nil {
			return false
		}
		if now, err := g.State(ctx); err == nil && now.Running {
			return true
		}
		if upid := g.laterStart(ctx, last.UPID); upid != "" {
			return g.Host.API.Tasks.Wait(ctx, upid) == nil
		}
	}
	return false
}

// noLock is the error of a task that does not get a guest's lock file (pve-guest-common,
// AbstractConfig.pm, lock_config).
const noLock = "can't lock file"

// whenUnlocked sends a write and waits for its task; for a while again where it did not
// get the guest's lock file, and so did nothing. Its last failure is not temporary: the
// time to wait for that file is over, and who tries a step again must not begin it again.
func (g Guest) whenUnlocked(ctx context.Context, send func() (string, error)) (upid string, err error) {
	deadline := time.Now().Add(lockPatience)
	for {
		upid, err = send()
		err = g.Host.API.AwaitWrite(ctx, upid, err)
		switch {
		case err == nil || !strings.Contains(err.Error(), noLock):
			return upid, err
		case time.Now().After(deadline) || api.Sleep(ctx, lockPoll) != nil:
			return upid, &lockedError{err}
		}
	}
}

// lockedError is a write that did not get the guest's lock file within lockPatience.
type lockedError struct{ err error }

// Error is the message of the last task.
func (e *lockedError) Error() string { return e.err.Error() }

// Unwrap gives the error of the last task.
func (e *lockedError) Unwrap() error { return e.err }

// Temporary is false: it was tried again as long as that makes sense.
func (*lockedError) Temporary() bool { return false }

// startOf returns the time at which a task began, in seconds by the clock of its node.
func startOf(upid string) int64 {
	p := strings.Split(upid, ":")
	if len(p) < 8 {
		return 0
	}
	n, err := strconv.ParseInt(p[4], 16, 64)
	if err != nil {
		return 0
	}
	return n
}
