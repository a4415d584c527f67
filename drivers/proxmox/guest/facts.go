package guest

import (
	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/lifecycle"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Facts are read of a managed guest in addition to its configuration, each only if it may matter. Package
// inventory reads them, and they are immutable afterwards: the comparison for the plan draws the conclusions.
type Facts struct {
	// Lock is the lock of the guest as it was read; nil if it has none, or more is not known of it.
	Lock *Lock
	// QMP is QEMU's status of a VM that has a process and does not execute; "" if it does, or nothing suggests that it does not.
	QMP string
	// UselessRestart says why the last restarts speak against another one now; "" if they do not, or none is due.
	UselessRestart string
	// Snapshots names a snapshot for each volume that snapshots contain. It is read only where a volume is to be
	// moved or removed.
	Snapshots map[string]string
	// Reported says that a guest in mode pull has reported to its parent, so its first boot is over.
	Reported bool
}

// Lock is PVE's lock on the configuration of a guest.
type Lock struct {
	Value     string   // what locked it; "" if the lock ended while it was read
	Tasks     []string // that work on the guest, as far as the token may see them
	Ours      bool     // this token started one of them
	NotListed bool     // the tasks could not be listed
}

// AddedTo is an observed guest, or a template that is one, with what was read of it beside its configuration.
func (f Facts) AddedTo(r *model.Resource) *model.Resource {
	out, g := *r, *r.Guest
	out.Guest = &g
	if f.Lock != nil {
		g.Lock = f.Lock.Value
		f.Lock.apply(&g, api.RefOf(r))
	}
	have := StateOf(r)
	if have == nil {
		return &out
	}
	if p := f.power(g.Lock != ""); p != "" {
		out.Spec = have.WithPower(p).Spec()
	}
	seen := *have.Observed()
	seen.Facts = f
	out.Private = &seen
	return &out
}

// apply notes what can be done to a guest with the lock. A step waits for tasks of this token, and a hibernated guest
// can only be started.
func (l *Lock) apply(g *model.Guest, at api.GuestRef) {
	switch {
	case l.Value == "":
		return
	case l.Value != "suspended" && !l.Ours:
		g.Locked = lifecycle.LockText(at, l.Value, l.Tasks)
	case l.Value == "suspended" && !g.Running:
		g.Hibernated = lifecycle.LockText(at, l.Value, nil)
	}
	g.LockLeft = !l.NotListed && len(l.Tasks) == 0
}

// power is the power of a VM that has a process and does not execute; "" if that is what PVE lists. A paused VM is to
// be resumed. An error inside (io-error, internal-error, guest-panicked) and a guest that suspended itself are only
// reported. If the configuration is locked, a backup or a migration is running, which will end the pause.
func (f Facts) power(locked bool) string {
	switch {
	case locked && f.QMP == "prelaunch": // a backup has started its process, not the VM (pve-manager, VZDump/QemuServer.pm)
		return "stopped"
	case !locked && (f.QMP == lifecycle.Paused || f.QMP == "prelaunch"):
		return lifecycle.Paused
	default:
		return ""
	}
}

// halted reports whether the VM stands still for a reason that people have to see to.
func (f Facts) halted(locked bool) bool {
	return !locked && f.power(false) == "" && f.QMP != "running" && f.QMP != ""
}

// haPower is the power that the HA manager is bringing a guest to, if the files want that one; else "". It counts as
// there already: a start would compete with the manager's own. If the files want something else, the present power
// counts, and the step goes through the manager. The state of the HA manager may be ten seconds old
// (PVE/HA/Manager.pm).
func haPower(want, have *model.Resource) string {
	if want == nil || have.Guest == nil {
		return ""
	}
	aim, g := "stopped", have.Guest
	switch {
	case g.HA == "" || g.HA == "ignored" || g.HA == "stopped" || g.HA == "disabled":
		return ""
	case g.Running == (g.HA != "request_stop"):
		return ""
	case !g.Running:
		aim = "running"
	}
	if w := TargetOf(want); w == nil || w.Common().Power != aim {
		return ""
	}
	return aim
}

// stateFor is the state of an observed guest as it counts for what is wanted, see haPower.
func stateFor(want, have *model.Resource) State {
	h := StateOf(have)
	if aim := haPower(want, have); aim != "" {
		return h.WithPower(aim)
	}
	return h
}
