package pvesim

import (
	"strings"
	"time"
)

// rootIndex is GET / of the API, which the table has not.
func rootIndex(req *request) (any, bool) {
	if req.method != "GET" || len(segments(req.path)) > 0 {
		return nil, false
	}
	return subdirs("subdir", "version", "cluster", "nodes", "storage", "access", "pools"), true
}

// apiVersion is GET /version and GET /nodes/{node}/version.
func apiVersion(w *world, _ *call) (any, error) {
	release, version, repoid := w.version()
	return map[string]any{"release": release, "version": version, "repoid": repoid}, nil
}

// apiNodes is GET /nodes.
func apiNodes(w *world, c *call) (any, error) {
	list := []*nodeEntry{}
	for _, name := range w.nodeNames() {
		r := w.nodeEntry(w.nodes[name], c.can("/nodes/"+name, "Sys.Audit"))
		r.CgroupMode, r.Print = 0, colons(w.fingerprint)
		list = append(list, r)
	}
	return list, nil
}

// apiNodeIndex is GET /nodes/{node}.
func apiNodeIndex(w *world, _ *call) (any, error) {
	names := strings.Fields("aplinfo apt capabilities ceph certificates config disks dns firewall hardware hosts journal " +
		"lxc migrateall netstat network qemu query-url-metadata replication report rrd rrddata scan services spiceshell startall status " +
		"stopall storage subscription suspendall syslog tasks termproxy time version vncshell vzdump wakeonlan sdn")
	if w.v9() {
		names = append(names, "query-oci-repo-tags")
	}
	return subdirs("name", names...), nil
}

// apiNodeStatus is GET /nodes/{node}/status.
func apiNodeStatus(w *world, c *call) (any, error) {
	_, version, repoid := w.version()
	used := w.memoryUsed(c.in["node"])
	kernel := map[string]any{"sysname": "Linux", "release": "6.17.4-2-pve", "version": "#1 SMP PREEMPT_DYNAMIC PMX 6.17.4-2", "machine": "x86_64"}
	sockets, threads := 2, 2
	if w.cfg.CPUs < 4 {
		sockets, threads = 1, 1
	}
	memory := map[string]any{"total": w.cfg.Memory, "used": used, "free": w.cfg.Memory - used}
	if w.v9() {
		memory["available"] = w.cfg.Memory - used // Since pve-manager 9.
	}
	free := w.cfg.RootDisk - rootUsed
	hvm, boot := "1", map[string]any{"mode": "efi", "secureboot": 0}
	if w.cfg.NoKVM {
		hvm, boot = "", map[string]any{"mode": "legacy-bios"} // As the recorded host, a small VM, was.
	}
	status := map[string]any{
		"uptime": int64(w.now.Sub(w.boot) / time.Second), "pveversion": "pve-manager/" + version + "/" + repoid,
		"kversion": "Linux 6.17.4-2-pve #1 SMP PREEMPT_DYNAMIC PMX 6.17.4-2", "current-kernel": kernel,
		"boot-info": boot,
		"cpu":       0.0125, "wait": 0.0001, "idle": 0, "loadavg": []string{"0.10", "0.08", "0.05"},
		"cpuinfo": map[string]any{
			"cpus": w.cfg.CPUs, "cores": w.cfg.CPUs / sockets / threads, "sockets": sockets, "model": "Simulated CPU", "mhz": "2600.000", "hvm": hvm,
			"user_hz": 100, "flags": "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat vmx svm lm sse4_2 avx2",
		},
		"memory": memory,
		"swap":   map[string]any{"total": 8 << 30, "used": 0, "free": 8 << 30},
		"rootfs": map[string]any{"total": w.cfg.RootDisk, "used": rootUsed, "avail": free, "free": free},
		"ksm":    map[string]any{"shared": 0},
	}
	return status, nil
}
