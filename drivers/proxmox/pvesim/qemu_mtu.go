package pvesim

import (
	"fmt"
	"slices"
	"strings"
)

// The size of packets of network devices, as print_netdevice_full in PVE/QemuServer.pm
// looks at it when QEMU's command line is written.

// hasHostMTU says whether QEMU is told the size of packets: of VirtIO devices with a
// bridge, before 9.0 only where the device says one.
func (w *world) hasHostMTU(n map[string]string) bool {
	return n["model"] == "virtio" && n["bridge"] != "" && (w.v9() || n["mtu"] != "")
}

// checkMTUs fails where the size of packets does not fit the bridge, or there is none.
func (w *world) checkMTUs(g *guest) error {
	for _, key := range indexedKeys(g.conf, "net") {
		n := parseProperty(key, g.conf[key])
		switch {
		case !w.hasHostMTU(n):
		case !w.hasBridge(n["bridge"]):
			return fail("bridge '%s' does not exist", n["bridge"])
		default:
			if err := w.mtuTrouble(g.node, key, n); err != nil {
				return err
			}
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
