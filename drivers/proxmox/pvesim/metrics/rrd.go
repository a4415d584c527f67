package metrics

import (
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/guests"
)

// rrdPoints is how many points a series has (PVE/RRD.pm reads the last 70).
const rrdPoints = 70

// rrdStep is how far the points of a time frame lie apart.
func rrdStep(frame string) time.Duration {
	switch frame {
	case "hour":
		return time.Minute
	case "day":
		return 30 * time.Minute
	case "week":
		return 3 * time.Hour
	case "month":
		return 12 * time.Hour
	case "year":
		return 7 * 24 * time.Hour
	default:
		return 70 * 24 * time.Hour
	}
}

// series makes points up to now, the oldest first. What was not measured, because
// nothing was there yet, is only a time.
func series(w *core.World, c *core.Call, since time.Time, measure func(at time.Time) map[string]any) []map[string]any {
	step := rrdStep(c.In["timeframe"])
	last := w.Now.Truncate(step)
	list := make([]map[string]any, 0, rrdPoints)
	for n := range rrdPoints {
		at := last.Add(time.Duration(n+1-rrdPoints) * step)
		point := map[string]any{}
		if !at.Before(since) {
			point = measure(at)
		}
		point["time"] = at.Unix()
		list = append(list, point)
	}
	return list
}

// apiNodeSeries is GET /nodes/{node}/rrddata.
func apiNodeSeries(w *core.World, c *core.Call) (any, error) {
	used := guests.MemoryUsed(w, c.In["node"])
	return series(w, c, w.Boot, func(time.Time) map[string]any {
		point := map[string]any{
			"cpu": 0.0125, "iowait": 0.0001, "loadavg": 0.1, "maxcpu": w.Cfg.CPUs, "memtotal": w.Cfg.Memory, "memused": used,
			"netin": 1200.5, "netout": 900.25, "roottotal": w.Cfg.RootDisk, "rootused": guests.RootUsed, "swaptotal": int64(8 << 30), "swapused": 0,
		}
		if w.V9() {
			point["memavailable"], point["arcsize"] = w.Cfg.Memory-used, 0
			for _, name := range []string{"pressurecpusome", "pressureiofull", "pressureiosome", "pressurememoryfull", "pressurememorysome"} {
				point[name] = 0
			}
		}
		return point
	}), nil
}

// apiGuestSeries is GET …/{vmid}/rrddata. A guest that is not there has none, which
// is no error: only the file of its figures is looked for.
func apiGuestSeries(w *core.World, c *core.Call) (any, error) {
	g := w.Guests[c.Vmid()]
	if g == nil || g.Node != c.In["node"] {
		return series(w, c, w.Now.Add(time.Second), nil), nil
	}
	since, s := w.Boot, w.Seen[g.Vmid]
	return series(w, c, since, func(at time.Time) map[string]any {
		point := map[string]any{"maxcpu": s.Cpus, "maxmem": s.Maxmem, "maxdisk": s.Maxdisk, "disk": s.Disk}
		if s.Since.IsZero() || at.Before(s.Since) {
			return point
		}
		point["cpu"], point["mem"] = s.CPU(at), s.Mem(at)
		for _, name := range []string{"netin", "netout", "diskread", "diskwrite"} {
			point[name] = float64(s.Hash(0)%1000) / 4
		}
		if w.V9() {
			point["memhost"] = s.Mem(at)
		}
		return point
	}), nil
}

// apiStorageSeries is GET /nodes/{node}/storage/{storage}/rrddata.
func apiStorageSeries(w *core.World, c *core.Call) (any, error) {
	s := w.Stores[c.In["storage"]]
	if s == nil {
		return series(w, c, w.Now.Add(time.Second), nil), nil
	}
	used := s.Used(c.In["node"])
	return series(w, c, w.Boot, func(time.Time) map[string]any {
		return map[string]any{"total": s.Size, "used": used}
	}), nil
}

// rrdFolder is where pvestatd keeps the figures of what a call is about.
func rrdFolder(m *pveapi.Method) string {
	switch m.Path {
	case "/nodes/{node}/rrd":
		return "pve2-node/"
	case "/nodes/{node}/storage/{storage}/rrd":
		return "pve2-storage/"
	default:
		return "pve2-vm/"
	}
}

// apiGraph is GET …/rrd: the name of a drawing, which lies on the node.
func apiGraph(_ *core.World, c *core.Call) (any, error) {
	name := c.In["node"]
	switch {
	case c.Has("vmid"):
		name = c.In["vmid"]
	case c.Has("storage"):
		name += "/" + c.In["storage"]
	}
	return map[string]any{"filename": "/var/lib/rrdcached/db/" + rrdFolder(c.M) + name + "_" + c.In["ds"] + ".png"}, nil
}
