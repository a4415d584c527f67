// Package guestagent is the guest agent of VMs: it answers what a small Linux would, keeps
// files that were written, and runs a few programs.
package guestagent

import (
	"maps"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/sections"
)

// Area is the guest agent of VMs.
func Area() sections.Area {
	routes := agentRoutes()
	maps.Copy(routes, map[string]core.Handler{
		"POST /nodes/{node}/qemu/{vmid}/agent":                   apiAgentCommand,
		"POST /nodes/{node}/qemu/{vmid}/agent/exec":              apiAgentExec,
		"GET /nodes/{node}/qemu/{vmid}/agent/exec-status":        apiAgentExecStatus,
		"GET /nodes/{node}/qemu/{vmid}/agent/file-read":          apiAgentRead,
		"POST /nodes/{node}/qemu/{vmid}/agent/file-write":        apiAgentWrite,
		"POST /nodes/{node}/qemu/{vmid}/agent/set-user-password": apiAgentPassword,
	})
	return sections.Area{
		Routes: routes,
	}
}
