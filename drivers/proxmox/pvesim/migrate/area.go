package migrate

import (
	"maps"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/sections"
)

// Area is migrations, rollbacks and what is done to many guests at once.
func Area() sections.Area {
	routes := bulkRoutes()
	maps.Copy(routes, map[string]core.Handler{
		"POST /nodes/{node}/lxc/{vmid}/migrate":                       apiMigrate,
		"DELETE /nodes/{node}/lxc/{vmid}/snapshot/{snapname}":         apiDeleteSnapshot,
		"POST /nodes/{node}/lxc/{vmid}/snapshot/{snapname}/rollback":  apiRollback,
		"DELETE /nodes/{node}/qemu/{vmid}/snapshot/{snapname}":        apiDeleteSnapshot,
		"POST /nodes/{node}/qemu/{vmid}/snapshot/{snapname}/rollback": apiRollback,
		"GET /nodes/{node}/qemu/{vmid}/migrate":                       apiMigrateInfo,
		"POST /nodes/{node}/qemu/{vmid}/migrate":                      apiMigrate,
		"GET /nodes/{node}/lxc/{vmid}/migrate":                        apiMigrateCTInfo,
	})
	return sections.Area{
		Routes: routes,
	}
}
