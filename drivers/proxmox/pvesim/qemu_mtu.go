package pvesim

import (
	"fmt"
	"slices"
	"strings"
)

// The size of packets of network devices, as print_netdevice_full in PVE/QemuServer.pm
// looks at it when QEMU's command line is written.

// bridgeMTU is that of every bridge.
const bridgeMTU = 1500

// hasHostMTU says whether QEMU is told the size of packets: of VirtIO devices with a
// bridge, before 9.0 only where the device says one.
func (w *world) hasHostMTU(n map[string]string) bool {
	return n["model"] == "virtio" && n["bridge"] != "" && (w.v9() || n["mtu"] != "")
}

// checkMTUs fails where the size of packets does not fit the bridge, or there is none.
func (w *world) checkMTUs(g *guest) error {
	for _, key := range indexedKeys(g.conf, "net") {
		n := parseProperty(key, g.conf[key])
		mtu := atoi(n["mtu"])
		switch {
		case !w.hasHostMTU(n):
		case !w.hasBridge(n["bridge"]):
			return fail("bridge '%s' does not exist", n["bridge"])
		case mtu > 1 && mtu < 576:
			return fail("netdev %s: MTU '%d' is smaller than the IP minimum MTU '576'", key, mtu)
		case mtu > bridgeMTU:
			return fail("netdev %s: MTU '%d' is bigger than the bridge MTU '%d' - adjust the MTU for the network device in the VM configuration, while ensuring that the bridge is configured as desired.",
				key, mtu, bridgeMTU)
		}
	}
	return nil
}

// ignoredMTUs are the warnings of a start that ignores what devices say.
func (w *world) ignoredMTUs(g *guest) []string {
	var texts []string
	for _, key := range indexedKeys(g.conf, "net") {
		n := parseProperty(key, g.conf[key])
		if n["mtu"] == "" || w.hasHostMTU(n) {
			continue
		}
		why := "not using VirtIO"
		if n["bridge"] == "" {
			why = "no bridge configured"
		}
		texts = append(texts, fmt.Sprintf("netdev %s: ignoring MTU '%s', %s", key, n["mtu"], why))
	}
	return texts
}

// netMTUs is what a state of a running VM keeps of the sizes of packets
// (get_nets_host_mtu in PVE/QemuServer/Network.pm).
func netMTUs(conf config) string {
	keys := indexedKeys(conf, "net")
	slices.Sort(keys)
	var parts []string
	for _, key := range keys {
		n := parseProperty(key, conf[key])
		if n["model"] != "virtio" {
			continue
		}
		mtu := bridgeMTU
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
