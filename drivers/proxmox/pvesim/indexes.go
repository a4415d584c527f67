package pvesim

import (
	"net/http"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
)

// index is what a directory of the API answers: a list of objects with one key.
type index struct{ key, names string }

// handler answers with the names that the version has: those behind a 9 came with
// PVE 9.
func (i index) handler(w *world, _ *call) (any, error) {
	var names []string
	for name := range strings.FieldsSeq(i.names) {
		plain, recent := strings.CutPrefix(name, "9:")
		if !recent || w.v9() {
			names = append(names, plain)
		}
	}
	return subdirs(i.key, names...), nil
}

// indexes are the directories of the API table that have nothing else to say. What
// stands in them was read off PVE's own list of methods.
var indexes = map[string]index{
	"/access/openid":                                 {"subdir", "auth-url login"},
	"/cluster/backup-info":                           {"subdir", "not-backed-up"},
	"/cluster/bulk-action":                           {"name", "guest"},
	"/cluster/bulk-action/guest":                     {"name", "start shutdown suspend migrate"},
	"/cluster/config":                                {"name", "nodes totem join qdevice apiversion"},
	"/cluster/ha":                                    {"id", "status resources groups 9:rules"},
	"/nodes/{node}/apt":                              {"id", "changelog repositories update versions"},
	"/nodes/{node}/capabilities":                     {"name", "qemu"},
	"/nodes/{node}/certificates":                     {"name", "acme custom info"},
	"/nodes/{node}/hardware":                         {"type", "pci usb"},
	"/nodes/{node}/scan":                             {"method", "cifs iscsi lvm lvmthin nfs pbs zfs"},
	"/nodes/{node}/hardware/pci/{pci-id-or-mapping}": {"method", "mdev"},
	"/nodes/{node}/capabilities/qemu":                {"name", "cpu 9:cpu-flags machines 9:migration"},
	"/nodes/{node}/services/{service}":               {"subdir", "reload restart start state stop"},
}

// beyond are readings that the API table leaves out with their families (software
// networks, mappings, metrics and the like). Clients list them in passing; there is
// never anything in them here, and nothing can be put there.
var beyond = map[string]struct {
	index
	path, privs string // What it takes to read them; empty is nothing.
}{
	"/cluster/acme":                    {index: index{"name", "plugins account tos meta directories challenge-schema"}},
	"/cluster/acme/account":            {},
	"/cluster/acme/plugins":            {path: "/", privs: "Sys.Modify"},
	"/cluster/ceph":                    {index: index{"name", "metadata status flags"}},
	"/cluster/mapping":                 {index: index{"name", "9:dir pci usb"}},
	"/cluster/mapping/pci":             {},
	"/cluster/mapping/usb":             {},
	"/cluster/metrics":                 {index: index{"name", "server export"}},
	"/cluster/metrics/server":          {path: "/", privs: "Sys.Audit"},
	"/cluster/notifications":           {index: index{"name", "endpoints matchers targets matcher-fields matcher-field-values"}},
	"/cluster/notifications/endpoints": {index: index{"name", "gotify sendmail smtp webhook"}},
	"/cluster/sdn":                     {index: index{"id", "vnets zones controllers ipams dns 9:fabrics"}, path: "/sdn", privs: "SDN.Audit"},
	"/cluster/sdn/controllers":         {},
	"/cluster/sdn/dns":                 {},
	"/cluster/sdn/vnets":               {},
	"/cluster/sdn/zones":               {},
	"/nodes/{node}/disks":              {index: index{"name", "initgpt directory lvm lvmthin smart wipedisk zfs list"}},
	"/nodes/{node}/disks/directory":    {path: "/", privs: "Sys.Audit"},
	"/nodes/{node}/disks/list":         {path: "/", privs: "Sys.Audit Datastore.Audit"},
	"/nodes/{node}/disks/lvmthin":      {path: "/", privs: "Sys.Audit"},
	"/nodes/{node}/disks/zfs":          {path: "/", privs: "Sys.Audit"},
	"/nodes/{node}/sdn":                {index: index{"name", "zones"}},
}

// pastTable finds one of them, as a method that the checks of every call can use.
func pastTable(verb, path string) (*pveapi.Method, map[string]string, handler) {
	if verb != http.MethodGet {
		return nil, nil, nil
	}
	parts, vars := segments(path), map[string]string{}
	if len(parts) > 1 && parts[0] == "nodes" {
		vars["node"], parts[1] = parts[1], "{node}"
	}
	name := "/" + strings.Join(parts, "/")
	found, ok := beyond[name]
	if !ok {
		return nil, nil, nil
	}
	m := &pveapi.Method{Verb: verb, Path: name, Perm: pveapi.Perm{User: "all"}, Returns: &pveapi.Value{Type: "array"}}
	if found.privs != "" {
		m.Perm = pveapi.Perm{Check: &pveapi.Rule{Kind: "perm", Path: found.path, Privs: strings.Fields(found.privs), Any: true}}
	}
	if vars["node"] != "" {
		m.ProxyTo, m.Params = "node", map[string]*pveapi.Value{"node": {Type: "string", Format: "pve-node"}}
	}
	if found.names == "" {
		return m, vars, apiNone
	}
	return m, vars, found.handler
}
