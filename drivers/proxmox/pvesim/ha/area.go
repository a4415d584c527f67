// Package ha is the manager of high availability. Who manages a guest decides whether it
// runs: a call that starts or stops a managed guest files a request only, the manager acts
// every ten seconds.
package ha

import (
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/sections"
)

// Area is the HA manager.
func Area() sections.Area {
	return sections.Area{
		Routes: map[string]core.Handler{
			"GET /cluster/ha/status/current":            apiHAStatus,
			"GET /cluster/ha/resources":                 apiHAResources,
			"POST /cluster/ha/resources":                apiCreateHAResource,
			"GET /cluster/ha/resources/{sid}":           apiHAResource,
			"PUT /cluster/ha/resources/{sid}":           apiUpdateHAResource,
			"DELETE /cluster/ha/resources/{sid}":        apiDeleteHAResource,
			"POST /cluster/ha/resources/{sid}/migrate":  apiMoveHAResource,
			"POST /cluster/ha/resources/{sid}/relocate": apiMoveHAResource,
			"GET /cluster/ha/groups":                    apiHAGroups,
			"POST /cluster/ha/groups":                   apiCreateHAGroup,
			"GET /cluster/ha/groups/{group}":            apiHAGroup,
			"PUT /cluster/ha/groups/{group}":            apiUpdateHAGroup,
			"DELETE /cluster/ha/groups/{group}":         apiDeleteHAGroup,
			"GET /cluster/ha/rules":                     apiHARules,
			"POST /cluster/ha/rules":                    apiCreateHARule,
			"GET /cluster/ha/rules/{rule}":              apiHARule,
			"PUT /cluster/ha/rules/{rule}":              apiUpdateHARule,
			"DELETE /cluster/ha/rules/{rule}":           apiDeleteHARule,
			"GET /cluster/ha/status/manager_status":     apiHAManager,
		},
		Begin: beginHA,
	}
}
