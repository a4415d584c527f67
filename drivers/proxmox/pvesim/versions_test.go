package pvesim_test

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim"
)

const undefined = "property is not defined in schema and the schema does not allow additional properties"

// TestVersions: what PVE 8.4 and 9.1 answer differently, one line each. An answer is
// told by its status, and by what it says of the one thing that differs.
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
	}{
		{"the release", [2]string{"GET", "/version"}, nil, member("release"), "8.4", "9.1"},
		{"the version", [2]string{"GET", "/version"}, nil, member("version"), "8.4.21", "9.1.4"},
		{"bulk actions", [2]string{"GET", "/cluster/bulk-action"}, nil, status, 501, 200},
		{"starting many guests", [2]string{"POST", "/cluster/bulk-action/guest/start"}, form{"vms": "100"}, status, 501, 200},
		{"HA rules", [2]string{"GET", "/cluster/ha/rules"}, nil, status, 501, 200},
		{
			"a new HA rule",
			[2]string{"POST", "/cluster/ha/rules"},
			form{"rule": "spread", "type": "node-affinity", "resources": "vm:100", "nodes": "father"},
			reason,
			"Method 'POST /cluster/ha/rules' not implemented", "cannot use unmanaged resource(s) vm:100.",
		},
		{"HA groups", [2]string{"GET", "/cluster/ha/groups"}, nil, reason, "OK", "cannot index groups: " + migrated},
		{"a new HA group", [2]string{"POST", "/cluster/ha/groups"}, form{"group": "first", "nodes": "father"}, reason, "OK", "cannot create group: " + migrated},
		{"a group of a resource", [2]string{"POST", "/cluster/ha/resources"}, form{"sid": "vm:100", "group": "first"}, status, 200, 400},
		{"CPU flags", [2]string{"GET", "/nodes/father/capabilities/qemu/cpu-flags"}, nil, status, 501, 200},
		{"migration of containers asked first", [2]string{"GET", "/nodes/father/lxc/200/migrate"}, nil, status, 501, 500},
		{
			"images of registries",
			[2]string{"GET", "/nodes/father/query-oci-repo-tags"},
			form{"reference": "docker.io/x/y"},
			reason,
			"Method 'GET /nodes/father/query-oci-repo-tags' not implemented", "OK",
		},
		{"HA at creation", [2]string{"POST", "/nodes/father/qemu"}, form{"vmid": "101", "ha-managed": "1"}, wrong("ha-managed"), undefined, ""},
		{"shared pages", [2]string{"POST", "/nodes/father/qemu"}, form{"vmid": "102", "allow-ksm": "0"}, wrong("allow-ksm"), undefined, ""},
		{"the environment of a container", [2]string{"PUT", "/nodes/father/lxc/200/config"}, form{"env": "A=1"}, wrong("env"), undefined, ""},
		{"a role that may use the monitor", [2]string{"POST", "/access/roles"}, form{"roleid": "R", "privs": "VM.Monitor"}, status, 200, 400},
		{"a role that may use the agent", [2]string{"POST", "/access/roles"}, form{"roleid": "S", "privs": "VM.GuestAgent.Audit"}, status, 400, 200},
		{"the monitor in the roles", [2]string{"GET", "/access/roles/PVEVMAdmin"}, nil, there("VM.Monitor"), true, false},
		{"the agent in the roles", [2]string{"GET", "/access/roles/PVEVMAdmin"}, nil, there("VM.GuestAgent.FileRead"), false, true},
		{"replication in the roles", [2]string{"GET", "/access/roles/Administrator"}, nil, there("VM.Replicate"), false, true},
		{"the agent of the auditor", [2]string{"GET", "/access/roles/PVEAuditor"}, nil, there("VM.GuestAgent.Audit"), false, true},
		{"memory of the process", [2]string{"GET", "/nodes/father/qemu"}, nil, there("memhost"), false, true},
		{"the state of D-Bus", [2]string{"GET", vmURL("100", "/migrate")}, nil, there("has-dbus-vmstate"), false, true},
		{"ten years of figures", [2]string{"GET", "/nodes/father/rrddata"}, form{"timeframe": "decade"}, status, 400, 200},
		{"GlusterFS", [2]string{"GET", "/storage"}, form{"type": "glusterfs"}, status, 200, 400},
		{"limits of backup files", [2]string{"PUT", "/storage/local"}, form{"maxfiles": "0"}, wrong("maxfiles"), "", undefined},
		{"the name of a pool in it", [2]string{"GET", "/pools/ours"}, nil, there("poolid"), true, false},
		{"tickets of consoles", [2]string{"GET", "/access"}, nil, count, 9, 10},
	} {
		t.Run(row.what, func(t *testing.T) {
			for version, want := range map[string]any{"8.4": row.old, "9.1": row.recent} {
				synctest.Test(t, func(t *testing.T) {
					c := newClient(t, pvesim.Config{Version: version})
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
// came after 9.1.1 also in 9.1, and one that went with 8.4 is unknown in 9.1.
func TestVersionParameters(t *testing.T) {
	old, recent := newClient(t, pvesim.Config{Version: "8.4"}).ticketed(), newClient(t, pvesim.Config{Version: "9.1"}).ticketed()
	vars := surface{"node": "father", "vmid": "100", "userid": "root@pam", "tokenid": "sim", "sid": "vm:100", "storage": "local", "id": "x"}
	came, went := 0, 0
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
				went++
			default:
				require.Equal(t, undefined, ask(old), label)
				require.Equal(t, v.Since > "9.1", ask(recent) == undefined, label)
				came++
			}
		}
	}
	t.Logf("%d parameters came, %d went", came, went)
	require.Greater(t, came, 20)
	require.Greater(t, went, 5)
}
