package pvesim

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// What the network devices of VMs and containers have in common: the right to plug one
// in, and what the bridge has to be able to do.

// usualMTU is that of a bridge for which nothing else is configured.
const usualMTU = 1500

// mayUseBridge checks the right to plug a device in. A VLAN tag and each VLAN of a
// trunk have a path of their own; the bridge itself is asked about where there is
// neither (check_vnet_access in pve-guest-common, PVE/GuestHelpers.pm).
func (c *call) mayUseBridge(device map[string]string) error {
	bridge, tag := device["bridge"], device["tag"]
	if tag == "" && device["trunks"] == "" {
		return c.need(c.w.bridgePath(bridge, ""), "SDN.Use")
	}
	if tag != "" {
		if err := c.need(c.w.bridgePath(bridge, tag), "SDN.Use"); err != nil {
			return err
		}
	}
	for _, tag := range trunkTags(device["trunks"]) {
		if err := c.need(c.w.bridgePath(bridge, tag), "SDN.Use"); err != nil {
			return err
		}
	}
	return nil
}

// trunkTags lists the VLANs of a trunk one by one, in the order in which PVE asks
// about them, which is that of their texts (get_tags_from_trunk).
func trunkTags(trunks string) []string {
	seen := map[string]bool{}
	var tags []string
	add := func(tag string) {
		if tag != "" && !seen[tag] {
			seen[tag] = true
			tags = append(tags, tag)
		}
	}
	for trunk := range strings.SplitSeq(trunks, ";") {
		first, last, _ := strings.Cut(trunk, "-")
		add(first)
		for n := atoi(first) + 1; n <= atoi(last); n++ {
			add(itoa(n))
		}
	}
	slices.Sort(tags)
	return tags
}

// bridgeOption is an option of a bridge that somebody configured on a node.
func (w *world) bridgeOption(node, bridge, option string) string {
	return w.nodes[node].ifaces[bridge][option]
}

// filtersVLANs says whether a bridge can have ports for several VLANs.
func (w *world) filtersVLANs(node, bridge string) bool {
	if vnet := w.applied["sdn/vnets"][bridge]; vnet != nil {
		return vnet["vlanaware"] == "1"
	}
	return w.bridgeOption(node, bridge, "bridge_vlan_aware") == "1" || w.bridgeOption(node, bridge, "type") == "OVSBridge"
}

// trunkTrouble is what PVE says of a trunk on a bridge that cannot have one (tap_plug
// in pve-common, PVE/Network.pm); empty when there is nothing to say.
func (w *world) trunkTrouble(node string, device map[string]string) string {
	bridge := device["bridge"]
	if device["trunks"] == "" || bridge == "" || w.filtersVLANs(node, bridge) {
		return ""
	}
	return "vlan aware feature need to be enabled to use trunks at /usr/share/perl5/PVE/Network.pm line 541."
}

func (w *world) bridgeMTU(node, bridge string) int {
	if mtu := atoi(w.bridgeOption(node, bridge, "mtu")); mtu != 0 {
		return mtu
	}
	return usualMTU
}

// mtuTrouble is why QEMU cannot get a network device with its MTU
// (print_netdevice_full in PVE/QemuServer.pm). Of other models than virtio PVE
// ignores it.
func (w *world) mtuTrouble(node, key string, device map[string]string) error {
	mtu, bridge := atoi(device["mtu"]), device["bridge"]
	switch most := w.bridgeMTU(node, bridge); {
	case mtu <= 1 || device["model"] != "virtio" || bridge == "":
		return nil
	case mtu < 576:
		return fail("netdev %s: MTU '%d' is smaller than the IP minimum MTU '576'", key, mtu)
	case mtu > most:
		return fail("netdev %s: MTU '%d' is bigger than the bridge MTU '%d' - adjust the MTU for the network device in the VM configuration, while ensuring that the bridge is configured as desired.", key, mtu, most)
	default:
		return nil
	}
}

// mtuOfCT refuses a device of a container whose MTU its bridge does not have
// (update_pct_config in PVE/LXC/Config.pm, which creates go through as well).
func (w *world) mtuOfCT(node, key, value string) error {
	if family := familyOf(key); family != "net" || key == family {
		return nil
	}
	device := ctProperty(key, value)
	mtu, bridge := atoi(device["mtu"]), device["bridge"]
	switch most := w.bridgeMTU(node, bridge); {
	case mtu == 0:
		return nil
	case !w.hasBridge(bridge):
		return fail("bridge '%s' does not exist", bridge)
	case mtu > most:
		return fail("%s: MTU size '%d' is bigger than bridge MTU '%d'", key, mtu, most)
	default:
		return nil
	}
}

// hasBridge says whether guests can be plugged there: a bridge of the nodes, or a virtual
// network that runs.
func (w *world) hasBridge(name string) bool {
	return slices.Contains(w.bridges, name) || w.applied["sdn/vnets"][name] != nil
}

// bridgePath is where the right to plug into a bridge stands: bridges of a node are in a
// zone of their own, a network of SDN is in its zone (check_vnet_access in
// pve-guest-common, PVE/GuestHelpers.pm), and a VLAN may have a list of its own.
func (w *world) bridgePath(bridge, tag string) string {
	zone := "localnetwork"
	if vnet, there := w.sections["sdn/vnets"][bridge]; there {
		zone = fmt.Sprint(vnet["zone"])
	}
	path := "/sdn/zones/" + zone + "/" + bridge
	if tag != "" {
		path += "/" + tag
	}
	return path
}

// netMTUs is what a state of a running VM keeps of the sizes of packets
// (get_nets_host_mtu in PVE/QemuServer/Network.pm).
func (w *world) netMTUs(node string, conf config) string {
	keys := indexedKeys(conf, "net")
	slices.Sort(keys)
	var parts []string
	for _, key := range keys {
		n := parseProperty(key, conf[key])
		if n["model"] != "virtio" {
			continue
		}
		mtu := w.bridgeMTU(node, n["bridge"])
		switch asked := atoi(n["mtu"]); {
		case n["bridge"] == "":
			mtu = 0
		case asked > 1:
			mtu = asked
		}
		parts = append(parts, fmt.Sprintf("%s=%d", key, mtu))
	}
	return strings.Join(parts, ",")
}

// leased is the address that DHCP gives the n-th interface of a guest.
func (w *world) leased(g *guest, n int) netip.Prefix {
	h := sample{vmid: g.vmid}.hash(int64(n) + w.cfg.Seed)
	return netip.MustParsePrefix(fmt.Sprintf("10.0.%d.%d/16", h>>8&255, 2+h%250))
}

// linkLocal is the IPv6 address that an interface gives itself (RFC 4291,
// appendix A).
func linkLocal(mac string) string {
	var b [6]byte
	if n, err := fmt.Sscanf(mac, "%02x:%02x:%02x:%02x:%02x:%02x", &b[0], &b[1], &b[2], &b[3], &b[4], &b[5]); n != 6 || err != nil {
		return "fe80::1"
	}
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: b[0] ^ 2, 9: b[1], 10: b[2], 11: 0xff, 12: 0xfe, 13: b[3], 14: b[4], 15: b[5]}).String()
}
