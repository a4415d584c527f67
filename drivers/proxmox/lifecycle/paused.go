package lifecycle

import (
	"context"
	"fmt"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
)

// Paused is QEMU's state of a machine after `qm suspend`, and the value of power in the plan. PVE
// lists it as running.
const Paused = "paused"

// HaltReason explains why a machine is halted.
func HaltReason(qmp string) string {
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

// HaltFix says what to do about it. Such a machine is not resumed automatically: the cause of a
// disk error may be a full storage, and a sleeping machine would go to sleep again.
func HaltFix(at api.GuestRef, qmp string) string {
	switch qmp {
	case "io-error":
		return fmt.Sprintf("it is not resumed automatically. See whether its storage is full or gone (`pvesm status` on node %s), fix that, then `qm resume %d`", at.Node, at.VMID)
	case "suspended":
		return fmt.Sprintf("it is not woken automatically, because it would go to sleep again. `qm resume %d` on node %s wakes it; the power settings of its system keep it awake", at.VMID, at.Node)
	case "internal-error", "guest-panicked", "shutdown":
		return fmt.Sprintf("check its console; `qm reset %d` on node %s restarts its system, and `qm stop %d` stops it", at.VMID, at.Node, at.VMID)
	default:
		return fmt.Sprintf("`qm status %d --verbose` on node %s shows more; a task that brought it there (a migration, a backup) may have died", at.VMID, at.Node)
	}
}

// Unpause resumes a paused machine.
func (g Guest) Unpause(ctx context.Context) error {
	_, err := g.whenUnlocked(ctx, func() (string, error) { return g.Host.API.Post(ctx, g.Ref.Path("status", "resume"), nil) })
	if err != nil {
		return fmt.Errorf("resuming %s: %w", g.Ref, err)
	}
	now, err := g.State(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("resuming %s: its task succeeded, but the check whether it runs failed: %w", g.Ref, err)
	case !now.Running:
		return fmt.Errorf("resuming %s: its task succeeded, but it has stopped since: plan again", g.Ref)
	case now.QMP != "running" && now.QMP != "":
		return fmt.Errorf("resuming %s: it is paused again: %s; %s", g.Ref, HaltReason(now.QMP), HaltFix(g.Ref, now.QMP))
	default:
		return nil
	}
}
