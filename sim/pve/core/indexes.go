package core

import (
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
)

// DirectoryIndex is the answer of a directory of the API: a list of objects with one key.
type DirectoryIndex struct{ Key, Names string }

// Handler answers with the names that the version has: those behind a version came with it.
func (i DirectoryIndex) Handler(w *World, _ *Call) (any, error) {
	var names []string
	for name := range strings.FieldsSeq(i.Names) {
		since, plain, recent := strings.Cut(name, ":")
		switch {
		case !recent:
			names = append(names, name)
		case since == "9" && w.V9(), since == "9.2" && w.V92():
			names = append(names, plain)
		}
	}
	return Subdirs(i.Key, names...), nil
}

// OfGuest is Handler for the directory of a guest that must be there.
func (i DirectoryIndex) OfGuest(w *World, c *Call, _ *Guest) (any, error) {
	return i.Handler(w, c)
}

// indexes are the directories of the API table without other data. Their entries follow PVE's own list of methods.
var indexes = map[string]DirectoryIndex{
	"/access": {"subdir", "users groups roles acl domains openid tfa ticket password 9:vncticket"},
	"/cluster": {"name", "acme backup backup-info ceph config firewall ha jobs log mapping metrics notifications nextid options replication " +
		"resources status tasks sdn 9:bulk-action"},
	"/cluster/backup-info": {"subdir", "not-backed-up"},
	"/cluster/config":      {"name", "nodes totem join qdevice apiversion"},
	"/cluster/ha":          {"id", "status resources groups 9:rules"},
	"/cluster/ha/status":   {"name", "current manager_status"},
	"/cluster/jobs":        {"subdir", "schedule-analyze realm-sync"},
	"/nodes/{node}": {"name", "aplinfo apt capabilities ceph certificates config disks dns firewall hardware hosts journal lxc migrateall netstat " +
		"network qemu query-url-metadata replication report rrd rrddata scan services spiceshell startall status stopall storage subscription " +
		"suspendall syslog tasks termproxy time version vncshell vzdump wakeonlan sdn 9:query-oci-repo-tags"},
	"/nodes/{node}/capabilities":                   {"name", "qemu"},
	"/nodes/{node}/certificates":                   {"name", "acme custom info"},
	"/nodes/{node}/lxc/{vmid}/snapshot/{snapname}": {"cmd", "rollback config"},
	// Not all that these two name is there, not even in PVE.
	"/nodes/{node}/qemu/{vmid}": {"subdir", "config cloudinit pending status unlink vncproxy termproxy migrate resize move rrd rrddata monitor " +
		"agent snapshot spiceproxy sendkey firewall mtunnel remote_migrate"},
	"/nodes/{node}/qemu/{vmid}/agent": {"name", "exec exec-status file-read file-write fsfreeze-freeze fsfreeze-status fsfreeze-thaw fstrim " +
		"get-fsinfo get-host-name get-memory-block-info get-memory-blocks get-osinfo get-time get-timezone get-users get-vcpus info " +
		"network-get-interfaces ping set-user-password shutdown suspend-disk suspend-hybrid suspend-ram"},
	"/nodes/{node}/qemu/{vmid}/snapshot/{snapname}": {"cmd", "rollback config"},
	"/nodes/{node}/qemu/{vmid}/status":              {"subdir", "current start stop reset shutdown suspend reboot"},
	"/nodes/{node}/capabilities/qemu":               {"name", "cpu 9:cpu-flags machines 9:migration"},
	"/nodes/{node}/storage/{storage}": {"subdir", "content download-url file-restore import-metadata prunebackups rrd rrddata status upload " +
		"9:oci-registry-pull 9.2:identity"},
	"/nodes/{node}/tasks/{upid}": {"name", "log status"},
}

// untabled are directories that the API table leaves out with their families.
var untabled = map[string]folder{
	"/cluster/mapping":                 {DirectoryIndex: DirectoryIndex{"name", "dir pci usb"}},
	"/cluster/metrics":                 {DirectoryIndex: DirectoryIndex{"name", "server export"}},
	"/cluster/notifications":           {DirectoryIndex: DirectoryIndex{"name", "endpoints matchers targets matcher-fields matcher-field-values"}},
	"/cluster/notifications/endpoints": {DirectoryIndex: DirectoryIndex{"name", "gotify sendmail smtp webhook"}},
	"/cluster/sdn":                     {DirectoryIndex: DirectoryIndex{"id", "vnets zones controllers ipams dns 9:fabrics"}, path: "/sdn", privs: "SDN.Audit"},
	"/nodes/{node}/sdn":                {DirectoryIndex: DirectoryIndex{"name", "zones"}},
}

// folder is a directory that the API table leaves out.
type folder struct {
	DirectoryIndex
	path, privs string // Privileges for reading it; empty for none.
}

func (f folder) method(path string) extraMethod {
	m := &pveapi.Method{Verb: "GET", Path: path, Perm: pveapi.Perm{User: "all"}, Returns: &pveapi.Value{Type: "array"}, Params: map[string]*pveapi.Value{}}
	if f.privs != "" {
		m.Perm = pveapi.Perm{Check: AnyOf(f.path, strings.Fields(f.privs)...)}
	}
	return extra(m, f.Handler)
}
