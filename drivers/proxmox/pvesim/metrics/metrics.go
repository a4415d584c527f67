package metrics

import (
	"fmt"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/guests"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/sections"
)

// Metric servers (PVE/API2/Cluster/MetricServer.pm, PVE/Status): they are kept and
// shown, and nothing is sent to them.

func metricFiles() []sections.SectionFile {
	return []sections.SectionFile{{
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
		Read: sections.AllOf("/", "Sys.Audit"), Write: sections.AllOf("/", "Sys.Modify"), Lock: "status_cfg", Secret: []string{"token"},
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

func metricCalls() []sections.PastCall {
	return []sections.PastCall{{
		Name: "GET /cluster/metrics/export", Perm: sections.AllOf("/", "Sys.Audit"), Params: "local-only: boolean\nstart-time: integer\nhistory: boolean",
		Returns: &pveapi.Value{Type: "object", Props: map[string]*pveapi.Value{"data": {Type: "array"}}}, Handle: apiMetricsExport,
	}}
}
