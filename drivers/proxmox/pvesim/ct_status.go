package pvesim

import (
	"net/netip"
	"strings"
)

// apiNodeLXC is GET /nodes/{node}/lxc.
func apiNodeLXC(w *world, c *call) (any, error) {
	list := []map[string]any{}
	for _, vmid := range w.vmids {
		g := w.guests[vmid]
		if g.node != c.in["node"] || g.kind != "lxc" || !c.can(vmPath(vmid), "VM.Audit") {
			continue
		}
		list = append(list, w.ctStatus(g))
	}
	return list, nil
}

// ctStatus is what vmstatus in PVE/LXC.pm says about a container.
func (w *world) ctStatus(g *guest) map[string]any {
	s := w.sample(g)
	traffic := s.traffic(w.now)
	entry := map[string]any{
		"vmid": g.vmid, "name": s.name, "status": s.status, "type": "lxc", "cpus": w.ctCPUs(g), "cpu": s.cpu(w.now), "mem": s.mem(w.now),
		"maxmem": s.maxmem, "disk": s.disk, "maxdisk": s.maxdisk, "swap": 0, "maxswap": int64(atoi(g.conf["swap"])) << 20,
		"netin": traffic, "netout": traffic / 2, "diskread": 0, "diskwrite": 0, "uptime": s.uptime(w.now),
	}
	for _, key := range []string{"tags", "lock"} {
		if value, ok := g.conf[key]; ok {
			entry[key] = value
		}
	}
	if g.conf["template"] == "1" {
		entry["template"] = 1
	}
	if g.run != nil {
		entry["pid"] = g.run.pid
		if w.v9() { // since pve-container 6.0.3
			for _, kind := range []string{"cpu", "io", "memory"} {
				entry["pressure"+kind+"some"], entry["pressure"+kind+"full"] = w.pressure(), w.pressure()
			}
		}
	}
	return entry
}

// pressure is how long tasks of a container waited for a resource, in percent of the last
// ten seconds: the text that the kernel writes, and null where groups of processes do not
// tell (read_cgroup_pressure in PVE/ProcFSTools.pm).
func (w *world) pressure() any {
	if w.cfg.LegacyCgroups {
		return nil
	}
	return "0.00"
}

// apiLXCCurrent is GET /nodes/{node}/lxc/{vmid}/status/current.
func apiLXCCurrent(w *world, c *call) (any, error) {
	g, err := c.ct()
	if err != nil {
		return nil, err
	}
	entry := w.ctStatus(g)
	entry["ha"] = w.ha.status(g)
	return entry, nil
}

// apiLXCIndex is GET /nodes/{node}/lxc/{vmid}.
func apiLXCIndex(_ *world, c *call) (any, error) {
	if _, err := c.ct(); err != nil {
		return nil, err
	}
	return subdirs("subdir", "config", "pending", "status", "vncproxy", "termproxy", "vncwebsocket", "spiceproxy", "migrate", "clone",
		"rrd", "rrddata", "firewall", "snapshot", "resize", "interfaces"), nil
}

// apiLXCStatusIndex is GET /nodes/{node}/lxc/{vmid}/status.
func apiLXCStatusIndex(_ *world, c *call) (any, error) {
	if _, err := c.ct(); err != nil {
		return nil, err
	}
	return subdirs("subdir", "current", "start", "stop", "shutdown", "reboot", "migrate"), nil
}

// apiLXCInterfaces is GET /nodes/{node}/lxc/{vmid}/interfaces: nothing of a
// container that does not run.
func apiLXCInterfaces(w *world, c *call) (any, error) {
	g, err := c.ct()
	if err != nil || g.run == nil {
		return nil, err
	}
	list := []map[string]any{ctInterface("lo", "00:00:00:00:00:00", "127.0.0.1/8", "::1/128")}
	for _, key := range indexedKeys(g.conf, "net") {
		n := ctProperty(key, g.conf[key])
		addresses := []string{}
		for _, family := range []string{"ip", "ip6"} {
			if _, err := netip.ParsePrefix(n[family]); err == nil {
				addresses = append(addresses, n[family])
			}
		}
		if _, index := splitKey(key); n["ip"] == "dhcp" {
			addresses = append(addresses, w.leased(g, index).String())
		}
		mac := strings.ToLower(n["hwaddr"])
		if linkUp(g.conf["ostype"], n) {
			addresses = append(addresses, linkLocal(mac)+"/64")
		}
		list = append(list, ctInterface(n["name"], mac, addresses...))
	}
	return list, nil
}

// linkUp says whether the system of a container brings an interface up: LXC does not, and
// without an address the tool of Alpine, and a system that PVE does not set up, leave it
// down (PVE/LXC/Setup/Alpine.pm).
func linkUp(ostype string, n map[string]string) bool {
	if n["link_down"] == "1" || ostype == "unmanaged" && n["host-managed"] != "1" {
		return false
	}
	configured := false
	for _, family := range []string{"ip", "ip6"} {
		configured = configured || n[family] != "" && n[family] != "manual"
	}
	return configured || ostype != "alpine"
}

func ctInterface(name, mac string, addresses ...string) map[string]any {
	entry := map[string]any{"name": name, "hwaddr": mac, "hardware-address": mac}
	list := []map[string]any{}
	for _, address := range addresses {
		family := "inet"
		if strings.Contains(address, ":") {
			family = "inet6"
		}
		ip, prefix, _ := strings.Cut(address, "/")
		entry[family] = address
		list = append(list, map[string]any{"ip-address": ip, "ip-address-type": family, "prefix": prefix})
	}
	entry["ip-addresses"] = list
	return entry
}
