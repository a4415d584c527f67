package proxmox

import (
	"context"
	"fmt"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// paused is how QEMU calls a machine that somebody paused (`qm suspend`), and the power that
// the plan shows of it. PVE lists it as running.
const paused = "paused"

// watchStates finds our guests that are locked, and those that are paused.
func (d worker) watchStates(ctx context.Context, guests map[int]view.Listed, out *model.Observed) error {
	if err := d.watchLocks(ctx, out); err != nil {
		return err
	}
	return d.watchPaused(ctx, guests, out)
}

// watchPaused finds machines of ours that have a process, and whose processors do not run.
// The list of the cluster shows it, at most ten seconds old, since pvestatd broadcasts what
// QEMU says (pve-manager, PVE/Service/pvestatd.pm, update_qemu_status). Only a machine that
// it shows so costs a request.
//
// One that is paused is to be resumed. What went wrong inside (io-error, internal-error,
// guest-panicked) and a guest that sleeps by its own will are reported alone. Where the
// configuration is locked a task is at work, a backup or a migration, and will end it.
func (d worker) watchPaused(ctx context.Context, guests map[int]view.Listed, out *model.Observed) error {
	for _, addr := range out.State.Addresses() {
		r := out.State[addr]
		if r.Guest == nil || guests[r.Guest.VMID].QMP == "" {
			continue
		}
		now, err := d.readPowerOf(ctx, placeOf(r))
		switch {
		case api.EndsPass(ctx, err):
			return err
		case err != nil || !now.running:
			continue
		}
		have, ok := r.Spec.(guest)
		if !ok {
			continue
		}
		locked := r.Guest.Lock != ""
		switch at := placeOf(r); {
		case now.qmp == "running", now.qmp == "":
		case locked && now.qmp == "prelaunch": // a backup has started its process, not the machine (pve-manager, VZDump/QemuServer.pm)
			*have.common().powered = "stopped"
		case locked:
		case now.qmp == paused, now.qmp == "prelaunch":
			*have.common().powered = paused
		default:
			out.Findings = append(out.Findings, guarded(diag.Warning, addr, fmt.Sprintf("%s does not run: %s", addr, haltedBy(now.qmp)), haltedFix(at, now.qmp)))
		}
	}
	return nil
}

// haltedBy says why a machine stands still.
func haltedBy(qmp string) string {
	switch qmp {
	case "io-error":
		return "QEMU stopped it at an error of one of its disks (io-error)"
	case "internal-error":
		return "QEMU stopped it at an error of its own (internal-error)"
	case "guest-panicked":
		return "its system has crashed (guest-panicked)"
	case "suspended":
		return "its own system put it to sleep (suspended)"
	case "shutdown":
		return "its system has shut down, and its process is still there (shutdown)"
	default:
		return "QEMU says " + qmp
	}
}

// haltedFix says what to do about it. Such a machine is not resumed by itself: an error of a
// disk may come of a full storage, and what sleeps would go to sleep again.
func haltedFix(at view.GuestRef, qmp string) string {
	switch qmp {
	case "io-error":
		return fmt.Sprintf("it is not resumed by itself. See whether its storage is full or gone (`pvesm status` on node %s), fix that, then `qm resume %d`", at.Node, at.VMID)
	case "suspended":
		return fmt.Sprintf("it is not woken by itself, since it would go to sleep again. `qm resume %d` on node %s wakes it; the power settings of its system keep it awake", at.VMID, at.Node)
	case "internal-error", "guest-panicked", "shutdown":
		return fmt.Sprintf("check its console; `qm reset %d` on node %s restarts its system, and `qm stop %d` stops it", at.VMID, at.Node, at.VMID)
	default:
		return fmt.Sprintf("`qm status %d --verbose` on node %s shows more; a task that brought it there (a migration, a backup) may have died", at.VMID, at.Node)
	}
}

// unpause lets a paused machine run on.
func (d worker) unpause(ctx context.Context, at view.GuestRef) error {
	_, err := d.whenUnlocked(ctx, func() (string, error) { return d.API.Post(ctx, at.Path("status", "resume"), nil) })
	if err != nil {
		return fmt.Errorf("resuming %s: %w", at, err)
	}
	now, err := d.readPowerOf(ctx, at)
	switch {
	case err != nil:
		return fmt.Errorf("resuming %s: its task ended well, but whether it runs cannot be seen: %w", at, err)
	case !now.running:
		return fmt.Errorf("resuming %s: its task ended well, but it has stopped since: plan again", at)
	case now.qmp != "running" && now.qmp != "":
		return fmt.Errorf("resuming %s: it stands still again: %s; %s", at, haltedBy(now.qmp), haltedFix(at, now.qmp))
	default:
		return nil
	}
}
