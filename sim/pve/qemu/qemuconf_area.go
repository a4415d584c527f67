package qemu

// This part of the package is the configuration of VMs: checks, privileges, volumes that an option makes,
// pending changes, what is plugged in at once, and cloud-init.

import "github.com/homestak/homestak-gitops/sim/pve/core"

// ConfigArea is the configurations of VMs.
func ConfigArea() core.Area {
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
