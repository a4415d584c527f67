// Package guests has what VMs and containers have in common: reading configurations, starting and ending processes,
// volumes, snapshots, and status daemons. Packages qemu and lxc are built on it.
package guests

import "github.com/homestak/homestak-gitops/sim/pve/core"

// Areas returns the parts of the API that VMs and containers share.
func Areas() []core.Area {
	return []core.Area{commonArea(), bridgeArea()}
}

// commonArea returns what VMs and containers share.
func commonArea() core.Area {
	return core.Area{
		Routes: map[string]core.Handler{
			"POST /nodes/{node}/{qemu|lxc}/{vmid}/snapshot":                  apiCreateSnapshot,
			"PUT /nodes/{node}/{qemu|lxc}/{vmid}/snapshot/{snapname}/config": apiSetSnapshot,
			"GET /nodes/{node}/{qemu|lxc}/{vmid}/config":                     apiGetConfig,
		},
		Guests: map[string]core.GuestHandler{
			"GET /nodes/{node}/{qemu|lxc}/{vmid}/snapshot":                   apiSnapshots,
			"GET /nodes/{node}/{qemu|lxc}/{vmid}/snapshot/{snapname}/config": apiSnapshotConfig,
			"GET /nodes/{node}/{qemu|lxc}/{vmid}/pending":                    apiPending,
		},
		Begin: beginSamples,
	}
}

// bridgeArea returns the interfaces of a node, and what guests are plugged into.
func bridgeArea() core.Area {
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
