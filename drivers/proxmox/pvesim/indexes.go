package pvesim

import (
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

// beyond are directories that the API table leaves out with their families.
var beyond = map[string]folder{
	"/cluster/acme":                    {index: index{"name", "plugins account tos 9:meta directories challenge-schema"}},
	"/cluster/ceph":                    {index: index{"name", "metadata status flags"}},
	"/cluster/mapping":                 {index: index{"name", "dir pci usb"}},
	"/cluster/metrics":                 {index: index{"name", "server export"}},
	"/cluster/notifications":           {index: index{"name", "endpoints matchers targets matcher-fields matcher-field-values"}},
	"/cluster/notifications/endpoints": {index: index{"name", "gotify sendmail smtp webhook"}},
	"/cluster/sdn":                     {index: index{"id", "vnets zones controllers ipams dns 9:fabrics"}, path: "/sdn", privs: "SDN.Audit"},
	"/nodes/{node}/disks":              {index: index{"name", "initgpt directory lvm lvmthin smart wipedisk zfs list"}},
	"/nodes/{node}/sdn":                {index: index{"name", "zones"}},
}

// folder is a directory that the API table leaves out.
type folder struct {
	index
	path, privs string // What it takes to read it; empty is nothing.
}

func (f folder) method(path string) pastMethod {
	m := &pveapi.Method{Verb: "GET", Path: path, Perm: pveapi.Perm{User: "all"}, Returns: &pveapi.Value{Type: "array"}, Params: map[string]*pveapi.Value{}}
	if f.privs != "" {
		m.Perm = pveapi.Perm{Check: anyOf(f.path, strings.Fields(f.privs)...)}
	}
	return past(m, f.handler)
}
