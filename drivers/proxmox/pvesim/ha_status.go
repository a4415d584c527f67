package pvesim

import (
	"fmt"
	"maps"
	"slices"
)

// apiHAStatus is GET /cluster/ha/status/current: the quorum, and once there is
// something to manage the manager, its hands on every node, and the resources.
func apiHAStatus(w *world, _ *call) (any, error) {
	text := map[bool]string{true: "OK", false: "No quorum on node '" + w.cfg.Node + "'!"}[w.quorum]
	list := []map[string]any{{"id": "quorum", "type": "quorum", "node": w.cfg.Node, "status": text, "quorate": boolInt(w.quorum)}}
	if len(managerOf(w).resources) > 0 && !managerOf(w).alone {
		list = append(list, w.haHands()...)
	}
	for _, sid := range slices.Sorted(maps.Keys(managerOf(w).resources)) {
		list = append(list, w.haService(managerOf(w).resources[sid]))
	}
	return list, nil
}

// haHands are the manager and what does its work on every node.
func (w *world) haHands() []map[string]any {
	at := w.now.UTC().Format("Mon Jan _2 15:04:05 2006")
	list := []map[string]any{{
		"id": "master", "type": "master", "node": w.cfg.Node, "timestamp": w.now.Unix(), "status": fmt.Sprintf("%s (active, %s)", w.cfg.Node, at),
	}}
	for _, name := range w.nodeNames() {
		state := "active"
		if w.nodes[name].offline {
			state = "old timestamp - dead?"
		}
		list = append(list, map[string]any{
			"id": "lrm:" + name, "type": "lrm", "node": name, "timestamp": w.now.Unix(), "status": fmt.Sprintf("%s (%s, %s)", name, state, at),
		})
	}
	return list
}

// haService is a resource as the status shows it, its options and their defaults
// among it. One that no manager has looked at is queued ($add_service in
// PVE/API2/HA/Status.pm, get_verbose_service_state in PVE/HA/Tools.pm).
func (w *world) haService(r *haResource) map[string]any {
	entry := map[string]any{
		"id": "service:" + r.sid, "type": "service", "sid": r.sid, "state": r.crm, "request_state": r.state(),
		"max_restart": 1, "max_relocate": 1,
	}
	if w.v9() {
		entry["failback"] = 1
	}
	for _, key := range []string{"failback", "group", "comment", "max_restart", "max_relocate"} {
		if value, ok := r.opts[key]; ok {
			entry[key] = section(config{key: value}, map[string]any{})[key]
		}
	}
	node := "---"
	if g := w.guests[r.vmid]; g != nil {
		node = g.node
		entry["node"] = node
	}
	if !managerOf(w).alone {
		entry["crm_state"] = r.crm
	} else if r.state() == "ignored" {
		entry["state"] = "ignored"
	}
	entry["status"] = fmt.Sprintf("%s (%s, %s)", r.sid, node, entry["state"])
	return entry
}

// apiHAManager is GET /cluster/ha/status/manager_status.
func apiHAManager(w *world, _ *call) (any, error) {
	services, nodes := map[string]any{}, map[string]any{}
	for sid, r := range managerOf(w).resources {
		if g := w.guests[r.vmid]; g != nil {
			services[sid] = map[string]any{"node": g.node, "state": r.crm}
		}
	}
	for name, n := range w.nodes {
		nodes[name] = map[bool]string{true: "unknown", false: "online"}[n.offline]
	}
	status := map[string]any{"master_node": w.cfg.Node, "timestamp": w.now.Unix(), "node_status": nodes, "service_status": services}
	if managerOf(w).alone {
		status = map[string]any{}
	}
	return map[string]any{
		"manager_status": status, "lrm_status": map[string]any{},
		"quorum": map[string]any{"node": w.cfg.Node, "quorate": fmt.Sprint(boolInt(w.quorum))},
	}, nil
}
