package guest

import (
	"cmp"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/engine/model"
)

// WithConfig implements State.
func (v VMState) WithConfig(cfg api.GuestConfig) State {
	out := StateOf(vmFromConfig(api.ListedGuest{Running: v.Power == "running", Uptime: v.uptime}, cfg, v.Description, v.Tag))
	out.Observed().Facts = v.Facts
	return out
}

// pending implements State.
func (v VMState) pending(addr model.Address, runs bool) []model.Pending {
	out := []model.Pending{}
	if runs && v.cloudInitPending() {
		out = append(out, model.Pending{Address: addr, Path: "cloud-init", Why: "written; " + cloudInitAgain, Before: "as at the last boot", After: "as declared"})
	}
	return append(out, pendingKeys(v.Config, addr, func(key string) string { return AttributePath(v, key) }, func(key string) string { return revertHint(v, "qm", key) }, "sshkeys", "cipassword")...)
}

// RestartHelps implements Target. A restart also lets cloud-init read its changed documents.
func (v VMTarget) RestartHelps(have State) bool {
	return have.(VMState).cloudInitPending() || restartHelps(v, have)
}

// Revertible implements State. Only root@pam may write a device of the node, even with the same
// value. A protected VM keeps its drives (PVE/API2/Qemu.pm, $update_vm_api). A boot order may only
// name devices that exist. What PVE derives from something declared stays.
func (v VMState) Revertible(key string) bool {
	c := v.Config
	now, there := c.Now[key]
	if HostDevice(key, now) != "" || HostDevice(key, c.Next[key]) != "" {
		return false
	}
	switch {
	case api.IsDrive(key):
		return there || c.Now["protection"] != "1"
	case key == "boot":
		return !slices.ContainsFunc(BootDevices(now), func(dev string) bool { return c.Current(dev) == "" })
	case key == "machine": // PVE pins it for Windows
		return !strings.HasPrefix(c.Next["ostype"], "w") || !samePinned(cmp.Or(now, "pc"), c.Next[key])
	case key == "bootdisk": // PVE deletes it when a boot order is set
		return len(BootDevices(c.Next["boot"])) == 0
	default:
		return true
	}
}
