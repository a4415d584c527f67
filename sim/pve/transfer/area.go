// Package transfer copies guests and moves them: backups, migrations, and replication jobs.
package transfer

import (
	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/host"
)

// Areas returns the parts of the API that move guests and their data.
func Areas() []core.Area {
	return []core.Area{backupArea(), migrationArea(), replicationArea()}
}

// backupArea is backups and their jobs.
func backupArea() core.Area {
	return core.Area{
		Routes: map[string]core.Handler{
			"GET /cluster/backup-info/not-backed-up":               apiNotBackedUp,
			"GET /cluster/backup/{id}/included_volumes":            apiIncluded,
			"DELETE /nodes/{node}/storage/{storage}/prunebackups":  apiPrune,
			"GET /nodes/{node}/storage/{storage}/prunebackups":     apiPruneInfo,
			"GET /nodes/{node}/vzdump/defaults":                    apiDumpDefaults,
			"GET /cluster/backup":                                  apiBackupJobs,
			"POST /cluster/backup":                                 apiCreateBackupJob,
			"GET /cluster/backup/{id}":                             apiBackupJob,
			"PUT /cluster/backup/{id}":                             apiUpdateBackupJob,
			"DELETE /cluster/backup/{id}":                          apiDeleteBackupJob,
			"PUT /nodes/{node}/storage/{storage}/content/{volume}": core.On(host.CallVolume, apiUpdateVolume),
			"POST /nodes/{node}/vzdump":                            apiVZDump,
			"GET /nodes/{node}/vzdump/extractconfig":               apiExtractConfig,
		},
	}
}

// migrationArea is migrations, and rollbacks to snapshots.
func migrationArea() core.Area {
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
