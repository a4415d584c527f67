package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/guests"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/property"
)

// apiClusterStatus is GET /cluster/status.
func apiClusterStatus(w *core.World, _ *core.Call) (any, error) {
	list := []map[string]any{}
	if len(w.Nodes) > 1 {
		list = append(list, map[string]any{
			"type": "cluster", "id": "cluster", "name": "simulated", "nodes": len(w.Nodes), "version": len(w.Nodes), "quorate": perl.BoolInt(w.Quorum),
		})
	}
	for _, name := range w.NodeNames() {
		n := w.Nodes[name]
		entry := map[string]any{
			"type": "node", "id": "node/" + name, "name": name, "nodeid": 0, "ip": fmt.Sprintf("192.0.2.%d", 1+n.Index),
			"level": "", "local": perl.BoolInt(name == w.Cfg.Node), "online": perl.BoolInt(!n.Offline),
		}
		if len(w.Nodes) > 1 {
			entry["nodeid"] = n.Index
		}
		list = append(list, entry)
	}
	return list, nil
}

// apiNextID is GET /cluster/nextid: the lowest free id, or whether one is free.
// Nothing is reserved.
func apiNextID(w *core.World, c *core.Call) (any, error) {
	if c.Has("vmid") {
		vmid := c.Vmid()
		if w.Guests[vmid] != nil {
			return nil, perl.BadParam("vmid", fmt.Sprintf("VM %d already exists", vmid))
		}
		return strconv.Itoa(vmid), nil
	}
	lower, upper := idRange(w.Options["next-id"])
	for vmid := lower; vmid < upper; vmid++ {
		if w.Guests[vmid] == nil {
			return strconv.Itoa(vmid), nil
		}
	}
	return nil, perl.Fail("unable to get any free VMID in range [%d, %d]", lower, upper)
}

// partedOptions are property strings that the API shows in their parts
// (parse_datacenter_config in PVE/DataCenterConfig.pm); bwlimit stays text.
var partedOptions = []string{"crs", "ha", "migration", "next-id", "notify", "tag-style", "u2f", "user-tag-access", "webauthn"}

// apiOptions is GET /cluster/options. Who may not audit the cluster sees but two of
// them, and the tags that he may use.
func apiOptions(w *core.World, c *core.Call) (any, error) {
	tags := guests.AllowedTags(c)
	entry := map[string]any{}
	auditor := c.Can("/", "Sys.Audit")
	if auditor {
		entry = map[string]any{"mac_prefix": w.MACPrefix(), "description": ""}
	}
	for key, value := range w.Options {
		switch {
		case !auditor && key != "console" && key != "tag-style":
		case slices.Contains(partedOptions, key):
			entry[key] = property.Parted("PUT /cluster/options", key, value)
		case key == "registered-tags":
			entry[key] = perl.SplitList(value)
		case key == "description":
			entry[key] = strings.TrimRight(value, "\n") + "\n"
		default:
			entry[key] = value
		}
	}
	if access, ok := entry["user-tag-access"].(map[string]any); ok && access["user-allow-list"] != nil {
		access["user-allow-list"] = perl.SplitList(perl.Text(access["user-allow-list"]))
	}
	if entry["allowed-tags"] = slices.Sorted(maps.Keys(tags)); len(tags) == 0 {
		entry["allowed-tags"] = []string{}
	}
	return entry, nil
}
