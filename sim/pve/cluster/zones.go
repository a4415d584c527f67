package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// checkZone checks the objects that a zone refers to (PVE/API2/Network/SDN/Zones.pm,
// on_update_hook of the EVPN plugin).
func checkZone(w *core.World, _ *core.Call, id string, conf, old perl.Config) error {
	if err := peered(conf, "vxlan"); err != nil {
		return err
	}
	if old != nil && old["ipam"] != conf["ipam"] {
		for subnet := range w.Sections["sdn/subnets"] {
			if zone, _, _ := subnetParts(subnet); zone == id {
				return perl.BadParam("ipam", "can't change ipam if a subnet is already defined in this zone")
			}
		}
	}
	for _, key := range []string{"dns", "reversedns"} {
		if server := conf[key]; server != "" && w.Sections["sdn/dns"][server] == nil {
			return perl.BadParam(key, server+" don't exist")
		}
	}
	switch ipam := conf["ipam"]; {
	case conf["dnszone"] != "" && conf["dns"] == "":
		return perl.BadParam("dnszone", "missing dns server")
	case ipam != "" && w.Sections["sdn/ipams"][ipam] == nil:
		return perl.BadParam("ipam", ipam+" not existing")
	case conf["type"] != "evpn":
		return nil
	}
	switch at := w.Sections["sdn/controllers"][conf["controller"]]; {
	case at == nil:
		return perl.Fail("controller %s don't exist", conf["controller"])
	case at["type"] != "evpn":
		return perl.Fail("%s is not a evpn controller type", conf["controller"])
	}
	zones := w.Sections["sdn/zones"]
	for _, other := range slices.Sorted(maps.Keys(zones)) {
		if other != id && zones[other]["vrf-vxlan"] == conf["vrf-vxlan"] {
			return perl.Fail("vrf-vxlan %s is already declared in %s", conf["vrf-vxlan"], other)
		}
	}
	if conf["mac"] == "" {
		conf["mac"] = w.MAC()
	}
	return nil
}

// checkVnet makes the checks of a zone's type on its virtual networks (vnet_update_hook
// of its plugin), and on_update_hook of PVE/Network/SDN/VnetPlugin.pm.
func checkVnet(w *core.World, _ *core.Call, id string, conf, old perl.Config) error {
	if old != nil && old["zone"] != conf["zone"] && hasSubnets(w, id) {
		return perl.BadParam("zone", "can't change zone if subnets exist")
	}
	zone, ok := w.Sections["sdn/zones"][conf["zone"]]
	if !ok {
		return perl.Fail("cannot lookup undefined type!")
	}
	tag := conf["tag"]
	switch zone["type"] {
	case "simple":
		if tag != "" {
			return perl.BadParam("tag", "vlan tag is not allowed on simple zone")
		}
		if conf["mac"] == "" {
			conf["mac"] = w.MAC()
		}
	case "vlan", "qinq":
		if tag == "" {
			return perl.BadParam("tag", "missing vlan tag")
		} else if perl.Atoi(tag) > 4096 {
			return perl.BadParam("tag", "vlan tag max value is 4096")
		}
	default:
		if tag == "" {
			return perl.BadParam("tag", "missing vxlan tag")
		} else if conf["vlanaware"] == "1" && zone["type"] == "evpn" {
			return perl.BadParam("vlan-aware", "vlan-aware option can't be enabled with evpn")
		}
	}
	if err := uniqueTag(w, id, conf, zone["type"]); err != nil {
		return err
	}
	if conf["vlanaware"] == "1" && hasSubnets(w, id) {
		return perl.BadParam("vlanaware", "vlanaware vnet is not compatible with subnets")
	}
	return nil
}

// uniqueTag: a VLAN once in a zone, a VXLAN once in the cluster.
func uniqueTag(w *core.World, id string, conf perl.Config, kind string) error {
	vnets := w.Sections["sdn/vnets"]
	overlay := func(kind string) bool { return kind == "vxlan" || kind == "evpn" }
	for _, other := range slices.Sorted(maps.Keys(vnets)) {
		zone := vnets[other]["zone"]
		switch {
		case other == id || conf["tag"] == "" || vnets[other]["tag"] != conf["tag"]:
		case overlay(kind) && overlay(w.Sections["sdn/zones"][zone]["type"]):
			return perl.BadParam("tag", "vxlan tag "+conf["tag"]+" already exist in vnet "+other+" in zone "+zone+" ")
		case !overlay(kind) && zone == conf["zone"]:
			return perl.BadParam("tag", "tag "+conf["tag"]+" already exist in vnet "+other)
		}
	}
	return nil
}

// sdnView are the sections of a file as they run, as they will, or as they are written
// (pending_config in PVE/Network/SDN.pm).
func sdnView(w *core.World, f *core.SectionFile, c *core.Call) map[string]map[string]any {
	all := map[string]map[string]any{}
	running, written := w.Applied[f.Name], f.Sections(w)
	shown := written
	switch {
	case c.Flag("pending"):
		for _, id := range slices.Sorted(maps.Keys(running)) {
			all[id] = pendingView(f, running[id], written[id])
		}
		for id, conf := range written {
			if running[id] == nil {
				all[id] = pendingView(f, nil, conf)
			}
		}
		return all
	case c.Flag("running"):
		shown = running
	}
	for id, conf := range shown {
		all[id] = f.Typed(conf)
	}
	return all
}

// pendingView is one section: what runs, and beside it what will.
func pendingView(f *core.SectionFile, running, written perl.Config) map[string]any {
	entry, pending, state := f.Typed(running), map[string]any{}, ""
	switch {
	case written == nil:
		state = "deleted"
	case running == nil:
		state = "new"
	}
	will := f.Typed(written)
	for key := range running {
		if _, kept := written[key]; !kept && written != nil {
			pending[key], state = "deleted", "changed"
		}
	}
	for key, value := range written {
		switch {
		case key == "type" || key == "vnet":
			shown := strings.Replace(key, "type", f.TypeName(), 1)
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

// sdnUnlocked fails while another caller holds the lock of the software networks (lock_sdn_config in
// PVE/Network/SDN.pm of PVE 9).
func sdnUnlocked(w *core.World, c *core.Call) error {
	if lockOf(w).token != "" && c.In["lock-token"] != lockOf(w).token {
		return perl.Fail("invalid lock token provided!")
	}
	return nil
}

// sdnFailed is a failure behind that lock.
func sdnFailed(doing string, err error) error { return perl.Fail("%s: %s", doing, err) }

// sdnRelease lets the lock go, if a call says so.
func sdnRelease(w *core.World, c *core.Call) {
	if c.In["release-lock"] != "0" { // By default it goes.
		lockOf(w).token = ""
	}
}

// apiSDNApply is PUT /cluster/sdn: what is written runs from now on; the nodes reload
// their networks one after another.
func apiSDNApply(w *core.World, c *core.Call) (any, error) {
	if err := sdnUnlocked(w, c); err != nil {
		return nil, sdnFailed("could not commit pending SDN changes", err)
	}
	w.Applied = map[string]map[string]perl.Config{}
	for _, name := range sdnApplied {
		w.Applied[name] = copySections(w.Sections[name])
	}
	sdnRelease(w, c)
	return w.Fork(c, w.Cfg.Node, core.Job{Kind: "reloadnetworkall", Begin: func(t *core.Task) error {
		for _, name := range w.NodeNames() {
			t.Logf("%s: reloading network config", name)
		}
		return w.NeedQuorum()
	}}), nil
}

func copySections(sections map[string]perl.Config) map[string]perl.Config {
	all := map[string]perl.Config{}
	for id, conf := range sections {
		all[id] = maps.Clone(conf)
	}
	return all
}

// apiSDNRollback is POST /cluster/sdn/rollback: what runs is written again.
func apiSDNRollback(w *core.World, c *core.Call) (any, error) {
	if err := sdnUnlocked(w, c); err != nil {
		return nil, sdnFailed("could not rollback SDN configuration", err)
	}
	for _, name := range sdnApplied {
		w.Sections[name] = copySections(w.Applied[name])
	}
	sdnRelease(w, c)
	return nil, nil
}

// apiSDNLock is POST /cluster/sdn/lock, apiSDNUnlock DELETE of it.
func apiSDNLock(w *core.World, c *core.Call) (any, error) {
	err := sdnUnlocked(w, c)
	if err == nil && !c.Flag("allow-pending") && sdnPending(w) {
		err = perl.Fail("configuration has pending changes")
	}
	if err != nil {
		return nil, sdnFailed("could not acquire lock for SDN config", err)
	}
	lockOf(w).token = w.Rng.UUID()
	return lockOf(w).token, nil
}

func apiSDNUnlock(w *core.World, c *core.Call) (any, error) {
	if err := sdnUnlocked(w, c); err != nil && !c.Flag("force") {
		return nil, sdnFailed("could not release lock", err)
	}
	lockOf(w).token = ""
	return nil, nil
}

func sdnPending(w *core.World) bool {
	for _, name := range sdnApplied {
		if perl.DigestOf(w.Sections[name]) != perl.DigestOf(w.Applied[name]) {
			return true
		}
	}
	return false
}

// zoneEntries are the zones of all nodes among the resources of the cluster: that all
// bridges of a node belong to, and the running ones.
func zoneEntries(w *core.World, c *core.Call, kind string) []any {
	var list []any
	for _, node := range w.NodeNames() {
		for _, zone := range append([]string{"localnetwork"}, slices.Sorted(maps.Keys(w.Applied["sdn/zones"]))...) {
			if c.Can("/sdn/zones/"+zone, "SDN.Audit") && (zone == "localnetwork" || guests.ZoneServes(w, zone, node)) {
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
func apiNodeZones(w *core.World, c *core.Call) (any, error) {
	list := []map[string]any{}
	for _, zone := range slices.Sorted(maps.Keys(w.Applied["sdn/zones"])) {
		if guests.ZoneServes(w, zone, c.In["node"]) && c.NeedAny("/sdn/zones/"+zone, "SDN.Audit", "SDN.Use") == nil {
			list = append(list, map[string]any{"zone": zone, "status": "available"})
		}
	}
	return append(list, map[string]any{"zone": "localnetwork", "status": "available"}), nil
}

// apiNodeZoneContent is GET …/sdn/zones/{zone}/content: its virtual networks.
func apiNodeZoneContent(w *core.World, c *core.Call) (any, error) {
	zone, list := c.In["zone"], []map[string]any{}
	if zone == "localnetwork" {
		for _, bridge := range w.Bridges {
			list = append(list, map[string]any{"vnet": bridge, "status": "available"})
		}
		return list, nil
	}
	if !guests.ZoneServes(w, zone, c.In["node"]) {
		return list, nil
	}
	vnets := w.Applied["sdn/vnets"]
	for _, vnet := range slices.Sorted(maps.Keys(vnets)) {
		if vnets[vnet]["zone"] == zone && c.NeedAny("/sdn/zones/"+zone+"/"+vnet, "SDN.Audit", "SDN.Use") == nil {
			list = append(list, map[string]any{"vnet": vnet, "status": "available"})
		}
	}
	return list, nil
}

// apiIpamStatus is GET /cluster/sdn/ipams/{ipam}/status: what PVE itself gave out in
// zones with DHCP, the gateways of their subnets.
func apiIpamStatus(w *core.World, c *core.Call) (any, error) {
	if c.In["ipam"] != "pve" {
		return nil, perl.Fail("Currently only PVE IPAM is supported!")
	}
	list := []map[string]any{}
	subnets := w.Sections["sdn/subnets"]
	for _, id := range slices.Sorted(maps.Keys(subnets)) {
		zone, network, mask := subnetParts(id)
		at, vnet := w.Sections["sdn/zones"][zone], subnets[id]["vnet"]
		gateway := subnets[id]["gateway"]
		if at["ipam"] != "pve" || at["dhcp"] == "" || gateway == "" || c.NeedAny(fmt.Sprintf("/sdn/zones/%s/%s", zone, vnet), "SDN.Audit", "SDN.Allocate") != nil {
			continue
		}
		list = append(list, map[string]any{"zone": zone, "subnet": network + "/" + mask, "ip": gateway, "vnet": vnet, "gateway": 1})
	}
	return list, nil
}

// sdnCalls are the other calls on software networks.
func sdnCalls() []core.ExtraCall {
	allocate := allOf("/sdn", "SDN.Allocate")
	null, word, list := &pveapi.Value{Type: "null"}, &pveapi.Value{Type: "string"}, &pveapi.Value{Type: "array"}
	const release = "lock-token: string\nrelease-lock: boolean"
	return []core.ExtraCall{
		{Name: "PUT /cluster/sdn", Perm: allocate, Params: strings.ReplaceAll(release, "\n", " @9.0\n") + " @9.0", Returns: word, Handle: apiSDNApply},
		{Name: "POST /cluster/sdn/lock", Perm: allocate, Params: "allow-pending: boolean", Returns: word, Since: "9.0", Handle: apiSDNLock},
		{Name: "DELETE /cluster/sdn/lock", Perm: allocate, Params: "lock-token: string\nforce: boolean", Returns: null, Since: "9.0", Handle: apiSDNUnlock},
		{Name: "POST /cluster/sdn/rollback", Perm: allocate, Params: release, Returns: null, Since: "9.0", Handle: apiSDNRollback},
		{Name: "GET /cluster/sdn/ipams/{ipam}/status", Returns: list, Handle: apiIpamStatus},
		{Name: "GET /nodes/{node}/sdn/zones", Returns: list, Handle: apiNodeZones},
		{Name: "GET /nodes/{node}/sdn/zones/{zone}", Perm: core.AnyOf("/sdn/zones/{zone}", "SDN.Audit"), Returns: list, Handle: core.DirectoryIndex{Key: "subdir", Names: "content 9:bridges 9:ip-vrf"}.Handler},
		{Name: "GET /nodes/{node}/sdn/zones/{zone}/content", Returns: list, Handle: apiNodeZoneContent},
	}
}
