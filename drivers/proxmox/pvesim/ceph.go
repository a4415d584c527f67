package pvesim

import (
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
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
func apiCeph(*world, *call) (any, error) {
	return nil, fail("binary not installed: /usr/bin/ceph-mon")
}

func cephCalls() []pastCall {
	audit, modify := anyOf("/", "Sys.Audit", "Datastore.Audit"), allOf("/", "Sys.Modify")
	calls := []pastCall{{
		name: "GET /nodes/{node}/ceph", perm: anyOf("/nodes/{node}/ceph", "Sys.Audit", "Datastore.Audit"), returns: &pveapi.Value{Type: "array"},
		handle: index{"name", "cmd-safety cfg crush fs init log mds mgr mon osd pool restart rules start status stop"}.handler,
	}}
	for at, paths := range cephReadings {
		for path := range strings.FieldsSeq(paths) {
			calls = append(calls, pastCall{name: "GET " + at + path, perm: audit, returns: &pveapi.Value{}, more: true, handle: apiCeph})
		}
	}
	for at, paths := range cephWritings {
		for path := range strings.FieldsSeq(paths) {
			calls = append(calls, pastCall{name: "POST " + at + path, perm: modify, returns: &pveapi.Value{}, more: true, handle: apiCeph})
		}
	}
	return calls
}
