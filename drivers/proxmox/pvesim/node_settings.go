package pvesim

import (
	"cmp"
	"crypto/x509"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// nodeSettings are the files of one node that the API edits.
type nodeSettings struct {
	subscription string               // Its key.
	custom       *x509.Certificate    // Of one's own; nil when there is none.
	disks        []disk               // Nil are those of every host.
	groups       map[string]diskGroup // What was made of disks, by name.
	repositories []repository         // Nil are those of a fresh installation.
	hosts        string               // /etc/hosts; empty as it was installed.
	dns          config
	zone         string            // Of time; empty is Etc/UTC.
	conf         config            // nodes/NAME/config.
	planned      map[string]config // Interfaces that are written, but not there before a reload; nil deletes.
	ifaces       map[string]config // Interfaces that were made by a reload.
}

// settings are those of the node of a call.
func (c *call) settings() *nodeSettings { return &c.w.nodes[c.in["node"]].settings }

// hostsFile is /etc/hosts.
func (n *node) hostsFile() string {
	if n.settings.hosts != "" {
		return n.settings.hosts
	}
	return fmt.Sprintf("127.0.0.1 localhost.localdomain localhost\n192.0.2.%d %s.example.test %s\n", 1+n.index, n.name, n.name)
}

// apiHosts is GET /nodes/{node}/hosts.
func apiHosts(w *world, c *call) (any, error) {
	text := w.nodes[c.in["node"]].hostsFile()
	return map[string]any{"data": text, "digest": sumOf(text)}, nil
}

// apiSetHosts is POST /nodes/{node}/hosts.
func apiSetHosts(w *world, c *call) (any, error) {
	if err := c.modified(sumOf(w.nodes[c.in["node"]].hostsFile())); err != nil {
		return nil, err
	}
	c.settings().hosts = c.in["data"]
	return nil, nil
}

// apiNodeDNS is GET /nodes/{node}/dns.
func apiNodeDNS(_ *world, c *call) (any, error) {
	return section(c.settings().dns, map[string]any{}), nil
}

// apiSetNodeDNS is PUT /nodes/{node}/dns: all of it at once.
func apiSetNodeDNS(_ *world, c *call) (any, error) {
	conf := config{}
	c.update(conf, "node")
	c.settings().dns = conf
	return nil, nil
}

// apiNodeTime is GET /nodes/{node}/time: the local time is a count of seconds too.
func apiNodeTime(w *world, c *call) (any, error) {
	name := c.settings().zone
	if name == "" {
		name = "Etc/UTC"
	}
	local := w.now.Unix()
	if zone, err := time.LoadLocation(name); err == nil {
		_, offset := w.now.In(zone).Zone()
		local += int64(offset)
	}
	return map[string]any{"time": w.now.Unix(), "localtime": local, "timezone": name}, nil
}

// apiSetNodeTime is PUT /nodes/{node}/time.
func apiSetNodeTime(_ *world, c *call) (any, error) {
	if _, err := time.LoadLocation(c.in["timezone"]); err != nil {
		return nil, badParam("timezone", "No such timezone '"+c.in["timezone"]+"'")
	}
	c.settings().zone = c.in["timezone"]
	return nil, nil
}

// apiNodeConfig is GET /nodes/{node}/config.
func apiNodeConfig(_ *world, c *call) (any, error) {
	conf := c.settings().conf
	entry := typedBy("PUT /nodes/{node}/config", conf)
	if len(conf) > 0 {
		entry["digest"] = sumOf(configText(conf))
	}
	if text := conf["description"]; text != "" {
		entry["description"] = strings.TrimRight(text, "\n") + "\n"
	}
	if only := c.in["property"]; only != "" {
		maps.DeleteFunc(entry, func(key string, _ any) bool { return key != only && key != "digest" })
	}
	return entry, nil
}

// apiSetNodeConfig is PUT /nodes/{node}/config.
func apiSetNodeConfig(w *world, c *call) (any, error) {
	s := c.settings()
	if err := w.needQuorum(); err != nil {
		return nil, err
	}
	if err := c.modified(sumOf(configText(s.conf))); err != nil {
		return nil, err
	}
	if s.conf == nil {
		s.conf = config{}
	}
	c.update(s.conf, "node")
	return nil, nil
}

func configText(conf config) string {
	var b strings.Builder
	writeSection(&b, conf, false)
	return b.String()
}

// interfaces are the configured ones of a node, those of a change that is planned
// among them.
func (w *world) interfaces(name string) []map[string]any {
	s := &w.nodes[name].settings
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

var (
	dottedVLAN = regexp.MustCompile(`^(\S+)\.(\d+)$`)
	namedVLAN  = regexp.MustCompile(`^vlan(\d+)$`)
)

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
	if planned := c.settings().planned; len(planned) > 0 {
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
	c.settings().planned = nil
	return nil, nil
}

// apiReloadNetwork is PUT /nodes/{node}/network: what was planned becomes real.
func apiReloadNetwork(w *world, c *call) (any, error) {
	s := c.settings()
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
