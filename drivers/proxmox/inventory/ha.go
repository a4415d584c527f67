package inventory

import (
	"fmt"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/power"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/model"
)

// haTarget is the power that the HA manager is bringing a guest to; moving is false if the guest
// has it. The state of the HA manager may be ten seconds old (PVE/HA/Manager.pm).
func haTarget(g *model.Guest) (running, moving bool) {
	switch {
	case g.HA == "" || g.HA == "ignored" || g.HA == "stopped" || g.HA == "disabled":
		return false, false
	case g.Running:
		return false, g.HA == "request_stop"
	default:
		return true, g.HA != "request_stop"
	}
}

// deferToHA counts a guest that the HA manager is bringing to the wanted power as there already,
// and reports it: a start would compete with the manager's own. If the files want something else,
// the present power counts, and the step goes through the manager.
func (c *classifier) deferToHA(r *model.Resource) {
	running, moving := haTarget(r.Guest)
	aim := "stopped"
	if running {
		aim = "running"
	}
	have := guest.StateOf(r)
	w := c.want.State[r.Addr]
	if have == nil || !moving || w == nil {
		return
	}
	if wanted := guest.TargetOf(w); wanted == nil || wanted.Common().Power != aim {
		return
	}
	have.SetPower(aim)
	at := view.RefOf(r)
	switch {
	case r.Guest.HA == "error": // PVE would refuse a start, so no step is planned
		c.warn(r.Addr, fmt.Sprintf("%s does not run", r.Addr), power.HAError(at))
	case running:
		c.warn(r.Addr, fmt.Sprintf("%s does not run: that is left to the HA manager, which has it (state %s)", r.Addr, r.Guest.HA),
			"if it stays so, `ha-manager status` on a node shows why")
	default:
		c.warn(r.Addr, fmt.Sprintf("%s still runs: that is left to the HA manager, which is stopping it", r.Addr),
			"if it stays so, `ha-manager status` on a node shows why")
	}
}
