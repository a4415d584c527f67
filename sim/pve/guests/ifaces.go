package guests

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// Interfaces are the configured ones of a node, those of a change that is planned
// among them.
func Interfaces(w *core.World, name string) []map[string]any {
	s := w.Nodes[name]
	list := []map[string]any{}
	for i, bridge := range w.Bridges {
		if conf, edited := s.Planned[bridge]; s.Ifaces[bridge] == nil && (!edited || conf != nil) {
			entry := bridgeEntry(w, i, bridge, name)
			if edited { // Its former addresses are in there, or were removed.
				entry = map[string]any{"active": 1, "priority": entry["priority"]}
			}
			maps.Copy(entry, shownInterface(conf))
			entry["iface"] = bridge
			list = append(list, entry)
		}
	}
	all := map[string]perl.Config{}
	maps.Copy(all, s.Ifaces)
	for iface, conf := range s.Planned {
		if _, there := all[iface]; there || !HasBridge(w, iface) {
			all[iface] = conf
		}
	}
	if all["eth0"] == nil { // The hardware is there, whatever is written of it.
		list = append(list, map[string]any{
			"iface": "eth0", "type": "eth", "active": 1, "exists": 1, "families": []string{"inet"}, "method": "manual", "method6": "manual",
			"priority": 3 + perl.BoolInt(w.Cfg.Address != ""),
		})
	}
	for i, iface := range slices.Sorted(maps.Keys(all)) {
		if all[iface] == nil {
			continue
		}
		entry := shownInterface(all[iface])
		maps.Copy(entry, vlan(iface, all[iface]))
		entry["iface"], entry["priority"] = iface, 5+len(w.Bridges)+i
		if s.Ifaces[iface] != nil {
			entry["active"] = 1
		}
		list = append(list, entry)
	}
	return list
}

// shownInterface shows the options of an interface, with the halves of an address
// beside it.
func shownInterface(conf perl.Config) map[string]any {
	if conf == nil {
		return map[string]any{}
	}
	entry := conf.TypedBy("POST /nodes/{node}/network")
	for key, v := range perl.Method("POST /nodes/{node}/network").Params {
		if value, ok := conf[key]; ok && v.Type == "integer" {
			entry[key] = value // As in the file (PVE/INotify.pm).
		}
	}
	if conf["autostart"] == "0" {
		delete(entry, "autostart") // No line says so.
	}
	if text := strings.TrimRight(conf["comments"], "\n"); text != "" {
		entry["comments"] = text + "\n" // Lines of their own in the file.
	} else {
		delete(entry, "comments")
	}
	showAddresses(entry, conf)
	if conf["bridge_vlan_aware"] == "1" && conf["bridge_vids"] == "" {
		entry["bridge_vids"] = "2-4094"
	}
	if conf["type"] == "bond" {
		for key, value := range map[string]any{"bond_miimon": "100", "bond_mode": "balance-rr"} {
			if entry[key] == nil {
				entry[key] = value
			}
		}
	}
	if conf["type"] == "bridge" {
		for key, value := range map[string]any{"bridge_fd": "0", "bridge_stp": "off", "bridge_ports": ""} {
			if entry[key] == nil {
				entry[key] = value
			}
		}
	}
	return entry
}

// vlan is the VLAN in the name of an interface: eth0.40 is 40 on eth0 unless
// its options name another interface, and with such an option vlan40 is 40
// (__read_etc_network_interfaces in PVE/INotify.pm). Ids are text there.
func vlan(iface string, conf perl.Config) map[string]any {
	raw, id := conf["vlan-raw-device"], ""
	if m := dottedVLAN.FindStringSubmatch(iface); m != nil {
		raw, id = cmp.Or(raw, m[1]), m[2]
	} else if m := namedVLAN.FindStringSubmatch(iface); m != nil && raw != "" {
		id = m[1]
	}
	if raw == "" {
		return nil
	}
	shown := map[string]any{"type": "vlan", "vlan-raw-device": raw}
	if id = cmp.Or(id, conf["vlan-id"]); id != "" {
		shown["vlan-id"] = id
	}
	return shown
}

var (
	dottedVLAN = regexp.MustCompile(`^(\S+)\.(\d+)$`)
	namedVLAN  = regexp.MustCompile(`^vlan(\d+)$`)
)

// bridgeEntry is the i-th bridge of a node; the first has the node's address.
func bridgeEntry(w *core.World, i int, _, node string) map[string]any {
	entry := map[string]any{
		"type": "bridge", "active": 1, "autostart": 1, "bridge_fd": "0", "bridge_ports": "", "bridge_stp": "off",
		"families": []string{"inet"}, "method": "manual", "method6": "manual", "priority": 4 + i,
	}
	if i == 0 {
		index := 1
		if n := w.Nodes[node]; n != nil {
			index = n.Index
		}
		ip := fmt.Sprintf("192.0.2.%d", 1+index)
		entry["bridge_ports"], entry["method"], entry["address"], entry["netmask"], entry["cidr"] = "eth0", "static", ip, "24", ip+"/24"
		entry["gateway"] = "192.0.2.1"
		if own, mask, ok := strings.Cut(w.Cfg.Address, "/"); ok && node == w.Cfg.Node {
			entry["address"], entry["netmask"], entry["cidr"], entry["bridge_ports"] = own, mask, w.Cfg.Address, ""
			entry["priority"] = 5 // As recorded, where the file of the host begins otherwise.
			delete(entry, "gateway")
		}
	}
	return entry
}

// apiNetworks is GET /nodes/{node}/network.
func apiNetworks(w *core.World, c *core.Call) (any, error) {
	list, kind := []map[string]any{}, c.In["type"]
	for _, entry := range Interfaces(w, c.In["node"]) {
		bridge := entry["type"] == "bridge" || entry["type"] == "OVSBridge"
		asked := kind == "" || kind == "include_sdn" || kind == entry["type"] || bridge && strings.HasPrefix(kind, "any_")
		if asked && (!bridge || seesBridge(c, fmt.Sprint(entry["iface"]))) {
			list = append(list, entry)
		}
	}
	if kind == "any_bridge" || kind == "include_sdn" {
		list = append(list, localNets(c)...)
	}
	if planned := c.Node().Planned; len(planned) > 0 {
		return core.Beside{Data: list, Attributes: map[string]any{"changes": networkText(planned)}}, nil
	}
	return list, nil
}

// seesBridge says whether a caller may know of a bridge of the node: by a right on it, or on
// a VLAN of it that the access list names (check_sdn_bridge in PVE/RPCEnvironment.pm).
func seesBridge(c *core.Call, bridge string) bool {
	path := "/sdn/zones/localnetwork/" + bridge
	for _, entry := range append([]string{path}, c.W.Access.ACLPaths()...) {
		if entry != path && (!strings.HasPrefix(entry, path+"/") || strings.Contains(entry[len(path)+1:], "/")) {
			continue
		}
		if c.NeedAny(entry, "SDN.Audit", "SDN.Use") == nil {
			return true
		}
	}
	return false
}

// findInterface finds one of the interfaces of a node.
func findInterface(c *core.Call) (map[string]any, error) {
	for _, entry := range Interfaces(c.W, c.In["node"]) {
		if entry["iface"] == c.In["iface"] {
			delete(entry, "iface")
			return entry, nil
		}
	}
	return nil, perl.BadParam("iface", "interface does not exist")
}

// apiNetwork is GET /nodes/{node}/network/{iface}.
func apiNetwork(_ *core.World, c *core.Call) (any, error) { return findInterface(c) }

// apiRevertNetwork is DELETE /nodes/{node}/network: what was planned is forgotten.
func apiRevertNetwork(_ *core.World, c *core.Call) (any, error) {
	c.Node().Planned = nil
	return nil, nil
}

// apiReloadNetwork is PUT /nodes/{node}/network: what was planned becomes real.
func apiReloadNetwork(w *core.World, c *core.Call) (any, error) {
	s := c.Node()
	return w.Fork(c, c.In["node"], core.Job{Kind: "srvreload", ID: "networking", End: func(*core.Task) error {
		if s.Ifaces == nil {
			s.Ifaces = map[string]perl.Config{}
		}
		for iface, conf := range s.Planned {
			delete(s.Ifaces, iface)
			bridge := strings.HasSuffix(strings.ToLower(conf["type"]), "bridge")
			w.Bridges = slices.DeleteFunc(w.Bridges, func(name string) bool { return name == iface && !bridge })
			if conf == nil {
				continue
			}
			s.Ifaces[iface] = conf
			if bridge && !HasBridge(w, iface) {
				w.Bridges = append(w.Bridges, iface)
			}
		}
		s.Planned = nil
		return nil
	}}), nil
}

// localNets are the running virtual networks of a node that a caller may use
// (get_local_vnets in PVE/Network/SDN.pm).
func localNets(c *core.Call) []map[string]any {
	list, vnets := []map[string]any{}, c.W.Applied["sdn/vnets"]
	for id, conf := range perl.Sorted(vnets) {
		zone := conf["zone"]
		if ZoneServes(c.W, zone, c.In["node"]) && c.NeedAny("/sdn/zones/"+zone+"/"+id, "SDN.Audit", "SDN.Use") == nil {
			list = append(list, map[string]any{
				"iface": id, "type": "vnet", "active": 1, "ipam": perl.BoolInt(c.W.Applied["sdn/zones"][zone]["ipam"] != ""),
				"vlanaware": perl.BoolInt(conf["vlanaware"] == "1"), "comments": conf["alias"],
			})
		}
	}
	return list
}

// ZoneServes says whether a running zone is on a node.
func ZoneServes(w *core.World, zone, node string) bool {
	conf, ok := w.Applied["sdn/zones"][zone]
	nodes := perl.SplitList(conf["nodes"])
	return ok && (len(nodes) == 0 || slices.Contains(nodes, node))
}
