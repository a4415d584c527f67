package pveapi_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
)

// holder has the privileges listed, as "path privilege".
func holder(rights ...string) func(path, priv string) bool {
	return func(path, priv string) bool { return slices.Contains(rights, path+" "+priv) }
}

func TestPermitted(t *testing.T) {
	tests := map[string]struct {
		method string
		values map[string]any
		rights []string
		ok     bool
		failed string // Path and privileges, as PVE's 403 has them.
	}{
		"any login":    {"GET /version", nil, nil, true, ""},
		"no login":     {"POST /access/ticket", nil, nil, true, ""},
		"nobody":       {"POST /nodes/{node}/execute", nil, nil, false, ""},
		"one of one":   {"GET /nodes/{node}/qemu/{vmid}/status/current", map[string]any{"vmid": "100"}, []string{"/vms/100 VM.Audit"}, true, ""},
		"another path": {"GET /nodes/{node}/qemu/{vmid}/status/current", map[string]any{"vmid": "100"}, []string{"/vms/101 VM.Audit"}, false, "/vms/100 VM.Audit"},
		"any of two":   {"PUT /nodes/{node}/qemu/{vmid}/cloudinit", map[string]any{"vmid": "100"}, []string{"/vms/100 VM.Config.Cloudinit"}, true, ""},
		"none of any": {
			"GET /storage/{storage}",
			map[string]any{"storage": "local"},
			nil, false, "/storage/local Datastore.Allocate",
		},
		"and, first missing": {
			"POST /nodes/{node}/qemu/{vmid}/clone",
			map[string]any{"vmid": "100", "newid": "101"},
			[]string{"/vms/101 VM.Allocate"},
			false, "/vms/100 VM.Clone",
		},
		"and, the or missing": {
			"POST /nodes/{node}/qemu/{vmid}/clone",
			map[string]any{"vmid": "100", "newid": "101"},
			[]string{"/vms/100 VM.Clone", "/pool/web VM.Allocate"},
			false, "",
		},
		"the or by pool": {
			"POST /nodes/{node}/qemu/{vmid}/clone",
			map[string]any{"vmid": "100", "newid": "101", "pool": "web"},
			[]string{"/vms/100 VM.Clone", "/pool/web VM.Allocate"},
			true, "",
		},
		"the or by number": {
			"POST /nodes/{node}/qemu/{vmid}/clone",
			map[string]any{"vmid": "100", "newid": "101"},
			[]string{"/vms/100 VM.Clone", "/vms/101 VM.Allocate"},
			true, "",
		},
		"no ACL path": {"GET /nodes/{node}/status", map[string]any{"node": "no_such!"}, []string{" Sys.Audit"}, false, " Sys.Audit"},
		"access list of a guest": {
			"PUT /access/acl", map[string]any{"path": "/vms/100/"}, []string{"/vms/100 VM.Allocate"}, true, "",
		},
		"access list of a storage": {
			"PUT /access/acl", map[string]any{"path": "storage/local"}, nil, false, "/storage/local Permissions.Modify|Datastore.Allocate",
		},
		"access list of a pool": {
			"PUT /access/acl", map[string]any{"path": "/pool/web"}, []string{"/pool/web Pool.Allocate"}, true, "",
		},
		"access list of all": {"PUT /access/acl", map[string]any{"path": "/"}, []string{"/ VM.Allocate"}, false, "/ Permissions.Modify"},
		"access list of no path": {
			"PUT /access/acl", map[string]any{"path": "/a b"}, []string{" Permissions.Modify"}, false, "",
		},
		"new user without groups": {
			"POST /access/users",
			map[string]any{"userid": "a@pve"},
			[]string{"/access/realm/pve Realm.AllocateUser", "/access/groups User.Modify"},
			true, "",
		},
		"new user, another realm": {
			"POST /access/users",
			map[string]any{"userid": "a@pam"},
			[]string{"/access/realm/pve Realm.AllocateUser", "/access/groups User.Modify"},
			false, "/access/realm/pam Realm.AllocateUser",
		},
		"new user in a group not allowed": {
			"POST /access/users",
			map[string]any{"userid": "a@pve", "groups": "x,y"},
			[]string{"/access/realm/pve Realm.AllocateUser", "/access/groups/x User.Modify"},
			false, "/access/groups/y User.Modify",
		},
		"new user in allowed groups": {
			"POST /access/users",
			map[string]any{"userid": "a@pve", "groups": "x"},
			[]string{"/access/realm/pve Realm.AllocateUser", "/access/groups/x User.Modify"},
			true, "",
		},
		"an and within an or has the last word": {
			"PUT /access/password", map[string]any{"userid": "a@pve"}, nil, false, "/access/realm/pve Realm.AllocateUser",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			verb, path, _ := strings.Cut(test.method, " ")
			ok, failedPath, privs := method(t, verb, path).Perm.Permitted(test.values, holder(test.rights...))
			require.Equal(t, test.ok, ok)
			failed := ""
			if len(privs) > 0 {
				failed = failedPath + " " + strings.Join(privs, "|")
			}
			require.Equal(t, test.failed, failed)
		})
	}
}

func TestPermFor(t *testing.T) {
	m := method(t, "GET", "/nodes/{node}/qemu/{vmid}/agent/get-osinfo")
	values := map[string]any{"vmid": "100"}
	old, current := holder("/vms/100 VM.Monitor"), holder("/vms/100 VM.GuestAgent.Audit")

	ok, _, privs := m.PermFor("8.4.21").Permitted(values, current)
	require.False(t, ok)
	require.Equal(t, []string{"VM.Monitor"}, privs)
	ok, _, _ = m.PermFor("8.4.21").Permitted(values, old)
	require.True(t, ok)
	for _, version := range []string{"9.0", "9.1.4", ""} {
		ok, _, _ = m.PermFor(version).Permitted(values, current)
		require.True(t, ok, version)
		ok, _, _ = m.PermFor(version).Permitted(values, old)
		require.False(t, ok, version)
	}
}

func TestRuleUnmarshalErrors(t *testing.T) {
	for _, text := range []string{
		`{}`, `[]`, `[1]`, `["nosuch"]`, `["perm"]`, `["perm","/x"]`, `["perm","/x","y"]`, `["perm","/x",["y"],"any"]`,
		`["perm","/x",["y"],"nosuch",1]`, `["perm","/x",["y"],2,1]`, `["perm","/x",["y"],"require_param",1]`, `["and",["nosuch"]]`,
		`["userid-param"]`, `["userid-group"]`, `["perm-modify"]`,
	} {
		require.Error(t, new(pveapi.Rule).UnmarshalJSON([]byte(text)), text)
	}
}
