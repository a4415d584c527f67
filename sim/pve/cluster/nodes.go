package cluster

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// RootIndex is GET / of the API, which the table has not.
func RootIndex(req *core.Request) (any, bool) {
	if req.Method != http.MethodGet || len(perl.Segments(req.Path)) > 0 {
		return nil, false
	}
	return core.Subdirs("subdir", "version", "cluster", "nodes", "storage", "access", "pools"), true
}

// apiVersion is GET /version and GET /nodes/{node}/version.
func apiVersion(w *core.World, _ *core.Call) (any, error) {
	release, version, repoid := w.Version()
	return map[string]any{"release": release, "version": version, "repoid": repoid}, nil
}

// apiNodes is GET /nodes.
func apiNodes(w *core.World, c *core.Call) (any, error) {
	list := []*guests.NodeEntry{}
	for _, name := range w.NodeNames() {
		r := guests.NodeEntryOf(w, w.Nodes[name], c.Can("/nodes/"+name, "Sys.Audit"))
		r.CgroupMode, r.Print = 0, perl.Colons(w.Fingerprint)
		list = append(list, r)
	}
	return list, nil
}

// apiNodeStatus is GET /nodes/{node}/status.
func apiNodeStatus(w *core.World, c *core.Call) (any, error) {
	_, version, repoid := w.Version()
	used := guests.MemoryUsed(w, c.In["node"])
	kernel := map[string]any{"sysname": "Linux", "release": "6.17.4-2-pve", "version": "#1 SMP PREEMPT_DYNAMIC PMX 6.17.4-2", "machine": "x86_64"}
	sockets, threads := 2, 2
	if w.Cfg.CPUs < 4 {
		sockets, threads = 1, 1
	}
	memory := map[string]any{"total": w.Cfg.Memory, "used": used, "free": w.Cfg.Memory - used}
	if w.V9() {
		memory["available"] = w.Cfg.Memory - used // Since pve-manager 9.
	}
	free := w.Cfg.RootDisk - guests.RootUsed
	hvm, boot := "1", map[string]any{"mode": "efi", "secureboot": 0}
	if w.Cfg.NoKVM {
		hvm, boot = "", map[string]any{"mode": "legacy-bios"} // As the recorded host, a small VM, was.
	}
	status := map[string]any{
		"uptime": int64(w.Now.Sub(w.Boot) / time.Second), "pveversion": "pve-manager/" + version + "/" + repoid,
		"kversion": "Linux 6.17.4-2-pve #1 SMP PREEMPT_DYNAMIC PMX 6.17.4-2", "current-kernel": kernel,
		"boot-info": boot,
		"cpu":       0.0125, "wait": 0.0001, "idle": 0, "loadavg": []string{"0.10", "0.08", "0.05"},
		"cpuinfo": map[string]any{
			"cpus": w.Cfg.CPUs, "cores": w.Cfg.CPUs / sockets / threads, "sockets": sockets, "model": "Simulated CPU", "mhz": "2600.000", "hvm": hvm,
			"user_hz": 100, "flags": "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat vmx svm lm sse4_2 avx2",
		},
		"memory": memory,
		"swap":   map[string]any{"total": 8 << 30, "used": 0, "free": 8 << 30},
		"rootfs": map[string]any{"total": w.Cfg.RootDisk, "used": guests.RootUsed, "avail": free, "free": free},
		"ksm":    map[string]any{"shared": 0},
	}
	return status, nil
}

// apiClusterStatus is GET /cluster/status.
func apiClusterStatus(w *core.World, _ *core.Call) (any, error) {
	list := []map[string]any{}
	if len(w.Nodes) > 1 {
		list = append(list, map[string]any{
			"type": "cluster", "id": "cluster", "name": "simulated", "nodes": len(w.Nodes), "version": len(w.Nodes), "quorate": perl.BoolInt(w.Quorum),
		})
	}
	for _, name := range w.NodeNames() {
		n := w.Nodes[name]
		entry := map[string]any{
			"type": "node", "id": "node/" + name, "name": name, "nodeid": 0, "ip": fmt.Sprintf("192.0.2.%d", 1+n.Index),
			"level": "", "local": perl.BoolInt(name == w.Cfg.Node), "online": perl.BoolInt(!n.Offline),
		}
		if len(w.Nodes) > 1 {
			entry["nodeid"] = n.Index
		}
		list = append(list, entry)
	}
	return list, nil
}

// apiNextID is GET /cluster/nextid: the lowest free id, or whether one is free.
// Nothing is reserved.
func apiNextID(w *core.World, c *core.Call) (any, error) {
	if c.Has("vmid") {
		vmid := c.Vmid()
		if w.Guests[vmid] != nil {
			return nil, perl.BadParam("vmid", fmt.Sprintf("VM %d already exists", vmid))
		}
		return strconv.Itoa(vmid), nil
	}
	lower, upper := idRange(w.Options["next-id"])
	for vmid := lower; vmid < upper; vmid++ {
		if w.Guests[vmid] == nil {
			return strconv.Itoa(vmid), nil
		}
	}
	return nil, perl.Fail("unable to get any free VMID in range [%d, %d]", lower, upper)
}
