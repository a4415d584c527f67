package pvesim

import "maps"

// areaGuestagent is the guest agent of VMs.
func areaGuestagent() area {
	routes := agentRoutes()
	maps.Copy(routes, map[string]handler{
		"GET /nodes/{node}/qemu/{vmid}/agent":                    apiAgentIndex,
		"POST /nodes/{node}/qemu/{vmid}/agent":                   apiAgentCommand,
		"POST /nodes/{node}/qemu/{vmid}/agent/exec":              apiAgentExec,
		"GET /nodes/{node}/qemu/{vmid}/agent/exec-status":        apiAgentExecStatus,
		"GET /nodes/{node}/qemu/{vmid}/agent/file-read":          apiAgentRead,
		"POST /nodes/{node}/qemu/{vmid}/agent/file-write":        apiAgentWrite,
		"POST /nodes/{node}/qemu/{vmid}/agent/set-user-password": apiAgentPassword,
	})
	return area{
		routes: routes,
	}
}
