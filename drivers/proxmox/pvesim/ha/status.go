package ha

import (
	"fmt"
	"maps"
	"slices"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/property"
)

// apiHAStatus is GET /cluster/ha/status/current: the quorum, and once there is
// something to manage the manager, its hands on every node, and the resources.
func apiHAStatus(w *core.World, _ *core.Call) (any, error) {
	text := map[bool]string{true: "OK", false: "No quorum on node '" + w.Cfg.Node + "'!"}[w.Quorum]
	list := []map[string]any{{"id": "quorum", "type": "quorum", "node": w.Cfg.Node, "status": text, "quorate": perl.BoolInt(w.Quorum)}}
	if len(managerOf(w).resources) > 0 && !managerOf(w).alone {
		list = append(list, haHands(w)...)
	}
	for _, sid := range slices.Sorted(maps.Keys(managerOf(w).resources)) {
		list = append(list, haService(w, managerOf(w).resources[sid]))
	}
	return list, nil
}

// haHands are the manager and what does its work on every node.
func haHands(w *core.World) []map[string]any {
	at := w.Now.UTC().Format("Mon Jan _2 15:04:05 2006")
	list := []map[string]any{{
		"id": "master", "type": "master", "node": w.Cfg.Node, "timestamp": w.Now.Unix(), "status": fmt.Sprintf("%s (active, %s)", w.Cfg.Node, at),
	}}
	for _, name := range w.NodeNames() {
		state := "active"
		if w.Nodes[name].Offline {
			state = "old timestamp - dead?"
		}
		list = append(list, map[string]any{
			"id": "lrm:" + name, "type": "lrm", "node": name, "timestamp": w.Now.Unix(), "status": fmt.Sprintf("%s (%s, %s)", name, state, at),
		})
	}
	return list
}

// haService is a resource as the status shows it, its options and their defaults
// among it. One that no manager has looked at is queued ($add_service in
// PVE/API2/HA/Status.pm, get_verbose_service_state in PVE/HA/Tools.pm).
func haService(w *core.World, r *haResource) map[string]any {
	entry := map[string]any{
		"id": "service:" + r.sid, "type": "service", "sid": r.sid, "state": r.crm, "request_state": r.State(),
		"max_restart": 1, "max_relocate": 1,
	}
	if w.V9() {
		entry["failback"] = 1
	}
	for _, key := range []string{"failback", "group", "comment", "max_restart", "max_relocate"} {
		if value, ok := r.opts[key]; ok {
			entry[key] = property.Section(property.Config{key: value}, map[string]any{})[key]
		}
	}
	node := "---"
	if g := w.Guests[r.vmid]; g != nil {
		node = g.Node
		entry["node"] = node
	}
	if !managerOf(w).alone {
		entry["crm_state"] = r.crm
	} else if r.State() == "ignored" {
		entry["state"] = "ignored"
	}
	entry["status"] = fmt.Sprintf("%s (%s, %s)", r.sid, node, entry["state"])
	return entry
}

// apiHAManager is GET /cluster/ha/status/manager_status.
func apiHAManager(w *core.World, _ *core.Call) (any, error) {
	services, nodes := map[string]any{}, map[string]any{}
	for sid, r := range managerOf(w).resources {
		if g := w.Guests[r.vmid]; g != nil {
			services[sid] = map[string]any{"node": g.Node, "state": r.crm}
		}
	}
	for name, n := range w.Nodes {
		nodes[name] = map[bool]string{true: "unknown", false: "online"}[n.Offline]
	}
	status := map[string]any{"master_node": w.Cfg.Node, "timestamp": w.Now.Unix(), "node_status": nodes, "service_status": services}
	if managerOf(w).alone {
		status = map[string]any{}
	}
	return map[string]any{
		"manager_status": status, "lrm_status": map[string]any{},
		"quorum": map[string]any{"node": w.Cfg.Node, "quorate": fmt.Sprint(perl.BoolInt(w.Quorum))},
	}, nil
}
