package pvesim

// What a host has none of is listed as such: there is no HA manager, no backup
// job and no replication, and no call here could make one.

// apiNone is a list without entries.
func apiNone(*world, *call) (any, error) { return []any{}, nil }

// apiHAStatus is GET /cluster/ha/status/current.
func apiHAStatus(w *world, _ *call) (any, error) {
	return []map[string]any{{"id": "quorum", "type": "quorum", "node": w.cfg.Node, "status": map[bool]string{true: "OK", false: "No quorum on node!"}[w.quorum], "quorate": boolInt(w.quorum)}}, nil
}
