package guests

import (
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/sections"
)

// Area is what VMs and containers have in common.
func Area() sections.Area {
	return sections.Area{
		Routes: map[string]core.Handler{
			"GET /nodes/{node}/lxc/{vmid}/config":                      apiGetConfig,
			"GET /nodes/{node}/lxc/{vmid}/pending":                     apiPending,
			"GET /nodes/{node}/lxc/{vmid}/snapshot":                    apiSnapshots,
			"POST /nodes/{node}/lxc/{vmid}/snapshot":                   apiCreateSnapshot,
			"GET /nodes/{node}/lxc/{vmid}/snapshot/{snapname}":         apiSnapshotIndex,
			"GET /nodes/{node}/lxc/{vmid}/snapshot/{snapname}/config":  apiSnapshotConfig,
			"PUT /nodes/{node}/lxc/{vmid}/snapshot/{snapname}/config":  apiSetSnapshot,
			"GET /nodes/{node}/qemu/{vmid}/snapshot":                   apiSnapshots,
			"POST /nodes/{node}/qemu/{vmid}/snapshot":                  apiCreateSnapshot,
			"GET /nodes/{node}/qemu/{vmid}/snapshot/{snapname}":        apiSnapshotIndex,
			"GET /nodes/{node}/qemu/{vmid}/snapshot/{snapname}/config": apiSnapshotConfig,
			"PUT /nodes/{node}/qemu/{vmid}/snapshot/{snapname}/config": apiSetSnapshot,
			"GET /nodes/{node}/qemu/{vmid}/config":                     apiGetConfig,
			"GET /nodes/{node}/qemu/{vmid}/pending":                    apiPending,
		},
		Begin: beginSamples,
	}
}
