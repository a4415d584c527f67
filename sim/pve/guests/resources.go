package guests

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// forgotten is the time for which the last broadcast of a guest is used (pmxcfs drops
// older entries).
const forgotten = 5 * time.Minute

// The entries of /cluster/resources. Values from broadcasts are in a struct of their own, which is absent as a
// whole.

// GuestEntry is a guest in the list of resources.
type GuestEntry struct {
	ID     string `json:"id"`
	Type   string `json:"type"`
	Node   string `json:"node"`
	VMID   int    `json:"vmid"`
	Status string `json:"status"`
	Pool   string `json:"pool,omitempty"`
	Lock   string `json:"lock,omitempty"`
	Tags   string `json:"tags,omitempty"`
	HA     string `json:"hastate,omitempty"`
	*guestStats
}

type guestStats struct {
	Name      string  `json:"name"`
	Template  int     `json:"template"`
	CPU       float64 `json:"cpu"`
	MaxCPU    float64 `json:"maxcpu"`
	Mem       int64   `json:"mem"`
	MaxMem    int64   `json:"maxmem"`
	MemHost   *int64  `json:"memhost,omitempty"` // Since PVE 9.
	Disk      int64   `json:"disk"`
	MaxDisk   int64   `json:"maxdisk"`
	DiskRead  int64   `json:"diskread"`
	DiskWrite int64   `json:"diskwrite"`
	NetIn     int64   `json:"netin"`
	NetOut    int64   `json:"netout"`
	Uptime    int64   `json:"uptime"`
}

// NodeEntry is a node in the list of resources.
type NodeEntry struct {
	ID         string `json:"id"`
	Type       string `json:"type"`
	Node       string `json:"node"`
	Status     string `json:"status"`
	Level      string `json:"level"`
	CgroupMode int    `json:"cgroup-mode,omitempty"` // Not in /nodes.
	Print      string `json:"ssl_fingerprint,omitempty"`
	HA         string `json:"hastate,omitempty"`
	*nodeStats
}

type nodeStats struct {
	CPU     float64 `json:"cpu"`
	MaxCPU  int     `json:"maxcpu"`
	Mem     int64   `json:"mem"`
	MaxMem  int64   `json:"maxmem"`
	Disk    int64   `json:"disk"`
	MaxDisk int64   `json:"maxdisk"`
	Uptime  int64   `json:"uptime"`
}

// StorageEntry is a storage on a node in that list.
type StorageEntry struct {
	ID         string `json:"id"`
	Type       string `json:"type"`
	Node       string `json:"node"`
	Storage    string `json:"storage"`
	PluginType string `json:"plugintype"`
	Content    string `json:"content"`
	Shared     int    `json:"shared"`
	Status     string `json:"status"`
	*storageStats
}

type storageStats struct {
	Disk    int64 `json:"disk"`
	MaxDisk int64 `json:"maxdisk"`
}

type poolEntry struct {
	ID   string `json:"id"`
	Type string `json:"type"`
	Pool string `json:"pool"`
	*poolStats
}

type poolStats struct {
	CPU    float64 `json:"cpu"`
	MaxCPU float64 `json:"maxcpu"`
	Mem    int64   `json:"mem"`
	MaxMem int64   `json:"maxmem"`
	Uptime int64   `json:"uptime"`
}

// APIResources is GET /cluster/resources. Existence, lock, tags and pool are fresh; the rest is from the last
// broadcast of the status daemons. Entries that the caller may not see are silently left out.
func APIResources(w *core.World, c *core.Call) (any, error) {
	want := func(kind string) bool { return c.In["type"] == "" || c.In["type"] == kind }
	list := []any{}
	pools := map[string]*poolEntry{}
	if c.In["type"] == "" {
		for _, name := range slices.Sorted(maps.Keys(w.Access.Pools)) {
			if c.Can("/pool/"+name, "Pool.Audit") {
				pools[name] = &poolEntry{ID: "/pool/" + name, Type: "pool", Pool: name}
				list = append(list, pools[name])
			}
		}
	}
	if want("vm") {
		of := w.Access.PoolOf()
		for _, vmid := range w.Vmids {
			g := w.Guests[vmid]
			r := GuestEntryOf(w, g)
			if p := pools[of[vmid]]; p != nil {
				p.count(r)
			}
			if !c.Can(core.VMPath(vmid), "VM.Audit") {
				continue
			}
			r.HA = w.HA.Shown(g)
			r.Lock, r.Tags = g.Conf["lock"], strings.TrimSpace(g.Conf["tags"])
			if name := of[vmid]; name != "" && c.Can("/pool/"+name, "Pool.Audit") {
				r.Pool = name
			}
			list = append(list, r)
		}
	}
	for _, name := range w.NodeNames() {
		if want("node") {
			list = append(list, NodeEntryOf(w, w.Nodes[name], c.Can("/nodes/"+name, "Sys.Audit")))
		}
	}
	for _, name := range w.StoreNames() {
		if !want("storage") || !c.Can("/storage/"+name, "Datastore.Audit") {
			continue
		}
		for _, node := range w.NodeNames() {
			if w.Stores[name].On(node) {
				list = append(list, StorageEntryOf(w, w.Stores[name], w.Nodes[node]))
			}
		}
	}
	if kind := map[bool]string{true: "network", false: "sdn"}[w.V9()]; want(kind) {
		for _, listed := range w.Hooks.Listed {
			list = append(list, listed(c, kind)...)
		}
	}
	return list, nil
}

// count adds a running guest to its pool.
func (p *poolEntry) count(g *GuestEntry) {
	if g.guestStats == nil || g.Uptime == 0 {
		return
	}
	if p.poolStats == nil {
		p.poolStats = &poolStats{}
	}
	p.CPU = (p.CPU*p.MaxCPU + g.CPU*g.MaxCPU) / (p.MaxCPU + g.MaxCPU)
	p.MaxCPU += g.MaxCPU
	p.Mem += g.Mem
	p.MaxMem += g.MaxMem
	p.Uptime = max(p.Uptime, g.Uptime)
}

// GuestEntryOf is a guest as last broadcast. One that no status daemon has seen
// yet, or not for long, is only known to exist.
func GuestEntryOf(w *core.World, g *core.Guest) *GuestEntry {
	r := &GuestEntry{ID: g.Kind + "/" + strconv.Itoa(g.Vmid), Type: g.Kind, Node: g.Node, VMID: g.Vmid, Status: "unknown"}
	s, seen := w.Seen[g.Vmid]
	at := w.Nodes[g.Node].Sampled
	if !seen || w.Now.Sub(at) > forgotten {
		return r
	}
	traffic := s.Traffic(at)
	r.Status = cmp.Or(s.Qmp, s.Status) // pvestatd broadcasts what QEMU says (PVE/Service/pvestatd.pm, update_qemu_status).
	r.guestStats = &guestStats{
		Name: s.Name, Template: perl.BoolInt(s.Template), CPU: s.CPU(at), MaxCPU: s.Cpus, Mem: s.Mem(at), MaxMem: s.Maxmem,
		Disk: s.Disk, MaxDisk: s.Maxdisk, DiskRead: traffic, DiskWrite: traffic / 4, NetIn: traffic, NetOut: traffic / 2, Uptime: s.Uptime(at),
	}
	if w.V9() {
		r.MemHost = &r.Mem
	}
	return r
}

// NodeEntryOf is a node; figures only for who may audit it.
func NodeEntryOf(w *core.World, n *core.Node, audit bool) *NodeEntry {
	r := &NodeEntry{ID: "node/" + n.Name, Type: "node", Node: n.Name, Status: "online", CgroupMode: 2 - perl.BoolInt(w.Cfg.LegacyCgroups)}
	if n.Offline {
		r.Status = "offline"
	}
	if n.Maintenance {
		r.HA = "maintenance"
	}
	if audit && w.Now.Sub(n.Sampled) <= forgotten {
		r.nodeStats = &nodeStats{
			CPU: 0.0125, MaxCPU: w.Cfg.CPUs, Mem: MemoryUsed(w, n.Name), MaxMem: w.Cfg.Memory, Disk: RootUsed, MaxDisk: w.Cfg.RootDisk,
			Uptime: int64(n.Sampled.Sub(w.Boot) / time.Second),
		}
	}
	return r
}

// MemoryUsed returns the memory of a node's guests and its own system.
func MemoryUsed(w *core.World, node string) int64 {
	used := int64(2 << 30)
	for _, g := range w.Guests {
		if g.Run != nil && g.Node == node {
			used += w.Seen[g.Vmid].Maxmem
		}
	}
	return min(used, w.Cfg.Memory)
}

// StorageEntryOf is a storage on a node in the list of resources.
func StorageEntryOf(w *core.World, s *core.Store, n *core.Node) *StorageEntry {
	r := &StorageEntry{
		ID: "storage/" + n.Name + "/" + s.Name, Type: "storage", Node: n.Name, Storage: s.Name, PluginType: s.Type,
		Content: strings.Join(s.Content, ","), Shared: perl.BoolInt(s.Shared), Status: "available", storageStats: &storageStats{s.Used(n.Name), s.Size},
	}
	if s.Disabled() || n.Offline && w.Now.Sub(n.Sampled) > forgotten {
		r.Status, r.storageStats = "unknown", nil
	}
	return r
}

// RootUsed is how much of its root file system a node needs for itself.
const RootUsed = 8 << 30

// beginSamples starts the samples of the status daemons.
func beginSamples(w *core.World) {
	w.Hooks.Sampled = func(g *core.Guest) core.Sample { return Sample(w, g) }
}

// Sample reads the state of a guest.
func Sample(w *core.World, g *core.Guest) core.Sample {
	s := core.Sample{Vmid: g.Vmid, Name: g.Conf["name"], Status: "stopped", Template: g.Conf["template"] == "1", Cpus: float64(Cpus(w, g))}
	if g.Kind == "lxc" {
		s.Name = g.Conf["hostname"]
		ctSize(w, &s, g)
	} else {
		s.Maxmem = int64(perl.MemoryMiB(g.Conf["memory"])) << 20
		s.Maxdisk = bootDiskSize(g.Conf)
	}
	if s.Name == "" {
		s.Name = fmt.Sprintf("VM %d", g.Vmid)
		if g.Kind == "lxc" {
			s.Name = fmt.Sprintf("CT%d", g.Vmid)
		}
	}
	if g.Run != nil {
		s.Status, s.Qmp, s.Since = "running", g.Run.Qmp, g.Run.Since
	}
	return s
}

// ctSize fills in the sizes of a container. While it runs its file system is asked.
func ctSize(w *core.World, s *core.Sample, g *core.Guest) {
	s.Maxmem = int64(512) << 20
	if mib := perl.Atoi(g.Conf["memory"]); mib > 0 {
		s.Maxmem = int64(mib) << 20
	}
	if limit, err := strconv.ParseFloat(g.Conf["cpulimit"], 64); err == nil && limit > 0 && perl.Atoi(g.Conf["cores"]) == 0 {
		s.Cpus = limit
	}
	if s.Maxdisk, _ = perl.ParseSize(perl.OptionOf(g.Conf["rootfs"], "size")); s.Maxdisk == 0 {
		s.Maxdisk = 4 << 30 // What PVE takes it for.
	}
	if g.Run != nil {
		s.Disk = min(2150400, s.Maxdisk)
		if !strings.Contains(g.Conf["rootfs"], "subvol-") {
			made := s.Maxdisk
			if v := w.Volume(g.Node, perl.ParseMount("rootfs", g.Conf["rootfs"]).Volume); v != nil && v.Made > 0 {
				made = v.Made
			}
			s.Maxdisk = NewExt4(made).usable(s.Maxdisk)
		}
	}
}

// bootDiskSize is the size of the first disk to boot from.
func bootDiskSize(conf perl.Config) int64 {
	for _, key := range perl.BootOrder(conf["boot"]) {
		value, ok := conf[key]
		if !ok || !perl.IsDrive(key) {
			continue
		}
		if d := perl.ParseDrive(key, value); !d.Cdrom() {
			size, _ := perl.ParseSize(d.Opts["size"])
			return size
		}
	}
	return 0
}

// The figures of a running guest are invented, but steady: the same for the
// same guest at the same time.

// List are the guests of a kind on the node of a call. They are fresh, unlike those of
// /cluster/resources.
func List(c *core.Call, kind string, status func(*core.Guest) map[string]any) []map[string]any {
	list := []map[string]any{}
	for _, vmid := range c.W.Vmids {
		if g := c.W.Guest(c.In["node"], kind, vmid); g != nil && c.Can(core.VMPath(vmid), "VM.Audit") {
			list = append(list, status(g))
		}
	}
	return list
}

// Status returns vmstatus of both kinds (PVE/QemuServer.pm, PVE/LXC.pm).
func Status(w *core.World, g *core.Guest, s core.Sample) map[string]any {
	traffic := s.Traffic(w.Now)
	entry := map[string]any{
		"vmid": g.Vmid, "name": s.Name, "status": s.Status, "cpu": s.CPU(w.Now), "mem": s.Mem(w.Now), "maxmem": s.Maxmem, "maxdisk": s.Maxdisk,
		"netin": traffic, "netout": traffic / 2, "uptime": s.Uptime(w.Now),
	}
	for _, key := range []string{"tags", "lock"} {
		if value, ok := g.Conf[key]; ok {
			entry[key] = value
		}
	}
	if g.Conf["template"] == "1" {
		entry["template"] = 1
	}
	if g.Run != nil {
		entry["pid"] = g.Run.Pid
	}
	return entry
}
