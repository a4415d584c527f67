package inventory

import (
	"fmt"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/power"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/diag"
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

// checkNode warns of a guest that stands on a node of the cluster which the host
// does not name. It stays ours and stays there: nothing is moved by itself.
func (c *classifier) checkNode(r *model.Resource) {
	h := c.want.Host
	if h == nil {
		return
	}
	if nodes := h.AllNodes(); !slices.Contains(nodes, r.Guest.Node) {
		c.warn(r.Addr, fmt.Sprintf("%s is on node %s, which is none of host %s (%s): it is kept up there", r.Addr, r.Guest.Node, h.Name, strings.Join(nodes, ", ")),
			"add the node to nodes of the host, or migrate the guest back")
	}
}

func (c *classifier) warn(addr model.Address, summary, detail string) {
	c.out.Findings = append(c.out.Findings, guest.Finding(diag.Warning, addr, summary, detail))
}

// convertedByHand is a guest of ours that somebody made a template: it cannot be made a
// machine again, and copies may live on its disks.
func convertedByHand(g view.Listed, name string, addr model.Address) model.Unmanaged {
	return model.Unmanaged{
		VMID: g.VMID, Name: name, Kind: g.Kind(), Node: g.Node, Claims: addr,
		Why: "was " + addr.String() + " until somebody converted it to a template",
		Fix: fmt.Sprintf("clone it back by hand, or remove template %d (its linked clones first) so that %s is recreated", g.VMID, addr),
	}
}
