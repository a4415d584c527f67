package qemuconf

import (
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/sections"
)

// Area is the configurations of VMs.
func Area() sections.Area {
	return sections.Area{
		Routes: map[string]core.Handler{
			"GET /nodes/{node}/qemu":                       apiListVMs,
			"GET /nodes/{node}/qemu/{vmid}":                apiVMIndex,
			"PUT /nodes/{node}/qemu/{vmid}/config":         apiSetConfig,
			"POST /nodes/{node}/qemu/{vmid}/config":        apiUpdateConfig,
			"GET /nodes/{node}/qemu/{vmid}/cloudinit":      apiGetCloudinit,
			"PUT /nodes/{node}/qemu/{vmid}/cloudinit":      apiRegenerate,
			"GET /nodes/{node}/qemu/{vmid}/cloudinit/dump": apiCloudinitDump,
			"PUT /nodes/{node}/qemu/{vmid}/resize":         apiResize,
			"PUT /nodes/{node}/qemu/{vmid}/unlink":         apiUnlink,
			"GET /nodes/{node}/qemu/{vmid}/status":         apiVMStatusIndex,
			"GET /nodes/{node}/qemu/{vmid}/status/current": apiCurrent,
		},
	}
}
