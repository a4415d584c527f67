// Package host is what guests stand on: who may do what (access), and the storages with their volumes
// (storage).
package host

// This part of the package is the API for users, tokens, groups, roles, realms, the access list, tickets and
// pools. What they permit is decided in package core.

import (
	"github.com/homestak/homestak-gitops/sim/pve/core"
)

// AccessArea is users, groups, roles, realms, tickets and pools.
func AccessArea() core.Area {
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
