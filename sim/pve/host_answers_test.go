package pve_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// TestDatacenterOptions: get_options in PVE/API2/Cluster.pm, the rules of tags in
// PVE/GuestHelpers.pm (get_allowed_tags, assert_tag_permissions, get_unique_tags).
func TestDatacenterOptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{Version: "8.4"})
		c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "tags": "web;db"})
		c.done("POST", "/nodes/father/qemu", form{"vmid": "101", "tags": "secret"})
		c.ok("POST", "/access/users", form{"userid": "ann@pve"})
		c.ok("PUT", "/access/acl", form{"path": "/vms/100", "users": "ann@pve", "roles": "PVEVMAdmin"})
		token := c.ok("POST", "/access/users/ann@pve/token/tags", form{"privsep": "0"}).(map[string]any)["value"].(string)
		ann := c.as("ann@pve!tags=" + token)
		require.Equal(t, map[string]any{"allowed-tags": []any{"db", "web"}}, ann.ok("GET", "/cluster/options", nil))

		c.ok("PUT", "/cluster/options", form{
			"registered-tags": "prod;web", "user-tag-access": "user-allow=list,user-allow-list=a;b", "tag-style": "case-sensitive=1,ordering=config",
		})
		require.Equal(t, map[string]any{
			"allowed-tags": []any{"a", "b", "db", "prod", "secret", "web"}, "registered-tags": []any{"prod", "web"}, "mac_prefix": "BC:24:11", "description": "",
			"user-tag-access": map[string]any{"user-allow": "list", "user-allow-list": []any{"a", "b"}},
			"tag-style":       map[string]any{"case-sensitive": 1.0, "ordering": "config"},
		}, c.ok("GET", "/cluster/options", nil))
		require.Equal(t, map[string]any{
			"allowed-tags": []any{"a", "b"}, "tag-style": map[string]any{"case-sensitive": 1.0, "ordering": "config"},
		}, ann.ok("GET", "/cluster/options", nil))
		refused := func(tag string) string {
			return "403 Permission check failed (/, Sys.Modify for modifying tag '" + tag + "')"
		}
		config := "/nodes/father/qemu/100/config"
		ann.steps(
			step{"PUT", config, form{"tags": "web;db;c"}, refused("c")},
			step{"PUT", config, form{"tags": "db"}, refused("web")},
			step{"PUT", config, form{"delete": "tags"}, refused("web")},
			step{"PUT", config, form{"tags": "web;db;b"}, "OK"},
		)
		c.ok("PUT", config, form{"tags": "Web;b;Web;a"})
		require.Equal(t, "Web;b;a", c.object(config)["tags"])
		c.ok("PUT", "/cluster/options", form{"delete": "tag-style"})
		c.ok("PUT", config, form{"tags": "Web;b;Web;a"})
		require.Equal(t, "a;b;web", c.object(config)["tags"])
	})
}

// TestNoManager: without a manager of HA nobody looks at what is requested: the
// recorded host's status/current has no state, the lists have what was written
// (PVE/API2/Cluster.pm), the status is queued (PVE/HA/Tools.pm).
func TestNoManager(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{Version: "8.4", NoManager: true})
		c.done("POST", "/nodes/father/qemu", form{"vmid": "100"})
		c.ok("POST", "/cluster/ha/resources", form{"sid": "vm:100", "state": "started", "comment": "c", "max_restart": "2"})
		time.Sleep(time.Minute)
		require.Equal(t, map[string]any{"managed": 1.0, "state": nil, "group": nil}, c.object("/nodes/father/qemu/100/status/current")["ha"])
		c.done("POST", "/nodes/father/qemu/100/status/start", nil)
		time.Sleep(time.Minute)
		require.Equal(t, "stopped", c.object("/nodes/father/qemu/100/status/current")["status"])
		require.Equal(t, "started", c.list("/cluster/resources?type=vm")[0]["hastate"])
		status := c.list("/cluster/ha/status/current")
		require.Len(t, status, 2)
		require.Equal(t, map[string]any{
			"id": "service:vm:100", "type": "service", "sid": "vm:100", "node": "father", "state": "queued", "request_state": "started",
			"status": "vm:100 (father, queued)", "max_restart": 2.0, "max_relocate": 1.0, "comment": "c",
		}, status[1])
		require.Empty(t, c.object("/cluster/ha/status/manager_status")["manager_status"])
	})
}

// TestLesserAnswers: tasks that never were (PVE/API2/Tasks.pm), the confirmation of
// a password (PVE/RPCEnvironment.pm, PVE/Auth/PVE.pm), what vmstatus in
// PVE/QemuServer.pm says of a balloon.
func TestLesserAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{Version: "8.4", Password: "secret"})
		c.ok("POST", "/access/users", form{"userid": "ann@pve", "password": "first-one"})
		gone := "/nodes/father/tasks/UPID:father:00000001:00000001:00000001:qmstart:100:root@pam:"
		c.steps(
			step{"DELETE", gone, nil, "upid: no such task"},
			step{"GET", gone + "/status", nil, "upid: no such task"},
		)
		login := c.as("").ok("POST", "/access/ticket", form{"username": "ann@pve", "password": "first-one"}).(map[string]any)
		ann := &client{t: t, h: c.h, ticket: [2]string{login["ticket"].(string), login["CSRFPreventionToken"].(string)}}
		own := form{"userid": "ann@pve", "password": "second-one"}
		ann.steps(
			step{"PUT", "/access/password", own, "confirmation-password: password is required to modify user"},
			step{"PUT", "/access/password", form{"userid": "ann@pve", "password": "second-one", "confirmation-password": "wrong"}, "500 invalid credentials"},
			step{"PUT", "/access/password", form{"userid": "ann@pve", "password": "second-one", "confirmation-password": "first-one"}, "OK"},
		)
		c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "balloon": "256"})
		c.done("POST", "/nodes/father/qemu", form{"vmid": "101", "balloon": "256", "shares": "50"})
		c.done("POST", "/nodes/father/qemu", form{"vmid": "102", "balloon": "0"})
		shown := func(vmid string) []any {
			v := c.object("/nodes/father/qemu/" + vmid + "/status/current")
			return []any{v["balloon_min"], v["shares"]}
		}
		require.Equal(t, []any{268435456.0, 1000.0}, shown("100"))
		require.Equal(t, []any{268435456.0, 50.0}, shown("101"))
		require.Equal(t, []any{nil, nil}, shown("102"))
	})
}

// TestNetworkChecks: PVE/API2/Network.pm, and what PVE/INotify.pm checks before it
// writes /etc/network/interfaces, the defaults that it writes, and what it says beside
// the list while a change waits.
func TestNetworkChecks(t *testing.T) {
	c := newClient(t, pve.Config{Version: "8.4"})
	at := "/nodes/father/network"
	require.NotContains(t, c.ask("GET", at, nil).raw, `"changes"`)
	c.steps(
		step{"POST", at, form{"iface": "vmbr1", "type": "bridge", "cidr": "192.0.2.9/28", "gateway": "192.0.2.1"}, "gateway: Default gateway already exists on interface 'vmbr0'."},
		step{"POST", at, form{"iface": "vmbr1", "type": "bridge", "cidr": "192.0.2.9/28", "address": "192.0.2.9", "netmask": "255.255.255.240"}, "address: address conflicts with cidr"},
		step{"POST", at, form{"iface": "vmbr1", "type": "bridge", "bridge_ports": "eth9"}, "500 bridge 'vmbr1' - unable to find bridge port 'eth9'"},
		step{"POST", at, form{"iface": "vmbr1", "type": "bridge", "bridge_ports": "eth0"}, "500 port 'eth0' is already used on interface 'vmbr0'"},
		step{"POST", at, form{"iface": "bond0", "type": "bond", "slaves": "eth8 eth9"}, "500 bond 'bond0' - unable to find slave 'eth8'"},
		step{"POST", at, form{"iface": "bond0", "type": "bond", "slaves": "vmbr0"}, "500 bond 'bond0' - wrong interface type on slave 'vmbr0' ('bridge' != 'eth or bond')"},
		step{"POST", at, form{"iface": "eth9.5", "type": "vlan"}, "500 vlan 'eth9.5' - unable to find parent 'eth9'"},
		step{"POST", at, form{"iface": "eth0.5000", "type": "vlan"}, "500 vlan 'eth0.5000' - vlan-id 5000 should be <= 4094"},
		step{"POST", at, form{"iface": "vmbr1", "type": "bridge", "address": "198.51.100.1", "netmask": "255.255.255.0", "autostart": "0", "bridge_vlan_aware": "1"}, "OK"},
		step{"POST", at, form{"iface": "vmbr2", "type": "bridge", "bridge_ports": "vmbr1"}, "500 iface vmbr1 - ip address can't be set on interface if bridged in vmbr2"},
		step{"POST", at, form{"iface": "vmbr0.7", "type": "vlan"}, "OK"},
		step{"DELETE", at + "/vmbr0", nil, "500 vlan 'vmbr0.7' - unable to find parent 'vmbr0'"},
		step{"DELETE", at + "/vmbr0.7", nil, "OK"},
	)
	made := c.object(at + "/vmbr1")
	require.NotContains(t, made, "autostart")
	require.Equal(t, []any{"static", "24", "198.51.100.1/24", "2-4094"}, []any{made["method"], made["netmask"], made["cidr"], made["bridge_vids"]})
	require.Contains(t, c.ask("GET", at, nil).raw, `"changes":"--- /etc/network/interfaces`)
	c.ok("DELETE", at, nil)
	require.NotContains(t, c.ask("GET", at, nil).raw, `"changes"`)
	c.ok("POST", at, form{"iface": "bond0", "type": "bond"})
	bond := c.object(at + "/bond0")
	require.Equal(t, []any{"balance-rr", "100"}, []any{bond["bond_mode"], bond["bond_miimon"]})
}

// TestRecordedNetwork: the network of the recorded host.
func TestRecordedNetwork(t *testing.T) {
	c := newClient(t, pve.Config{Version: "8.4", Address: "10.99.0.1/24"})
	require.Equal(t, map[string]any{
		"address": "10.99.0.1", "netmask": "24", "cidr": "10.99.0.1/24", "bridge_ports": "", "bridge_fd": "0", "bridge_stp": "off", "type": "bridge",
		"active": 1.0, "autostart": 1.0, "families": []any{"inet"}, "method": "static", "method6": "manual", "priority": 5.0,
	}, c.object("/nodes/father/network/vmbr0"))
}
