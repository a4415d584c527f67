// Package host implements users and permissions, and storages with their volumes.
package host

import (
	"github.com/homestak/homestak-gitops/sim/pve/core"
)

// Areas returns the parts of the API of one host.
func Areas() []core.Area {
	return []core.Area{accessArea(), storageArea()}
}

// accessArea is users, groups, roles, realms, tickets and pools.
func accessArea() core.Area {
	return core.Area{Routes: map[string]core.Handler{
		"GET /access/ticket":                            apiGetTicket,
		"POST /access/ticket":                           apiCreateTicket,
		"GET /access/domains":                           apiDomains,
		"GET /access/permissions":                       apiPermissions,
		"GET /access/users":                             apiUsers,
		"POST /access/users":                            apiCreateUser,
		"GET /access/users/{userid}":                    core.On(userOfCall, apiGetUser),
		"PUT /access/users/{userid}":                    core.On(userOfCall, apiUpdateUser),
		"DELETE /access/users/{userid}":                 core.On(userOfCall, apiDeleteUser),
		"GET /access/users/{userid}/token":              core.On(userOfCall, apiTokens),
		"GET /access/users/{userid}/token/{tokenid}":    core.On(tokenOfCall, apiGetToken),
		"POST /access/users/{userid}/token/{tokenid}":   core.On(userOfCall, apiCreateToken),
		"PUT /access/users/{userid}/token/{tokenid}":    core.On(tokenOfCall, apiUpdateToken),
		"DELETE /access/users/{userid}/token/{tokenid}": core.On(tokenOfCall, apiDeleteToken),
		"GET /access/groups":                            apiGroups,
		"POST /access/groups":                           locked("create group failed", apiCreateGroup),
		"GET /access/groups/{groupid}":                  apiGetGroup,
		"PUT /access/groups/{groupid}":                  locked("update group failed", apiUpdateGroup),
		"DELETE /access/groups/{groupid}":               locked("delete group failed", apiDeleteGroup),
		"GET /access/roles":                             apiRoles,
		"POST /access/roles":                            apiCreateRole,
		"GET /access/roles/{roleid}":                    apiGetRole,
		"PUT /access/roles/{roleid}":                    apiUpdateRole,
		"DELETE /access/roles/{roleid}":                 apiDeleteRole,
		"GET /access/acl":                               apiGetACL,
		"PUT /access/acl":                               apiUpdateACL,
		"GET /pools":                                    apiPools,
		"POST /pools":                                   locked("create pool failed", apiCreatePool),
		"PUT /pools":                                    locked("update pools failed", apiUpdatePool),
		"DELETE /pools":                                 locked("delete pool failed", apiDeletePool),
		"GET /pools/{poolid}":                           apiPool,
		"PUT /pools/{poolid}":                           locked("update pools failed", apiUpdatePool),
		"DELETE /pools/{poolid}":                        locked("delete pool failed", apiDeletePool),
		"GET /access/domains/{realm}":                   apiGetDomain,
		"POST /access/domains":                          apiCreateDomain,
		"PUT /access/domains/{realm}":                   apiUpdateDomain,
		"DELETE /access/domains/{realm}":                apiDeleteDomain,
		"PUT /access/password":                          core.On(userOfCall, apiSetPassword),
		"POST /access/domains/{realm}/sync":             apiSyncRealm,
	}}
}

// storageArea is storages, their volumes, uploads and downloads.
func storageArea() core.Area {
	return core.Area{
		Routes: map[string]core.Handler{
			"POST /nodes/{node}/storage/{storage}/oci-registry-pull": core.On((*core.Call).Store, apiPullImage),
			"GET /nodes/{node}/storage/{storage}/import-metadata":    core.On((*core.Call).Store, apiImportMetadata),
			"GET /storage":                                            apiStorageConfigs,
			"POST /storage":                                           apiCreateStorage,
			"PUT /storage/{storage}":                                  apiUpdateStorage,
			"DELETE /storage/{storage}":                               apiDeleteStorage,
			"GET /storage/{storage}":                                  apiStorageConfig,
			"GET /nodes/{node}/query-url-metadata":                    apiURLMetadata,
			"GET /nodes/{node}/storage":                               apiNodeStorages,
			"GET /nodes/{node}/storage/{storage}/status":              apiStorageStatus,
			"GET /nodes/{node}/storage/{storage}/content":             core.On((*core.Call).Store, apiListContent),
			"POST /nodes/{node}/storage/{storage}/content":            core.On((*core.Call).Store, apiAllocate),
			"GET /nodes/{node}/storage/{storage}/content/{volume}":    core.On(CallVolume, apiGetVolume),
			"DELETE /nodes/{node}/storage/{storage}/content/{volume}": core.On(CallVolume, apiDeleteVolume),
			"POST /nodes/{node}/storage/{storage}/upload":             core.On((*core.Call).Store, apiUpload),
			"POST /nodes/{node}/storage/{storage}/download-url":       core.On((*core.Call).Store, apiDownload),
			"GET /nodes/{node}/aplinfo":                               apiAppliances,
			"POST /nodes/{node}/aplinfo":                              apiDownloadAppliance,
		},
	}
}
