package pvesim

// areaGuests is what VMs and containers have in common.
func areaGuests() area {
	return area{
		routes: map[string]handler{
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
		begin: beginSamples,
	}
}
