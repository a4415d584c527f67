package spec

import (
	"fmt"

	"github.com/homestak/homestak-gitops/engine/model"
)

// pve resolves what a host of Proxmox VE needs.
func (r *resolver) pve(node *model.Node) {
	if r.declared.Config == nil || r.declared.Config.PVE == nil {
		return
	}
	if node.Type == container {
		r.errorAt("config.pve", fmt.Sprintf("node %s is a container, and cannot be a host of Proxmox VE", node.Name), "Take config { pve } out of its spec, or make it a node of type pve.")
	}
	p := r.declared.Config.PVE
	r.out.Config.PVE = &PVE{NoSubscription: p.NoSubscription, RemoveSubscriptionNag: p.RemoveSubscriptionNag, Bridge: p.Bridge, Restart: p.Restart}
	r.out.Identity.Routable = true
	if p.Bridge != "" { // ifupdown needs it for bridges, and Proxmox VE does not work with it
		r.extra = append(r.extra, "ifupdown2")
	}
}
