package pvesim

// areaReplication is replication jobs.
func areaReplication() area {
	return area{
		routes: map[string]handler{
			"GET /cluster/replication":         apiReplications,
			"POST /cluster/replication":        apiCreateReplication,
			"GET /cluster/replication/{id}":    apiReplicationJob,
			"PUT /cluster/replication/{id}":    apiSetReplicationJob,
			"DELETE /cluster/replication/{id}": apiDropReplicationJob,
		},
		calls: replicationCalls(),
	}
}
