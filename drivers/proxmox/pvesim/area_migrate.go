package pvesim

import "maps"

// areaMigrate is migrations, rollbacks and what is done to many guests at once.
func areaMigrate() area {
	routes := bulkRoutes()
	maps.Copy(routes, map[string]handler{
		"POST /nodes/{node}/lxc/{vmid}/migrate":                       apiMigrate,
		"DELETE /nodes/{node}/lxc/{vmid}/snapshot/{snapname}":         apiDeleteSnapshot,
		"POST /nodes/{node}/lxc/{vmid}/snapshot/{snapname}/rollback":  apiRollback,
		"DELETE /nodes/{node}/qemu/{vmid}/snapshot/{snapname}":        apiDeleteSnapshot,
		"POST /nodes/{node}/qemu/{vmid}/snapshot/{snapname}/rollback": apiRollback,
		"GET /nodes/{node}/qemu/{vmid}/migrate":                       apiMigrateInfo,
		"POST /nodes/{node}/qemu/{vmid}/migrate":                      apiMigrate,
		"GET /nodes/{node}/lxc/{vmid}/migrate":                        apiMigrateCTInfo,
	})
	return area{
		routes: routes,
	}
}
