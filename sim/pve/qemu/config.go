package qemu

import (
	"fmt"
	"maps"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// apiListVMs is GET /nodes/{node}/qemu.
func apiListVMs(w *core.World, c *core.Call) (any, error) {
	return guests.List(c, "qemu", func(g *core.Guest) map[string]any { return vmStatus(w, g, c.Flag("full")) }), nil
}

// vmStatus returns the result of vmstatus in PVE/QemuServer.pm for a VM.
func vmStatus(w *core.World, g *core.Guest, full bool) map[string]any {
	s := guests.Sample(w, g)
	v := guests.Status(w, g, s)
	v["cpus"], v["disk"] = s.Cpus, 0
	if len(g.Conf.IndexedKeys("serial")) > 0 {
		v["serial"] = 1
	}
	if least := perl.Atoi(g.Conf["balloon"]); least != 0 {
		v["balloon_min"], v["shares"] = int64(least)<<20, 1000
		if shares, ok := g.Conf["shares"]; ok {
			v["shares"] = perl.Atoi(shares)
		}
	}
	if w.V9() {
		v["memhost"] = s.Mem(w.Now)
		if g.Run != nil {
			for _, stall := range []string{"cpufull", "cpusome", "iofull", "iosome", "memoryfull", "memorysome"} {
				v["pressure"+stall] = 0
			}
		}
	}
	state := "stopped"
	if g.Run != nil {
		state = "running"
		if g.Run.Qmp != "" {
			state = g.Run.Qmp
		}
	}
	if full {
		v["qmpstatus"] = state
		if g.Run != nil {
			runningStatus(w, g, s, v)
		}
	}
	return v
}

// runningStatus adds what QEMU itself tells.
func runningStatus(w *core.World, g *core.Guest, s core.Sample, v map[string]any) {
	balloon := s.Maxmem
	if mib := perl.Atoi(g.Conf["balloon"]); mib > 0 {
		balloon = int64(mib) << 20
	}
	v["balloon"] = balloon
	info := map[string]any{"actual": balloon, "max_mem": s.Maxmem}
	if g.Run.System && !w.Now.Before(g.Run.Booted.Add(-w.Cfg.BootTime/2)) { // The guest's driver, there before its agent, tells more.
		free := s.Maxmem - s.Mem(w.Now)
		maps.Copy(info, map[string]any{
			"free_mem": free, "total_mem": s.Maxmem - s.Maxmem/8, "mem_swapped_in": 0, "mem_swapped_out": 0, "major_page_faults": 0,
			"minor_page_faults": 700, "last_update": w.Now.Unix(),
		})
		v["freemem"] = free
	}
	v["ballooninfo"] = info
	blocks := map[string]any{}
	for key := range g.Run.Disks {
		blocks[key] = map[string]any{
			"rd_bytes": s.Traffic(w.Now), "rd_operations": s.Traffic(w.Now) / 4096, "wr_bytes": s.Traffic(w.Now) / 4,
			"wr_operations": s.Traffic(w.Now) / 16384, "failed_rd_operations": 0, "failed_wr_operations": 0, "flush_operations": 0,
			"account_failed": true, "account_invalid": true, "timed_stats": []any{},
		}
	}
	v["blockstat"] = blocks
	v["diskread"], v["diskwrite"] = s.Traffic(w.Now), s.Traffic(w.Now)/4
	nics := map[string]any{}
	for _, key := range g.Conf.IndexedKeys("net") {
		nics[fmt.Sprintf("tap%di%s", g.Vmid, key[3:])] = map[string]any{"netin": s.Traffic(w.Now), "netout": s.Traffic(w.Now) / 2}
	}
	v["nics"] = nics
	v["running-machine"], v["running-qemu"] = g.Run.Machine, guests.QemuVersion(w)
	v["proxmox-support"] = map[string]any{
		"backup-access-api": true, "backup-fleecing": true, "backup-max-workers": true, "pbs-dirty-bitmap": true,
		"pbs-dirty-bitmap-migration": true, "pbs-dirty-bitmap-savevm": true, "pbs-library-version": "1.5.1",
		"pbs-masterkey": true, "query-bitmap-info": true,
	}
}

// apiCurrent is GET …/status/current.
func apiCurrent(w *core.World, _ *core.Call, g *core.Guest) (any, error) {
	v := vmStatus(w, g, true)
	v["ha"] = w.HA.Status(g)
	if g.AgentEnabled() {
		v["agent"] = 1
	}
	if vga := g.Conf["vga"]; vga != "" {
		v["clipboard"] = nil
		if clipboard := perl.ParseProperty("vga", vga)["clipboard"]; clipboard != "" {
			v["clipboard"] = clipboard
		}
	}
	return v, nil
}
