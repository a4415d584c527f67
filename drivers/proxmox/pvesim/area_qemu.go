package pvesim

// areaQemu is the life of VMs.
func areaQemu() area {
	return area{
		routes: map[string]handler{
			"POST /nodes/{node}/qemu":                        apiCreateVM,
			"DELETE /nodes/{node}/qemu/{vmid}":               apiDestroyVM,
			"POST /nodes/{node}/qemu/{vmid}/move_disk":       apiMoveDisk,
			"POST /nodes/{node}/qemu/{vmid}/clone":           apiCloneVM,
			"POST /nodes/{node}/qemu/{vmid}/template":        apiTemplate,
			"POST /nodes/{node}/qemu/{vmid}/status/start":    apiStart,
			"POST /nodes/{node}/qemu/{vmid}/status/stop":     apiStop,
			"POST /nodes/{node}/qemu/{vmid}/status/shutdown": apiShutdown,
			"POST /nodes/{node}/qemu/{vmid}/status/reboot":   apiReboot,
			"POST /nodes/{node}/qemu/{vmid}/status/reset":    apiReset,
			"POST /nodes/{node}/qemu/{vmid}/status/suspend":  apiSuspend,
			"POST /nodes/{node}/qemu/{vmid}/status/resume":   apiResume,
		},
		begin: beginVMs,
	}
}
