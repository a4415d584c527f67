package pvesim

// areaQemuconf is the configurations of VMs.
func areaQemuconf() area {
	return area{
		routes: map[string]handler{
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
