package pve_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// The provider bpg/proxmox for OpenTofu found these rules missing; it works with real
// hosts (make tofu).

// TestSaidTwice: what the path says may stand in the body too, as long as it is the
// same (rest_handler in PVE/HTTPServer.pm).
func TestSaidTwice(t *testing.T) {
	c := newClient(t, pve.Config{})
	from := form{"url": "https://images.test/x.iso", "content": "iso", "filename": "x.iso", "node": "father", "storage": "local"}
	c.done("POST", "/nodes/father/storage/local/download-url", from)
	from["storage"] = "local-lvm"
	a := c.ask("POST", "/nodes/father/storage/local/download-url", from)
	require.Equal(t, 400, a.status)
	require.Equal(t, map[string]string{"storage": "duplicate parameter (already defined in URI) with conflicting values!"}, a.errors)
}

// TestOptionsInParts: property strings of the data centre are kept as text and shown in
// their parts, whose values are text as long as they are no booleans
// (parse_datacenter_config in PVE/DataCenterConfig.pm); bwlimit is shown as it is.
func TestOptionsInParts(t *testing.T) {
	c := newClient(t, pve.Config{})
	c.ok("PUT", "/cluster/options", form{
		"migration": "secure,network=192.0.2.0/24", "next-id": "lower=200,upper=300", "crs": "ha=static,ha-rebalance-on-start=1", "bwlimit": "migration=100",
	})
	options := c.ok("GET", "/cluster/options", nil).(map[string]any)
	require.Equal(t, map[string]any{"type": "secure", "network": "192.0.2.0/24"}, options["migration"])
	require.Equal(t, map[string]any{"lower": "200", "upper": "300"}, options["next-id"])
	require.Equal(t, map[string]any{"ha": "static", "ha-rebalance-on-start": 1.0}, options["crs"])
	require.Equal(t, "migration=100", options["bwlimit"])
	require.Equal(t, "200", c.ok("GET", "/cluster/nextid", nil))
}

// TestJobInParts: so are those of a backup job (decode_value in PVE/VZDump/JobBase.pm).
func TestJobInParts(t *testing.T) {
	c := newClient(t, pve.Config{})
	c.ok("POST", "/cluster/backup", form{"id": "nightly", "all": "1", "storage": "local", "schedule": "daily", "prune-backups": "keep-last=3,keep-daily=7"})
	parts := map[string]any{"keep-last": "3", "keep-daily": "7"}
	require.Equal(t, parts, c.ok("GET", "/cluster/backup/nightly", nil).(map[string]any)["prune-backups"])
	require.Equal(t, parts, c.ok("GET", "/cluster/backup", nil).([]any)[0].(map[string]any)["prune-backups"])
}

// TestEmptyInRules: an empty option of a firewall rule, and a dash, take it away
// (copy_rule_data in PVE/Firewall.pm); addresses and ports may be empty lists
// (parse_address_list and parse_port_name_number_or_range there).
func TestEmptyInRules(t *testing.T) {
	c := newClient(t, pve.Config{})
	rule := func() map[string]any {
		entry := c.ok("GET", "/cluster/firewall/rules/0", nil).(map[string]any)
		delete(entry, "digest")
		return entry
	}
	c.ok("POST", "/cluster/firewall/rules", form{"type": "in", "action": "ACCEPT", "proto": "tcp", "dport": "80", "source": "", "dest": "", "sport": "", "comment": "web"})
	require.Equal(t, map[string]any{"pos": "0", "type": "in", "action": "ACCEPT", "proto": "tcp", "dport": "80", "comment": "web", "enable": 0.0}, rule())
	c.ok("PUT", "/cluster/firewall/rules/0", form{"dport": "", "proto": "", "comment": "-"})
	require.Equal(t, map[string]any{"pos": "0", "type": "in", "action": "ACCEPT", "enable": 0.0}, rule())
}

// TestVLANNames: the name of an interface tells of a VLAN, or half of it, and numbers of
// interfaces are text, as they stand in the file (__read_etc_network_interfaces in
// PVE/INotify.pm).
func TestVLANNames(t *testing.T) {
	c := newClient(t, pve.Config{})
	for iface, options := range map[string]form{
		"eth0.40": {"mtu": "1400"}, "vlan50": {"vlan-raw-device": "eth0"}, "lab": {"vlan-raw-device": "eth0", "vlan-id": "60"},
	} {
		options["iface"], options["type"] = iface, "vlan"
		c.ok("POST", "/nodes/father/network", options)
		entry := c.ok("GET", "/nodes/father/network/"+iface, nil).(map[string]any)
		require.Equal(t, "eth0", entry["vlan-raw-device"], iface)
		require.Equal(t, map[string]string{"eth0.40": "40", "vlan50": "50", "lab": "60"}[iface], entry["vlan-id"], iface)
		require.Equal(t, map[bool]any{true: "1400", false: nil}[iface == "eth0.40"], entry["mtu"], iface)
	}
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

// TestInterfaceChanges: of an interface a change says anew how it gets its addresses.
// What takes a CIDR away takes both its halves, and a family of which a change has no
// address is not written where another has one (update_network in PVE/API2/Network.pm).
func TestInterfaceChanges(t *testing.T) {
	c := newClient(t, pve.Config{})
	at := "/nodes/father/network"
	shown := func(iface string) []any {
		entry := c.object(at + "/" + iface)
		return []any{entry["method"], entry["cidr"], entry["address"], entry["method6"], entry["cidr6"], entry["netmask6"], entry["families"]}
	}
	both, v4, v6 := []any{"inet", "inet6"}, []any{"inet"}, []any{"inet6"}
	c.ok("POST", at, form{"iface": "vmbr5", "type": "bridge", "cidr": "198.51.100.1/24", "cidr6": "2001:db8::5/64", "comments": "one\ntwo"})
	require.Equal(t, "one\ntwo\n", c.object(at + "/vmbr5")["comments"])
	require.Equal(t, []any{"static", "198.51.100.1/24", "198.51.100.1", "static", "2001:db8::5/64", "64", both}, shown("vmbr5"))
	c.ok("PUT", at+"/vmbr5", form{"type": "bridge", "cidr": "198.51.100.9/25", "comments": ""})
	require.NotContains(t, c.object(at+"/vmbr5"), "comments")
	require.Equal(t, []any{"static", "198.51.100.9/25", "198.51.100.9", "manual", nil, nil, v4}, shown("vmbr5"))
	c.ok("PUT", at+"/vmbr5", form{"type": "bridge", "autostart": "1"})
	require.Equal(t, []any{"manual", "198.51.100.9/25", "198.51.100.9", "manual", nil, nil, v4}, shown("vmbr5"))
	c.ok("PUT", at+"/vmbr5", form{"type": "bridge", "cidr6": "2001:db8::6/64"})
	require.Equal(t, []any{"manual", nil, nil, "static", "2001:db8::6/64", "64", v6}, shown("vmbr5"))
	c.ok("PUT", at+"/vmbr5", form{"type": "bridge", "delete": "cidr,cidr6"})
	require.Equal(t, []any{"manual", nil, nil, "manual", nil, nil, v4}, shown("vmbr5"))

	c.ok("PUT", at+"/vmbr0", form{"type": "bridge", "delete": "cidr,gateway"})
	require.Equal(t, []any{"manual", nil, nil, "manual", nil, nil, v4}, shown("vmbr0"), "also of the bridge that was there from the start")
	require.Equal(t, "eth0", c.object(at + "/vmbr0")["bridge_ports"])
	c.steps(
		step{"PUT", at + "/vmbr5", form{"type": "bridge", "cidr6": "ff02::1/64"}, "address: ff02::1 with type 'MULTICAST', cannot be used as host IPv6 address."},
		step{"PUT", at + "/vmbr5", form{"type": "bridge", "cidr6": "::1/128"}, "address: ::1 with type 'LOOPBACK', cannot be used as host IPv6 address."},
	)
}
