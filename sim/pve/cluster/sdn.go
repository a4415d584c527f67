package cluster

// Software networks are zones, virtual networks, subnets, controllers and fabrics. Changes
// are pending until all of them are applied at once.

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// sdnArea is software networks.
func sdnArea() core.Area {
	return core.Area{
		Files: slices.Concat(sdnFiles(), fabricFiles()),
		Calls: slices.Concat(sdnCalls(), fabricCalls()),
		Begin: beginSDN,
	}
}

// Software networks (PVE/API2/Network/SDN*.pm and PVE/Network/SDN of pve-network):
// what is written is pending until it is applied as a whole.

// networkLock keeps all but one from changing anything.
type networkLock struct{ token string }

func lockOf(w *core.World) *networkLock { return core.PartOf[networkLock](&w.Parts) }

// beginSDN creates the objects of a fresh installation.
func beginSDN(w *core.World) {
	w.Sections["sdn/ipams"] = map[string]perl.Config{"pve": {"type": "pve"}}
	w.Hooks.Listed = append(w.Hooks.Listed, func(c *core.Call, kind string) []any { return zoneEntries(w, c, kind) })
}

// sdnApplied are the files that an application takes over.
var sdnApplied = []string{"sdn/zones", "sdn/vnets", "sdn/subnets", "sdn/controllers", "sdn/fabrics", "sdn/fabric-nodes"}

// sdnLock is the file that PVE 8 locks for all of them; PVE 9 has a lock of its own.
const sdnLock = "sdn__running-config"

// sdnFile returns what the files of software networks share.
func sdnFile(what string, f core.SectionFile) core.SectionFile {
	plural := what + "s"
	if what == "dns" {
		plural = what
	}
	f.Name, f.Lock, f.Domain = "sdn/"+plural, sdnLock, "sdn"
	f.Key, f.ID = what, "pve-sdn-"+what+"-id"
	f.Twice, f.Failed = "sdn "+what+" object ID '%s' already defined", "%s sdn "+what+" object failed"
	f.Path = cmp.Or(f.Path, "/cluster/sdn/"+plural)
	f.Extra = "lock-token: string @9.0"
	if slices.Contains(sdnApplied, f.Name) {
		f.Query, f.View = "running: boolean\npending: boolean", sdnView
	}
	check, drop := f.Check, f.Drop
	f.Check = func(w *core.World, c *core.Call, id string, conf, old perl.Config) error {
		if err := sdnUnlocked(w, c); err != nil || check == nil {
			return err
		}
		return check(w, c, id, conf, old)
	}
	f.Drop = func(w *core.World, c *core.Call, id string) error {
		if err := sdnUnlocked(w, c); err != nil || drop == nil {
			return err
		}
		return drop(w, c, id)
	}
	return f
}

// sdnOnly filters by the right to audit or allocate below a path.
func sdnOnly(path string) func(*core.Call, string, map[string]any, bool) error {
	return func(c *core.Call, id string, _ map[string]any, write bool) error {
		if write {
			return nil // The rule of the call says more.
		}
		return c.NeedAny(path+id, "SDN.Audit", "SDN.Allocate")
	}
}

const sdnCommon = " mtu? dns? reversedns? dnszone? ipam? nodes?"

// sdnFiles are the files of software networks.
func sdnFiles() []core.SectionFile {
	return []core.SectionFile{
		sdnFile("zone", core.SectionFile{
			Kinds: map[string]string{
				"simple": "dhcp?" + sdnCommon,
				"vlan":   "bridge bridge-disable-mac-learning?" + sdnCommon,
				"qinq":   "tag bridge bridge-disable-mac-learning? vlan-protocol?" + sdnCommon,
				"vxlan":  "peers? fabric? vxlan-port?" + sdnCommon,
				"evpn": "vrf-vxlan controller exitnodes? exitnodes-local-routing? exitnodes-primary? advertise-subnets? disable-arp-nd-suppression? " +
					"bridge-disable-mac-learning? rt-import? vxlan-port? mac?" + sdnCommon,
			},
			Props: `mtu: integer
				dns: string
				reversedns: string
				dnszone: string dns-name
				ipam: string
				nodes: string pve-node-list
				dhcp: string dnsmasq|
				bridge: string
				bridge-disable-mac-learning: boolean
				tag: integer 0..
				vlan-protocol: string 802.1q|802.1ad
				peers: string ip-list
				fabric: string pve-sdn-fabric-id @9.0
				vxlan-port: integer 1..65536
				vrf-vxlan: integer
				controller: string
				exitnodes: string pve-node-list
				exitnodes-local-routing: boolean
				exitnodes-primary: string pve-node
				advertise-subnets: boolean
				disable-arp-nd-suppression: boolean
				rt-import: string pve-sdn-bgp-rt-list
				mac: string mac-addr`,
			Open: true, Early: true, Missing: "sdn '%s' does not exist",
			Read: allOf("/sdn/zones/{zone}", "SDN.Allocate"), Write: allOf("/sdn/zones", "SDN.Allocate"), Change: allOf("/sdn/zones/{zone}", "SDN.Allocate"),
			Guard: sdnOnly("/sdn/zones/"), Check: checkZone,
			Drop: func(w *core.World, _ *core.Call, id string) error {
				vnets := w.Sections["sdn/vnets"]
				for _, vnet := range slices.Sorted(maps.Keys(vnets)) {
					if vnets[vnet]["zone"] == id {
						return perl.Fail("zone %s is used by vnet %s", id, vnet)
					}
				}
				return nil
			},
		}),
		sdnFile("vnet", core.SectionFile{
			Only: "vnet", Kinds: map[string]string{"vnet": "zone tag? alias? vlanaware? isolate-ports?"},
			Props: `zone: string
				tag: integer 1..16777215
				alias: string <=256 /[\(\)\-_.\w\d\s]{0,256}/
				vlanaware: boolean
				isolate-ports: boolean`,
			Open: true, Missing: "sdn vnet '%s' does not exist", Write: allOf("/sdn/zones/{zone}", "SDN.Allocate"), Change: &pveapi.Rule{Kind: "and"},
			Guard: seesVnet,
			Check: checkVnet,
			Drop: func(w *core.World, _ *core.Call, id string) error {
				if hasSubnets(w, id) {
					return perl.BadParam("vnet", "Can't delete vnet if subnets exists")
				}
				return nil
			},
		}),
		sdnFile("subnet", core.SectionFile{
			Path: "/cluster/sdn/vnets/{vnet}/subnets",
			Only: "subnet", Kinds: map[string]string{"subnet": "vnet gateway? snat? dnszoneprefix? dhcp-range? dhcp-dns-server?"},
			Props: `vnet: string
				gateway: string ip
				snat: boolean
				dnszoneprefix: string dns-name
				dhcp-range: array
				dhcp-dns-server: string ip`,
			Open: true, Missing: "sdn subnet '%s' does not exist",
			Guard: func(c *core.Call, _ string, conf map[string]any, write bool) error {
				vnet := c.In["vnet"]
				if vnet != conf["vnet"] && conf["vnet"] != nil {
					return perl.BadParam("vnet", "wrong vnet")
				}
				at, there := c.W.Sections["sdn/vnets"][vnet]
				if !there {
					return perl.Fail("sdn vnet '%s' does not exist", vnet)
				}
				return seesVnet(c, vnet, map[string]any{"zone": at["zone"]}, write)
			},
			IDOf: func(w *core.World, c *core.Call) string {
				return w.Sections["sdn/vnets"][c.In["vnet"]]["zone"] + "-" + strings.Replace(c.In["subnet"], "/", "-", 1)
			},
			Check: checkSubnet, Show: showSubnet,
		}),
		sdnFile("controller", core.SectionFile{
			Kinds: map[string]string{
				"evpn": "asn peers? fabric?", "bgp": "node peers asn ebgp? ebgp-multihop? loopback? bgp-multipath-as-path-relax?",
				"isis": "isis-domain isis-ifaces isis-net node loopback?",
			},
			Props: `asn: integer 0..4294967296
				peers: string ip-list
				fabric: string pve-sdn-fabric-id @9.0
				node: string pve-node
				ebgp: boolean
				ebgp-multihop: integer
				loopback: string
				bgp-multipath-as-path-relax: boolean
				isis-domain: string
				isis-ifaces: string pve-iface-list
				isis-net: string`,
			Open: true, Early: true, Missing: "sdn '%s' does not exist",
			Read: allOf("/sdn/controllers/{controller}", "SDN.Allocate"), Write: allOf("/sdn/controllers", "SDN.Allocate"),
			Guard: sdnOnly("/sdn/controllers/"), Check: checkController,
			Drop: func(w *core.World, _ *core.Call, id string) error {
				zones := w.Sections["sdn/zones"]
				for _, zone := range slices.Sorted(maps.Keys(zones)) {
					if zones[zone]["controller"] == id {
						return perl.Fail("controller %s is used by %s", id, zone)
					}
				}
				return nil
			},
		}),
		sdnFile("ipam", core.SectionFile{
			Kinds: map[string]string{"pve": "", "netbox": "url token fingerprint?", "phpipam": "url token section fingerprint?"},
			Props: "url: string\ntoken: string\nsection: integer\nfingerprint: string",
			Open:  true, Early: true, Missing: "sdn '%s' does not exist",
			Read: allOf("/sdn/ipams/{ipam}", "SDN.Allocate"), Write: allOf("/sdn/ipams", "SDN.Allocate"), Guard: sdnOnly("/sdn/ipams/"),
		}),
		sdnFile("dns", core.SectionFile{
			Kinds: map[string]string{"powerdns": "url key ttl? reversev6mask? reversemaskv6? fingerprint?"},
			Props: "url: string\nkey: string\nttl: integer\nreversev6mask: integer\nreversemaskv6: integer\nfingerprint: string",
			Open:  true, Early: true, Missing: "sdn '%s' does not exist",
			Read: allOf("/sdn/dns/{dns}", "SDN.Allocate"), Write: allOf("/sdn/dns", "SDN.Allocate"), Guard: sdnOnly("/sdn/dns/"),
		}),
	}
}

// seesVnet is the check of privileges on a virtual network, which its zone gives.
func seesVnet(c *core.Call, id string, conf map[string]any, write bool) error {
	zone := conf["zone"]
	if pending, ok := conf["pending"].(map[string]any); ok && zone == nil {
		zone = pending["zone"]
	}
	path := fmt.Sprintf("/sdn/zones/%v/%s", zone, id)
	if write {
		return c.Need(path, "SDN.Allocate")
	}
	return c.NeedAny(path, "SDN.Audit", "SDN.Allocate")
}

func hasSubnets(w *core.World, vnet string) bool {
	for _, subnet := range w.Sections["sdn/subnets"] {
		if subnet["vnet"] == vnet {
			return true
		}
	}
	return false
}

// subnetParts are the fields in the id of a subnet (sdn_subnets_config).
func subnetParts(id string) (zone, network, mask string) {
	parts := strings.SplitN(id, "-", 3)
	for len(parts) < 3 {
		parts = append(parts, "")
	}
	return parts[0], parts[1], parts[2]
}

// showSubnet adds the parts of a subnet, and the ranges in theirs (get_dhcp_ranges).
func showSubnet(_ *core.World, c *core.Call, id string, entry map[string]any) {
	zone, network, mask := subnetParts(id)
	entry["zone"], entry["network"], entry["mask"], entry["cidr"] = zone, network, mask, network+"/"+mask
	split := func(of map[string]any) []map[string]any {
		list := []map[string]any{}
		ranges, _ := of["dhcp-range"].([]string)
		for _, text := range ranges {
			list = append(list, map[string]any{"start-address": perl.OptionOf(text, "start-address"), "end-address": perl.OptionOf(text, "end-address")})
		}
		return list
	}
	entry["dhcp-range"] = split(entry)
	if pending, ok := entry["pending"].(map[string]any); ok && pending["dhcp-range"] != nil && pending["dhcp-range"] != "deleted" {
		pending["dhcp-range"] = split(pending)
	}
	if c.In["vnet"] != "" && c.In["subnet"] == "" && entry["vnet"] != c.In["vnet"] {
		entry["vnet"] = ""
	}
}

// checkSubnet is on_update_hook of PVE/Network/SDN/SubnetPlugin.pm.
func checkSubnet(w *core.World, _ *core.Call, id string, conf, _ perl.Config) error {
	_, network, mask := subnetParts(id)
	cidr := network + "/" + mask
	prefix, err := netip.ParsePrefix(cidr)
	if err != nil {
		return perl.BadParam("subnet", "value does not look like a valid CIDR network")
	}
	vnet, ok := w.Sections["sdn/vnets"][conf["vnet"]]
	switch {
	case !ok:
		return perl.BadParam("vnet", conf["vnet"]+" don't exist")
	case vnet["vlanaware"] == "1":
		return perl.BadParam("vnet", "you can't add a subnet on a vlanaware vnet")
	}
	within := func(word string) bool {
		address, err := netip.ParseAddr(word)
		return err == nil && prefix.Masked().Contains(address)
	}
	if gateway := conf["gateway"]; gateway != "" && !within(gateway) && (mask != "32" || strings.Contains(gateway, ":")) {
		return perl.BadParam("gateway", gateway+" is not in subnet "+cidr)
	}
	if conf["dhcp-range"] == "" {
		return nil
	}
	var seen [][2]netip.Addr
	for text := range strings.SplitSeq(conf["dhcp-range"], "\n") {
		from, to := perl.OptionOf(text, "start-address"), perl.OptionOf(text, "end-address")
		start, wrongStart := netip.ParseAddr(from)
		end, wrongEnd := netip.ParseAddr(to)
		overlaps := func(other [2]netip.Addr) bool { return !end.Less(other[0]) && !other[1].Less(start) }
		var wrong string
		switch {
		case wrongStart != nil:
			wrong = "start-address is not a valid IP " + from
		case wrongEnd != nil:
			wrong = "end-address is not a valid IP " + to
		case end.Less(start):
			wrong = "start-address " + from + " must be smaller than end-address " + to
		case !within(from):
			wrong = "start-address " + from + " is not in subnet " + cidr
		case !within(to):
			wrong = "end-address " + to + " is not in subnet " + cidr
		case slices.ContainsFunc(seen, overlaps):
			wrong = "dhcp ranges must not overlap"
		}
		if wrong != "" {
			return perl.BadParam("dhcp-range", wrong)
		}
		seen = append(seen, [2]netip.Addr{start, end})
	}
	return nil
}

// allOf is the rule that all privileges on a path are needed.
func allOf(path string, privs ...string) *pveapi.Rule {
	return &pveapi.Rule{Kind: "perm", Path: path, Privs: privs}
}
