package cluster

// This part of the package is servers for metrics, and the history of figures that a host shows.

import (
	"fmt"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
)

// MetricArea is metrics and their history.
func MetricArea() core.Area {
	return core.Area{
		Routes: map[string]core.Handler{
			"GET /nodes/{node}/rrd":                       apiGraph,
			"GET /nodes/{node}/rrddata":                   apiNodeSeries,
			"GET /nodes/{node}/{qemu|lxc}/{vmid}/rrd":     apiGraph,
			"GET /nodes/{node}/{qemu|lxc}/{vmid}/rrddata": apiGuestSeries,
			"GET /nodes/{node}/storage/{storage}/rrd":     apiGraph,
			"GET /nodes/{node}/storage/{storage}/rrddata": apiStorageSeries,
		},
		Files: metricFiles(),
		Calls: metricCalls(),
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
		Read: core.AllOf("/", "Sys.Audit"), Write: core.AllOf("/", "Sys.Modify"), Lock: "status_cfg", Secret: []string{"token"},
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

// apiMetricsExport is GET /cluster/metrics/export: what the nodes and their guests say
// now, without history.
func apiMetricsExport(w *core.World, c *core.Call) (any, error) {
	list, at := []map[string]any{}, w.Next.Add(-core.SamplePeriod).Unix()
	add := func(id, metric string, value any) {
		if at > int64(c.Num("start-time", 0)) {
			list = append(list, map[string]any{"id": id, "metric": metric, "timestamp": at, "type": "gauge", "value": value})
		}
	}
	for _, name := range w.NodeNames() {
		if w.Nodes[name].Offline || c.Flag("local-only") && name != w.Cfg.Node {
			continue
		}
		used := guests.MemoryUsed(w, name)
		add("node/"+name, "mem_used", used)
		for _, vmid := range w.Vmids {
			g := w.Guests[vmid]
			if s := w.Seen[vmid]; g.Node == name {
				id := fmt.Sprint(g.Kind, "/", vmid)
				add(id, "cpu_current", s.CPU(w.Now))
				add(id, "mem_used", s.Mem(w.Now))
				add(id, "uptime", s.Uptime(w.Now))
			}
		}
	}
	return map[string]any{"data": list}, nil
}

func metricCalls() []core.ExtraCall {
	return []core.ExtraCall{{
		Name: "GET /cluster/metrics/export", Perm: core.AllOf("/", "Sys.Audit"), Params: "local-only: boolean\nstart-time: integer\nhistory: boolean",
		Returns: &pveapi.Value{Type: "object", Props: map[string]*pveapi.Value{"data": {Type: "array"}}}, Handle: apiMetricsExport,
	}}
}

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
