package pvesim

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
)

// checkZone is what a zone needs of what is beside it (PVE/API2/Network/SDN/Zones.pm,
// on_update_hook of the EVPN plugin).
func checkZone(w *world, _ *call, id string, conf, old config) error {
	if err := peered(conf, "vxlan"); err != nil {
		return err
	}
	if old != nil && old["ipam"] != conf["ipam"] {
		for subnet := range w.sections["sdn/subnets"] {
			if zone, _, _ := subnetParts(subnet); zone == id {
				return badParam("ipam", "can't change ipam if a subnet is already defined in this zone")
			}
		}
	}
	for _, key := range []string{"dns", "reversedns"} {
		if server := conf[key]; server != "" && w.sections["sdn/dns"][server] == nil {
			return badParam(key, server+" don't exist")
		}
	}
	switch ipam := conf["ipam"]; {
	case conf["dnszone"] != "" && conf["dns"] == "":
		return badParam("dnszone", "missing dns server")
	case ipam != "" && w.sections["sdn/ipams"][ipam] == nil:
		return badParam("ipam", ipam+" not existing")
	case conf["type"] != "evpn":
		return nil
	}
	switch at := w.sections["sdn/controllers"][conf["controller"]]; {
	case at == nil:
		return fail("controller %s don't exist", conf["controller"])
	case at["type"] != "evpn":
		return fail("%s is not a evpn controller type", conf["controller"])
	}
	zones := w.sections["sdn/zones"]
	for _, other := range slices.Sorted(maps.Keys(zones)) {
		if other != id && zones[other]["vrf-vxlan"] == conf["vrf-vxlan"] {
			return fail("vrf-vxlan %s is already declared in %s", conf["vrf-vxlan"], other)
		}
	}
	if conf["mac"] == "" {
		conf["mac"] = w.mac()
	}
	return nil
}

// checkVnet is what the type of a zone asks of its virtual networks (vnet_update_hook
// of its plugin), and on_update_hook of PVE/Network/SDN/VnetPlugin.pm.
func checkVnet(w *world, _ *call, id string, conf, old config) error {
	if old != nil && old["zone"] != conf["zone"] && w.hasSubnets(id) {
		return badParam("zone", "can't change zone if subnets exist")
	}
	zone, ok := w.sections["sdn/zones"][conf["zone"]]
	if !ok {
		return fail("cannot lookup undefined type!")
	}
	tag := conf["tag"]
	switch zone["type"] {
	case "simple":
		if tag != "" {
			return badParam("tag", "vlan tag is not allowed on simple zone")
		}
		if conf["mac"] == "" {
			conf["mac"] = w.mac()
		}
	case "vlan", "qinq":
		if tag == "" {
			return badParam("tag", "missing vlan tag")
		} else if atoi(tag) > 4096 {
			return badParam("tag", "vlan tag max value is 4096")
		}
	default:
		if tag == "" {
			return badParam("tag", "missing vxlan tag")
		} else if conf["vlanaware"] == "1" && zone["type"] == "evpn" {
			return badParam("vlan-aware", "vlan-aware option can't be enabled with evpn")
		}
	}
	if err := w.uniqueTag(id, conf, zone["type"]); err != nil {
		return err
	}
	if conf["vlanaware"] == "1" && w.hasSubnets(id) {
		return badParam("vlanaware", "vlanaware vnet is not compatible with subnets")
	}
	return nil
}

// uniqueTag: a VLAN once in a zone, a VXLAN once in the cluster.
func (w *world) uniqueTag(id string, conf config, kind string) error {
	vnets := w.sections["sdn/vnets"]
	overlay := func(kind string) bool { return kind == "vxlan" || kind == "evpn" }
	for _, other := range slices.Sorted(maps.Keys(vnets)) {
		zone := vnets[other]["zone"]
		switch {
		case other == id || conf["tag"] == "" || vnets[other]["tag"] != conf["tag"]:
		case overlay(kind) && overlay(w.sections["sdn/zones"][zone]["type"]):
			return badParam("tag", "vxlan tag "+conf["tag"]+" already exist in vnet "+other+" in zone "+zone+" ")
		case !overlay(kind) && zone == conf["zone"]:
			return badParam("tag", "tag "+conf["tag"]+" already exist in vnet "+other)
		}
	}
	return nil
}

// sdnView are the sections of a file as they run, as they will, or as they are written
// (pending_config in PVE/Network/SDN.pm).
func sdnView(w *world, f *sectionFile, c *call) map[string]map[string]any {
	all := map[string]map[string]any{}
	running, written := w.applied[f.name], w.sectionsOf(f)
	shown := written
	switch {
	case c.flag("pending"):
		for _, id := range slices.Sorted(maps.Keys(running)) {
			all[id] = f.pendingView(running[id], written[id])
		}
		for id, conf := range written {
			if running[id] == nil {
				all[id] = f.pendingView(nil, conf)
			}
		}
		return all
	case c.flag("running"):
		shown = running
	}
	for id, conf := range shown {
		all[id] = f.typed(conf)
	}
	return all
}

// pendingView is one section: what runs, and beside it what will.
func (f *sectionFile) pendingView(running, written config) map[string]any {
	entry, pending, state := f.typed(running), map[string]any{}, ""
	switch {
	case written == nil:
		state = "deleted"
	case running == nil:
		state = "new"
	}
	will := f.typed(written)
	for key := range running {
		if _, kept := written[key]; !kept && written != nil {
			pending[key], state = "deleted", "changed"
		}
	}
	for key, value := range written {
		switch {
		case key == "type" || key == "vnet":
			shown := strings.Replace(key, "type", f.typeName(), 1)
			entry[shown] = will[shown]
		case running[key] != value:
			pending[key] = will[key]
			if running != nil {
				state = "changed"
			}
		}
	}
	if state != "" {
		entry["state"], entry["pending"] = state, pending
	}
	return entry
}

// sdnUnlocked fails while somebody else holds the lock of the software networks
// (lock_sdn_config in PVE/Network/SDN.pm of PVE 9).
func (w *world) sdnUnlocked(c *call) error {
	if lockOf(w).token != "" && c.in["lock-token"] != lockOf(w).token {
		return fail("invalid lock token provided!")
	}
	return nil
}

// sdnFailed is a failure behind that lock.
func sdnFailed(doing string, err error) error { return fail("%s: %s", doing, err) }

// sdnRelease lets the lock go, if a call says so.
func (w *world) sdnRelease(c *call) {
	if c.in["release-lock"] != "0" { // By default it goes.
		lockOf(w).token = ""
	}
}

// apiSDNApply is PUT /cluster/sdn: what is written runs from now on; the nodes reload
// their networks one after another.
func apiSDNApply(w *world, c *call) (any, error) {
	if err := w.sdnUnlocked(c); err != nil {
		return nil, sdnFailed("could not commit pending SDN changes", err)
	}
	w.applied = map[string]map[string]config{}
	for _, name := range sdnApplied {
		w.applied[name] = copySections(w.sections[name])
	}
	w.sdnRelease(c)
	return w.fork(c, w.cfg.Node, job{kind: "reloadnetworkall", begin: func(t *task) error {
		for _, name := range w.nodeNames() {
			t.logf("%s: reloading network config", name)
		}
		return w.needQuorum()
	}}), nil
}

func copySections(sections map[string]config) map[string]config {
	all := map[string]config{}
	for id, conf := range sections {
		all[id] = maps.Clone(conf)
	}
	return all
}

// apiSDNRollback is POST /cluster/sdn/rollback: what runs is written again.
func apiSDNRollback(w *world, c *call) (any, error) {
	if err := w.sdnUnlocked(c); err != nil {
		return nil, sdnFailed("could not rollback SDN configuration", err)
	}
	for _, name := range sdnApplied {
		w.sections[name] = copySections(w.applied[name])
	}
	w.sdnRelease(c)
	return nil, nil
}

// apiSDNLock is POST /cluster/sdn/lock, apiSDNUnlock DELETE of it.
func apiSDNLock(w *world, c *call) (any, error) {
	err := w.sdnUnlocked(c)
	if err == nil && !c.flag("allow-pending") && w.sdnPending() {
		err = fail("configuration has pending changes")
	}
	if err != nil {
		return nil, sdnFailed("could not acquire lock for SDN config", err)
	}
	lockOf(w).token = w.uuid()
	return lockOf(w).token, nil
}

func apiSDNUnlock(w *world, c *call) (any, error) {
	if err := w.sdnUnlocked(c); err != nil && !c.flag("force") {
		return nil, sdnFailed("could not release lock", err)
	}
	lockOf(w).token = ""
	return nil, nil
}

func (w *world) sdnPending() bool {
	for _, name := range sdnApplied {
		if digestOf(w.sections[name]) != digestOf(w.applied[name]) {
			return true
		}
	}
	return false
}

// zoneEntries are the zones of all nodes among the resources of the cluster: that all
// bridges of a node belong to, and the running ones.
func (w *world) zoneEntries(c *call, kind string) []any {
	var list []any
	for _, node := range w.nodeNames() {
		for _, zone := range append([]string{"localnetwork"}, slices.Sorted(maps.Keys(w.applied["sdn/zones"]))...) {
			if c.can("/sdn/zones/"+zone, "SDN.Audit") && (zone == "localnetwork" || w.zoneServes(zone, node)) {
				status := "ok"
				if zone != "localnetwork" {
					status = "available"
				}
				entry := map[string]any{"id": "sdn/" + node + "/" + zone, "type": kind, "node": node, "sdn": zone, "status": status}
				if kind == "network" {
					delete(entry, "sdn")
					entry["id"], entry["network"], entry["network-type"] = "network/"+node+"/zone/"+zone, zone, "zone"
				}
				list = append(list, entry)
			}
		}
	}
	return list
}

// apiNodeZones is GET /nodes/{node}/sdn/zones: the running ones and the network of the
// node itself.
func apiNodeZones(w *world, c *call) (any, error) {
	list := []map[string]any{}
	for _, zone := range slices.Sorted(maps.Keys(w.applied["sdn/zones"])) {
		if w.zoneServes(zone, c.in["node"]) && c.needAny("/sdn/zones/"+zone, "SDN.Audit", "SDN.Use") == nil {
			list = append(list, map[string]any{"zone": zone, "status": "available"})
		}
	}
	return append(list, map[string]any{"zone": "localnetwork", "status": "available"}), nil
}

// apiNodeZoneContent is GET …/sdn/zones/{zone}/content: its virtual networks.
func apiNodeZoneContent(w *world, c *call) (any, error) {
	zone, list := c.in["zone"], []map[string]any{}
	if zone == "localnetwork" {
		for _, bridge := range w.bridges {
			list = append(list, map[string]any{"vnet": bridge, "status": "available"})
		}
		return list, nil
	}
	if !w.zoneServes(zone, c.in["node"]) {
		return list, nil
	}
	vnets := w.applied["sdn/vnets"]
	for _, vnet := range slices.Sorted(maps.Keys(vnets)) {
		if vnets[vnet]["zone"] == zone && c.needAny("/sdn/zones/"+zone+"/"+vnet, "SDN.Audit", "SDN.Use") == nil {
			list = append(list, map[string]any{"vnet": vnet, "status": "available"})
		}
	}
	return list, nil
}

// apiIpamStatus is GET /cluster/sdn/ipams/{ipam}/status: what PVE itself gave out in
// zones with DHCP, the gateways of their subnets.
func apiIpamStatus(w *world, c *call) (any, error) {
	if c.in["ipam"] != "pve" {
		return nil, fail("Currently only PVE IPAM is supported!")
	}
	list := []map[string]any{}
	subnets := w.sections["sdn/subnets"]
	for _, id := range slices.Sorted(maps.Keys(subnets)) {
		zone, network, mask := subnetParts(id)
		at, vnet := w.sections["sdn/zones"][zone], subnets[id]["vnet"]
		gateway := subnets[id]["gateway"]
		if at["ipam"] != "pve" || at["dhcp"] == "" || gateway == "" || c.needAny(fmt.Sprintf("/sdn/zones/%s/%s", zone, vnet), "SDN.Audit", "SDN.Allocate") != nil {
			continue
		}
		list = append(list, map[string]any{"zone": zone, "subnet": network + "/" + mask, "ip": gateway, "vnet": vnet, "gateway": 1})
	}
	return list, nil
}

// sdnCalls are the other calls on software networks.
func sdnCalls() []pastCall {
	allocate := allOf("/sdn", "SDN.Allocate")
	null, word, list := &pveapi.Value{Type: "null"}, &pveapi.Value{Type: "string"}, &pveapi.Value{Type: "array"}
	const release = "lock-token: string\nrelease-lock: boolean"
	return []pastCall{
		{name: "PUT /cluster/sdn", perm: allocate, params: strings.ReplaceAll(release, "\n", " @9.0\n") + " @9.0", returns: word, handle: apiSDNApply},
		{name: "POST /cluster/sdn/lock", perm: allocate, params: "allow-pending: boolean", returns: word, since: "9.0", handle: apiSDNLock},
		{name: "DELETE /cluster/sdn/lock", perm: allocate, params: "lock-token: string\nforce: boolean", returns: null, since: "9.0", handle: apiSDNUnlock},
		{name: "POST /cluster/sdn/rollback", perm: allocate, params: release, returns: null, since: "9.0", handle: apiSDNRollback},
		{name: "GET /cluster/sdn/ipams/{ipam}/status", returns: list, handle: apiIpamStatus},
		{name: "GET /nodes/{node}/sdn/zones", returns: list, handle: apiNodeZones},
		{name: "GET /nodes/{node}/sdn/zones/{zone}", perm: anyOf("/sdn/zones/{zone}", "SDN.Audit"), returns: list, handle: index{"subdir", "content 9:bridges 9:ip-vrf"}.handler},
		{name: "GET /nodes/{node}/sdn/zones/{zone}/content", returns: list, handle: apiNodeZoneContent},
	}
}
