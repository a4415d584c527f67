package cluster

import (
	"cmp"
	"fmt"
	"net/http"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// totem is that part of corosync.conf; a single node has none.
func totem(w *core.World) map[string]any {
	if len(w.Nodes) == 1 {
		return map[string]any{}
	}
	return map[string]any{
		"cluster_name": "simulated", "config_version": fmt.Sprint(len(w.Nodes)), "ip_version": "ipv4-6", "link_mode": "passive",
		"secauth": "on", "version": "2", "interface": map[string]any{"0": map[string]any{"linknumber": "0"}},
	}
}

// apiJoinInfo is GET /cluster/config/join: what a further node would need.
func apiJoinInfo(w *core.World, c *core.Call) (any, error) {
	if len(w.Nodes) == 1 {
		return nil, &perl.APIError{Status: http.StatusFailedDependency, Message: "node is not in a cluster, no join info available!"}
	}
	preferred := cmp.Or(c.In["node"], w.Cfg.Node)
	if w.Nodes[preferred] == nil {
		return nil, perl.Fail("unable to get info for node '%s'", preferred)
	}
	list := []map[string]any{}
	for _, name := range w.NodeNames() {
		index := w.Nodes[name].Index
		ip := fmt.Sprintf("192.0.2.%d", 1+index)
		list = append(list, map[string]any{
			"name": name, "nodeid": fmt.Sprint(index), "pve_addr": ip, "pve_fp": perl.Colons(w.Fingerprint), "quorum_votes": "1", "ring0_addr": ip,
		})
	}
	totem := totem(w)
	return map[string]any{
		"config_digest": perl.SumOf(fmt.Sprint(totem, list)), "nodelist": list, "preferred_node": preferred, "totem": totem,
	}, nil
}

// firewallMacros are some of the macros that rules may name, with what they allow
// (PVE/Firewall.pm).
var firewallMacros = [][2]string{
	{"BGP", "Border Gateway Protocol traffic"},
	{"Ceph", "Ceph Storage Cluster traffic (Ceph Monitors, OSD & MDS Daemons)"},
	{"DHCPfwd", "Forwarded DHCP traffic"},
	{"DNS", "Domain Name System traffic (upd and tcp)"},
	{"FTP", "File Transfer Protocol"},
	{"Git", "Git distributed revision control traffic"},
	{"HTTP", "Hypertext Transfer Protocol (WWW)"},
	{"HTTPS", "Hypertext Transfer Protocol (WWW) over SSL"},
	{"IMAPS", "IMAP over SSL traffic"},
	{"LDAP", "Lightweight Directory Access Protocol traffic"},
	{"MySQL", "MySQL server"},
	{"NTP", "Network Time Protocol (ntpd)"},
	{"OpenVPN", "OpenVPN traffic"},
	{"Ping", "ICMP echo request"},
	{"PostgreSQL", "PostgreSQL server"},
	{"RDP", "Microsoft Remote Desktop Protocol traffic"},
	{"SMB", "Microsoft SMB traffic"},
	{"SMTP", "Simple Mail Transfer Protocol"},
	{"SSH", "Secure shell traffic"},
	{"Syslog", "Syslog protocol (RFC 5424) traffic"},
	{"VNC", "VNC traffic for VNC display's 0 - 99"},
	{"Web", "WWW traffic (HTTP and HTTPS)"},
}

// apiMacros is GET /cluster/firewall/macros.
func apiMacros(*core.World, *core.Call) (any, error) {
	list := []map[string]any{}
	for _, m := range firewallMacros {
		list = append(list, map[string]any{"macro": m[0], "descr": m[1]})
	}
	return list, nil
}

// apiClusterNodes is GET /cluster/config/nodes: none without a cluster.
func apiClusterNodes(w *core.World, _ *core.Call) (any, error) {
	list := []map[string]any{}
	if len(w.Nodes) == 1 {
		return list, nil
	}
	for _, name := range w.NodeNames() {
		index := w.Nodes[name].Index
		list = append(list, map[string]any{
			"node": name, "name": name, "nodeid": fmt.Sprint(index), "quorum_votes": "1", "ring0_addr": fmt.Sprintf("192.0.2.%d", 1+index),
		})
	}
	return list, nil
}
