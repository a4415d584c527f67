package pvesim_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim"
)

// The provider bpg/proxmox for OpenTofu found these rules missing; it works with real
// hosts (make tofu).

// TestSaidTwice: what the path says may stand in the body too, as long as it is the
// same (rest_handler in PVE/HTTPServer.pm).
func TestSaidTwice(t *testing.T) {
	c := newClient(t, pvesim.Config{})
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
	c := newClient(t, pvesim.Config{})
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
	c := newClient(t, pvesim.Config{})
	c.ok("POST", "/cluster/backup", form{"id": "nightly", "all": "1", "storage": "local", "schedule": "daily", "prune-backups": "keep-last=3,keep-daily=7"})
	parts := map[string]any{"keep-last": "3", "keep-daily": "7"}
	require.Equal(t, parts, c.ok("GET", "/cluster/backup/nightly", nil).(map[string]any)["prune-backups"])
	require.Equal(t, parts, c.ok("GET", "/cluster/backup", nil).([]any)[0].(map[string]any)["prune-backups"])
}

// TestEmptyInRules: an empty option of a firewall rule, and a dash, take it away
// (copy_rule_data in PVE/Firewall.pm); addresses and ports may be empty lists
// (parse_address_list and parse_port_name_number_or_range there).
func TestEmptyInRules(t *testing.T) {
	c := newClient(t, pvesim.Config{})
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
	c := newClient(t, pvesim.Config{})
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
