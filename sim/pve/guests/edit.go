package guests

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// apiSetNetwork is POST /nodes/{node}/network and PUT and DELETE of one interface:
// they only write what a reload will do (PVE/API2/Network.pm).
func apiSetNetwork(_ *core.World, c *core.Call) (any, error) {
	s, iface := c.Node(), c.In["iface"]
	old, err := findInterface(c)
	switch {
	case c.Req.Method == http.MethodPost && err == nil:
		return nil, perl.BadParam("iface", "interface already exists")
	case c.Req.Method != http.MethodPost && err != nil:
		return nil, err
	}
	conf := perl.Config{}
	for key, value := range old {
		if _, known := perl.Method("POST /nodes/{node}/network").Params[key]; known && c.Req.Method == http.MethodPut {
			conf[key] = perl.Text(value)
		}
	}
	if c.Req.Method == http.MethodDelete {
		conf = nil
	} else if err := editInterface(c, conf); err != nil {
		return nil, err
	}
	all := newNetwork(c, iface, conf)
	if err := cmp.Or(checkGateways(c, iface, all), checkNetwork(all)); err != nil {
		return nil, err
	}
	if s.Planned == nil {
		s.Planned = map[string]perl.Config{}
	}
	s.Planned[iface] = conf
	return nil, nil
}

// editInterface writes what a call sets and deletes into the options of an interface.
// An address stands there as its two halves; the other form is made of them. How an
// interface gets its addresses is what the call alone says, and a family of which the
// call has no address is not written, unless there would be none at all.
func editInterface(c *core.Call, conf perl.Config) error {
	delete(conf, "cidr")
	delete(conf, "cidr6")
	for _, key := range c.List("delete") {
		delete(conf, key)
		if suffix, ok := strings.CutPrefix(key, "cidr"); ok {
			delete(conf, "address"+suffix)
			delete(conf, "netmask"+suffix)
		}
	}
	for key, value := range c.In {
		if key != "delete" && key != "node" && key != "iface" {
			conf[key] = value
		}
	}
	for _, suffix := range []string{"", "6"} {
		cidr := c.In["cidr"+suffix]
		if cidr != "" {
			for _, half := range []string{"address", "netmask"} {
				if c.In[half+suffix] != "" {
					return perl.BadParam(half+suffix, half+suffix+" conflicts with cidr"+suffix)
				}
			}
			conf["address"+suffix], conf["netmask"+suffix], _ = strings.Cut(cidr, "/")
		}
		delete(conf, "cidr"+suffix)
		conf["method"+suffix] = "manual"
		if c.In["address"+suffix] != "" || cidr != "" {
			conf["method"+suffix] = "static"
		}
	}
	for suffix, other := range map[string]string{"": "6", "6": ""} {
		if conf["method"+suffix] == "manual" && (suffix == "6" || conf["method"+other] == "static") {
			delete(conf, "address"+suffix)
			delete(conf, "netmask"+suffix)
			delete(conf, "gateway"+suffix)
		}
	}
	return checkAddress6(conf)
}

// checkAddress6 refuses what no host can have as its address ($check_ipv6_settings).
func checkAddress6(conf perl.Config) error {
	address := conf["address6"]
	if address == "" {
		return nil
	}
	if bits, err := strconv.Atoi(conf["netmask6"]); err != nil || bits < 0 || bits > 128 {
		return perl.BadParam("netmask", conf["netmask6"]+" is not a valid subnet length for ipv6")
	}
	ip := net.ParseIP(address)
	switch {
	case ip == nil:
		return perl.BadParam("address", address+" is not a valid host IPv6 address.")
	case ip.IsMulticast():
		return perl.BadParam("address", address+" with type 'MULTICAST', cannot be used as host IPv6 address.")
	case ip.IsLoopback():
		return perl.BadParam("address", address+" with type 'LOOPBACK', cannot be used as host IPv6 address.")
	case ip.IsUnspecified():
		return perl.BadParam("address", address+" with type 'UNSPECIFIED', cannot be used as host IPv6 address.")
	}
	return nil
}

// showAddresses shows the families of an interface, and its addresses also in one piece
// each.
func showAddresses(entry map[string]any, conf perl.Config) {
	entry["method"], entry["method6"] = cmp.Or(conf["method"], "manual"), cmp.Or(conf["method6"], "manual")
	families := []string{}
	if entry["method"] == "static" || entry["method6"] != "static" {
		families = append(families, "inet")
	}
	if entry["method6"] == "static" {
		families = append(families, "inet6")
	}
	entry["families"] = families
	if address, mask := conf["address"], netmaskBits(conf["netmask"]); address != "" && mask != "" {
		entry["netmask"], entry["cidr"] = mask, address+"/"+mask
	}
	if address, mask := conf["address6"], conf["netmask6"]; address != "" && mask != "" {
		entry["netmask6"], entry["cidr6"] = mask, address+"/"+mask
	}
}

// newNetwork are the interfaces as they would be written, by name, if one of them had
// these options (nil: if it were not there).
func newNetwork(c *core.Call, iface string, conf perl.Config) map[string]map[string]any {
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

// networkText has the changes of /etc/network/interfaces, as the beginning of a
// patch: the file itself is not kept.
func networkText(planned map[string]perl.Config) string {
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
