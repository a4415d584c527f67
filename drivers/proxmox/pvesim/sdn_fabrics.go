package pvesim

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
)

// Fabrics are the networks that others lie on, and the nodes in them; PVE 9 has them
// (PVE/API2/Network/SDN/Fabrics; what it calls is Rust, the crate proxmox-ve-config).

func fabricFiles() []sectionFile {
	verbs := func(create, update, drop string) map[string]string {
		return map[string]string{"create": create, "update": update, "delete": drop}
	}
	common := sectionFile{
		family: "sdn/fabric", typeKey: "protocol", extra: "lock-token: string", since: "9.0", lock: sdnLock, domain: "sdn", open: true,
		query: "running: boolean\npending: boolean", view: sdnView,
	}
	fabric, node := common, common
	fabric.name, fabric.path, fabric.key, fabric.id = "sdn/fabrics", "/cluster/sdn/fabrics/fabric", "id", "pve-sdn-fabric-id"
	fabric.kinds = map[string]string{
		"openfabric": "ip_prefix? ip6_prefix? hello_interval? csnp_interval?", "ospf": "ip_prefix? ip6_prefix? area?",
	}
	fabric.props = `ip_prefix: string CIDR
		ip6_prefix: string CIDR
		hello_interval: number 1..600
		csnp_interval: number 1..600
		area: string`
	fabric.twice, fabric.missing = "fabric '%s' already exists in config", "fabric '%s' does not exist in configuration"
	fabric.failed, fabric.verbs = "%s failed", verbs("adding fabric", "updating fabric", "deleting fabric")
	fabric.read = anyOf("/sdn/fabrics/{id}", "SDN.Audit", "SDN.Allocate")
	fabric.write, fabric.change = allOf("/sdn/fabrics", "SDN.Allocate"), allOf("/sdn/fabrics/{id}", "SDN.Allocate")
	fabric.guard, fabric.check, fabric.drop = sdnOnly("/sdn/fabrics/"), checkFabric, dropFabric

	node.name, node.path, node.key, node.id = "sdn/fabric-nodes", "/cluster/sdn/fabrics/node/{fabric_id}", "node_id", "pve-node"
	node.kinds = map[string]string{"openfabric": "interfaces? ip? ip6?", "ospf": "interfaces? ip? ip6?"}
	node.props = "interfaces: array\nip: string ipv4\nip6: string ipv6"
	node.twice, node.missing = "node '%s' already exists in config", "node '%s' does not exist in the fabric"
	node.failed, node.verbs = "%s failed", verbs("adding node", "updating node", "deleting node")
	at := func(c *call) string { return c.in["fabric_id"] + "_" + c.in["node_id"] }
	node.at, node.idOf = at, func(_ *world, c *call) string { return at(c) }
	seen := anyOf("/nodes/{node_id}", "Sys.Audit", "Sys.Modify")
	node.read = both(anyOf("/sdn/fabrics/{fabric_id}", "SDN.Audit", "SDN.Allocate"), seen)
	node.write = both(allOf("/sdn/fabrics/{fabric_id}", "SDN.Allocate"), allOf("/nodes/{node_id}", "Sys.Modify"))
	node.guard = func(c *call, _ string, conf map[string]any, write bool) error {
		switch {
		case write:
			return nil
		case conf["fabric_id"] != c.in["fabric_id"]:
			return fail("a node of another fabric")
		}
		return c.needAny("/nodes/"+text(conf["node_id"]), "Sys.Audit", "Sys.Modify")
	}
	node.check = checkFabricNode
	node.show = func(_ *world, _ *call, id string, entry map[string]any) {
		entry["fabric_id"], entry["node_id"], _ = strings.Cut(id, "_")
	}
	return []sectionFile{fabric, node}
}

// checkFabric: prefixes and nodes have to fit each other.
func checkFabric(w *world, c *call, id string, conf, old config) error {
	if err := w.sdnUnlocked(c); err != nil || old == nil {
		return err
	}
	nodes := w.sections["sdn/fabric-nodes"]
	for _, node := range slices.Sorted(maps.Keys(nodes)) {
		if fabric, _, _ := strings.Cut(node, "_"); fabric == id {
			if err := withinFabric(id, conf, nodes[node]); err != nil {
				return err
			}
		}
	}
	return nil
}

// withinFabric says whether the addresses of a node are those of its fabric.
func withinFabric(fabric string, conf, node config) error {
	for _, address := range []string{"ip", "ip6"} {
		prefix := address + "_prefix"
		if node[address] == "" {
			continue
		}
		if conf[prefix] == "" {
			return fail("fabric '%s' does not have an IP prefix configured for the node IP %s", fabric, node[address])
		}
		within, err := netip.ParsePrefix(conf[prefix])
		if at, wrong := netip.ParseAddr(node[address]); err != nil || wrong != nil || !within.Masked().Contains(at) {
			return fail("node IP %s is outside the IP prefix %s of the fabric", node[address], conf[prefix])
		}
	}
	return nil
}

// dropFabric: what lies on a fabric keeps it, its nodes go with it.
func dropFabric(w *world, c *call, id string) error {
	if err := w.sdnUnlocked(c); err != nil {
		return err
	}
	for _, user := range []struct{ file, kind, what string }{
		{"sdn/controllers", "evpn", "EVPN controller"}, {"sdn/zones", "vxlan", "VXLAN zone"},
	} {
		all := w.sections[user.file]
		for _, key := range slices.Sorted(maps.Keys(all)) {
			if all[key]["type"] == user.kind && all[key]["fabric"] == id {
				return fail("this fabric is still used in the %s \"%s\"", user.what, key)
			}
		}
	}
	maps.DeleteFunc(w.sections["sdn/fabric-nodes"], func(node string, _ config) bool { return strings.HasPrefix(node, id+"_") })
	return nil
}

// checkFabricNode: a node speaks what its fabric speaks, from an address of its own.
func checkFabricNode(w *world, c *call, id string, conf, _ config) error {
	if err := w.sdnUnlocked(c); err != nil {
		return err
	}
	fabric := c.in["fabric_id"]
	at, ok := w.sections["sdn/fabrics"][fabric]
	switch {
	case !ok:
		return fail("fabric '%s' does not exist in configuration", fabric)
	case at["type"] != conf["type"]:
		return fail("node has a different protocol than the referenced fabric")
	}
	for other, node := range w.sections["sdn/fabric-nodes"] {
		same := node["ip"] != "" && node["ip"] == conf["ip"] || node["ip6"] != "" && node["ip6"] == conf["ip6"]
		if other != id && strings.HasPrefix(other, fabric+"_") && same {
			return fail("fabric %s contains nodes with duplicated IPs", fabric)
		}
	}
	return withinFabric(fabric, at, conf)
}

// apiFabrics is GET /cluster/sdn/fabrics/all.
func apiFabrics(w *world, c *call) (any, error) {
	files := fabricFiles()
	answer := map[string]any{}
	for i, name := range []string{"fabrics", "nodes"} {
		f, list := &files[i], []map[string]any{}
		all := f.entries(w, c)
		for _, id := range slices.Sorted(maps.Keys(all)) {
			entry, fabric := all[id], id
			if name == "nodes" {
				fabric = text(entry["fabric_id"])
				if c.needAny("/nodes/"+text(entry["node_id"]), "Sys.Audit", "Sys.Modify") != nil {
					continue
				}
			} else {
				entry["id"] = id
			}
			if c.needAny("/sdn/fabrics/"+fabric, "SDN.Audit", "SDN.Allocate") == nil {
				entry["digest"] = w.sectionDigest(f)
				list = append(list, entry)
			}
		}
		answer[name] = list
	}
	return answer, nil
}

func fabricCalls() []pastCall {
	list := &pveapi.Value{Type: "array"}
	return []pastCall{
		{name: "GET /cluster/sdn/fabrics", perm: allOf("/sdn/fabrics", "SDN.Audit"), since: "9.0", returns: list, handle: index{"subdir", "all"}.handler},
		{name: "GET /cluster/sdn/fabrics/all", params: "running: boolean\npending: boolean", since: "9.0", returns: &pveapi.Value{Type: "object"}, handle: apiFabrics},
	}
}
