package pvesim

// areaNetwork is the interfaces of nodes and what guests are plugged into.
func areaNetwork() area {
	return area{
		routes: map[string]handler{
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
