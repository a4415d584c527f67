package pvesim

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// interfaces are the configured ones of a node, those of a change that is planned
// among them.
func (w *world) interfaces(name string) []map[string]any {
	s := w.nodes[name]
	list := []map[string]any{}
	for i, bridge := range w.bridges {
		if conf, edited := s.planned[bridge]; s.ifaces[bridge] == nil && (!edited || conf != nil) {
			entry := w.bridge(i, bridge, name)
			if edited { // What it had is in there, or was taken away.
				entry = map[string]any{"active": 1, "priority": entry["priority"]}
			}
			maps.Copy(entry, shownInterface(conf))
			entry["iface"] = bridge
			list = append(list, entry)
		}
	}
	all := map[string]config{}
	maps.Copy(all, s.ifaces)
	for iface, conf := range s.planned {
		if _, there := all[iface]; there || !w.hasBridge(iface) {
			all[iface] = conf
		}
	}
	if all["eth0"] == nil { // The hardware is there, whatever is written of it.
		list = append(list, map[string]any{
			"iface": "eth0", "type": "eth", "active": 1, "exists": 1, "families": []string{"inet"}, "method": "manual", "method6": "manual",
			"priority": 3 + boolInt(w.cfg.Address != ""),
		})
	}
	for i, iface := range slices.Sorted(maps.Keys(all)) {
		if all[iface] == nil {
			continue
		}
		entry := shownInterface(all[iface])
		maps.Copy(entry, vlan(iface, all[iface]))
		entry["iface"], entry["priority"] = iface, 5+len(w.bridges)+i
		if s.ifaces[iface] != nil {
			entry["active"] = 1
		}
		list = append(list, entry)
	}
	return list
}

// shownInterface shows the options of an interface, with the halves of an address
// beside it.
func shownInterface(conf config) map[string]any {
	if conf == nil {
		return map[string]any{}
	}
	entry := typedBy("POST /nodes/{node}/network", conf)
	for key, v := range method("POST /nodes/{node}/network").Params {
		if value, ok := conf[key]; ok && v.Type == "integer" {
			entry[key] = value // As it stands in the file (PVE/INotify.pm).
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

// vlan is what the name of an interface tells of a VLAN: eth0.40 is 40 on eth0 unless
// its options name another interface, and with such an option vlan40 is 40
// (__read_etc_network_interfaces in PVE/INotify.pm). Ids are text there.
func vlan(iface string, conf config) map[string]any {
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

// bridge is the i-th bridge of a node; the first has the node's address.
func (w *world) bridge(i int, _, node string) map[string]any {
	entry := map[string]any{
		"type": "bridge", "active": 1, "autostart": 1, "bridge_fd": "0", "bridge_ports": "", "bridge_stp": "off",
		"families": []string{"inet"}, "method": "manual", "method6": "manual", "priority": 4 + i,
	}
	if i == 0 {
		index := 1
		if n := w.nodes[node]; n != nil {
			index = n.index
		}
		ip := fmt.Sprintf("192.0.2.%d", 1+index)
		entry["bridge_ports"], entry["method"], entry["address"], entry["netmask"], entry["cidr"] = "eth0", "static", ip, "24", ip+"/24"
		entry["gateway"] = "192.0.2.1"
		if own, mask, ok := strings.Cut(w.cfg.Address, "/"); ok && node == w.cfg.Node {
			entry["address"], entry["netmask"], entry["cidr"], entry["bridge_ports"] = own, mask, w.cfg.Address, ""
			entry["priority"] = 5 // As recorded, where the file of the host begins otherwise.
			delete(entry, "gateway")
		}
	}
	return entry
}

// apiNetworks is GET /nodes/{node}/network.
func apiNetworks(w *world, c *call) (any, error) {
	list, kind := []map[string]any{}, c.in["type"]
	for _, entry := range w.interfaces(c.in["node"]) {
		bridge := entry["type"] == "bridge" || entry["type"] == "OVSBridge"
		asked := kind == "" || kind == "include_sdn" || kind == entry["type"] || bridge && strings.HasPrefix(kind, "any_")
		if asked && (!bridge || c.seesBridge(fmt.Sprint(entry["iface"]))) {
			list = append(list, entry)
		}
	}
	if kind == "any_bridge" || kind == "include_sdn" {
		list = append(list, c.localNets()...)
	}
	if planned := c.node().planned; len(planned) > 0 {
		return beside{list, map[string]any{"changes": networkText(planned)}}, nil
	}
	return list, nil
}

// seesBridge says whether a caller may know of a bridge of the node: by a right on it, or on
// a VLAN of it that the access list names (check_sdn_bridge in PVE/RPCEnvironment.pm).
func (c *call) seesBridge(bridge string) bool {
	path := "/sdn/zones/localnetwork/" + bridge
	for _, entry := range append([]string{path}, c.w.access.aclPaths()...) {
		if entry != path && (!strings.HasPrefix(entry, path+"/") || strings.Contains(entry[len(path)+1:], "/")) {
			continue
		}
		if c.needAny(entry, "SDN.Audit", "SDN.Use") == nil {
			return true
		}
	}
	return false
}

// findInterface finds one of the interfaces of a node.
func (c *call) findInterface() (map[string]any, error) {
	for _, entry := range c.w.interfaces(c.in["node"]) {
		if entry["iface"] == c.in["iface"] {
			delete(entry, "iface")
			return entry, nil
		}
	}
	return nil, badParam("iface", "interface does not exist")
}

// apiNetwork is GET /nodes/{node}/network/{iface}.
func apiNetwork(_ *world, c *call) (any, error) { return c.findInterface() }

// apiRevertNetwork is DELETE /nodes/{node}/network: what was planned is forgotten.
func apiRevertNetwork(_ *world, c *call) (any, error) {
	c.node().planned = nil
	return nil, nil
}

// apiReloadNetwork is PUT /nodes/{node}/network: what was planned becomes real.
func apiReloadNetwork(w *world, c *call) (any, error) {
	s := c.node()
	return w.fork(c, c.in["node"], job{kind: "srvreload", id: "networking", end: func(*task) error {
		if s.ifaces == nil {
			s.ifaces = map[string]config{}
		}
		for iface, conf := range s.planned {
			delete(s.ifaces, iface)
			bridge := strings.HasSuffix(strings.ToLower(conf["type"]), "bridge")
			w.bridges = slices.DeleteFunc(w.bridges, func(name string) bool { return name == iface && !bridge })
			if conf == nil {
				continue
			}
			s.ifaces[iface] = conf
			if bridge && !w.hasBridge(iface) {
				w.bridges = append(w.bridges, iface)
			}
		}
		s.planned = nil
		return nil
	}}), nil
}

// localNets are the running virtual networks of a node that a caller may use
// (get_local_vnets in PVE/Network/SDN.pm).
func (c *call) localNets() []map[string]any {
	list, vnets := []map[string]any{}, c.w.applied["sdn/vnets"]
	for _, id := range slices.Sorted(maps.Keys(vnets)) {
		conf := vnets[id]
		zone := conf["zone"]
		if c.w.zoneServes(zone, c.in["node"]) && c.needAny("/sdn/zones/"+zone+"/"+id, "SDN.Audit", "SDN.Use") == nil {
			list = append(list, map[string]any{
				"iface": id, "type": "vnet", "active": 1, "ipam": boolInt(c.w.applied["sdn/zones"][zone]["ipam"] != ""),
				"vlanaware": boolInt(conf["vlanaware"] == "1"), "comments": conf["alias"],
			})
		}
	}
	return list
}

// serves says whether a running zone is on a node.
func (w *world) zoneServes(zone, node string) bool {
	conf, ok := w.applied["sdn/zones"][zone]
	nodes := splitList(conf["nodes"])
	return ok && (len(nodes) == 0 || slices.Contains(nodes, node))
}
