package pvesim

import (
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
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
func (w *world) series(c *call, since time.Time, measure func(at time.Time) map[string]any) []map[string]any {
	step := rrdStep(c.in["timeframe"])
	last := w.now.Truncate(step)
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
func apiNodeSeries(w *world, c *call) (any, error) {
	used := w.memoryUsed(c.in["node"])
	return w.series(c, w.boot, func(time.Time) map[string]any {
		point := map[string]any{
			"cpu": 0.0125, "iowait": 0.0001, "loadavg": 0.1, "maxcpu": w.cfg.CPUs, "memtotal": w.cfg.Memory, "memused": used,
			"netin": 1200.5, "netout": 900.25, "roottotal": w.cfg.RootDisk, "rootused": rootUsed, "swaptotal": int64(8 << 30), "swapused": 0,
		}
		if w.v9() {
			point["memavailable"], point["arcsize"] = w.cfg.Memory-used, 0
			for _, name := range []string{"pressurecpusome", "pressureiofull", "pressureiosome", "pressurememoryfull", "pressurememorysome"} {
				point[name] = 0
			}
		}
		return point
	}), nil
}

// apiGuestSeries is GET …/{vmid}/rrddata. A guest that is not there has none, which
// is no error: only the file of its figures is looked for.
func apiGuestSeries(w *world, c *call) (any, error) {
	g := w.guests[c.vmid()]
	if g == nil || g.node != c.in["node"] {
		return w.series(c, w.now.Add(time.Second), nil), nil
	}
	since, s := w.boot, w.seen[g.vmid]
	return w.series(c, since, func(at time.Time) map[string]any {
		point := map[string]any{"maxcpu": s.cpus, "maxmem": s.maxmem, "maxdisk": s.maxdisk, "disk": s.disk}
		if s.since.IsZero() || at.Before(s.since) {
			return point
		}
		point["cpu"], point["mem"] = s.cpu(at), s.mem(at)
		for _, name := range []string{"netin", "netout", "diskread", "diskwrite"} {
			point[name] = float64(s.hash(0)%1000) / 4
		}
		if w.v9() {
			point["memhost"] = s.mem(at)
		}
		return point
	}), nil
}

// apiStorageSeries is GET /nodes/{node}/storage/{storage}/rrddata.
func apiStorageSeries(w *world, c *call) (any, error) {
	s := w.stores[c.in["storage"]]
	if s == nil {
		return w.series(c, w.now.Add(time.Second), nil), nil
	}
	used := s.used(c.in["node"])
	return w.series(c, w.boot, func(time.Time) map[string]any {
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
func apiGraph(_ *world, c *call) (any, error) {
	name := c.in["node"]
	switch {
	case c.has("vmid"):
		name = c.in["vmid"]
	case c.has("storage"):
		name += "/" + c.in["storage"]
	}
	return map[string]any{"filename": "/var/lib/rrdcached/db/" + rrdFolder(c.m) + name + "_" + c.in["ds"] + ".png"}, nil
}
