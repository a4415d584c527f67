package transfer

// This part of the package moves guests to other nodes, rolls them back to snapshots, and does one thing to
// many guests at once.

import "github.com/homestak/homestak-gitops/sim/pve/core"

// MigrationArea is migrations, rollbacks and what is done to many guests at once.
func MigrationArea() core.Area {
	return core.Area{
		Routes: map[string]core.Handler{
			"GET /nodes/{node}/lxc/{vmid}/migrate":         apiMigrateCTInfo,
			"POST /nodes/{node}/{qemu|lxc}/{vmid}/migrate": apiMigrate,
		},
		Guests: map[string]core.GuestHandler{
			"GET /nodes/{node}/qemu/{vmid}/migrate":                             apiMigrateInfo,
			"DELETE /nodes/{node}/{qemu|lxc}/{vmid}/snapshot/{snapname}":        apiDeleteSnapshot,
			"POST /nodes/{node}/{qemu|lxc}/{vmid}/snapshot/{snapname}/rollback": apiRollback,
		},
	}
}
