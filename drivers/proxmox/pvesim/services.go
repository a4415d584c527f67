package pvesim

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
)

// services are the units that PVE shows (PVE/API2/Services.pm), with what they call
// themselves.
var services = [][2]string{
	{"chrony", "chrony, an NTP client/server"},
	{"corosync", "Corosync Cluster Engine"},
	{"cron", "Regular background program processing daemon"},
	{"ksmtuned", "Kernel Samepage Merging (KSM) Tuning Daemon"},
	{"postfix", "Postfix Mail Transport Agent"},
	{"proxmox-firewall", "Proxmox nftables firewall"},
	{"pve-cluster", "The Proxmox VE cluster filesystem"},
	{"pve-firewall", "Proxmox VE firewall"},
	{"pve-ha-crm", "PVE Cluster HA Resource Manager Daemon"},
	{"pve-ha-lrm", "PVE Local HA Resource Manager Daemon"},
	{"pvedaemon", "PVE API Daemon"},
	{"pvefw-logger", "Proxmox VE firewall logger"},
	{"pveproxy", "PVE API Proxy Server"},
	{"pvescheduler", "Proxmox VE scheduler"},
	{"pvestatd", "PVE Status Daemon"},
	{"spiceproxy", "PVE SPICE Proxy Server"},
	{"sshd", "OpenBSD Secure Shell server"},
	{"syslog", "System Logging Service"},
	{"systemd-journald", "Journal Service"},
	{"systemd-timesyncd", "Network Time Synchronization"},
}

// keptServices cannot be stopped through the API: it would be gone with them.
var keptServices = []string{"pveproxy", "pvedaemon", "pve-cluster", "pvestatd", "spiceproxy"}

// halted are the services of a node that somebody stopped.
type halted struct{ services map[string]bool }

func haltedOf(n *node) map[string]bool {
	all := partOf[halted](&n.parts)
	if all.services == nil {
		all.services = map[string]bool{}
	}
	return all.services
}

// serviceState says whether a service runs and what systemd makes of its unit. Some
// are known without being installed, or have nothing to do on a single node.
func (w *world) serviceState(n *node, name string) (active, unit string) {
	switch {
	case name == "syslog" || name == "systemd-timesyncd" || name == "corosync" && len(w.nodes) == 1:
		return "inactive", "not-found"
	case haltedOf(n)[name]:
		return "inactive", "enabled"
	case name == "systemd-journald":
		return "active", "static"
	default:
		return "active", "enabled"
	}
}

func (w *world) serviceEntry(n *node, name, description string) map[string]any {
	active, unit := w.serviceState(n, name)
	state := "running"
	if active != "active" {
		state = "dead"
	}
	return map[string]any{"service": name, "name": name, "desc": description, "state": state, "active-state": active, "unit-state": unit}
}

// apiServices is GET /nodes/{node}/services.
func apiServices(w *world, c *call) (any, error) {
	list := []map[string]any{}
	for _, s := range services {
		list = append(list, w.serviceEntry(w.nodes[c.in["node"]], s[0], s[1]))
	}
	return list, nil
}

// apiServiceState is GET /nodes/{node}/services/{service}/state.
func apiServiceState(w *world, c *call) (any, error) {
	name := c.in["service"]
	i := slices.IndexFunc(services, func(s [2]string) bool { return s[0] == name })
	if i < 0 {
		return nil, fail("unknown service '%s'", name)
	}
	return w.serviceEntry(w.nodes[c.in["node"]], name, services[i][1]), nil
}

// apiServiceCommand is POST /nodes/{node}/services/{service}/COMMAND.
func apiServiceCommand(w *world, c *call) (any, error) {
	name, command := c.in["service"], path.Base(c.m.Path)
	n := w.nodes[c.in["node"]]
	kinds := map[string]string{"start": "srvstart", "stop": "srvstop", "restart": "srvrestart", "reload": "srvreload"}
	doing := map[string]string{"start": "starting", "stop": "stopping", "restart": "restarting", "reload": "reloading"}
	return w.fork(c, n.name, job{kind: kinds[command], id: name, end: func(t *task) error {
		t.logf("%s service %s", doing[command], name)
		if command == "stop" && slices.Contains(keptServices, name) {
			return fail("invalid service cmd 'stop' - essential service")
		}
		if _, unit := w.serviceState(n, name); unit == "not-found" {
			return fail("command 'systemctl %s %s' failed: exit code 5", command, name)
		}
		haltedOf(n)[name] = command == "stop"
		return nil
	}}), nil
}

// nodeJournal is what the daemons of a node wrote: what tasks began and ended.
func (w *world) nodeJournal(name string) (list []string) {
	line := func(at time.Time, process string, pid int, format string, args ...any) {
		list = append(list, fmt.Sprintf("%s %s %s[%d]: %s", at.UTC().Format("Jan 02 15:04:05"), name, process, pid, fmt.Sprintf(format, args...)))
	}
	line(w.boot, "systemd", 1, "Reached target multi-user.target - Multi-User System.")
	for _, t := range w.tasks.all {
		if t.node != name {
			continue
		}
		line(t.start, "pvedaemon", t.pid, "<%s> starting task %s", t.who, t.upid)
		if !t.running() {
			line(t.stopped, "pvedaemon", t.pid, "<%s> end task %s %s", t.who, t.upid, t.status)
		}
	}
	return list
}

// numbered is a log as PVE pages it, from start on, limit lines at most.
func (c *call) numbered(lines []string) paged {
	start, limit := c.num("start", 0), c.num("limit", 50)
	page := []map[string]any{}
	for n := start; n < len(lines) && (limit == 0 || len(page) < limit); n++ {
		page = append(page, map[string]any{"n": n + 1, "t": lines[n]})
	}
	if len(page) == 0 {
		page = append(page, map[string]any{"n": 1, "t": "no content"})
	}
	return paged{page, len(lines)}
}

// apiSyslog is GET /nodes/{node}/syslog; service picks the lines of one.
func apiSyslog(w *world, c *call) (any, error) {
	lines := w.nodeJournal(c.in["node"])
	if service := c.in["service"]; service != "" {
		lines = slices.DeleteFunc(lines, func(l string) bool { return !strings.Contains(l, " "+service+"[") })
	}
	return c.numbered(lines), nil
}

// apiJournal is GET /nodes/{node}/journal: the lines between two cursors, which here
// are the line numbers.
func apiJournal(w *world, c *call) (any, error) {
	lines := w.nodeJournal(c.in["node"])
	if last := c.num("lastentries", 0); last > 0 {
		lines = lines[max(len(lines)-last, 0):]
	}
	return append(append([]string{"s=simulated;i=1"}, lines...), fmt.Sprintf("s=simulated;i=%d", len(lines))), nil
}

// apiFirewallLog is GET …/firewall/log: no packet ever passes.
func apiFirewallLog(_ *world, c *call) (any, error) { return c.numbered(nil), nil }
