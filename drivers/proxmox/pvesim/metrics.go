package pvesim

import (
	"fmt"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
)

// Metric servers (PVE/API2/Cluster/MetricServer.pm, PVE/Status): they are kept and
// shown, and nothing is sent to them.

func metricFiles() []sectionFile {
	return []sectionFile{{
		name: "status", path: "/cluster/metrics/server", key: "id", id: "pve-configid", postBelow: true, plain: true,
		kinds: map[string]string{
			"graphite": "server port mtu? proto? timeout? path? disable?",
			"influxdb": "server port mtu? disable? organization? bucket? token? influxdbproto? timeout? max-body-size? api-path-prefix? verify-certificate?",
			"opentelemetry": "server port mtu? disable? otel-protocol? otel-path? otel-timeout? otel-headers? otel-verify-ssl? otel-max-body-size? " +
				"otel-resource-attributes? otel-compression?",
		},
		props: `server: string address
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
		read: allOf("/", "Sys.Audit"), write: allOf("/", "Sys.Modify"), lock: "status_cfg", secret: []string{"token"},
		twice: "Metric server '%s' already exists", missing: "status server entry '%s' does not exist", gone: "no such server '%s'",
		undeletable: "cannot lookup undefined type! at /usr/share/perl5/PVE/API2/Cluster/MetricServer.pm line 295.",
		show: func(_ *world, c *call, _ string, entry map[string]any) {
			if c.in["id"] != "" {
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
func apiMetricsExport(w *world, c *call) (any, error) {
	list, at := []map[string]any{}, w.next.Add(-samplePeriod).Unix()
	add := func(id, metric string, value any) {
		if at > int64(c.num("start-time", 0)) {
			list = append(list, map[string]any{"id": id, "metric": metric, "timestamp": at, "type": "gauge", "value": value})
		}
	}
	for _, name := range w.nodeNames() {
		if w.nodes[name].offline || c.flag("local-only") && name != w.cfg.Node {
			continue
		}
		used := w.memoryUsed(name)
		add("node/"+name, "mem_used", used)
		for _, vmid := range w.vmids {
			g := w.guests[vmid]
			if s := w.seen[vmid]; g.node == name {
				id := fmt.Sprint(g.kind, "/", vmid)
				add(id, "cpu_current", s.cpu(w.now))
				add(id, "mem_used", s.mem(w.now))
				add(id, "uptime", s.uptime(w.now))
			}
		}
	}
	return map[string]any{"data": list}, nil
}

func metricCalls() []pastCall {
	return []pastCall{{
		name: "GET /cluster/metrics/export", perm: allOf("/", "Sys.Audit"), params: "local-only: boolean\nstart-time: integer\nhistory: boolean",
		returns: &pveapi.Value{Type: "object", Props: map[string]*pveapi.Value{"data": {Type: "array"}}}, handle: apiMetricsExport,
	}}
}
