package guests

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// Network devices of VMs and containers: the right to plug one in, and the required abilities of the bridge.

// usualMTU is that of a bridge for which nothing else is configured.
const usualMTU = 1500

// MayUseBridge checks the right to plug a device in. A VLAN tag and each VLAN of a
// trunk have a path of their own; the bridge itself is asked about where there is
// neither (check_vnet_access in pve-guest-common, PVE/GuestHelpers.pm).
func MayUseBridge(c *core.Call, device map[string]string) error {
	bridge, tag := device["bridge"], device["tag"]
	if tag == "" && device["trunks"] == "" {
		return c.Need(bridgePath(c.W, bridge, ""), "SDN.Use")
	}
	if tag != "" {
		if err := c.Need(bridgePath(c.W, bridge, tag), "SDN.Use"); err != nil {
			return err
		}
	}
	for _, tag := range trunkTags(device["trunks"]) {
		if err := c.Need(bridgePath(c.W, bridge, tag), "SDN.Use"); err != nil {
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
		for n := perl.Atoi(first) + 1; n <= perl.Atoi(last); n++ {
			add(perl.Itoa(n))
		}
	}
	slices.Sort(tags)
	return tags
}

// bridgeOption is a configured option of a bridge on a node.
func bridgeOption(w *core.World, node, bridge, option string) string {
	return w.Nodes[node].Ifaces[bridge][option]
}

// filtersVLANs says whether a bridge can have ports for several VLANs.
func filtersVLANs(w *core.World, node, bridge string) bool {
	if vnet := w.Applied["sdn/vnets"][bridge]; vnet != nil {
		return vnet["vlanaware"] == "1"
	}
	return bridgeOption(w, node, bridge, "bridge_vlan_aware") == "1" || bridgeOption(w, node, bridge, "type") == "OVSBridge"
}

// TrunkTrouble returns PVE's message about a trunk on a bridge that cannot have one (tap_plug
// in pve-common, PVE/Network.pm); empty when there is nothing to say.
func TrunkTrouble(w *core.World, node string, device map[string]string) string {
	bridge := device["bridge"]
	if device["trunks"] == "" || bridge == "" || filtersVLANs(w, node, bridge) {
		return ""
	}
	return "vlan aware feature need to be enabled to use trunks at /usr/share/perl5/PVE/Network.pm line 541."
}

// BridgeMTU is the size of packets that a bridge of a node takes.
func BridgeMTU(w *core.World, node, bridge string) int {
	if mtu := perl.Atoi(bridgeOption(w, node, bridge, "mtu")); mtu != 0 {
		return mtu
	}
	return usualMTU
}

// HasBridge says whether guests can be plugged there: a bridge of the nodes, or a virtual
// network that runs.
func HasBridge(w *core.World, name string) bool {
	return slices.Contains(w.Bridges, name) || w.Applied["sdn/vnets"][name] != nil
}

// bridgePath is where the right to plug into a bridge stands: bridges of a node are in a
// zone of their own, a network of SDN is in its zone (check_vnet_access in
// pve-guest-common, PVE/GuestHelpers.pm), and a VLAN may have a list of its own.
func bridgePath(w *core.World, bridge, tag string) string {
	zone := "localnetwork"
	if vnet, there := w.Sections["sdn/vnets"][bridge]; there {
		zone = fmt.Sprint(vnet["zone"])
	}
	path := "/sdn/zones/" + zone + "/" + bridge
	if tag != "" {
		path += "/" + tag
	}
	return path
}

// netMTUs are the sizes of packets that the saved state of a running VM keeps
// (get_nets_host_mtu in PVE/QemuServer/Network.pm).
func netMTUs(w *core.World, node string, conf perl.Config) string {
	keys := conf.IndexedKeys("net")
	slices.Sort(keys)
	var parts []string
	for _, key := range keys {
		n := perl.ParseProperty(key, conf[key])
		if n["model"] != "virtio" {
			continue
		}
		mtu := BridgeMTU(w, node, n["bridge"])
		switch asked := perl.Atoi(n["mtu"]); {
		case n["bridge"] == "":
			mtu = 0
		case asked > 1:
			mtu = asked
		}
		parts = append(parts, fmt.Sprintf("%s=%d", key, mtu))
	}
	return strings.Join(parts, ",")
}

// LinkLocal is the IPv6 address that an interface gives itself (RFC 4291,
// appendix A).
func LinkLocal(mac string) string {
	var b [6]byte
	if n, err := fmt.Sscanf(mac, "%02x:%02x:%02x:%02x:%02x:%02x", &b[0], &b[1], &b[2], &b[3], &b[4], &b[5]); n != 6 || err != nil {
		return "fe80::1"
	}
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: b[0] ^ 2, 9: b[1], 10: b[2], 11: 0xff, 12: 0xfe, 13: b[3], 14: b[4], 15: b[5]}).String()
}
