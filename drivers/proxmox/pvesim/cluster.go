package pvesim

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// forgotten is how long the last broadcast of a guest is believed (pmxcfs drops
// older entries).
const forgotten = 5 * time.Minute

// resource is an entry of /cluster/resources. Absent members are nil or empty.
type resource struct {
	ID         string   `json:"id"`
	Type       string   `json:"type"`
	Node       string   `json:"node,omitempty"`
	VMID       int      `json:"vmid,omitempty"`
	Name       string   `json:"name,omitempty"`
	Status     string   `json:"status,omitempty"`
	Template   *int     `json:"template,omitempty"`
	Pool       string   `json:"pool,omitempty"`
	Lock       string   `json:"lock,omitempty"`
	Tags       string   `json:"tags,omitempty"`
	CPU        *float64 `json:"cpu,omitempty"`
	MaxCPU     *int     `json:"maxcpu,omitempty"`
	Mem        *int64   `json:"mem,omitempty"`
	MaxMem     *int64   `json:"maxmem,omitempty"`
	MemHost    *int64   `json:"memhost,omitempty"`
	Disk       *int64   `json:"disk,omitempty"`
	MaxDisk    *int64   `json:"maxdisk,omitempty"`
	DiskRead   *int64   `json:"diskread,omitempty"`
	DiskWrite  *int64   `json:"diskwrite,omitempty"`
	NetIn      *int64   `json:"netin,omitempty"`
	NetOut     *int64   `json:"netout,omitempty"`
	Uptime     *int64   `json:"uptime,omitempty"`
	Level      *string  `json:"level,omitempty"`
	CgroupMode int      `json:"cgroup-mode,omitempty"`
	Storage    string   `json:"storage,omitempty"`
	PluginType string   `json:"plugintype,omitempty"`
	Content    string   `json:"content,omitempty"`
	Shared     *int     `json:"shared,omitempty"`
	SDN        string   `json:"sdn,omitempty"`
	Network    string   `json:"network,omitempty"`
}

// apiResources is GET /cluster/resources. Existence, lock, tags and pool are
// fresh; all else is what the status daemons broadcast last. What the caller may
// not see is left out without a word.
func apiResources(w *world, c *call) (any, error) {
	want := func(kind string) bool { return c.in["type"] == "" || c.in["type"] == kind }
	list := []*resource{}
	pools := map[string]*resource{}
	if c.in["type"] == "" {
		for _, name := range slices.Sorted(maps.Keys(w.pools)) {
			if c.can("/pool/"+name, "Pool.Audit") {
				pools[name] = &resource{ID: "/pool/" + name, Type: "pool", Pool: name}
				list = append(list, pools[name])
			}
		}
	}
	if want("vm") {
		of := w.poolOf()
		for _, vmid := range w.vmids {
			g := w.guests[vmid]
			r := w.guestResource(g)
			if p := pools[of[vmid]]; p != nil && r.Uptime != nil && *r.Uptime > 0 {
				p.count(r)
			}
			if !c.can(vmPath(vmid), "VM.Audit") {
				continue
			}
			r.Lock, r.Tags = g.conf["lock"], strings.TrimSpace(g.conf["tags"])
			if name := of[vmid]; name != "" && c.can("/pool/"+name, "Pool.Audit") {
				r.Pool = name
			}
			list = append(list, r)
		}
	}
	for _, name := range w.nodeNames() {
		n := w.nodes[name]
		if want("node") {
			list = append(list, w.nodeResource(n, c.can("/nodes/"+name, "Sys.Audit")))
		}
	}
	for _, name := range w.storeNames() {
		if !want("storage") || !c.can("/storage/"+name, "Datastore.Audit") {
			continue
		}
		for _, node := range w.nodeNames() {
			list = append(list, w.storageResource(w.stores[name], w.nodes[node]))
		}
	}
	if want("sdn") && c.can("/sdn/zones/localnetwork", "SDN.Audit") {
		for _, node := range w.nodeNames() {
			list = append(list, w.zoneResource(node))
		}
	}
	return list, nil
}

// count adds a running guest to its pool.
func (r *resource) count(g *resource) {
	if r.CPU == nil {
		r.CPU, r.MaxCPU, r.Mem, r.MaxMem, r.Uptime = ptr(0.0), ptr(0), ptr(int64(0)), ptr(int64(0)), ptr(int64(0))
	}
	*r.CPU = (*r.CPU*float64(*r.MaxCPU) + *g.CPU*float64(*g.MaxCPU)) / float64(*r.MaxCPU+*g.MaxCPU)
	*r.MaxCPU += *g.MaxCPU
	*r.Mem += *g.Mem
	*r.MaxMem += *g.MaxMem
	*r.Uptime = max(*r.Uptime, *g.Uptime)
}

// guestResource is a guest as last broadcast. One that no status daemon has
// seen yet, or not for long, is only known to exist.
func (w *world) guestResource(g *guest) *resource {
	r := &resource{ID: g.kind + "/" + strconv.Itoa(g.vmid), Type: g.kind, Node: g.node, VMID: g.vmid, Status: "unknown"}
	s, seen := w.seen[g.vmid]
	at := w.nodes[g.node].sampled
	if !seen || w.now.Sub(at) > forgotten {
		return r
	}
	traffic := s.traffic(at)
	r.Name, r.Status, r.Template = s.name, s.status, ptr(boolInt(s.template))
	r.CPU, r.MaxCPU, r.Mem, r.MaxMem = ptr(s.cpu(at)), ptr(s.cpus), ptr(s.mem(at)), ptr(s.maxmem)
	r.Disk, r.MaxDisk, r.DiskRead, r.DiskWrite = ptr(int64(0)), ptr(s.maxdisk), ptr(traffic), ptr(traffic/4)
	r.NetIn, r.NetOut, r.Uptime = ptr(traffic), ptr(traffic/2), ptr(s.uptime(at))
	if w.v9() {
		r.MemHost = r.Mem
	}
	return r
}

// nodeResource is a node; figures only for who may audit it.
func (w *world) nodeResource(n *node, audit bool) *resource {
	r := &resource{ID: "node/" + n.name, Type: "node", Node: n.name, Status: "online", Level: ptr(""), CgroupMode: 2}
	if n.offline {
		r.Status = "offline"
	}
	if !audit || w.now.Sub(n.sampled) > forgotten {
		return r
	}
	used := w.memoryUsed(n.name)
	r.CPU, r.MaxCPU, r.Mem, r.MaxMem = ptr(0.0125), ptr(nodeCPUs), ptr(used), ptr(int64(nodeMemory))
	r.Disk, r.MaxDisk = ptr(int64(8<<30)), ptr(int64(96<<30))
	r.Uptime = ptr(int64(n.sampled.Sub(w.boot) / time.Second))
	return r
}

// memoryUsed is what a node's guests and its own system take.
func (w *world) memoryUsed(node string) int64 {
	used := int64(2 << 30)
	for _, g := range w.guests {
		if g.run != nil && g.node == node {
			used += int64(memoryMiB(g.conf["memory"])) << 20
		}
	}
	return used
}

func (w *world) storageResource(s *store, n *node) *resource {
	r := &resource{
		ID: "storage/" + n.name + "/" + s.Name, Type: "storage", Node: n.name, Storage: s.Name, PluginType: s.Type,
		Content: strings.Join(s.Content, ","), Shared: ptr(boolInt(s.Shared)), Status: "available",
	}
	if n.offline && w.now.Sub(n.sampled) > forgotten {
		r.Status = "unknown"
		return r
	}
	r.Disk, r.MaxDisk = ptr(s.used(n.name)), ptr(s.Size)
	return r
}

// zoneResource is the zone that all bridges of a node belong to. PVE 9 calls
// the entry a network.
func (w *world) zoneResource(node string) *resource {
	r := &resource{ID: "sdn/" + node + "/localnetwork", Type: "sdn", Node: node, SDN: "localnetwork", Status: "ok"}
	return r
}

// apiClusterStatus is GET /cluster/status.
func apiClusterStatus(w *world, _ *call) (any, error) {
	list := []map[string]any{}
	if len(w.nodes) > 1 {
		list = append(list, map[string]any{
			"type": "cluster", "id": "cluster", "name": "simulated", "nodes": len(w.nodes), "version": len(w.nodes), "quorate": boolInt(w.quorum),
		})
	}
	for _, name := range w.nodeNames() {
		n := w.nodes[name]
		entry := map[string]any{
			"type": "node", "id": "node/" + name, "name": name, "nodeid": 0, "ip": fmt.Sprintf("192.0.2.%d", 1+n.index),
			"level": "", "local": boolInt(name == w.cfg.Node), "online": boolInt(!n.offline),
		}
		if len(w.nodes) > 1 {
			entry["nodeid"] = n.index
		}
		list = append(list, entry)
	}
	return list, nil
}

// apiNextID is GET /cluster/nextid: the lowest free id, or whether one is free.
// Nothing is reserved.
func apiNextID(w *world, c *call) (any, error) {
	if c.has("vmid") {
		vmid := c.vmid()
		if w.guests[vmid] != nil {
			return nil, badParam("vmid", fmt.Sprintf("VM %d already exists", vmid))
		}
		return strconv.Itoa(vmid), nil
	}
	for vmid := 100; ; vmid++ {
		if w.guests[vmid] == nil {
			return strconv.Itoa(vmid), nil
		}
	}
}

// apiClusterIndex is GET /cluster.
func apiClusterIndex(w *world, _ *call) (any, error) {
	names := []string{
		"acme", "backup", "backup-info", "ceph", "config", "firewall", "ha", "jobs", "log", "mapping", "metrics",
		"notifications", "nextid", "options", "replication", "resources", "status", "tasks", "sdn",
	}
	if w.v9() {
		names = append(names, "bulk-action")
	}
	return subdirs("name", names...), nil
}

// apiOptions is GET /cluster/options.
func apiOptions(w *world, _ *call) (any, error) {
	tags := map[string]bool{}
	for _, g := range w.guests {
		for _, tag := range splitList(g.conf["tags"]) {
			tags[tag] = true
		}
	}
	allowed := slices.Sorted(maps.Keys(tags))
	if allowed == nil {
		allowed = []string{}
	}
	return map[string]any{"mac_prefix": "BC:24:11", "description": "", "allowed-tags": allowed}, nil
}
