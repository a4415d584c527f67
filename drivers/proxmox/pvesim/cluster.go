package pvesim

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// apiClusterStatus is GET /cluster/status.
func apiClusterStatus(w *world, _ *call) (any, error) {
	list := []map[string]any{}
	if len(w.nodes) > 1 {
		list = append(list, map[string]any{
			"type": "cluster", "id": "cluster", "name": "simulated", "nodes": len(w.nodes), "version": len(w.nodes), "quorate": boolInt(w.quorum),
		})
	}
	for _, name := range w.nodeNames() {
		n := w.nodes[name]
		entry := map[string]any{
			"type": "node", "id": "node/" + name, "name": name, "nodeid": 0, "ip": fmt.Sprintf("192.0.2.%d", 1+n.index),
			"level": "", "local": boolInt(name == w.cfg.Node), "online": boolInt(!n.offline),
		}
		if len(w.nodes) > 1 {
			entry["nodeid"] = n.index
		}
		list = append(list, entry)
	}
	return list, nil
}

// apiNextID is GET /cluster/nextid: the lowest free id, or whether one is free.
// Nothing is reserved.
func apiNextID(w *world, c *call) (any, error) {
	if c.has("vmid") {
		vmid := c.vmid()
		if w.guests[vmid] != nil {
			return nil, badParam("vmid", fmt.Sprintf("VM %d already exists", vmid))
		}
		return strconv.Itoa(vmid), nil
	}
	lower, upper := idRange(w.options["next-id"])
	for vmid := lower; vmid < upper; vmid++ {
		if w.guests[vmid] == nil {
			return strconv.Itoa(vmid), nil
		}
	}
	return nil, fail("unable to get any free VMID in range [%d, %d]", lower, upper)
}

// apiClusterIndex is GET /cluster.
func apiClusterIndex(w *world, _ *call) (any, error) {
	names := []string{
		"acme", "backup", "backup-info", "ceph", "config", "firewall", "ha", "jobs", "log", "mapping", "metrics",
		"notifications", "nextid", "options", "replication", "resources", "status", "tasks", "sdn",
	}
	if w.v9() {
		names = append(names, "bulk-action")
	}
	return subdirs("name", names...), nil
}

// partedOptions are property strings that the API shows in their parts
// (parse_datacenter_config in PVE/DataCenterConfig.pm); bwlimit stays text.
var partedOptions = []string{"crs", "ha", "migration", "next-id", "notify", "tag-style", "u2f", "user-tag-access", "webauthn"}

// apiOptions is GET /cluster/options. Who may not audit the cluster sees but two of
// them, and the tags that he may use.
func apiOptions(w *world, c *call) (any, error) {
	tags := c.allowedTags()
	entry := map[string]any{}
	auditor := c.can("/", "Sys.Audit")
	if auditor {
		entry = map[string]any{"mac_prefix": w.macPrefix(), "description": ""}
	}
	for key, value := range w.options {
		switch {
		case !auditor && key != "console" && key != "tag-style":
		case slices.Contains(partedOptions, key):
			entry[key] = parted("PUT /cluster/options", key, value)
		case key == "registered-tags":
			entry[key] = splitList(value)
		case key == "description":
			entry[key] = strings.TrimRight(value, "\n") + "\n"
		default:
			entry[key] = value
		}
	}
	if access, ok := entry["user-tag-access"].(map[string]any); ok && access["user-allow-list"] != nil {
		access["user-allow-list"] = splitList(text(access["user-allow-list"]))
	}
	if entry["allowed-tags"] = slices.Sorted(maps.Keys(tags)); len(tags) == 0 {
		entry["allowed-tags"] = []string{}
	}
	return entry, nil
}
