package lxc

import (
	"maps"
	"slices"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// ctFile is the configuration of a container as it was last written to its file.
type ctFile struct{ conf, pend perl.Config }

// keep writes the configuration as it is in the middle of a change.
func (f *ctFile) keep(g *core.Guest) {
	f.conf, f.pend = maps.Clone(g.Conf), maps.Clone(g.Pend)
}

// updateCTNet brings a network device of a container that runs into force (update_net in
// PVE/LXC.pm). Another address or name is another device: the old one is taken out, and
// that is written, before the new one is plugged. Of an attribute of the cable alone
// nothing is written unless it could be plugged.
func updateCTNet(w *core.World, g *core.Guest, key, value string, written *ctFile) error {
	after := perl.CTProperty(key, value)
	old, there := g.Conf[key]
	before := perl.CTProperty(key, old)
	if !there {
		return plugCT(w, g, key, after)
	}
	if before["hwaddr"] != after["hwaddr"] || before["name"] != after["name"] {
		delete(g.Conf, key)
		written.keep(g)
		return plugCT(w, g, key, after)
	}
	same := true
	for _, attribute := range []string{"bridge", "tag", "firewall", "link_down"} {
		same = same && orZero(before[attribute]) == orZero(after[attribute])
	}
	if same || after["link_down"] == "1" {
		return nil
	}
	if !guests.HasBridge(w, after["bridge"]) {
		return perl.Fail("bridge '%s' is neither a linux nor an OVS bridge!\n", after["bridge"])
	}
	if trouble := guests.TrunkTrouble(w, g.Node, after); trouble != "" {
		return perl.Fail("%s", trouble)
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
func plugCT(w *core.World, g *core.Guest, key string, device map[string]string) error {
	if bridge := device["bridge"]; bridge == "" {
		return perl.Fail("unable to get bridge setting")
	} else if !guests.HasBridge(w, bridge) {
		return perl.Fail("bridge '%s' does not exist", bridge)
	}
	if trouble := guests.TrunkTrouble(w, g.Node, device); trouble != "" && device["link_down"] != "1" {
		return perl.Fail("%s", trouble)
	}
	for _, other := range g.Conf.IndexedKeys("net") {
		if other != key && perl.CTProperty(other, g.Conf[other])["name"] == device["name"] {
			_, n := perl.SplitKey(key)
			return perl.Fail("command 'lxc-device -n %d add veth%di%dp %s' failed: exit code 1", g.Vmid, g.Vmid, n, device["name"])
		}
	}
	return nil
}

// lxcConfig writes what LXC reads, which fails for a device whose bridge is not there or
// whose frames it does not carry (update_lxc_config in PVE/LXC.pm). The configuration is
// written by then: the call fails, and nothing waits.
func lxcConfig(w *core.World, g *core.Guest) error {
	if g.Conf["template"] == "1" {
		return nil
	}
	nets := g.Conf.IndexedKeys("net")
	slices.Sort(nets) // PVE goes by the text of the keys.
	for _, key := range nets {
		device := perl.CTProperty(key, g.Conf[key])
		if !guests.HasBridge(w, device["bridge"]) {
			return perl.Fail("bridge '%s' does not exist", device["bridge"])
		}
		if most := guests.BridgeMTU(w, g.Node, device["bridge"]); perl.Atoi(device["mtu"]) > most {
			return perl.Fail("%s: MTU size '%d' is bigger than bridge MTU '%d'", key, perl.Atoi(device["mtu"]), most)
		}
	}
	return nil
}
