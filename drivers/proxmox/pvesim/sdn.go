package pvesim

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
)

// Software networks (PVE/API2/Network/SDN*.pm and PVE/Network/SDN of pve-network):
// what is written is pending until it is applied as a whole.

// networkLock keeps all but one from changing anything.
type networkLock struct{ token string }

func lockOf(w *world) *networkLock { return partOf[networkLock](&w.parts) }

// beginSDN is what there is from the start.
func beginSDN(w *world) {
	w.sections["sdn/ipams"] = map[string]config{"pve": {"type": "pve"}}
	w.hooks.listed = append(w.hooks.listed, w.zoneEntries)
}

// sdnApplied are the files that an application takes over.
var sdnApplied = []string{"sdn/zones", "sdn/vnets", "sdn/subnets", "sdn/controllers", "sdn/fabrics", "sdn/fabric-nodes"}

// sdnLock is the file that PVE 8 locks for all of them; PVE 9 has a lock of its own.
const sdnLock = "sdn__running-config"

// sdnFile is what the files of software networks have in common.
func sdnFile(what string, f sectionFile) sectionFile {
	plural := what + "s"
	if what == "dns" {
		plural = what
	}
	f.name, f.lock, f.domain = "sdn/"+plural, sdnLock, "sdn"
	f.key, f.id = what, "pve-sdn-"+what+"-id"
	f.twice, f.failed = "sdn "+what+" object ID '%s' already defined", "%s sdn "+what+" object failed"
	f.path = cmp.Or(f.path, "/cluster/sdn/"+plural)
	f.extra = "lock-token: string @9.0"
	if slices.Contains(sdnApplied, f.name) {
		f.query, f.view = "running: boolean\npending: boolean", sdnView
	}
	check, drop := f.check, f.drop
	f.check = func(w *world, c *call, id string, conf, old config) error {
		if err := w.sdnUnlocked(c); err != nil || check == nil {
			return err
		}
		return check(w, c, id, conf, old)
	}
	f.drop = func(w *world, c *call, id string) error {
		if err := w.sdnUnlocked(c); err != nil || drop == nil {
			return err
		}
		return drop(w, c, id)
	}
	return f
}

// sdnOnly lets see what somebody may audit or allocate below a path.
func sdnOnly(path string) func(*call, string, map[string]any, bool) error {
	return func(c *call, id string, _ map[string]any, write bool) error {
		if write {
			return nil // The rule of the call says more.
		}
		return c.needAny(path+id, "SDN.Audit", "SDN.Allocate")
	}
}

const sdnCommon = " mtu? dns? reversedns? dnszone? ipam? nodes?"

// sdnFiles are the files of software networks.
func sdnFiles() []sectionFile {
	return []sectionFile{
		sdnFile("zone", sectionFile{
			kinds: map[string]string{
				"simple": "dhcp?" + sdnCommon,
				"vlan":   "bridge bridge-disable-mac-learning?" + sdnCommon,
				"qinq":   "tag bridge bridge-disable-mac-learning? vlan-protocol?" + sdnCommon,
				"vxlan":  "peers? fabric? vxlan-port?" + sdnCommon,
				"evpn": "vrf-vxlan controller exitnodes? exitnodes-local-routing? exitnodes-primary? advertise-subnets? disable-arp-nd-suppression? " +
					"bridge-disable-mac-learning? rt-import? vxlan-port? mac?" + sdnCommon,
			},
			props: `mtu: integer
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
			open: true, early: true, missing: "sdn '%s' does not exist",
			read: allOf("/sdn/zones/{zone}", "SDN.Allocate"), write: allOf("/sdn/zones", "SDN.Allocate"), change: allOf("/sdn/zones/{zone}", "SDN.Allocate"),
			guard: sdnOnly("/sdn/zones/"), check: checkZone,
			drop: func(w *world, _ *call, id string) error {
				vnets := w.sections["sdn/vnets"]
				for _, vnet := range slices.Sorted(maps.Keys(vnets)) {
					if vnets[vnet]["zone"] == id {
						return fail("zone %s is used by vnet %s", id, vnet)
					}
				}
				return nil
			},
		}),
		sdnFile("vnet", sectionFile{
			only: "vnet", kinds: map[string]string{"vnet": "zone tag? alias? vlanaware? isolate-ports?"},
			props: `zone: string
				tag: integer 1..16777215
				alias: string <=256 /[\(\)\-_.\w\d\s]{0,256}/
				vlanaware: boolean
				isolate-ports: boolean`,
			open: true, missing: "sdn vnet '%s' does not exist", write: allOf("/sdn/zones/{zone}", "SDN.Allocate"), change: &pveapi.Rule{Kind: "and"},
			guard: func(c *call, id string, conf map[string]any, write bool) error { return c.seesVnet(id, conf, write) },
			check: checkVnet,
			drop: func(w *world, _ *call, id string) error {
				if w.hasSubnets(id) {
					return badParam("vnet", "Can't delete vnet if subnets exists")
				}
				return nil
			},
		}),
		sdnFile("subnet", sectionFile{
			path: "/cluster/sdn/vnets/{vnet}/subnets",
			only: "subnet", kinds: map[string]string{"subnet": "vnet gateway? snat? dnszoneprefix? dhcp-range? dhcp-dns-server?"},
			props: `vnet: string
				gateway: string ip
				snat: boolean
				dnszoneprefix: string dns-name
				dhcp-range: array
				dhcp-dns-server: string ip`,
			open: true, missing: "sdn subnet '%s' does not exist",
			guard: func(c *call, _ string, conf map[string]any, write bool) error {
				vnet := c.in["vnet"]
				if vnet != conf["vnet"] && conf["vnet"] != nil {
					return badParam("vnet", "wrong vnet")
				}
				at, there := c.w.sections["sdn/vnets"][vnet]
				if !there {
					return fail("sdn vnet '%s' does not exist", vnet)
				}
				return c.seesVnet(vnet, map[string]any{"zone": at["zone"]}, write)
			},
			idOf: func(w *world, c *call) string {
				return w.sections["sdn/vnets"][c.in["vnet"]]["zone"] + "-" + strings.Replace(c.in["subnet"], "/", "-", 1)
			},
			check: checkSubnet, show: showSubnet,
		}),
		sdnFile("controller", sectionFile{
			kinds: map[string]string{
				"evpn": "asn peers? fabric?", "bgp": "node peers asn ebgp? ebgp-multihop? loopback? bgp-multipath-as-path-relax?",
				"isis": "isis-domain isis-ifaces isis-net node loopback?",
			},
			props: `asn: integer 0..4294967296
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
			open: true, early: true, missing: "sdn '%s' does not exist",
			read: allOf("/sdn/controllers/{controller}", "SDN.Allocate"), write: allOf("/sdn/controllers", "SDN.Allocate"),
			guard: sdnOnly("/sdn/controllers/"), check: checkController,
			drop: func(w *world, _ *call, id string) error {
				zones := w.sections["sdn/zones"]
				for _, zone := range slices.Sorted(maps.Keys(zones)) {
					if zones[zone]["controller"] == id {
						return fail("controller %s is used by %s", id, zone)
					}
				}
				return nil
			},
		}),
		sdnFile("ipam", sectionFile{
			kinds: map[string]string{"pve": "", "netbox": "url token fingerprint?", "phpipam": "url token section fingerprint?"},
			props: "url: string\ntoken: string\nsection: integer\nfingerprint: string",
			open:  true, early: true, missing: "sdn '%s' does not exist",
			read: allOf("/sdn/ipams/{ipam}", "SDN.Allocate"), write: allOf("/sdn/ipams", "SDN.Allocate"), guard: sdnOnly("/sdn/ipams/"),
		}),
		sdnFile("dns", sectionFile{
			kinds: map[string]string{"powerdns": "url key ttl? reversev6mask? reversemaskv6? fingerprint?"},
			props: "url: string\nkey: string\nttl: integer\nreversev6mask: integer\nreversemaskv6: integer\nfingerprint: string",
			open:  true, early: true, missing: "sdn '%s' does not exist",
			read: allOf("/sdn/dns/{dns}", "SDN.Allocate"), write: allOf("/sdn/dns", "SDN.Allocate"), guard: sdnOnly("/sdn/dns/"),
		}),
	}
}

// seesVnet is the check of privileges on a virtual network, which its zone gives.
func (c *call) seesVnet(id string, conf map[string]any, write bool) error {
	zone := conf["zone"]
	if pending, ok := conf["pending"].(map[string]any); ok && zone == nil {
		zone = pending["zone"]
	}
	path := fmt.Sprintf("/sdn/zones/%v/%s", zone, id)
	if write {
		return c.need(path, "SDN.Allocate")
	}
	return c.needAny(path, "SDN.Audit", "SDN.Allocate")
}

func (w *world) hasSubnets(vnet string) bool {
	for _, subnet := range w.sections["sdn/subnets"] {
		if subnet["vnet"] == vnet {
			return true
		}
	}
	return false
}

// subnetParts are what the id of a subnet says of it (sdn_subnets_config).
func subnetParts(id string) (zone, network, mask string) {
	parts := strings.SplitN(id, "-", 3)
	for len(parts) < 3 {
		parts = append(parts, "")
	}
	return parts[0], parts[1], parts[2]
}

// showSubnet adds the parts of a subnet, and the ranges in theirs (get_dhcp_ranges).
func showSubnet(_ *world, c *call, id string, entry map[string]any) {
	zone, network, mask := subnetParts(id)
	entry["zone"], entry["network"], entry["mask"], entry["cidr"] = zone, network, mask, network+"/"+mask
	split := func(of map[string]any) []map[string]any {
		list := []map[string]any{}
		ranges, _ := of["dhcp-range"].([]string)
		for _, text := range ranges {
			list = append(list, map[string]any{"start-address": optionOf(text, "start-address"), "end-address": optionOf(text, "end-address")})
		}
		return list
	}
	entry["dhcp-range"] = split(entry)
	if pending, ok := entry["pending"].(map[string]any); ok && pending["dhcp-range"] != nil && pending["dhcp-range"] != "deleted" {
		pending["dhcp-range"] = split(pending)
	}
	if c.in["vnet"] != "" && c.in["subnet"] == "" && entry["vnet"] != c.in["vnet"] {
		entry["vnet"] = ""
	}
}

// checkSubnet is on_update_hook of PVE/Network/SDN/SubnetPlugin.pm.
func checkSubnet(w *world, _ *call, id string, conf, _ config) error {
	_, network, mask := subnetParts(id)
	cidr := network + "/" + mask
	prefix, err := netip.ParsePrefix(cidr)
	if err != nil {
		return badParam("subnet", "value does not look like a valid CIDR network")
	}
	vnet, ok := w.sections["sdn/vnets"][conf["vnet"]]
	switch {
	case !ok:
		return badParam("vnet", conf["vnet"]+" don't exist")
	case vnet["vlanaware"] == "1":
		return badParam("vnet", "you can't add a subnet on a vlanaware vnet")
	}
	within := func(word string) bool {
		address, err := netip.ParseAddr(word)
		return err == nil && prefix.Masked().Contains(address)
	}
	if gateway := conf["gateway"]; gateway != "" && !within(gateway) && (mask != "32" || strings.Contains(gateway, ":")) {
		return badParam("gateway", gateway+" is not in subnet "+cidr)
	}
	if conf["dhcp-range"] == "" {
		return nil
	}
	var seen [][2]netip.Addr
	for text := range strings.SplitSeq(conf["dhcp-range"], "\n") {
		from, to := optionOf(text, "start-address"), optionOf(text, "end-address")
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
			return badParam("dhcp-range", wrong)
		}
		seen = append(seen, [2]netip.Addr{start, end})
	}
	return nil
}
