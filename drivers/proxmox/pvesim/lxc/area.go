package lxc

import (
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/sections"
)

// Area is containers.
func Area() sections.Area {
	return sections.Area{
		Routes: map[string]core.Handler{
			"GET /nodes/{node}/lxc":                         apiNodeLXC,
			"POST /nodes/{node}/lxc":                        apiCreateLXC,
			"GET /nodes/{node}/lxc/{vmid}":                  apiLXCIndex,
			"DELETE /nodes/{node}/lxc/{vmid}":               apiDestroyLXC,
			"PUT /nodes/{node}/lxc/{vmid}/config":           apiSetLXCConfig,
			"PUT /nodes/{node}/lxc/{vmid}/resize":           apiResizeCT,
			"POST /nodes/{node}/lxc/{vmid}/clone":           apiCloneCT,
			"POST /nodes/{node}/lxc/{vmid}/template":        apiTemplateCT,
			"GET /nodes/{node}/lxc/{vmid}/interfaces":       apiLXCInterfaces,
			"GET /nodes/{node}/lxc/{vmid}/status":           apiLXCStatusIndex,
			"GET /nodes/{node}/lxc/{vmid}/status/current":   apiLXCCurrent,
			"POST /nodes/{node}/lxc/{vmid}/status/start":    APIStartCT,
			"POST /nodes/{node}/lxc/{vmid}/status/stop":     apiStopCT,
			"POST /nodes/{node}/lxc/{vmid}/status/shutdown": APIShutdownCT,
			"POST /nodes/{node}/lxc/{vmid}/status/reboot":   apiRebootCT,
			"GET /nodes/{node}/qemu/{vmid}/feature":         apiFeature,
			"GET /nodes/{node}/lxc/{vmid}/feature":          apiFeature,
			"POST /nodes/{node}/lxc/{vmid}/move_volume":     apiMoveVolume,
		},
		Begin: beginCTs,
	}
}
