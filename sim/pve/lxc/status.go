package lxc

import (
	"maps"
	"net/netip"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// apiNodeLXC is GET /nodes/{node}/lxc.
func apiNodeLXC(w *core.World, c *core.Call) (any, error) {
	return guests.List(c, "lxc", func(g *core.Guest) map[string]any { return ctStatus(w, g) }), nil
}

// ctStatus returns the result of vmstatus in PVE/LXC.pm for a container.
func ctStatus(w *core.World, g *core.Guest) map[string]any {
	s := guests.Sample(w, g)
	entry := guests.Status(w, g, s)
	maps.Copy(entry, map[string]any{
		"type": "lxc", "cpus": ctCPUs(w, g), "disk": s.Disk, "swap": 0, "maxswap": int64(perl.Atoi(g.Conf["swap"])) << 20, "diskread": 0, "diskwrite": 0,
	})
	if g.Run != nil && w.V9() { // since pve-container 6.0.3
		for _, kind := range []string{"cpu", "io", "memory"} {
			entry["pressure"+kind+"some"], entry["pressure"+kind+"full"] = pressure(w), pressure(w)
		}
	}
	return entry
}

// pressure is how long tasks of a container waited for a resource, in percent of the last
// ten seconds: the text that the kernel writes, and null where groups of processes do not
// tell (read_cgroup_pressure in PVE/ProcFSTools.pm).
func pressure(w *core.World) any {
	if w.Cfg.LegacyCgroups {
		return nil
	}
	return "0.00"
}

// apiLXCCurrent is GET /nodes/{node}/lxc/{vmid}/status/current.
func apiLXCCurrent(w *core.World, _ *core.Call, g *core.Guest) (any, error) {
	entry := ctStatus(w, g)
	entry["ha"] = w.HA.Status(g)
	return entry, nil
}

// apiLXCInterfaces is GET /nodes/{node}/lxc/{vmid}/interfaces: nothing of a
// container that does not run.
func apiLXCInterfaces(w *core.World, _ *core.Call, g *core.Guest) (any, error) {
	if g.Run == nil {
		return nil, nil
	}
	list := []map[string]any{ctInterface("lo", "00:00:00:00:00:00", "127.0.0.1/8", "::1/128")}
	for _, key := range g.Conf.IndexedKeys("net") {
		n := perl.CTProperty(key, g.Conf[key])
		addresses := []string{}
		for _, family := range []string{"ip", "ip6"} {
			if _, err := netip.ParsePrefix(n[family]); err == nil {
				addresses = append(addresses, n[family])
			}
		}
		if _, index := perl.SplitKey(key); n["ip"] == "dhcp" {
			addresses = append(addresses, g.Leased(w, index).String())
		}
		mac := strings.ToLower(n["hwaddr"])
		if linkUp(g.Conf["ostype"], n) {
			addresses = append(addresses, guests.LinkLocal(mac)+"/64")
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

// apiFeature is GET …/feature: whether all disks of a guest can be snapshot, cloned
// or copied.
func apiFeature(w *core.World, c *core.Call, g *core.Guest) (any, error) {
	conf := g.Conf
	if name := c.In["snapname"]; name != "" {
		s := g.Snapshot(name)
		if s == nil {
			return nil, perl.Fail("snapshot '%s' does not exist", name)
		}
		conf = s.Conf
	}
	if g.Kind == "lxc" {
		return map[string]any{"hasFeature": perl.BoolInt(ctFeature(w, g, conf, c.In["feature"]))}, nil
	}
	has := true
	for key, volid := range guests.Disks(g, conf) {
		if perl.ParseDrive(key, conf[key]).Cdrom() {
			continue
		}
		switch c.In["feature"] {
		case "snapshot":
			has = has && guests.Snapshotable(w, g) == nil && !guests.Based(w, volid) // A base takes none.
		case "clone":
			has = has && clonable(w, volid)
		}
	}
	nodes := []string{}
	for _, name := range w.NodeNames() {
		if here := name == g.Node; here || shared(w, g, conf) {
			nodes = append(nodes, name)
		}
	}
	return map[string]any{"hasFeature": perl.BoolInt(has), "nodes": nodes}, nil
}

// shared says whether all disks of a configuration are there on every node.
func shared(w *core.World, g *core.Guest, conf perl.Config) bool {
	for _, volid := range guests.Disks(g, conf) {
		if storage, _, _ := core.VolumeID(volid); w.Stores[storage] == nil || !w.Stores[storage].Shared {
			return false
		}
	}
	return true
}

// ctFeature is has_feature in PVE/LXC/Config.pm. A container wants its copies raw or as
// directories, so that files have no linked clones, and directories no copies.
func ctFeature(w *core.World, g *core.Guest, conf perl.Config, feature string) bool {
	for _, key := range conf.MountNames() {
		m := perl.ParseMount(key, conf[key])
		storage, name, managed := core.VolumeID(m.Volume)
		st := w.Stores[storage]
		if m.Kind() != "volume" || !managed || st == nil {
			return false
		}
		has := true
		switch v := st.Find(g.Node, name); feature {
		case "snapshot":
			has = v != nil && guests.Snapshots(st, v) && !guests.Based(w, m.Volume)
		case "clone":
			has = !st.Files() && clonable(w, m.Volume)
		case "copy":
			has = !st.Files() || v == nil || v.Format != "subvol"
		}
		if !has {
			return false
		}
	}
	return true
}

// clonable says whether linked clones of a volume can be made: it must be a
// base, on a storage that knows clones.
func clonable(w *core.World, volid string) bool {
	storage, _, ok := core.VolumeID(volid)
	st := w.Stores[storage]
	return ok && st != nil && st.Type != "lvm" && guests.Based(w, volid)
}
