package node

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
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
type halted map[string]bool

func haltedOf(n *core.Node) halted { return core.MapOf[halted](&n.Parts) }

// serviceState says whether a service runs and what systemd makes of its unit. Some
// are known without being installed, or have nothing to do on a single node.
func serviceState(w *core.World, n *core.Node, name string) (active, unit string) {
	switch {
	case name == "syslog" || name == "systemd-timesyncd" || name == "corosync" && len(w.Nodes) == 1:
		return "inactive", "not-found"
	case haltedOf(n)[name]:
		return "inactive", "enabled"
	case name == "systemd-journald":
		return "active", "static"
	default:
		return "active", "enabled"
	}
}

func serviceEntry(w *core.World, n *core.Node, name, description string) map[string]any {
	active, unit := serviceState(w, n, name)
	state := "running"
	if active != "active" {
		state = "dead"
	}
	return map[string]any{"service": name, "name": name, "desc": description, "state": state, "active-state": active, "unit-state": unit}
}

// apiServices is GET /nodes/{node}/services.
func apiServices(w *core.World, c *core.Call) (any, error) {
	list := []map[string]any{}
	for _, s := range services {
		list = append(list, serviceEntry(w, w.Nodes[c.In["node"]], s[0], s[1]))
	}
	return list, nil
}

// apiServiceState is GET /nodes/{node}/services/{service}/state.
func apiServiceState(w *core.World, c *core.Call) (any, error) {
	name := c.In["service"]
	i := slices.IndexFunc(services, func(s [2]string) bool { return s[0] == name })
	if i < 0 {
		return nil, perl.Fail("unknown service '%s'", name)
	}
	return serviceEntry(w, w.Nodes[c.In["node"]], name, services[i][1]), nil
}

// apiServiceCommand is POST /nodes/{node}/services/{service}/COMMAND.
func apiServiceCommand(w *core.World, c *core.Call) (any, error) {
	name, command := c.In["service"], path.Base(c.M.Path)
	n := w.Nodes[c.In["node"]]
	kinds := map[string]string{"start": "srvstart", "stop": "srvstop", "restart": "srvrestart", "reload": "srvreload"}
	doing := map[string]string{"start": "starting", "stop": "stopping", "restart": "restarting", "reload": "reloading"}
	return w.Fork(c, n.Name, core.Job{Kind: kinds[command], ID: name, End: func(t *core.Task) error {
		t.Logf("%s service %s", doing[command], name)
		if command == "stop" && slices.Contains(keptServices, name) {
			return perl.Fail("invalid service cmd 'stop' - essential service")
		}
		if _, unit := serviceState(w, n, name); unit == "not-found" {
			return perl.Fail("command 'systemctl %s %s' failed: exit code 5", command, name)
		}
		haltedOf(n)[name] = command == "stop"
		return nil
	}}), nil
}

// nodeJournal is what the daemons of a node wrote: what tasks began and ended.
func nodeJournal(w *core.World, name string) (list []string) {
	line := func(at time.Time, process string, pid int, format string, args ...any) {
		list = append(list, fmt.Sprintf("%s %s %s[%d]: %s", at.UTC().Format("Jan 02 15:04:05"), name, process, pid, fmt.Sprintf(format, args...)))
	}
	line(w.Boot, "systemd", 1, "Reached target multi-user.target - Multi-User System.")
	for _, t := range w.Tasks.All {
		if t.Node != name {
			continue
		}
		line(t.Start, "pvedaemon", t.Pid, "<%s> starting task %s", t.Who, t.UPID)
		if !t.Running() {
			line(t.Stopped, "pvedaemon", t.Pid, "<%s> end task %s %s", t.Who, t.UPID, t.Status)
		}
	}
	return list
}

// numbered is a log as PVE pages it, from start on, limit lines at most.
func numbered(c *core.Call, lines []string) core.Paged {
	start, limit := c.Num("start", 0), c.Num("limit", 50)
	page := []map[string]any{}
	for n := start; n < len(lines) && (limit == 0 || len(page) < limit); n++ {
		page = append(page, map[string]any{"n": n + 1, "t": lines[n]})
	}
	if len(page) == 0 {
		page = append(page, map[string]any{"n": 1, "t": "no content"})
	}
	return core.Paged{Data: page, Total: len(lines)}
}

// apiSyslog is GET /nodes/{node}/syslog; service picks the lines of one.
func apiSyslog(w *core.World, c *core.Call) (any, error) {
	lines := nodeJournal(w, c.In["node"])
	if service := c.In["service"]; service != "" {
		lines = slices.DeleteFunc(lines, func(l string) bool { return !strings.Contains(l, " "+service+"[") })
	}
	return numbered(c, lines), nil
}

// apiJournal is GET /nodes/{node}/journal: the lines between two cursors, which here
// are the line numbers.
func apiJournal(w *core.World, c *core.Call) (any, error) {
	lines := nodeJournal(w, c.In["node"])
	if last := c.Num("lastentries", 0); last > 0 {
		lines = lines[max(len(lines)-last, 0):]
	}
	return append(append([]string{"s=simulated;i=1"}, lines...), fmt.Sprintf("s=simulated;i=%d", len(lines))), nil
}

// apiFirewallLog is GET …/firewall/log: no packet ever passes.
func apiFirewallLog(_ *core.World, c *core.Call) (any, error) { return numbered(c, nil), nil }
