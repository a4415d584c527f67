// Package replication keeps replication jobs and when they ran. No data moves.
package replication

import (
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/sections"
)

// Area is replication jobs.
func Area() sections.Area {
	return sections.Area{
		Routes: map[string]core.Handler{
			"GET /cluster/replication":         apiReplications,
			"POST /cluster/replication":        apiCreateReplication,
			"GET /cluster/replication/{id}":    apiReplicationJob,
			"PUT /cluster/replication/{id}":    apiSetReplicationJob,
			"DELETE /cluster/replication/{id}": apiDropReplicationJob,
		},
		Calls: replicationCalls(),
	}
}
