package disks

import (
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/sections"
)

// cephReadings and cephWritings are the calls about Ceph (PVE/API2/Cluster/Ceph.pm,
// PVE/API2/Ceph.pm), by where they stand.
var (
	cephReadings = map[string]string{
		"/cluster/ceph/":      "status metadata flags flags/{flag}",
		"/nodes/{node}/ceph/": "status osd mon mds mgr pool pool/{name} pool/{name}/status fs rules crush log cmd-safety cfg/raw cfg/db cfg/value osd/{osdid}",
	}
	cephWritings = map[string]string{"/nodes/{node}/ceph/": "init osd pool start stop restart mon/{monid} mds/{name} mgr/{id} fs/{name}"}
)

// apiCeph is any of them: nothing of Ceph is installed (check_ceph_installed in
// PVE/Ceph/Tools.pm).
func apiCeph(*core.World, *core.Call) (any, error) {
	return nil, perl.Fail("binary not installed: /usr/bin/ceph-mon")
}

func cephCalls() []sections.PastCall {
	audit, modify := sections.AnyOf("/", "Sys.Audit", "Datastore.Audit"), sections.AllOf("/", "Sys.Modify")
	calls := []sections.PastCall{{
		Name: "GET /nodes/{node}/ceph", Perm: sections.AnyOf("/nodes/{node}/ceph", "Sys.Audit", "Datastore.Audit"), Returns: &pveapi.Value{Type: "array"},
		Handle: sections.Index{Key: "name", Names: "cmd-safety cfg crush fs init log mds mgr mon osd pool restart rules start status stop"}.Handler,
	}}
	for at, paths := range cephReadings {
		for path := range strings.FieldsSeq(paths) {
			calls = append(calls, sections.PastCall{Name: "GET " + at + path, Perm: audit, Returns: &pveapi.Value{}, More: true, Handle: apiCeph})
		}
	}
	for at, paths := range cephWritings {
		for path := range strings.FieldsSeq(paths) {
			calls = append(calls, sections.PastCall{Name: "POST " + at + path, Perm: modify, Returns: &pveapi.Value{}, More: true, Handle: apiCeph})
		}
	}
	return calls
}
