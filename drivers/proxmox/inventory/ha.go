package inventory

import (
	"fmt"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/power"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/model"
)

// haTarget says to which power the HA manager is bringing a guest that has another one
// now: true for running. Its states are those of its own status, and may be ten
// seconds old (PVE/HA/Manager.pm).
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

// deferToHA counts a guest that the HA manager is just bringing to where the files
// want it as there already, and says so: a start beside the manager's own would be a
// fight. Where the files want something else, what runs now is what counts, and the
// step goes through the manager.
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
	case r.Guest.HA == "error": // a start would be refused, so no step claims to do it
		c.warn(r.Addr, fmt.Sprintf("%s does not run", r.Addr), power.HAError(at))
	case running:
		c.warn(r.Addr, fmt.Sprintf("%s does not run: that is left to the HA manager, which has it (state %s)", r.Addr, r.Guest.HA),
			"if it stays so, `ha-manager status` on a node shows why")
	default:
		c.warn(r.Addr, fmt.Sprintf("%s still runs: that is left to the HA manager, which is stopping it", r.Addr),
			"if it stays so, `ha-manager status` on a node shows why")
	}
}
