// Package bridges is what a node has of network interfaces, planned ones too, and what the
// network devices of guests are plugged into.
package bridges

import (
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/sections"
)

// Area is what a node has of interfaces, and what guests are plugged into.
func Area() sections.Area {
	return sections.Area{
		Routes: map[string]core.Handler{
			"GET /nodes/{node}/network":            apiNetworks,
			"GET /nodes/{node}/network/{iface}":    apiNetwork,
			"POST /nodes/{node}/network":           apiSetNetwork,
			"PUT /nodes/{node}/network":            apiReloadNetwork,
			"DELETE /nodes/{node}/network":         apiRevertNetwork,
			"PUT /nodes/{node}/network/{iface}":    apiSetNetwork,
			"DELETE /nodes/{node}/network/{iface}": apiSetNetwork,
		},
	}
}
