package cluster

import (
	"time"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
)

// metricArea is metrics and their history.
func metricArea() core.Area {
	return core.Area{
		Routes: map[string]core.Handler{
			"GET /nodes/{node}/rrddata":                   apiNodeSeries,
			"GET /nodes/{node}/{qemu|lxc}/{vmid}/rrddata": apiGuestSeries,
		},
		Files: metricFiles(),
	}
}

// Metric servers (PVE/API2/Cluster/MetricServer.pm, PVE/Status): they are kept and
// shown, and nothing is sent to them.

func metricFiles() []core.SectionFile {
	return []core.SectionFile{{
		Name: "status", Path: "/cluster/metrics/server", Key: "id", ID: "pve-configid", PostBelow: true, Plain: true,
		Kinds: map[string]string{
			"graphite": "server port mtu? proto? timeout? path? disable?",
			"influxdb": "server port mtu? disable? organization? bucket? token? influxdbproto? timeout? max-body-size? api-path-prefix? verify-certificate?",
			"opentelemetry": "server port mtu? disable? otel-protocol? otel-path? otel-timeout? otel-headers? otel-verify-ssl? otel-max-body-size? " +
				"otel-resource-attributes? otel-compression?",
		},
		Props: `server: string address
			port: integer 1..65536
			mtu: integer 512..65536
			disable: boolean
			proto: string udp|tcp
			timeout: integer 0..
			path: string /[a-zA-Z0-9_\-]+(?:\.[a-zA-Z0-9_\-]+)*/
			organization: string
			bucket: string
			token: string
			influxdbproto: string udp|http|https
			max-body-size: integer 1..
			api-path-prefix: string
			verify-certificate: boolean
			otel-protocol: string http|https @9.0
			otel-path: string @9.0
			otel-timeout: integer 1..10 @9.0
			otel-headers: string <=1024 @9.0
			otel-verify-ssl: boolean @9.0
			otel-max-body-size: integer 1024.. @9.0
			otel-resource-attributes: string <=1024 @9.0
			otel-compression: string none|gzip @9.0`,
		Read: allOf("/", "Sys.Audit"), Write: allOf("/", "Sys.Modify"), Lock: "status_cfg", Secret: []string{"token"},
		Twice: "Metric server '%s' already exists", Missing: "status server entry '%s' does not exist", Gone: "no such server '%s'",
		Undeletable: "cannot lookup undefined type! at /usr/share/perl5/PVE/API2/Cluster/MetricServer.pm line 295.",
		Show: func(_ *core.World, c *core.Call, _ string, entry map[string]any) {
			if c.In["id"] != "" {
				return
			}
			for key := range entry { // A list has the least.
				if key != "type" && key != "server" && key != "port" && key != "disable" {
					delete(entry, key)
				}
			}
			if entry["disable"] == nil {
				entry["disable"] = 0
			}
		},
	}}
}

// rrdPoints is the number of points of a series (PVE/RRD.pm reads the last 70).
const rrdPoints = 70

// rrdStep returns the distance between the points of a time frame.
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

// series makes points up to now, the oldest first. A point before the first measurement has only a time.
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

// apiGuestSeries is GET …/{vmid}/rrddata. A missing guest has an empty series, which is not an error: only the file
// of its figures is looked for.
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
