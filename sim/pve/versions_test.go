package pve_test

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/sim/pve"
)

const undefined = "property is not defined in schema and the schema does not allow additional properties"

// TestVersions: what PVE 8.4, 9.1 and 9.2 answer differently, one line each. An answer is
// told by its status, and by what it says of the one thing that differs. Where nothing is
// said of 9.2 it answers as 9.1.
func TestVersions(t *testing.T) {
	member := func(name string) func(answer) any {
		return func(a answer) any {
			object, ok := a.data.(map[string]any)
			if !ok {
				list, _ := a.data.([]any)
				if len(list) == 0 {
					return nil
				}
				object, _ = list[0].(map[string]any)
			}
			return object[name]
		}
	}
	there := func(name string) func(answer) any { return func(a answer) any { return member(name)(a) != nil } }
	reason := func(a answer) any { return a.reason }
	wrong := func(name string) func(answer) any { return func(a answer) any { return a.errors[name] } }
	count := func(a answer) any { return len(a.data.([]any)) }
	const migrated = "ha groups have been migrated to rules"
	for _, row := range []struct {
		what        string
		request     [2]string
		params      form
		says        func(answer) any
		old, recent any
		newest      any // nil: as recent.
	}{
		{"the release", [2]string{"GET", "/version"}, nil, member("release"), "8.4", "9.1", "9.2"},
		{"the version", [2]string{"GET", "/version"}, nil, member("version"), "8.4.21", "9.1.4", "9.2.11"},
		{"HA rules", [2]string{"GET", "/cluster/ha/rules"}, nil, status, 501, 200, nil},
		{
			"a new HA rule",
			[2]string{"POST", "/cluster/ha/rules"},
			form{"rule": "spread", "type": "node-affinity", "resources": "vm:100", "nodes": "father"},
			reason,
			"Method 'POST /cluster/ha/rules' not implemented", "cannot use unmanaged resource(s) vm:100.", nil,
		},
		{"HA groups", [2]string{"GET", "/cluster/ha/groups"}, nil, reason, "OK", "cannot index groups: " + migrated, nil},
		{"a new HA group", [2]string{"POST", "/cluster/ha/groups"}, form{"group": "first", "nodes": "father"}, reason, "OK", "cannot create group: " + migrated, nil},
		{"a group of a resource", [2]string{"POST", "/cluster/ha/resources"}, form{"sid": "vm:100", "group": "first"}, reason, "OK", "invalid parameter 'group': " + migrated, nil},
		{"migration of containers asked first", [2]string{"GET", "/nodes/father/lxc/200/migrate"}, nil, status, 501, 500, nil},
		{
			"images of registries",
			[2]string{"POST", "/nodes/father/storage/local/oci-registry-pull"},
			form{"reference": "docker.io/x/y:latest"},
			reason,
			"Method 'POST /nodes/father/storage/local/oci-registry-pull' not implemented", "OK", nil,
		},
		{"HA at creation", [2]string{"POST", "/nodes/father/qemu"}, form{"vmid": "101", "ha-managed": "1"}, wrong("ha-managed"), undefined, "", nil},
		{"shared pages", [2]string{"POST", "/nodes/father/qemu"}, form{"vmid": "102", "allow-ksm": "0"}, wrong("allow-ksm"), undefined, "", nil},
		{"the environment of a container", [2]string{"PUT", "/nodes/father/lxc/200/config"}, form{"env": "A=1"}, wrong("env"), undefined, "", nil},
		{"a role that may use the monitor", [2]string{"POST", "/access/roles"}, form{"roleid": "R", "privs": "VM.Monitor"}, status, 200, 400, nil},
		{"a role that may use the agent", [2]string{"POST", "/access/roles"}, form{"roleid": "S", "privs": "VM.GuestAgent.Audit"}, status, 400, 200, nil},
		{"the monitor in the roles", [2]string{"GET", "/access/roles/PVEVMAdmin"}, nil, there("VM.Monitor"), true, false, nil},
		{"the agent in the roles", [2]string{"GET", "/access/roles/PVEVMAdmin"}, nil, there("VM.GuestAgent.FileRead"), false, true, nil},
		{"replication in the roles", [2]string{"GET", "/access/roles/Administrator"}, nil, there("VM.Replicate"), false, true, nil},
		{"the agent of the auditor", [2]string{"GET", "/access/roles/PVEAuditor"}, nil, there("VM.GuestAgent.Audit"), false, true, nil},
		{"memory of the process", [2]string{"GET", "/nodes/father/qemu"}, nil, there("memhost"), false, true, nil},
		{"the state of D-Bus", [2]string{"GET", vmURL("100", "/migrate")}, nil, there("has-dbus-vmstate"), false, true, nil},
		{"ten years of figures", [2]string{"GET", "/nodes/father/rrddata"}, form{"timeframe": "decade"}, status, 400, 200, nil},
		{"GlusterFS", [2]string{"GET", "/storage"}, form{"type": "glusterfs"}, status, 200, 400, nil},
		{"limits of backup files", [2]string{"PUT", "/storage/local"}, form{"maxfiles": "0"}, wrong("maxfiles"), "", undefined, nil},
		{"the name of a pool in it", [2]string{"GET", "/pools/ours"}, nil, there("poolid"), true, true, nil},
		{"a pool that begins with a digit", [2]string{"POST", "/pools"}, form{"poolid": "1st"}, reason, "OK", "create pool failed: pool name must start with a letter", nil},
		{"the zones of nodes", [2]string{"GET", "/cluster/resources?type=sdn"}, nil, count, 1, 0, nil},
		{"the images of a registry in the index", [2]string{"GET", "/nodes/father"}, nil, count, 40, 41, nil},
		{"the identity of a storage", [2]string{"GET", "/nodes/father/storage/local"}, nil, count, 9, 10, 11},
		{"a new secret of a token", [2]string{"PUT", "/access/users/root@pam/token/sim"}, form{"regenerate": "0"}, wrong("regenerate"), undefined, undefined, ""},
		{"an emptied comment of a token", [2]string{"PUT", "/access/users/root@pam/token/sim"}, form{"comment": "", "expire": "0"}, there("comment"), false, false, nil},
		{"a parameter that needs another", [2]string{"PUT", "/access/users/root@pam"}, form{"append": "1"}, wrong("groups"), "missing property - 'append' requires this property", "missing property required by 'append'", nil},
		{"an id that is too short", [2]string{"PUT", vmURL("100", "/config")}, form{"vmstatestorage": "a"}, wrong("vmstatestorage"), "invalid format - storage ID 'a' contains illegal characters\n", "invalid format - storage ID 'a' contains illegal characters\n", "invalid format - storage ID 'a' cannot be shorter than 2 characters\n"},
		{"a path of the host", [2]string{"PUT", vmURL("100", "/config")}, form{"scsi5": "/dev/sda"}, reason, "Only root can pass arbitrary filesystem paths. at /usr/share/perl5/PVE/Storage.pm line 581.", "Only root can pass arbitrary filesystem paths. at /usr/share/perl5/PVE/Storage.pm line 651.", nil},
		{"fabrics in the access list", [2]string{"PUT", "/access/acl"}, form{"path": "/sdn/fabrics/x", "roles": "NoAccess", "users": "root@pam"}, status, 400, 200, nil},
		{"route maps in the access list", [2]string{"PUT", "/access/acl"}, form{"path": "/sdn/route-maps/x", "roles": "NoAccess", "users": "root@pam"}, status, 400, 400, 200},
		{"a container that is a VM, of the HA manager", [2]string{"POST", "/cluster/ha/resources"}, form{"sid": "ct:100"}, reason, "OK", "OK", "resource 'ct:100' - guest with ID 100 is not a container"},
		{"metrics of OpenTelemetry", [2]string{"POST", "/cluster/metrics/server/x"}, form{"type": "opentelemetry", "server": "192.0.2.1", "port": "4318"}, wrong("type"), "value 'opentelemetry' does not have a value in the enumeration 'graphite, influxdb'", "", nil},
		{"tickets of consoles", [2]string{"GET", "/access"}, nil, count, 9, 10, nil},
	} {
		t.Run(row.what, func(t *testing.T) {
			if row.newest == nil {
				row.newest = row.recent
			}
			for version, want := range map[string]any{"8.4": row.old, "9.1": row.recent, "9.2": row.newest} {
				synctest.Test(t, func(t *testing.T) {
					c := newClient(t, pve.Config{Version: version})
					c.done("POST", "/nodes/father/qemu", form{"vmid": "100"})
					c.ok("POST", "/pools", form{"poolid": "ours"})
					if version == "8.4" && row.params["group"] != "" && row.params["sid"] != "" {
						c.ok("POST", "/cluster/ha/groups", form{"group": "first", "nodes": "father"})
					}
					a := c.ask(row.request[0], row.request[1], row.params)
					require.Equal(t, want, row.says(a), "%s: %d %s %v", version, a.status, a.reason, a.errors)
				})
			}
		})
	}
}

func status(a answer) any { return a.status }

// TestVersionParameters: every parameter that came after 8.4 is unknown there, one that
// came after 9.1.1 also in 9.1, and one that went with 8.4 is unknown in 9.1 and 9.2.
func TestVersionParameters(t *testing.T) {
	as := func(version string) *client { return newClient(t, pve.Config{Version: version}).ticketed() }
	old, recent, newest := as("8.4"), as("9.1"), as("9.2")
	vars := surface{"node": "father", "vmid": "100", "userid": "root@pam", "tokenid": "sim", "sid": "vm:100", "storage": "local", "id": "x", "realm": "pve"}
	came, late, went := 0, 0, 0
	for _, m := range pveapi.Methods() {
		for name, v := range m.Params {
			if v.Since == "" && v.Until == "" {
				continue
			}
			ask := func(c *client) string {
				return c.ask(m.Verb, vars.path(m), form{name: "1", "no-such-thing": "1"}).errors[name] // Which lets nothing happen.
			}
			label := fmt.Sprint(m.Verb, " ", m.Path, " ", name)
			switch {
			case !m.In("8.4"):
			case v.Until != "":
				require.NotEqual(t, undefined, ask(old), label)
				require.Equal(t, undefined, ask(recent), label)
				require.Equal(t, undefined, ask(newest), label)
				went++
			default:
				require.Equal(t, undefined, ask(old), label)
				require.Equal(t, v.Since > "9.1", ask(recent) == undefined, label)
				require.NotEqual(t, undefined, ask(newest), label)
				came++
				if v.Since > "9.1" {
					late++
				}
			}
		}
	}
	t.Logf("%d parameters came, %d of them after 9.1, %d went", came, late, went)
	require.Greater(t, came, 20)
	require.Greater(t, late, 20)
	require.Greater(t, went, 5)
}
