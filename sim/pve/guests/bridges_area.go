package guests

// This part of the package is what a node has of network interfaces, planned ones too, and what the network
// devices of guests are plugged into.

import "github.com/homestak/homestak-gitops/sim/pve/core"

// BridgeArea is what a node has of interfaces, and what guests are plugged into.
func BridgeArea() core.Area {
	return core.Area{
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
