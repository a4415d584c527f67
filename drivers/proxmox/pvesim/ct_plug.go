package pvesim

import (
	"maps"
	"slices"
)

// ctFile is the configuration of a container as it was last written to its file.
type ctFile struct{ conf, pend config }

// keep writes the configuration as it is in the middle of a change.
func (f *ctFile) keep(g *guest) {
	f.conf, f.pend = maps.Clone(g.conf), maps.Clone(g.pend)
}

// updateCTNet brings a network device of a container that runs into force (update_net in
// PVE/LXC.pm). Another address or name is another device: the old one is taken out, and
// that is written, before the new one is plugged. Of an attribute of the cable alone
// nothing is written unless it could be plugged.
func (w *world) updateCTNet(g *guest, key, value string, written *ctFile) error {
	after := ctProperty(key, value)
	old, there := g.conf[key]
	before := ctProperty(key, old)
	if !there {
		return w.plugCT(g, key, after)
	}
	if before["hwaddr"] != after["hwaddr"] || before["name"] != after["name"] {
		delete(g.conf, key)
		written.keep(g)
		return w.plugCT(g, key, after)
	}
	same := true
	for _, attribute := range []string{"bridge", "tag", "firewall", "link_down"} {
		same = same && orZero(before[attribute]) == orZero(after[attribute])
	}
	if same || after["link_down"] == "1" {
		return nil
	}
	if !w.hasBridge(after["bridge"]) {
		return fail("bridge '%s' is neither a linux nor an OVS bridge!\n", after["bridge"])
	}
	if trouble := w.trunkTrouble(g.node, after); trouble != "" {
		return fail("%s", trouble)
	}
	return nil
}

func orZero(s string) string {
	if s == "" {
		return "0"
	}
	return s
}

// plugCT plugs a device that is not there yet: its bridge must be (veth_create in
// PVE/Network.pm), and its name free, or lxc-device fails (hotplug_net in PVE/LXC.pm).
func (w *world) plugCT(g *guest, key string, device map[string]string) error {
	if bridge := device["bridge"]; bridge == "" {
		return fail("unable to get bridge setting")
	} else if !w.hasBridge(bridge) {
		return fail("bridge '%s' does not exist", bridge)
	}
	if trouble := w.trunkTrouble(g.node, device); trouble != "" && device["link_down"] != "1" {
		return fail("%s", trouble)
	}
	for _, other := range indexedKeys(g.conf, "net") {
		if other != key && ctProperty(other, g.conf[other])["name"] == device["name"] {
			_, n := splitKey(key)
			return fail("command 'lxc-device -n %d add veth%di%dp %s' failed: exit code 1", g.vmid, g.vmid, n, device["name"])
		}
	}
	return nil
}

// lxcConfig writes what LXC reads, which fails for a device whose bridge is not there or
// whose frames it does not carry (update_lxc_config in PVE/LXC.pm). The configuration is
// written by then: the call fails, and nothing waits.
func (w *world) lxcConfig(g *guest) error {
	if g.conf["template"] == "1" {
		return nil
	}
	nets := indexedKeys(g.conf, "net")
	slices.Sort(nets) // PVE goes by the text of the keys.
	for _, key := range nets {
		device := ctProperty(key, g.conf[key])
		if !w.hasBridge(device["bridge"]) {
			return fail("bridge '%s' does not exist", device["bridge"])
		}
		if most := w.bridgeMTU(g.node, device["bridge"]); atoi(device["mtu"]) > most {
			return fail("%s: MTU size '%d' is bigger than bridge MTU '%d'", key, atoi(device["mtu"]), most)
		}
	}
	return nil
}
