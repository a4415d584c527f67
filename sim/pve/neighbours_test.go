package pve_test

import (
	"fmt"
	"maps"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// tokenOf makes a token of a user, who has all that the user has.
func (c *client) tokenOf(userid string) string {
	made := c.ok("POST", "/access/users/"+userid+"/token/tk", form{"privsep": "0"}).(map[string]any)
	return fmt.Sprint(made["full-tokenid"], "=", made["value"])
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
	require.Equal(t, "500 ACL update failed: 400 Parameter verification failed.", ann.told(step{"PUT", acl, at("Reader", nil), ""}), "it would propagate")
	require.Contains(t, ann.ask("PUT", acl, at("PVEVMAdmin", form{"propagate": "0"})).raw,
		`ACL update failed: 400 Parameter verification failed.\nrole: Cannot add role 'PVEVMAdmin' - requires 'Permissions.Modify' or superset of privileges.\n`)
	require.Equal(t, "OK", ann.told(step{"PUT", acl, at("Reader", form{"propagate": "0"}), ""}))
	require.Equal(t, "500 ACL update failed: 400 Parameter verification failed.", ann.told(step{"PUT", acl, at("NoAccess", form{"propagate": "0"}), ""}))
	require.Len(t, ann.list(acl), 2, "the paths that it may change") // check_perm_modify knows VM.Allocate.
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
		ann.told(step{"PUT", "/pools", form{"poolid": "a", "vms": "101"}, ""}))
}

// TestFirewallSets: sets and aliases as the file keeps them (PVE/API2/Firewall/IPSet.pm,
// Aliases.pm, Groups.pm; generic_fw_config_parser in PVE/Firewall.pm).
func TestFirewallSets(t *testing.T) {
	c := newClient(t, pve.Config{})
	const at = "/cluster/firewall"
	c.steps(
		step{"POST", at + "/aliases", form{"name": "Lan", "cidr": "192.0.2.9/24", "comment": "ours"}, "OK"},
		step{"PUT", at + "/aliases/LAN", form{"cidr": "192.0.2.0/25"}, "OK"},
		step{"POST", at + "/ipset", form{"name": "Mine"}, "OK"},
		step{"POST", at + "/ipset/Mine", form{"cidr": "192.0.2.1"}, "500 no such IPSet 'Mine'"},
		step{"POST", at + "/ipset/mine", form{"cidr": "192.0.2.77/24"}, "OK"},
		step{"POST", at + "/ipset/mine", form{"cidr": "192.0.2.0/24"}, "cidr: address '192.0.2.0/24' already exists"},
		step{"POST", at + "/ipset/mine", form{"cidr": "guest/lan"}, "500 no such alias 'lan'"},
		step{"POST", at + "/ipset/mine", form{"cidr": "dc/lan", "comment": "x", "nomatch": "1"}, "OK"},
		step{"PUT", at + "/ipset/mine/dc/lan", form{"comment": "y"}, "OK"},
		step{"DELETE", at + "/ipset/mine/192.0.2.9", nil, "OK"},
		step{"POST", at + "/ipset", form{"name": "other", "rename": "none"}, "name: IPSet 'none' does not exist"},
		step{"POST", at + "/groups", form{"group": "web"}, "OK"},
		step{"POST", at + "/groups", form{"group": "db"}, "OK"},
		step{"POST", at + "/groups", form{"group": "db", "rename": "web"}, "group: Security group 'db' does already exist"},
		step{"POST", at + "/rules", form{"type": "group", "action": "web"}, "OK"},
		step{"POST", at + "/groups", form{"group": "www", "rename": "web"}, "OK"},
		step{"POST", at + "/rules", form{"type": "forward", "action": "REJECT"}, "action: cannot define REJECT rules on forward chain"},
	)
	alias := c.object(at + "/aliases/lan")
	require.Equal(t, []any{"LAN", "192.0.2.0/25", nil, nil}, []any{alias["name"], alias["cidr"], alias["comment"], alias["digest"]})
	member := c.object(at + "/ipset/mine/dc/lan")
	require.Equal(t, []any{"y", nil}, []any{member["comment"], member["nomatch"]})
	require.Equal(t, "www", c.list(at + "/rules")[0]["action"])
}
