// Package cluster implements the cluster: its status, options and log, its tasks, its nodes, mappings of devices;
// and the guests that a host had before.
package cluster

import (
	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
)

// Areas returns the parts of the API of a cluster.
func Areas() []core.Area {
	return []core.Area{commonArea(), firewallArea(), haArea(), metricArea(), notificationArea(), sdnArea()}
}

// commonArea is the cluster as a whole.
func commonArea() core.Area {
	return core.Area{
		Routes: map[string]core.Handler{
			"GET /version":                          apiVersion,
			"GET /cluster/resources":                guests.APIResources,
			"GET /cluster/status":                   apiClusterStatus,
			"GET /cluster/nextid":                   apiNextID,
			"GET /cluster/tasks":                    apiClusterTasks,
			"GET /cluster/options":                  apiOptions,
			"GET /nodes":                            apiNodes,
			"GET /nodes/{node}/version":             apiVersion,
			"GET /nodes/{node}/status":              apiNodeStatus,
			"GET /nodes/{node}/tasks":               apiNodeTasks,
			"DELETE /nodes/{node}/tasks/{upid}":     apiTaskStop,
			"GET /nodes/{node}/tasks/{upid}/status": apiTaskStatus,
			"GET /nodes/{node}/tasks/{upid}/log":    apiTaskLog,
			"PUT /cluster/options":                  apiSetOptions,
			"GET /cluster/log":                      apiClusterLog,
			"GET /cluster/config/nodes":             apiClusterNodes,
			"GET /cluster/config/join":              apiJoinInfo,
			"GET /cluster/firewall/macros":          apiMacros,
		},
		Files: mappingFiles(),
	}
}
