package sections

import (
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
)

// Index is what a directory of the API answers: a list of objects with one key.
type Index struct{ Key, Names string }

// Handler answers with the names that the version has: those behind a 9 came with
// PVE 9.
func (i Index) Handler(w *core.World, _ *core.Call) (any, error) {
	var names []string
	for name := range strings.FieldsSeq(i.Names) {
		plain, recent := strings.CutPrefix(name, "9:")
		if !recent || w.V9() {
			names = append(names, plain)
		}
	}
	return core.Subdirs(i.Key, names...), nil
}

// indexes are the directories of the API table that have nothing else to say. What
// stands in them was read off PVE's own list of methods.
var indexes = map[string]Index{
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
	"/cluster/acme":                    {Index: Index{"name", "plugins account tos 9:meta directories challenge-schema"}},
	"/cluster/ceph":                    {Index: Index{"name", "metadata status flags"}},
	"/cluster/mapping":                 {Index: Index{"name", "dir pci usb"}},
	"/cluster/metrics":                 {Index: Index{"name", "server export"}},
	"/cluster/notifications":           {Index: Index{"name", "endpoints matchers targets matcher-fields matcher-field-values"}},
	"/cluster/notifications/endpoints": {Index: Index{"name", "gotify sendmail smtp webhook"}},
	"/cluster/sdn":                     {Index: Index{"id", "vnets zones controllers ipams dns 9:fabrics"}, path: "/sdn", privs: "SDN.Audit"},
	"/nodes/{node}/disks":              {Index: Index{"name", "initgpt directory lvm lvmthin smart wipedisk zfs list"}},
	"/nodes/{node}/sdn":                {Index: Index{"name", "zones"}},
}

// folder is a directory that the API table leaves out.
type folder struct {
	Index
	path, privs string // What it takes to read it; empty is nothing.
}

func (f folder) method(path string) pastMethod {
	m := &pveapi.Method{Verb: "GET", Path: path, Perm: pveapi.Perm{User: "all"}, Returns: &pveapi.Value{Type: "array"}, Params: map[string]*pveapi.Value{}}
	if f.privs != "" {
		m.Perm = pveapi.Perm{Check: AnyOf(f.path, strings.Fields(f.privs)...)}
	}
	return past(m, f.Handler)
}
