// Package qemu implements VMs: creation and restore, clones, power, moving of disks, templates and removal.
package qemu

import "github.com/homestak/homestak-gitops/sim/pve/core"

// Areas returns the parts of the API of VMs.
func Areas() []core.Area {
	return []core.Area{agentArea(), commonArea(), configArea()}
}

// commonArea is the life of VMs.
func commonArea() core.Area {
	return core.Area{
		Routes: map[string]core.Handler{
			"POST /nodes/{node}/qemu":                        apiCreateVM,
			"POST /nodes/{node}/qemu/{vmid}/move_disk":       apiMoveDisk,
			"POST /nodes/{node}/qemu/{vmid}/clone":           apiCloneVM,
			"POST /nodes/{node}/qemu/{vmid}/status/start":    apiStart,
			"POST /nodes/{node}/qemu/{vmid}/status/stop":     apiStop,
			"POST /nodes/{node}/qemu/{vmid}/status/shutdown": apiShutdown,
			"POST /nodes/{node}/qemu/{vmid}/status/reboot":   apiReboot,
			"POST /nodes/{node}/qemu/{vmid}/status/reset":    core.On(runningOnly, apiReset),
			"POST /nodes/{node}/qemu/{vmid}/status/suspend":  suspend,
			"POST /nodes/{node}/qemu/{vmid}/status/resume":   apiResume,
		},
		Guests: map[string]core.GuestHandler{
			"DELETE /nodes/{node}/qemu/{vmid}":        apiDestroyVM,
			"POST /nodes/{node}/qemu/{vmid}/template": apiTemplate,
		},
		Begin: beginVMs,
	}
}

// configArea is the configurations of VMs.
func configArea() core.Area {
	return core.Area{
		Routes: map[string]core.Handler{
			"GET /nodes/{node}/qemu":                apiListVMs,
			"PUT /nodes/{node}/qemu/{vmid}/config":  apiSetConfig,
			"POST /nodes/{node}/qemu/{vmid}/config": apiUpdateConfig,
			"PUT /nodes/{node}/qemu/{vmid}/resize":  apiResize,
			"PUT /nodes/{node}/qemu/{vmid}/unlink":  apiUnlink,
			"PUT /nodes/{node}/qemu/{vmid}/sendkey": core.On(runningOnly, apiSendKey),
		},
		Guests: map[string]core.GuestHandler{
			"GET /nodes/{node}/qemu/{vmid}/cloudinit":      apiGetCloudinit,
			"PUT /nodes/{node}/qemu/{vmid}/cloudinit":      apiRegenerate,
			"GET /nodes/{node}/qemu/{vmid}/cloudinit/dump": apiCloudinitDump,
			"GET /nodes/{node}/qemu/{vmid}/status/current": apiCurrent,
			"POST /nodes/{node}/qemu/{vmid}/monitor":       apiMonitor,
		},
	}
}
