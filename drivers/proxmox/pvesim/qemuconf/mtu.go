package qemuconf

import (
	"fmt"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/bridges"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/property"
)

// The size of packets of network devices, as print_netdevice_full in PVE/QemuServer.pm
// looks at it when QEMU's command line is written.

// hasHostMTU says whether QEMU is told the size of packets: of VirtIO devices with a
// bridge, before 9.0 only where the device says one.
func hasHostMTU(w *core.World, n map[string]string) bool {
	return n["model"] == "virtio" && n["bridge"] != "" && (w.V9() || n["mtu"] != "")
}

// CheckMTUs fails where the size of packets does not fit the bridge, or there is none.
func CheckMTUs(w *core.World, g *core.Guest) error {
	for _, key := range property.IndexedKeys(g.Conf, "net") {
		n := property.ParseProperty(key, g.Conf[key])
		switch {
		case !hasHostMTU(w, n):
		case !bridges.HasBridge(w, n["bridge"]):
			return perl.Fail("bridge '%s' does not exist", n["bridge"])
		default:
			if err := bridges.MtuTrouble(w, g.Node, key, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// IgnoredMTUs are the warnings of a start that ignores what devices say.
func IgnoredMTUs(w *core.World, g *core.Guest) []string {
	var texts []string
	for _, key := range property.IndexedKeys(g.Conf, "net") {
		n := property.ParseProperty(key, g.Conf[key])
		if n["mtu"] == "" || hasHostMTU(w, n) {
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
