package pvesim

import (
	"fmt"
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
