package cluster

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/backup"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/property"
)

// apiJoinVersion is GET /cluster/config/apiversion.
func apiJoinVersion(*core.World, *core.Call) (any, error) { return 1, nil }

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

// apiTotem is GET /cluster/config/totem.
func apiTotem(w *core.World, _ *core.Call) (any, error) { return totem(w), nil }

// apiNoDevice is GET /cluster/config/qdevice: there is none.
func apiNoDevice(*core.World, *core.Call) (any, error) { return map[string]any{}, nil }

// apiJoinInfo is GET /cluster/config/join: what a further node would need.
func apiJoinInfo(w *core.World, c *core.Call) (any, error) {
	if len(w.Nodes) == 1 {
		return nil, &perl.APIError{Status: http.StatusFailedDependency, Message: "node is not in a cluster, no join info available!"}
	}
	preferred := c.In["node"]
	if preferred == "" {
		preferred = w.Cfg.Node
	}
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

// apiIncluded is GET /cluster/backup/{id}/included_volumes: the drives of the guests
// that a job backs up, and whether each goes along.
func apiIncluded(w *core.World, c *core.Call) (any, error) {
	job, err := backup.JobOf(w, c)
	if err != nil {
		return nil, err
	}
	children := []map[string]any{}
	for _, word := range perl.SplitList(job["vmid"]) { // Of one that is gone there is no more to say.
		if vmid := perl.Atoi(word); w.Guests[vmid] == nil && job["pool"] == "" && c.Can(core.VMPath(vmid), "VM.Audit") {
			children = append(children, map[string]any{"id": vmid, "type": "unknown", "leaf": 1})
		}
	}
	for _, vmid := range w.Vmids {
		g := w.Guests[vmid]
		if !coveredBy(w, job, vmid) || job["node"] != "" && job["node"] != g.Node || !c.Can(core.VMPath(vmid), "VM.Audit") {
			continue
		}
		drives := []map[string]any{}
		for _, key := range property.DriveNames(g.Conf) {
			if g.Kind == "qemu" {
				d := property.ParseDrive(key, g.Conf[key])
				if d.Cdrom() {
					continue
				}
				_, said := d.Opts["backup"]
				reason := map[bool]string{true: "backup=no", false: "backup=yes"}[said]
				if strings.HasPrefix(key, "efidisk") && g.Conf["bios"] != "ovmf" {
					d.Opts["backup"], reason = "0", "efidisk but no OVMF BIOS"
				}
				drives = append(drives, includedDrive(vmid, key, d.File, d.Opts["backup"] != "0", reason))
			}
		}
		if g.Kind == "lxc" {
			for _, key := range property.MountNames(g.Conf) {
				m := property.ParseMount(key, g.Conf[key])
				included, reason := perl.OptionOf(g.Conf[key], "backup") == "1", "disabled"
				switch {
				case key == "rootfs":
					included, reason = true, "rootfs"
				case m.Kind() != "volume":
					included, reason = false, "not a volume"
				case included:
					reason = "enabled"
				}
				drives = append(drives, includedDrive(vmid, key, m.Volume, included, reason))
			}
		}
		name := any(g.Conf["name"])
		if name == "" {
			name = nil
		}
		if g.Kind == "lxc" {
			name = g.Conf["hostname"]
		}
		children = append(children, map[string]any{"id": vmid, "type": g.Kind, "name": name, "children": drives, "leaf": perl.BoolInt(len(drives) == 0)})
	}
	return map[string]any{"children": children}, nil
}

// includedDrive tells of a drive whether a backup has it, and why
// (get_volume_backup_included in PVE/API2/Backup.pm).
func includedDrive(vmid int, key, volume string, included bool, reason string) map[string]any {
	return map[string]any{"id": fmt.Sprint(vmid, ":", key), "name": volume, "included": perl.BoolInt(included), "reason": reason, "leaf": 1}
}

// coveredBy says whether a backup job has a guest.
func coveredBy(w *core.World, job property.Config, vmid int) bool {
	named := perl.SplitList(job["vmid"])
	pool := w.Access.Pools[job["pool"]]
	switch {
	case strings.Contains(","+strings.Join(perl.SplitList(job["exclude"]), ",")+",", fmt.Sprintf(",%d,", vmid)):
		return false
	case job["all"] == "1", pool != nil && pool.Vms[vmid]:
		return true
	default:
		return strings.Contains(","+strings.Join(named, ",")+",", fmt.Sprintf(",%d,", vmid))
	}
}
