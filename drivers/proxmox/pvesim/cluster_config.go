package pvesim

import (
	"fmt"
	"net/http"
	"strings"
)

// apiJoinVersion is GET /cluster/config/apiversion.
func apiJoinVersion(*world, *call) (any, error) { return 1, nil }

// totem is that part of corosync.conf; a single node has none.
func (w *world) totem() map[string]any {
	if len(w.nodes) == 1 {
		return map[string]any{}
	}
	return map[string]any{
		"cluster_name": "simulated", "config_version": fmt.Sprint(len(w.nodes)), "ip_version": "ipv4-6", "link_mode": "passive",
		"secauth": "on", "version": "2", "interface": map[string]any{"0": map[string]any{"linknumber": "0"}},
	}
}

// apiTotem is GET /cluster/config/totem.
func apiTotem(w *world, _ *call) (any, error) { return w.totem(), nil }

// apiNoDevice is GET /cluster/config/qdevice: there is none.
func apiNoDevice(*world, *call) (any, error) { return map[string]any{}, nil }

// apiJoinInfo is GET /cluster/config/join: what a further node would need.
func apiJoinInfo(w *world, c *call) (any, error) {
	if len(w.nodes) == 1 {
		return nil, &apiError{status: http.StatusFailedDependency, message: "node is not in a cluster, no join info available!"}
	}
	preferred := c.in["node"]
	if preferred == "" {
		preferred = w.cfg.Node
	}
	if w.nodes[preferred] == nil {
		return nil, fail("unable to get info for node '%s'", preferred)
	}
	list := []map[string]any{}
	for _, name := range w.nodeNames() {
		index := w.nodes[name].index
		ip := fmt.Sprintf("192.0.2.%d", 1+index)
		list = append(list, map[string]any{
			"name": name, "nodeid": fmt.Sprint(index), "pve_addr": ip, "pve_fp": colons(w.fingerprint), "quorum_votes": "1", "ring0_addr": ip,
		})
	}
	totem := w.totem()
	return map[string]any{
		"config_digest": sumOf(fmt.Sprint(totem, list)), "nodelist": list, "preferred_node": preferred, "totem": totem,
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
func apiMacros(*world, *call) (any, error) {
	list := []map[string]any{}
	for _, m := range firewallMacros {
		list = append(list, map[string]any{"macro": m[0], "descr": m[1]})
	}
	return list, nil
}

// apiIncluded is GET /cluster/backup/{id}/included_volumes: the drives of the guests
// that a job backs up, and whether each goes along.
func apiIncluded(w *world, c *call) (any, error) {
	job, err := w.backupJob(c)
	if err != nil {
		return nil, err
	}
	children := []map[string]any{}
	for _, word := range splitList(job["vmid"]) { // Of one that is gone there is no more to say.
		if vmid := atoi(word); w.guests[vmid] == nil && job["pool"] == "" && c.can(vmPath(vmid), "VM.Audit") {
			children = append(children, map[string]any{"id": vmid, "type": "unknown", "leaf": 1})
		}
	}
	for _, vmid := range w.vmids {
		g := w.guests[vmid]
		if !w.coveredBy(job, vmid) || job["node"] != "" && job["node"] != g.node || !c.can(vmPath(vmid), "VM.Audit") {
			continue
		}
		drives := []map[string]any{}
		for _, key := range driveNames(g.conf) {
			if g.kind == "qemu" {
				d := parseDrive(key, g.conf[key])
				if d.cdrom() {
					continue
				}
				_, said := d.opts["backup"]
				reason := map[bool]string{true: "backup=no", false: "backup=yes"}[said]
				if strings.HasPrefix(key, "efidisk") && g.conf["bios"] != "ovmf" {
					d.opts["backup"], reason = "0", "efidisk but no OVMF BIOS"
				}
				drives = append(drives, includedDrive(vmid, key, d.file, d.opts["backup"] != "0", reason))
			}
		}
		if g.kind == "lxc" {
			for _, key := range mountNames(g.conf) {
				m := parseMount(key, g.conf[key])
				included, reason := optionOf(g.conf[key], "backup") == "1", "disabled"
				switch {
				case key == "rootfs":
					included, reason = true, "rootfs"
				case m.kind() != "volume":
					included, reason = false, "not a volume"
				case included:
					reason = "enabled"
				}
				drives = append(drives, includedDrive(vmid, key, m.volume, included, reason))
			}
		}
		name := any(g.conf["name"])
		if name == "" {
			name = nil
		}
		if g.kind == "lxc" {
			name = g.conf["hostname"]
		}
		children = append(children, map[string]any{"id": vmid, "type": g.kind, "name": name, "children": drives, "leaf": boolInt(len(drives) == 0)})
	}
	return map[string]any{"children": children}, nil
}

// includedDrive tells of a drive whether a backup has it, and why
// (get_volume_backup_included in PVE/API2/Backup.pm).
func includedDrive(vmid int, key, volume string, included bool, reason string) map[string]any {
	return map[string]any{"id": fmt.Sprint(vmid, ":", key), "name": volume, "included": boolInt(included), "reason": reason, "leaf": 1}
}

// coveredBy says whether a backup job has a guest.
func (w *world) coveredBy(job config, vmid int) bool {
	named := splitList(job["vmid"])
	pool := w.pools[job["pool"]]
	switch {
	case strings.Contains(","+strings.Join(splitList(job["exclude"]), ",")+",", fmt.Sprintf(",%d,", vmid)):
		return false
	case job["all"] == "1", pool != nil && pool.vms[vmid]:
		return true
	default:
		return strings.Contains(","+strings.Join(named, ",")+",", fmt.Sprintf(",%d,", vmid))
	}
}
