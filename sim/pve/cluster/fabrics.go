package cluster

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// Fabrics are the networks below others, and the nodes in them; PVE 9 has them
// (PVE/API2/Network/SDN/Fabrics; what it calls is Rust, the crate proxmox-ve-config).

func fabricFiles() []core.SectionFile {
	verbs := func(create, update, drop string) map[string]string {
		return map[string]string{"create": create, "update": update, "delete": drop}
	}
	common := core.SectionFile{
		Family: "sdn/fabric", TypeKey: "protocol", Extra: "lock-token: string", Since: "9.0", Lock: sdnLock, Domain: "sdn", Open: true, ReadsWritten: true, // PVE/API2/Network/SDN/Fabrics/Fabric.pm, get_fabric
		Query: "running: boolean\npending: boolean", View: sdnView,
	}
	fabric, node := common, common
	fabric.Name, fabric.Path, fabric.Key, fabric.ID = "sdn/fabrics", "/cluster/sdn/fabrics/fabric", "id", "pve-sdn-fabric-id"
	fabric.Kinds = map[string]string{
		"openfabric": "ip_prefix? ip6_prefix? hello_interval? csnp_interval?", "ospf": "ip_prefix? ip6_prefix? area?",
	}
	fabric.Props = `ip_prefix: string CIDR
		ip6_prefix: string CIDR
		hello_interval: number 1..600
		csnp_interval: number 1..600
		area: string`
	fabric.Twice, fabric.Missing = "fabric '%s' already exists in config", "fabric '%s' does not exist in configuration"
	fabric.Failed, fabric.Verbs = "%s failed", verbs("adding fabric", "updating fabric", "deleting fabric")
	fabric.Read = core.AnyOf("/sdn/fabrics/{id}", "SDN.Audit", "SDN.Allocate")
	fabric.Write, fabric.Change = allOf("/sdn/fabrics", "SDN.Allocate"), allOf("/sdn/fabrics/{id}", "SDN.Allocate")
	fabric.Guard, fabric.Check, fabric.Drop = sdnOnly("/sdn/fabrics/"), checkFabric, dropFabric

	node.Name, node.Path, node.Key, node.ID = "sdn/fabric-nodes", "/cluster/sdn/fabrics/node/{fabric_id}", "node_id", "pve-node"
	node.Kinds = map[string]string{"openfabric": "interfaces? ip? ip6?", "ospf": "interfaces? ip? ip6?"}
	node.Props = "interfaces: array\nip: string ipv4\nip6: string ipv6"
	node.Twice, node.Missing = "node '%s' already exists in config", "node '%s' does not exist in the fabric"
	node.Failed, node.Verbs = "%s failed", verbs("adding node", "updating node", "deleting node")
	at := func(c *core.Call) string { return c.In["fabric_id"] + "_" + c.In["node_id"] }
	node.At, node.IDOf = at, func(_ *core.World, c *core.Call) string { return at(c) }
	seen := core.AnyOf("/nodes/{node_id}", "Sys.Audit", "Sys.Modify")
	node.Read = both(core.AnyOf("/sdn/fabrics/{fabric_id}", "SDN.Audit", "SDN.Allocate"), seen)
	node.Write = both(allOf("/sdn/fabrics/{fabric_id}", "SDN.Allocate"), allOf("/nodes/{node_id}", "Sys.Modify"))
	node.Guard = func(c *core.Call, _ string, conf map[string]any, write bool) error {
		switch {
		case write:
			return nil
		case conf["fabric_id"] != c.In["fabric_id"]:
			return perl.Fail("a node of another fabric")
		}
		return c.NeedAny("/nodes/"+perl.Text(conf["node_id"]), "Sys.Audit", "Sys.Modify")
	}
	node.Check = checkFabricNode
	node.Show = func(_ *core.World, _ *core.Call, id string, entry map[string]any) {
		entry["fabric_id"], entry["node_id"], _ = strings.Cut(id, "_")
	}
	return []core.SectionFile{fabric, node}
}

// checkFabric: prefixes and nodes have to fit each other.
func checkFabric(w *core.World, c *core.Call, id string, conf, old perl.Config) error {
	if err := sdnUnlocked(w, c); err != nil || old == nil {
		return err
	}
	nodes := w.Sections["sdn/fabric-nodes"]
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
func withinFabric(fabric string, conf, node perl.Config) error {
	for _, address := range []string{"ip", "ip6"} {
		prefix := address + "_prefix"
		if node[address] == "" {
			continue
		}
		if conf[prefix] == "" {
			return perl.Fail("fabric '%s' does not have an IP prefix configured for the node IP %s", fabric, node[address])
		}
		within, err := netip.ParsePrefix(conf[prefix])
		if at, wrong := netip.ParseAddr(node[address]); err != nil || wrong != nil || !within.Masked().Contains(at) {
			return perl.Fail("node IP %s is outside the IP prefix %s of the fabric", node[address], conf[prefix])
		}
	}
	return nil
}

// dropFabric: a network on a fabric prevents its removal; its nodes go with it.
func dropFabric(w *core.World, c *core.Call, id string) error {
	if err := sdnUnlocked(w, c); err != nil {
		return err
	}
	for _, user := range []struct{ file, kind, what string }{
		{"sdn/controllers", "evpn", "EVPN controller"}, {"sdn/zones", "vxlan", "VXLAN zone"},
	} {
		all := w.Sections[user.file]
		for _, key := range slices.Sorted(maps.Keys(all)) {
			if all[key]["type"] == user.kind && all[key]["fabric"] == id {
				return perl.Fail("this fabric is still used in the %s \"%s\"", user.what, key)
			}
		}
	}
	maps.DeleteFunc(w.Sections["sdn/fabric-nodes"], func(node string, _ perl.Config) bool { return strings.HasPrefix(node, id+"_") })
	return nil
}

// checkFabricNode: a node speaks what its fabric speaks, from an address of its own.
func checkFabricNode(w *core.World, c *core.Call, id string, conf, _ perl.Config) error {
	if err := sdnUnlocked(w, c); err != nil {
		return err
	}
	fabric := c.In["fabric_id"]
	at, ok := w.Sections["sdn/fabrics"][fabric]
	switch {
	case !ok:
		return perl.Fail("fabric '%s' does not exist in configuration", fabric)
	case at["type"] != conf["type"]:
		return perl.Fail("node has a different protocol than the referenced fabric")
	}
	for other, node := range w.Sections["sdn/fabric-nodes"] {
		same := node["ip"] != "" && node["ip"] == conf["ip"] || node["ip6"] != "" && node["ip6"] == conf["ip6"]
		if other != id && strings.HasPrefix(other, fabric+"_") && same {
			return perl.Fail("fabric %s contains nodes with duplicated IPs", fabric)
		}
	}
	return withinFabric(fabric, at, conf)
}

// apiFabrics is GET /cluster/sdn/fabrics/all.
func apiFabrics(w *core.World, c *core.Call) (any, error) {
	files := fabricFiles()
	answer := map[string]any{}
	for i, name := range []string{"fabrics", "nodes"} {
		f, list := &files[i], []map[string]any{}
		all := f.Entries(w, c)
		for _, id := range slices.Sorted(maps.Keys(all)) {
			entry, fabric := all[id], id
			if name == "nodes" {
				fabric = perl.Text(entry["fabric_id"])
				if c.NeedAny("/nodes/"+perl.Text(entry["node_id"]), "Sys.Audit", "Sys.Modify") != nil {
					continue
				}
			} else {
				entry["id"] = id
			}
			if c.NeedAny("/sdn/fabrics/"+fabric, "SDN.Audit", "SDN.Allocate") == nil {
				entry["digest"] = f.Digest(w)
				list = append(list, entry)
			}
		}
		answer[name] = list
	}
	return answer, nil
}

func fabricCalls() []core.ExtraCall {
	list := &pveapi.Value{Type: "array"}
	return []core.ExtraCall{
		{Name: "GET /cluster/sdn/fabrics", Perm: allOf("/sdn/fabrics", "SDN.Audit"), Since: "9.0", Returns: list, Handle: core.DirectoryIndex{Key: "subdir", Names: "all"}.Handler},
		{Name: "GET /cluster/sdn/fabrics/all", Params: "running: boolean\npending: boolean", Since: "9.0", Returns: &pveapi.Value{Type: "object"}, Handle: apiFabrics},
	}
}

// peered: a kind of section needs to know its peers, by themselves or (PVE 9) by a fabric.
func peered(conf perl.Config, kind string) error {
	if conf["type"] == kind && conf["peers"] == "" && conf["fabric"] == "" {
		return perl.Fail("missing value for required option 'peers'")
	}
	return nil
}

// checkController is on_update_hook of the plugins of controllers. Those of BGP and
// IS-IS count the others of the node that is asked, and only from two others on.
func checkController(w *core.World, _ *core.Call, id string, conf, _ perl.Config) error {
	if err := peered(conf, "evpn"); err != nil {
		return err
	}
	others, here := 0, 0
	for other, at := range w.Sections["sdn/controllers"] {
		if other == id || at["type"] != conf["type"] {
			continue
		}
		if others++; at["node"] == w.Cfg.Node {
			here++
		}
	}
	switch {
	case conf["type"] == "evpn" && others > 0:
		return perl.Fail("only 1 global evpn controller can be defined")
	case conf["type"] == "bgp" && here > 1:
		return perl.Fail("only 1 bgp controller can be defined")
	case conf["type"] == "isis" && here > 1:
		return perl.Fail("only 1 bgp or isis controller can be defined")
	}
	return nil
}

// both is the rule that all of several rules are met.
func both(rules ...*pveapi.Rule) *pveapi.Rule { return &pveapi.Rule{Kind: "and", Rules: rules} }
