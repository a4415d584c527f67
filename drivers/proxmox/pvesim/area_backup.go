package pvesim

// areaBackup is backups and their jobs.
func areaBackup() area {
	return area{
		routes: map[string]handler{
			"GET /cluster/backup":                                  apiBackupJobs,
			"POST /cluster/backup":                                 apiCreateBackupJob,
			"GET /cluster/backup/{id}":                             apiBackupJob,
			"PUT /cluster/backup/{id}":                             apiUpdateBackupJob,
			"DELETE /cluster/backup/{id}":                          apiDeleteBackupJob,
			"PUT /nodes/{node}/storage/{storage}/content/{volume}": apiUpdateVolume,
			"POST /nodes/{node}/vzdump":                            apiVZDump,
			"GET /nodes/{node}/vzdump/extractconfig":               apiExtractConfig,
		},
	}
}
