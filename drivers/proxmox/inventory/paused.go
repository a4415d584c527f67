package inventory

import (
	"context"
	"fmt"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/power"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// findPaused finds managed VMs that have a process but do not execute. The cluster's list shows
// them, at most ten seconds late, since pvestatd broadcasts QEMU's status (pve-manager,
// PVE/Service/pvestatd.pm, update_qemu_status). Only such a VM costs a request.
//
// A paused VM is to be resumed. An error inside (io-error, internal-error, guest-panicked) and a
// guest that suspended itself are only reported. If the configuration is locked, a backup or a
// migration is running, which will end the pause.
func (d finder) findPaused(ctx context.Context, obs *kind.Observation, out *model.Observed) error {
	for _, addr := range out.State.Addresses() {
		r := out.State[addr]
		if r.Guest == nil || obs.Guests[r.Guest.VMID].QMP == "" {
			continue
		}
		now, err := power.Of(d.Host, view.RefOf(r)).State(ctx)
		switch {
		case api.EndsPass(ctx, err):
			return err
		case err != nil || !now.Running:
			continue
		}
		have := guest.StateOf(r)
		if have == nil {
			continue
		}
		locked := r.Guest.Lock != ""
		switch at := view.RefOf(r); {
		case now.QMP == "running", now.QMP == "":
		case locked && now.QMP == "prelaunch": // a backup has started its process, not the VM (pve-manager, VZDump/QemuServer.pm)
			have.SetPower("stopped")
		case locked:
		case now.QMP == power.Paused, now.QMP == "prelaunch":
			have.SetPower(power.Paused)
		default:
			out.Findings = append(out.Findings, guest.Finding(diag.Warning, addr, fmt.Sprintf("%s does not run: %s", addr, power.HaltReason(now.QMP)), power.HaltFix(at, now.QMP)))
		}
	}
	return nil
}
