package bridges

import (
	"cmp"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/property"
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
	conf := property.Config{}
	for key, value := range old {
		if _, known := property.Method("POST /nodes/{node}/network").Params[key]; known && c.Req.Method == http.MethodPut {
			conf[key] = perl.Text(value)
		}
	}
	if c.Req.Method == http.MethodDelete {
		conf = nil
	} else if err := editInterface(c, conf); err != nil {
		return nil, err
	}
	all := newNetwork(c, iface, conf)
	if err := checkGateways(c, iface, all); err != nil {
		return nil, err
	}
	if err := checkNetwork(all); err != nil {
		return nil, err
	}
	if s.Planned == nil {
		s.Planned = map[string]property.Config{}
	}
	s.Planned[iface] = conf
	return nil, nil
}

// editInterface writes what a call sets and deletes into the options of an interface.
// An address stands there as its two halves; the other form is made of them. How an
// interface gets its addresses is what the call alone says, and a family of which the
// call has no address is not written, unless there would be none at all.
func editInterface(c *core.Call, conf property.Config) error {
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
func checkAddress6(conf property.Config) error {
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
func showAddresses(entry map[string]any, conf property.Config) {
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
