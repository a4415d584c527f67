package pvesim

import (
	"fmt"
	"maps"
)

// apiVMIndex is GET /nodes/{node}/qemu/{vmid}. Not all it names is there, not
// even in PVE.
func apiVMIndex(*world, *call) (any, error) {
	names := []string{
		"config", "cloudinit", "pending", "status", "unlink", "vncproxy", "termproxy", "migrate", "resize", "move",
		"rrd", "rrddata", "monitor", "agent", "snapshot", "spiceproxy", "sendkey", "firewall", "mtunnel", "remote_migrate",
	}
	return subdirs("subdir", names...), nil
}

// apiVMStatusIndex is GET /nodes/{node}/qemu/{vmid}/status.
func apiVMStatusIndex(*world, *call) (any, error) {
	return subdirs("subdir", "current", "start", "stop", "reset", "shutdown", "suspend", "reboot"), nil
}

// apiListVMs is GET /nodes/{node}/qemu. It is fresh, unlike /cluster/resources.
func apiListVMs(w *world, c *call) (any, error) {
	list := []map[string]any{}
	for _, vmid := range w.vmids {
		g := w.guests[vmid]
		if g.node != c.in["node"] || g.kind != "qemu" || !c.can(vmPath(vmid), "VM.Audit") {
			continue
		}
		list = append(list, w.vmStatus(g, c.flag("full")))
	}
	return list, nil
}

// vmStatus is what vmstatus in PVE/QemuServer.pm says about a VM.
func (w *world) vmStatus(g *guest, full bool) map[string]any {
	s := w.sample(g)
	v := map[string]any{
		"vmid": g.vmid, "name": s.name, "status": s.status, "cpus": s.cpus, "cpu": s.cpu(w.now),
		"mem": s.mem(w.now), "maxmem": s.maxmem, "disk": 0, "maxdisk": s.maxdisk,
		"netin": s.traffic(w.now), "netout": s.traffic(w.now) / 2, "uptime": s.uptime(w.now),
	}
	for _, key := range []string{"tags", "lock"} {
		if value, ok := g.conf[key]; ok {
			v[key] = value
		}
	}
	if g.conf["template"] == "1" {
		v["template"] = 1
	}
	if len(indexedKeys(g.conf, "serial")) > 0 {
		v["serial"] = 1
	}
	if least := atoi(g.conf["balloon"]); least != 0 {
		v["balloon_min"], v["shares"] = int64(least)<<20, 1000
		if shares, ok := g.conf["shares"]; ok {
			v["shares"] = atoi(shares)
		}
	}
	if w.v9() {
		v["memhost"] = s.mem(w.now)
		if g.run != nil {
			for _, stall := range []string{"cpufull", "cpusome", "iofull", "iosome", "memoryfull", "memorysome"} {
				v["pressure"+stall] = 0
			}
		}
	}
	state := "stopped"
	if g.run != nil {
		v["pid"] = g.run.pid
		state = "running"
		if g.run.qmp != "" {
			state = g.run.qmp
		}
	}
	if full {
		v["qmpstatus"] = state
		if g.run != nil {
			w.runningStatus(g, s, v)
		}
	}
	return v
}

// runningStatus adds what QEMU itself tells.
func (w *world) runningStatus(g *guest, s sample, v map[string]any) {
	balloon := s.maxmem
	if mib := atoi(g.conf["balloon"]); mib > 0 {
		balloon = int64(mib) << 20
	}
	v["balloon"] = balloon
	info := map[string]any{"actual": balloon, "max_mem": s.maxmem}
	if g.run.system && !w.now.Before(g.run.booted.Add(-w.cfg.BootTime/2)) { // The guest's driver, there before its agent, tells more.
		free := s.maxmem - s.mem(w.now)
		maps.Copy(info, map[string]any{
			"free_mem": free, "total_mem": s.maxmem - s.maxmem/8, "mem_swapped_in": 0, "mem_swapped_out": 0, "major_page_faults": 0,
			"minor_page_faults": 700, "last_update": w.now.Unix(),
		})
		v["freemem"] = free
	}
	v["ballooninfo"] = info
	blocks := map[string]any{}
	for key := range g.run.disks {
		blocks[key] = map[string]any{
			"rd_bytes": s.traffic(w.now), "rd_operations": s.traffic(w.now) / 4096, "wr_bytes": s.traffic(w.now) / 4,
			"wr_operations": s.traffic(w.now) / 16384, "failed_rd_operations": 0, "failed_wr_operations": 0, "flush_operations": 0,
			"account_failed": true, "account_invalid": true, "timed_stats": []any{},
		}
	}
	v["blockstat"] = blocks
	v["diskread"], v["diskwrite"] = s.traffic(w.now), s.traffic(w.now)/4
	nics := map[string]any{}
	for _, key := range indexedKeys(g.conf, "net") {
		nics[fmt.Sprintf("tap%di%s", g.vmid, key[3:])] = map[string]any{"netin": s.traffic(w.now), "netout": s.traffic(w.now) / 2}
	}
	v["nics"] = nics
	v["running-machine"], v["running-qemu"] = g.run.machine, w.qemuVersion()
	v["proxmox-support"] = map[string]any{
		"backup-access-api": true, "backup-fleecing": true, "backup-max-workers": true, "pbs-dirty-bitmap": true,
		"pbs-dirty-bitmap-migration": true, "pbs-dirty-bitmap-savevm": true, "pbs-library-version": "1.5.1",
		"pbs-masterkey": true, "query-bitmap-info": true,
	}
}

// apiCurrent is GET …/status/current.
func apiCurrent(w *world, c *call) (any, error) {
	g, err := c.vm()
	if err != nil {
		return nil, err
	}
	v := w.vmStatus(g, true)
	v["ha"] = w.ha.status(g)
	if agentEnabled(g) {
		v["agent"] = 1
	}
	if vga := g.conf["vga"]; vga != "" {
		v["clipboard"] = nil
		if clipboard := parseProperty("vga", vga)["clipboard"]; clipboard != "" {
			v["clipboard"] = clipboard
		}
	}
	return v, nil
}
