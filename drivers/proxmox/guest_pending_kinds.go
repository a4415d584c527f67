package proxmox

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/drives"
	"github.com/homestak/homestak-gitops/drivers/proxmox/options"
	"github.com/homestak/homestak-gitops/drivers/proxmox/property"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// What waits for a restart of a VM, and of a container: see guest_pending.go.

func (v vmState) as(cfg view.Config) state {
	return stateOf(observedVM(view.Listed{Running: v.Power == "running", Uptime: v.uptime}, cfg, v.Description, v.tag))
}

func (c ctState) as(cfg view.Config) state {
	return stateOf(observedCT(view.Listed{Running: c.Power == "running", LXC: true}, cfg, c.Description, c.tag))
}

func (v vmTarget) awaitsRestart(have state) bool {
	return have.(vmState).unread() || awaits(v, have)
}

func (c ctTarget) awaitsRestart(have state) bool { return awaits(c, have) }

// settable: a device of the node is for root@pam, also where it is to stay as it is; a
// protected machine lets no drive go (PVE/API2/Qemu.pm, $update_vm_api); a boot order
// names devices that are there; and what PVE itself derives of something declared stays.
func (v vmState) settable(key string) bool {
	c := v.observe
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

// settable: PVE asks of a revert what it asks of a deletion (PVE/LXC.pm,
// check_ct_modify_config_perm).
func (c ctState) settable(key string) bool {
	switch {
	case strings.TrimRight(key, "0123456789") == "dev" || key == "hookscript":
		return false
	case key == "features":
		others := slices.ContainsFunc(property.Flags(c.observe.Now[key]), func(f string) bool { return f != "nesting" })
		return c.Unprivileged && !others
	default:
		return true
	}
}

// sameValue compares what would be written with what is in force.
func (*VM) sameValue(key, want, have string) bool {
	if key == "boot" { // its order is its meaning
		return slices.Equal(options.BootDevices(want), options.BootDevices(have))
	}
	return options.VM().Same(key, want, have) || drives.HoldsState(key) && sameState(key, want, have) || isCD(key, have) && sameCD(key, want, have)
}

func (*CT) sameValue(key, want, have string) bool { return options.CT().Same(key, want, have) }

// takesBackData reports whether a change of a disk that is there only takes back what
// waits. Else it would move data, or grow what is large enough.
func takesBackData(want target, have state, path, slot string) bool {
	_, there := have.common().observe.Now[slot]
	return there && have.common().observe.WaitsFor(slot) && takesBack(want, have, path)
}

// revertOnly notes what of a step is only to be reverted, and gives the changes that are left:
// not those of what no file speaks of, nor of disks that differ by what waits alone.
func (c *change) revertOnly(want target, have state, s plan.Step) []plan.Change {
	unasked := map[string]string{} // path → key
	for _, key := range undeclared(want, have) {
		unasked[attributePath(have, key)] = key
	}
	return slices.DeleteFunc(slices.Clone(s.Changes), func(ch plan.Change) bool {
		if key := unasked[ch.Path]; key != "" {
			c.revert[key] = true
			return true
		}
		head, rest, _ := strings.Cut(ch.Path, ".")
		name, _, _ := strings.Cut(rest, ".")
		slot := c.from.tag.Slots["disk."+name]
		if head != "disk" || c.from.observe.Next[slot] == "" || !takesBackData(want, have, ch.Path, slot) {
			return false
		}
		c.revert[slot] = true
		return true
	})
}

// revertBeforeStop reverts what waits before a guest is stopped for a change: when PVE
// stops it, it brings into force what waits.
func (d worker) revertBeforeStop(ctx context.Context, s *plan.Step, ch *change) error {
	if len(ch.revert) == 0 {
		return nil
	}
	err := d.write(ctx, ch.lastSeen.at, writing{revert: ch.revert}, writing{}, s.Have, ch.from.observe)
	if err != nil {
		return err
	}
	ch.lastSeen.fresh = false
	if err := d.reread(ctx, &ch.lastSeen, ""); err != nil {
		return err
	}
	have, at := *s.Have, *s.Have.Guest
	at.Digest = ch.lastSeen.cfg.Digest
	next := stateOf(&have).as(ch.lastSeen.cfg)
	have.Spec, have.Private, have.Guest = next.spec(), next.common().observation, &at
	s.Have, ch.from.observe, ch.revert = &have, ch.lastSeen.cfg, map[string]bool{}
	return nil
}
