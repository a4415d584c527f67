package pve_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

const download = "url=https%3A%2F%2Fx.test%2Fy.iso&filename=y.iso&content=iso"

// TestLeastPrivilege: a token with rights on one pool can live there, sees
// nothing else, and what left its pool is forbidden, not missing.
func TestLeastPrivilege(t *testing.T) {
	c := newClient(t, pve.Config{Guests: 5})
	c.image()
	a := c.agent()
	require.Empty(t, a.list("/cluster/resources?type=vm"))
	require.Empty(t, a.list("/nodes/father/qemu"))
	require.Equal(t, "Permission check failed", a.ask("POST", "/nodes/father/qemu", form{"vmid": "200"}).reason)
	a.vm("200", form{"pool": "ours"})
	require.Len(t, a.list("/cluster/resources?type=vm"), 1)
	a.ok("PUT", vmURL("200", "/config"), form{"cores": "2", "memory": "2048", "tags": "x", "ciuser": "me", "delete": "agent"})
	a.done("PUT", vmURL("200", "/resize"), form{"disk": "scsi0", "size": "+1G"})
	a.done("POST", vmURL("200", "/status/start"), nil)
	a.done("POST", vmURL("200", "/status/stop"), nil)
	a.done("POST", vmURL("200", "/clone"), form{"newid": "201", "pool": "ours"})

	foreign := slices.IndexFunc(c.h.Snapshot().Guests, func(g pve.Guest) bool { return g.Kind == "qemu" })
	id := fmt.Sprint(c.h.Snapshot().Guests[foreign].VMID)
	for request, reason := range map[string]string{
		"GET " + vmURL(id, "/config"):                                            "Permission check failed (/vms/" + id + ", VM.Audit)",
		"DELETE " + vmURL(id, ""):                                                "Permission check failed (/vms/" + id + ", VM.Allocate)",
		"POST " + vmURL(id, "/status/stop"):                                      "Permission check failed (/vms/" + id + ", VM.PowerMgmt)",
		"GET " + vmURL("999", "/config"):                                         "Permission check failed (/vms/999, VM.Audit)",
		"GET /nodes/father/status":                                               "Permission check failed (/nodes/father, Sys.Audit)",
		"GET /cluster/status":                                                    "Permission check failed (/, Sys.Audit)",
		"PUT " + vmURL("200", "/config?args=-x"):                                 "only root can set 'args' config",
		"PUT " + vmURL("200", "/config?startup=order%3D1"):                       "Permission check failed (/, Sys.Modify)",
		"PUT " + vmURL("200", "/config?net0=virtio%2Cbridge%3Dvmbr1"):            "Permission check failed (/sdn/zones/localnetwork/vmbr1, SDN.Use)",
		"POST /nodes/father/storage/local/download-url?" + download:              "Permission check failed (/storage/local, Datastore.AllocateTemplate)",
		"POST " + vmURL("200", "/clone?newid=202"):                               "Permission check failed",
		"POST " + vmURL("200", "/clone?newid=202&pool=none"):                     "Permission check failed",
		"DELETE /nodes/father/storage/local/content/local:import%2Fdebian.qcow2": "Permission check failed (/storage/local, Datastore.Allocate)",
		"PUT /access/acl?path=%2F&roles=Administrator&tokens=agent%40pve%21tk":   "Permission check failed (/, Permissions.Modify)",
		"POST /pools?poolid=more":                                                "Permission check failed (/pool/more, Pool.Allocate)",
	} {
		verb, path, _ := strings.Cut(request, " ")
		got := a.ask(verb, path, nil)
		require.Equal(t, reason, got.reason, request)
	}

	a.done("DELETE", vmURL("200", ""), nil)
	gone := a.ask("GET", vmURL("200", "/config"), nil)
	require.Equal(t, 403, gone.status, "its rights went with its place in the pool")
	require.Equal(t, 500, c.ask("GET", vmURL("200", "/config"), nil).status)
	tasks := a.list("/nodes/father/tasks")
	require.NotEmpty(t, tasks)
	for _, task := range tasks {
		require.Equal(t, "tk", task["tokenid"], "only its own")
	}
}

func inheritance(t *testing.T) {
	c := newClient(t, pve.Config{})
	c.done("POST", "/nodes/father/qemu", form{"vmid": "100"})
	c.ok("POST", "/access/users", form{"userid": "u@pve"})
	token, ok := c.ok("POST", "/access/users/u@pve/token/full", form{"privsep": "0"}).(map[string]any)
	require.True(t, ok)
	u := c.as("u@pve!full=" + fmt.Sprint(token["value"]))
	grant := func(path, role string, more form) {
		params := form{"path": path, "roles": role, "users": "u@pve"}
		maps.Copy(params, more)
		c.ok("PUT", "/access/acl", params)
	}
	may := func(path string) bool { return u.ask("GET", path, nil).status == 200 }
	require.False(t, may(vmURL("100", "/config")))
	grant("/", "PVEAuditor", nil)
	require.True(t, may(vmURL("100", "/config")))
	require.True(t, may("/nodes/father/status"))
	grant("/vms", "NoAccess", nil)
	require.False(t, may(vmURL("100", "/config")))
	require.True(t, may("/nodes/father/status"))
	grant("/vms/100", "PVEVMUser", nil)
	require.True(t, may(vmURL("100", "/config")))
	grant("/vms/100", "PVEVMUser", form{"delete": "1"})
	grant("/vms", "NoAccess", form{"delete": "1"})
	grant("/nodes", "PVESysAdmin", form{"propagate": "0"})
	require.True(t, may("/nodes/father/status"), "what does not propagate replaces nothing below")
	c.ok("PUT", "/access/users/u@pve", form{"enable": "0"})
	require.False(t, may("/version"))
}

// TestInheritance: an entry further down replaces what comes from above, an own
// one counts before the group's, NoAccess takes all.
func TestInheritance(t *testing.T) {
	synctest.Test(t, inheritance) // For the delay of a 401.
}

// TestRootToken: a token of root@pam may do all but what is for root@pam alone.
func TestRootToken(t *testing.T) {
	c := newClient(t, pve.Config{})
	c.done("POST", "/nodes/father/qemu", form{"vmid": "100"})
	for params, reason := range map[string]string{
		"args=-x": "only root can set 'args' config", "lock=backup": "only root can set 'lock' config",
		"hostpci0=0000%3A00%3A02.0": "only root can set 'hostpci0' config for non-mapped devices",
		"serial0=%2Fdev%2FttyS0":    "only root can modify 'serial0' config for real devices",
		"scsi0=%2Fdev%2Fsdz":        "Only root can pass arbitrary filesystem paths. at /usr/share/perl5/PVE/Storage.pm line 651.",
	} {
		require.Equal(t, reason, c.ask("PUT", vmURL("100", "/config?"+params), nil).reason)
	}
	require.Equal(t, map[string]string{"skiplock": "Only root may use this option."}, c.ask("PUT", vmURL("100", "/config?skiplock=1&name=x"), nil).errors)
	c.ok("PUT", vmURL("100", "/config?serial0=socket"), nil)
}

// TestUsersAsListed: the type of a realm is told where there is one, the tokens of a
// user without any are null, and who manages a group sees its members
// (PVE/API2/User.pm).
func TestUsersAsListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{Version: "8.4"})
		c.ok("POST", "/access/domains", form{"realm": "firm", "type": "ldap", "base_dn": "dc=a", "server1": "ldap.test", "user_attr": "uid"})
		c.ok("POST", "/access/groups", form{"groupid": "devs"})
		for userid, groups := range map[string]string{"lead@pve": "", "dev@firm": "devs", "other@nosuch": ""} {
			c.ok("POST", "/access/users", form{"userid": userid, "groups": groups})
		}
		types, tokens := map[string]any{}, map[string]any{}
		for _, user := range c.list("/access/users?full=1") {
			id, _ := user["userid"].(string)
			types[id], tokens[id] = user["realm-type"], user["tokens"]
			require.Contains(t, user, "tokens")
		}
		require.Equal(t, map[string]any{"root@pam": "pam", "lead@pve": "pve", "dev@firm": "ldap", "other@nosuch": nil}, types)
		require.Nil(t, tokens["dev@firm"])
		require.Len(t, tokens["root@pam"], 1)
		user := c.object("/access/users/lead@pve")
		require.Contains(t, user, "tokens")
		require.Nil(t, user["tokens"])

		c.ok("PUT", "/access/acl", form{"path": "/access/groups/devs", "roles": "PVEUserAdmin", "users": "lead@pve"})
		made, _ := c.ok("POST", "/access/users/lead@pve/token/own", form{"privsep": "0"}).(map[string]any)
		value, _ := made["value"].(string)
		var seen []any
		for _, user := range c.as("lead@pve!own=" + value).list("/access/users") {
			seen = append(seen, user["userid"])
		}
		require.Equal(t, []any{"dev@firm"}, seen)
	})
}

// TestGroups: who is in a group has what the group has, until it is gone.
func TestGroups(t *testing.T) {
	c := newClient(t, pve.Config{})
	c.ok("POST", "/access/groups", form{"groupid": "ops", "comment": "us"})
	require.Equal(t, "create group failed: group 'ops' already exists", c.ask("POST", "/access/groups", form{"groupid": "ops"}).reason)
	c.ok("POST", "/access/users", form{"userid": "ann@pve", "groups": "ops"})
	c.ok("PUT", "/access/acl", form{"path": "/", "roles": "PVEAuditor", "groups": "ops"})
	token := c.ok("POST", "/access/users/ann@pve/token/extra", form{"privsep": "0"}).(map[string]any)["value"]
	ann := c.as(fmt.Sprintf("ann@pve!extra=%s", token))
	require.Len(t, ann.list("/storage"), 2)
	require.Equal(t, []any{"ann@pve"}, c.object("/access/groups/ops")["members"])
	c.ok("DELETE", "/access/groups/ops", nil)
	require.Empty(t, ann.list("/storage"))
	require.Equal(t, "group 'ops' does not exist", c.ask("GET", "/access/groups/ops", nil).reason)
}

// TestRealms: a realm that was made is listed, and its password is not told.
func TestRealms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // A failed login is held back.
		c := newClient(t, pve.Config{})
		require.Contains(t, c.ask("POST", "/access/domains", form{"realm": "corp", "type": "ldap"}).reason, "missing value for required option")
		c.ok("POST", "/access/domains", form{"realm": "corp", "type": "ldap", "base_dn": "dc=x", "server1": "192.0.2.9", "user_attr": "uid", "password": "secret99"})
		require.NotContains(t, c.object("/access/domains/corp"), "password")
		require.Len(t, c.list("/access/domains"), 3)
		c.ok("PUT", "/access/domains/corp", form{"comment": "ours"})
		require.Equal(t, "ours", c.object("/access/domains/corp")["comment"])
		c.ok("DELETE", "/access/domains/corp", nil)
		require.Equal(t, "domain 'corp' does not exist", c.ask("GET", "/access/domains/corp", nil).reason)

		c.ok("POST", "/access/users", form{"userid": "ann@pve", "password": "first-one"})
		root := c.ticketed()
		root.ok("PUT", "/access/password", form{"userid": "ann@pve", "password": "second-one"})
		anonymous := c.as("")
		require.Equal(t, 401, anonymous.ask("POST", "/access/ticket", form{"username": "ann@pve", "password": "first-one"}).status)
		anonymous.ok("POST", "/access/ticket", form{"username": "ann@pve", "password": "second-one"})
	})
}

// TestOptionsWithoutValue: a file of sections has no line for an option that was sent
// empty, so it is as if it never was (format_config_line in PVE/SectionConfig.pm).
func TestOptionsWithoutValue(t *testing.T) {
	c := newClient(t, pve.Config{})
	c.ok("POST", "/access/domains", form{"realm": "ids", "type": "openid", "issuer-url": "https://ids.test", "client-id": "us", "scopes": "", "autocreate": "0"})
	realm := c.object("/access/domains/ids")
	require.NotContains(t, realm, "scopes")
	require.Equal(t, 0.0, realm["autocreate"], "a boolean is written as 0")
	c.ok("PUT", "/access/domains/ids", form{"scopes": "email"})
	require.Equal(t, "email", c.object("/access/domains/ids")["scopes"])
	c.ok("PUT", "/access/domains/ids", form{"scopes": ""})
	require.NotContains(t, c.object("/access/domains/ids"), "scopes")

	c.ok("POST", "/cluster/backup", form{"id": "nightly", "all": "1", "schedule": "daily", "comment": ""})
	require.NotContains(t, c.object("/cluster/backup/nightly"), "comment")
}

// TestAccessListOfOthers: who may not modify permissions hands on its own privileges
// alone (update_acl in PVE/API2/ACL.pm), and nothing of a change is done when a part
// cannot be.
func TestAccessListOfOthers(t *testing.T) {
	c := newClient(t, pve.Config{})
	const acl, needed = "/access/acl", "either 'users', 'groups' or 'tokens' is required."
	c.steps(
		step{"POST", "/access/users", form{"userid": "ann@pve"}, "OK"},
		step{"POST", "/access/users", form{"userid": "bob@pve"}, "OK"},
		step{"POST", "/access/roles", form{"roleid": "Maker", "privs": "VM.Allocate,VM.Audit"}, "OK"},
		step{"POST", "/access/roles", form{"roleid": "Reader", "privs": "VM.Audit"}, "OK"},
		step{"PUT", acl, form{"path": "/vms/100", "roles": "Maker", "users": "ann@pve", "propagate": "0"}, "OK"},
		step{"PUT", acl, form{"path": "/vms", "roles": "Reader,Nosuch", "users": "ann@pve"}, "500 ACL update failed: role 'Nosuch' does not exist"},
		step{"PUT", acl, form{"path": "/vms", "roles": "Reader", "users": "ann@pve,eve@pve"}, "500 ACL update failed: user 'eve@pve' does not exist"},
		step{"PUT", acl, form{"path": "/vms", "roles": "Reader", "users": "eve@pve", "delete": "1"}, "500 ACL update failed: user 'eve@pve' does not exist"},
		step{"PUT", acl, form{"path": "/vms", "roles": "Reader", "users": ""}, "groups: " + needed + "; tokens: " + needed + "; users: " + needed},
		step{"PUT", acl, form{"path": "/nosuch", "roles": "Reader", "users": "ann@pve"}, "path: invalid ACL path '/nosuch'"},
		step{"PUT", acl, form{"path": "/mapping/dir/any", "roles": "Reader", "users": "bob@pve"}, "OK"},
	)
	require.Len(t, c.list(acl), 2, "nothing of what failed")
	ann := c.as(c.tokenOf("ann@pve"))
	at := func(role string, more form) form {
		params := form{"path": "/vms/100", "roles": role, "users": "bob@pve"}
		maps.Copy(params, more)
		return params
	}
	require.Equal(t, "500 ACL update failed: 400 Parameter verification failed.", ann.answer(step{"PUT", acl, at("Reader", nil), ""}), "it would propagate")
	require.Contains(t, ann.ask("PUT", acl, at("PVEVMAdmin", form{"propagate": "0"})).raw,
		`ACL update failed: 400 Parameter verification failed.\nrole: Cannot add role 'PVEVMAdmin' - requires 'Permissions.Modify' or superset of privileges.\n`)
	require.Equal(t, "OK", ann.answer(step{"PUT", acl, at("Reader", form{"propagate": "0"}), ""}))
	require.Equal(t, "500 ACL update failed: 400 Parameter verification failed.", ann.answer(step{"PUT", acl, at("NoAccess", form{"propagate": "0"}), ""}))
	require.Len(t, ann.list(acl), 2, "the paths that it may change") // check_perm_modify knows VM.Allocate.
}

// TestPools: a guest is in one pool at most, and only an empty pool can go.
func TestPools(t *testing.T) {
	c := newClient(t, pve.Config{})
	for _, name := range []string{"a", "b", "a/sub"} {
		c.ok("POST", "/pools", form{"poolid": name, "comment": "the " + name})
	}
	c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "pool": "a"})
	require.Equal(t, "update pools failed: VM 100 belongs already to pool 'a' and 'allow-move' is not set", c.ask("PUT", "/pools", form{"poolid": "b", "vms": "100"}).reason)
	c.ok("PUT", "/pools", form{"poolid": "b", "vms": "100", "storage": "local", "allow-move": "1"})
	require.Len(t, c.object("/pools/b")["members"], 2)
	g, _ := c.h.Snapshot().Guest(100)
	require.Equal(t, "b", g.Pool)
	require.Equal(t, "delete pool failed: pool 'a' is not empty (contains pool 'a/sub')", c.ask("DELETE", "/pools?poolid=a", nil).reason)
	require.Equal(t, "delete pool failed: pool 'b' is not empty (contains VM 100)", c.ask("DELETE", "/pools/b", nil).reason)
	c.ok("PUT", "/pools/b", form{"vms": "100", "storage": "local", "delete": "1"})
	c.ok("DELETE", "/pools/b", nil)
	c.ok("DELETE", "/pools?poolid=a%2Fsub", nil)
	c.ok("DELETE", "/pools/a", nil)
	require.Empty(t, c.list("/pools"))
}

// TestPermissionsOfPools: roles of a pool do not propagate, and NoAccess on it leaves
// nothing else (compile_acl_path in PVE/RPCEnvironment.pm).
func TestPermissionsOfPools(t *testing.T) {
	c := newClient(t, pve.Config{})
	c.steps(
		step{"POST", "/access/users", form{"userid": "ann@pve"}, "OK"},
		step{"POST", "/pools", form{"poolid": "ours", "comment": "0"}, "OK"},
		step{"PUT", "/pools", form{"poolid": "ours", "vms": "100"}, "OK"},
		step{"PUT", "/access/acl", form{"path": "/vms", "roles": "PVEVMUser", "users": "ann@pve"}, "OK"},
		step{"PUT", "/access/acl", form{"path": "/pool/ours", "roles": "PVETemplateUser", "users": "ann@pve"}, "OK"},
	)
	privs := func(path string) map[string]any {
		shown := c.ok("GET", "/access/permissions", form{"userid": "ann@pve", "path": path}).(map[string]any)
		return shown[path].(map[string]any)
	}
	require.Equal(t, 1.0, privs("/vms/100")["VM.Audit"], "of the path above, too")
	require.Equal(t, 0.0, privs("/vms/100")["VM.Clone"], "of the pool alone")
	require.NotContains(t, privs("vms/100"), "VM.Clone", "pools know paths as they are")
	c.ok("PUT", "/access/acl", form{"path": "/pool/ours", "roles": "NoAccess", "users": "ann@pve"})
	require.Empty(t, privs("/vms/100"))
	require.NotContains(t, c.object("/pools/ours"), "comment", "Perl takes it for false")
}

// TestPoolsChangeAsAWhole: update_pool in PVE/API2/Pool.pm.
func TestPoolsChangeAsAWhole(t *testing.T) {
	c := newClient(t, pve.Config{})
	c.steps(
		step{"POST", "/pools", form{"poolid": "a"}, "OK"},
		step{"POST", "/pools", form{"poolid": "b"}, "OK"},
		step{"PUT", "/pools", form{"poolid": "a", "vms": "100", "storage": "local"}, "OK"},
		step{"PUT", "/pools", form{"poolid": "b", "vms": "101,100"}, "500 update pools failed: VM 100 belongs already to pool 'a' and 'allow-move' is not set"},
		step{"PUT", "/pools", form{"poolid": "b", "vms": "101", "storage": "local", "delete": "1"}, "500 update pools failed: VM 101 is not a pool member"},
		step{"PUT", "/pools", form{"poolid": "b", "vms": "101,101"}, "500 update pools failed: VM 101 is already a pool member"},
		step{"PUT", "/pools", form{"poolid": "a", "vms": "100", "storage": "nosuch", "delete": "1"}, "500 update pools failed: Storage 'nosuch' is not a pool member"},
		step{"PUT", "/pools", form{"poolid": "b", "vms": "100", "allow-move": "1"}, "OK"},
		step{"DELETE", "/pools?poolid=nosuch", nil, "500 delete pool failed: pool 'nosuch' does not exist"},
	)
	c.ok("POST", "/access/users", form{"userid": "ann@pve"})
	c.ok("PUT", "/access/acl", form{"path": "/pool/a", "roles": "PVEPoolAdmin", "users": "ann@pve"})
	ann := c.as(c.tokenOf("ann@pve"))
	require.Equal(t, "500 update pools failed: 403 Permission check failed (/vms/101, Permissions.Modify|VM.Allocate)",
		ann.answer(step{"PUT", "/pools", form{"poolid": "a", "vms": "101"}, ""}))
}
