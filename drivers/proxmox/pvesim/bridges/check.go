package bridges

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/property"
)

// newNetwork are the interfaces as they would be written, by name, if one of them had
// these options (nil: if it were not there).
func newNetwork(c *core.Call, iface string, conf property.Config) map[string]map[string]any {
	all := map[string]map[string]any{}
	for _, entry := range Interfaces(c.W, c.In["node"]) {
		all[perl.Text(entry["iface"])] = entry
	}
	delete(all, iface)
	if conf != nil {
		all[iface] = shownInterface(conf)
		maps.Copy(all[iface], vlan(iface, conf))
		if all[iface]["type"] == nil {
			all[iface]["type"] = conf["type"]
		}
	}
	return all
}

// checkGateways: one interface has the default route ($check_duplicate in
// PVE/API2/Network.pm).
func checkGateways(c *core.Call, iface string, all map[string]map[string]any) error {
	for key, what := range map[string]string{"gateway": "Default gateway", "gateway6": "Default ipv6 gateway"} {
		for _, name := range slices.Sorted(maps.Keys(all)) {
			if c.Has(key) && name != iface && all[name][key] != nil {
				return perl.BadParam(key, what+" already exists on interface '"+name+"'.")
			}
		}
	}
	return nil
}

// checkNetwork holds the interfaces against each other before they are written
// (__write_etc_network_interfaces in PVE/INotify.pm).
func checkNetwork(all map[string]map[string]any) error {
	names, used := slices.Sorted(maps.Keys(all)), map[string]string{}
	for _, name := range names {
		for _, port := range portsOf(all[name], "bridge_ports", "slaves") {
			if other := used[port]; other != "" && other != name {
				return perl.Fail("port '%s' is already used on interface '%s'", port, other)
			}
			used[port] = name
		}
	}
	checks := []func(string, map[string]any, map[string]map[string]any) error{checkBond, checkVLAN, checkBridge}
	for _, check := range checks {
		for _, name := range names {
			if err := check(name, all[name], all); err != nil {
				return err
			}
		}
	}
	return nil
}

func portsOf(entry map[string]any, keys ...string) (ports []string) {
	for _, key := range keys {
		if value, ok := entry[key].(string); ok {
			ports = append(ports, perl.SplitList(value)...)
		}
	}
	return ports
}

func checkBond(name string, bond map[string]any, all map[string]map[string]any) error {
	if bond["type"] != "bond" {
		return nil
	}
	slaves := portsOf(bond, "slaves")
	for _, port := range slaves {
		switch slave := all[port]; {
		case slave == nil:
			return perl.Fail("bond '%s' - unable to find slave '%s'", name, port)
		case slave["type"] != "eth" && slave["type"] != "bond":
			return perl.Fail("bond '%s' - wrong interface type on slave '%s' ('%s' != 'eth or bond')", name, port, slave["type"])
		}
	}
	return nil
}

func checkVLAN(name string, entry map[string]any, all map[string]map[string]any) error {
	if entry["type"] != "vlan" {
		return nil
	}
	raw, id := entry["vlan-raw-device"], entry["vlan-id"]
	if raw == nil {
		return perl.Fail("missing vlan-raw-device option") // PVE adds the line of its source.
	}
	if id == nil {
		return perl.Fail("missing vlan-id option")
	}
	parent := all[perl.Text(raw)]
	switch {
	case perl.Atoi(fmt.Sprint(id)) > 4094:
		return perl.Fail("vlan '%s' - vlan-id %v should be <= 4094", name, id)
	case parent == nil:
		return perl.Fail("vlan '%s' - unable to find parent '%s'", name, raw)
	case !slices.Contains([]any{"eth", "bridge", "bond", "vlan"}, parent["type"]):
		return perl.Fail("vlan '%s' - wrong interface type on parent '%s' ('%s' != 'eth|bond|bridge|vlan' )", name, raw, parent["type"])
	}
	return nil
}

func checkBridge(name string, bridge map[string]any, all map[string]map[string]any) error {
	if bridge["type"] != "bridge" {
		return nil
	}
	for _, port := range portsOf(bridge, "bridge_ports") {
		switch entry := all[port]; {
		case entry == nil && dottedVLAN.MatchString(port):
		case entry == nil:
			return perl.Fail("bridge '%s' - unable to find bridge port '%s'", name, port)
		case entry["method"] == "static" || entry["method6"] == "static":
			return perl.Fail("iface %s - ip address can't be set on interface if bridged in %s", port, name)
		}
	}
	return nil
}

// networkText is what changes in /etc/network/interfaces, as the beginning of a
// patch: the file itself is not kept.
func networkText(planned map[string]property.Config) string {
	var b strings.Builder
	b.WriteString("--- /etc/network/interfaces\n+++ /etc/network/interfaces.new\n")
	for _, name := range slices.Sorted(maps.Keys(planned)) {
		if planned[name] == nil {
			fmt.Fprintf(&b, "-iface %s inet manual\n", name)
			continue
		}
		fmt.Fprintf(&b, "+iface %s inet %s\n", name, shownInterface(planned[name])["method"])
	}
	return b.String()
}

// netmaskBits is a netmask of IPv4, which may be the number already, as a number.
func netmaskBits(mask string) string {
	ip := net.ParseIP(mask).To4()
	if ip == nil {
		return mask
	}
	ones, _ := net.IPMask(ip).Size()
	return strconv.Itoa(ones)
}
