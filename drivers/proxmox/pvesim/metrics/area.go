// Package metrics is servers for metrics, and the history of figures that a host shows.
package metrics

import (
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/sections"
)

// Area is metrics and their history.
func Area() sections.Area {
	return sections.Area{
		Routes: map[string]core.Handler{
			"GET /nodes/{node}/rrd":                       apiGraph,
			"GET /nodes/{node}/rrddata":                   apiNodeSeries,
			"GET /nodes/{node}/{qemu|lxc}/{vmid}/rrd":     apiGraph,
			"GET /nodes/{node}/{qemu|lxc}/{vmid}/rrddata": apiGuestSeries,
			"GET /nodes/{node}/storage/{storage}/rrd":     apiGraph,
			"GET /nodes/{node}/storage/{storage}/rrddata": apiStorageSeries,
		},
		Files: metricFiles(),
		Calls: metricCalls(),
	}
}
