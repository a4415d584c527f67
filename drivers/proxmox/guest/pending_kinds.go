package guest

import (
	"cmp"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/drives"
	"github.com/homestak/homestak-gitops/drivers/proxmox/options"
	"github.com/homestak/homestak-gitops/drivers/proxmox/property"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
)

// What waits for a restart of a VM, and of a container: see guest_pending.go.

// WithConfig is as State has it.
func (v VMState) WithConfig(cfg view.Config) State {
	return StateOf(vmFromConfig(view.Listed{Running: v.Power == "running", Uptime: v.uptime}, cfg, v.Description, v.Tag))
}

// WithConfig is as State has it.
func (c CTState) WithConfig(cfg view.Config) State {
	return StateOf(ctFromConfig(view.Listed{Running: c.Power == "running", LXC: true}, cfg, c.Description, c.Tag))
}

// RestartHelps is as Target has it.
func (v VMTarget) RestartHelps(have State) bool {
	return have.(VMState).cloudInitPending() || restartHelps(v, have)
}

// RestartHelps is as Target has it.
func (c CTTarget) RestartHelps(have State) bool { return restartHelps(c, have) }

// Revertible is as State has it. A device of the node is for root@pam, also where it is to stay as it is; a
// protected machine lets no drive go (PVE/API2/Qemu.pm, $update_vm_api); a boot order
// names devices that are there; and what PVE itself derives of something declared stays.
func (v VMState) Revertible(key string) bool {
	c := v.Config
	now, there := c.Now[key]
	if options.HostDevice(key, now) != "" || options.HostDevice(key, c.Next[key]) != "" {
		return false
	}
	switch {
	case drives.IsDrive(key):
		return there || c.Now["protection"] != "1"
	case key == "boot":
		return !slices.ContainsFunc(options.BootDevices(now), func(dev string) bool { return c.Current(dev) == "" })
	case key == "machine": // of Windows PVE pins it when that is declared
		return !strings.HasPrefix(c.Next["ostype"], "w") || !samePinned(cmp.Or(now, "pc"), c.Next[key])
	case key == "bootdisk": // goes where a boot order is set
		return len(options.BootDevices(c.Next["boot"])) == 0
	default:
		return true
	}
}

// Revertible is as State has it. PVE asks of a revert what it asks of a deletion (PVE/LXC.pm,
// check_ct_modify_config_perm).
func (c CTState) Revertible(key string) bool {
	switch {
	case strings.TrimRight(key, "0123456789") == "dev" || key == "hookscript":
		return false
	case key == "features":
		others := slices.ContainsFunc(property.Flags(c.Config.Now[key]), func(f string) bool { return f != "nesting" })
		return c.Unprivileged && !others
	default:
		return true
	}
}

// SameValue compares what would be written with what is in force.
func (*VM) SameValue(key, want, have string) bool {
	if key == "boot" { // its order is its meaning
		return slices.Equal(options.BootDevices(want), options.BootDevices(have))
	}
	return options.VM().Same(key, want, have) || drives.HoldsState(key) && sameState(key, want, have) || IsCD(key, have) && sameCD(key, want, have)
}

// SameValue compares what would be written with what is in force.
func (*CT) SameValue(key, want, have string) bool { return options.CT().Same(key, want, have) }

// IsVolumeRevert reports whether a change of a disk that is there only takes back what
// waits. Else it would move data, or grow what is large enough.
func IsVolumeRevert(want Target, have State, path, slot string) bool {
	cfg := have.Observed().Config
	_, there := cfg.Now[slot]
	return there && cfg.WaitsFor(slot) && IsRevert(want, have, path)
}
