package pvesim

// areaMetrics is metrics and their history.
func areaMetrics() area {
	return area{
		routes: map[string]handler{
			"GET /nodes/{node}/rrd":                       apiGraph,
			"GET /nodes/{node}/rrddata":                   apiNodeSeries,
			"GET /nodes/{node}/qemu/{vmid}/rrd":           apiGraph,
			"GET /nodes/{node}/qemu/{vmid}/rrddata":       apiGuestSeries,
			"GET /nodes/{node}/lxc/{vmid}/rrd":            apiGraph,
			"GET /nodes/{node}/lxc/{vmid}/rrddata":        apiGuestSeries,
			"GET /nodes/{node}/storage/{storage}/rrd":     apiGraph,
			"GET /nodes/{node}/storage/{storage}/rrddata": apiStorageSeries,
		},
		files: metricFiles(),
		calls: metricCalls(),
	}
}
