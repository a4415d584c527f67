package pvesim

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// forgotten is how long the last broadcast of a guest is believed (pmxcfs drops
// older entries).
const forgotten = 5 * time.Minute

// The entries of /cluster/resources. What only a broadcast tells is in a struct
// of its own, which is absent as a whole.

type guestEntry struct {
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

type nodeEntry struct {
	ID         string `json:"id"`
	Type       string `json:"type"`
	Node       string `json:"node"`
	Status     string `json:"status"`
	Level      string `json:"level"`
	CgroupMode int    `json:"cgroup-mode,omitempty"` // Not in /nodes.
	Print      string `json:"ssl_fingerprint,omitempty"`
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

type storageEntry struct {
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

// apiResources is GET /cluster/resources. Existence, lock, tags and pool are
// fresh; all else is what the status daemons broadcast last. What the caller may
// not see is left out without a word.
func apiResources(w *world, c *call) (any, error) {
	want := func(kind string) bool { return c.in["type"] == "" || c.in["type"] == kind }
	list := []any{}
	pools := map[string]*poolEntry{}
	if c.in["type"] == "" {
		for _, name := range slices.Sorted(maps.Keys(w.pools)) {
			if c.can("/pool/"+name, "Pool.Audit") {
				pools[name] = &poolEntry{ID: "/pool/" + name, Type: "pool", Pool: name}
				list = append(list, pools[name])
			}
		}
	}
	if want("vm") {
		of := w.poolOf()
		for _, vmid := range w.vmids {
			g := w.guests[vmid]
			r := w.guestEntry(g)
			if p := pools[of[vmid]]; p != nil {
				p.count(r)
			}
			if !c.can(vmPath(vmid), "VM.Audit") {
				continue
			}
			r.HA = w.ha.shown(g)
			r.Lock, r.Tags = g.conf["lock"], strings.TrimSpace(g.conf["tags"])
			if name := of[vmid]; name != "" && c.can("/pool/"+name, "Pool.Audit") {
				r.Pool = name
			}
			list = append(list, r)
		}
	}
	for _, name := range w.nodeNames() {
		if want("node") {
			list = append(list, w.nodeEntry(w.nodes[name], c.can("/nodes/"+name, "Sys.Audit")))
		}
	}
	for _, name := range w.storeNames() {
		if !want("storage") || !c.can("/storage/"+name, "Datastore.Audit") {
			continue
		}
		for _, node := range w.nodeNames() {
			if w.stores[name].on(node) {
				list = append(list, w.storageEntry(w.stores[name], w.nodes[node]))
			}
		}
	}
	if kind := map[bool]string{true: "network", false: "sdn"}[w.v9()]; want(kind) {
		for _, listed := range w.hooks.listed {
			list = append(list, listed(c, kind)...)
		}
	}
	return list, nil
}

// count adds a running guest to its pool.
func (p *poolEntry) count(g *guestEntry) {
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

// guestEntry is a guest as last broadcast. One that no status daemon has seen
// yet, or not for long, is only known to exist.
func (w *world) guestEntry(g *guest) *guestEntry {
	r := &guestEntry{ID: g.kind + "/" + strconv.Itoa(g.vmid), Type: g.kind, Node: g.node, VMID: g.vmid, Status: "unknown"}
	s, seen := w.seen[g.vmid]
	at := w.nodes[g.node].sampled
	if !seen || w.now.Sub(at) > forgotten {
		return r
	}
	traffic := s.traffic(at)
	r.Status = cmp.Or(s.qmp, s.status) // pvestatd broadcasts what QEMU says (PVE/Service/pvestatd.pm, update_qemu_status).
	r.guestStats = &guestStats{
		Name: s.name, Template: boolInt(s.template), CPU: s.cpu(at), MaxCPU: s.cpus, Mem: s.mem(at), MaxMem: s.maxmem,
		Disk: s.disk, MaxDisk: s.maxdisk, DiskRead: traffic, DiskWrite: traffic / 4, NetIn: traffic, NetOut: traffic / 2, Uptime: s.uptime(at),
	}
	if w.v9() {
		r.MemHost = &r.Mem
	}
	return r
}

// nodeEntry is a node; figures only for who may audit it.
func (w *world) nodeEntry(n *node, audit bool) *nodeEntry {
	r := &nodeEntry{ID: "node/" + n.name, Type: "node", Node: n.name, Status: "online", CgroupMode: 2 - boolInt(w.cfg.LegacyCgroups)}
	if n.offline {
		r.Status = "offline"
	}
	if audit && w.now.Sub(n.sampled) <= forgotten {
		r.nodeStats = &nodeStats{
			CPU: 0.0125, MaxCPU: w.cfg.CPUs, Mem: w.memoryUsed(n.name), MaxMem: w.cfg.Memory, Disk: rootUsed, MaxDisk: w.cfg.RootDisk,
			Uptime: int64(n.sampled.Sub(w.boot) / time.Second),
		}
	}
	return r
}

// memoryUsed is what a node's guests and its own system take.
func (w *world) memoryUsed(node string) int64 {
	used := int64(2 << 30)
	for _, g := range w.guests {
		if g.run != nil && g.node == node {
			used += w.seen[g.vmid].maxmem
		}
	}
	return min(used, w.cfg.Memory)
}

func (w *world) storageEntry(s *store, n *node) *storageEntry {
	r := &storageEntry{
		ID: "storage/" + n.name + "/" + s.Name, Type: "storage", Node: n.name, Storage: s.Name, PluginType: s.Type,
		Content: strings.Join(s.Content, ","), Shared: boolInt(s.Shared), Status: "available", storageStats: &storageStats{s.used(n.name), s.Size},
	}
	if s.disabled() || n.offline && w.now.Sub(n.sampled) > forgotten {
		r.Status, r.storageStats = "unknown", nil
	}
	return r
}

// rootUsed is how much of its root file system a node needs for itself.
const rootUsed = 8 << 30
