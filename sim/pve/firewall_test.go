package pve_test

import (
	"fmt"
	"maps"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// TestFirewall: rules in their order, sets, aliases and groups, of a guest, a node and
// the cluster; a stale digest is refused; a clone takes them along.
func TestFirewall(t *testing.T) {
	c := newClient(t, pve.Config{})
	c.done("POST", "/nodes/father/qemu", form{"vmid": "100"})
	for _, at := range []string{vmURL("100", "/firewall"), "/nodes/father/firewall", "/cluster/firewall"} {
		empty := c.object(at + "/options")["digest"]
		c.ok("PUT", at+"/options", form{"enable": "1"})
		require.Equal(t, 1.0, c.object(at + "/options")["enable"])
		require.Contains(t, c.ask("PUT", at+"/options", form{"enable": "0", "digest": fmt.Sprint(empty)}).reason, "detected modified configuration")
		c.ok("POST", at+"/rules", form{"type": "in", "action": "ACCEPT", "dport": "22", "proto": "tcp", "enable": "1"})
		c.ok("POST", at+"/rules", form{"type": "in", "action": "DROP"})
		c.ok("PUT", at+"/rules/0", form{"moveto": "2"})
		rules := c.list(at + "/rules")
		require.Equal(t, []any{"ACCEPT", "DROP"}, []any{rules[0]["action"], rules[1]["action"]})
		require.Equal(t, "no rule at position 5", c.ask("DELETE", at+"/rules/5", nil).reason)
	}
	at := vmURL("100", "/firewall")
	c.ok("POST", at+"/aliases", form{"name": "Gate", "cidr": "192.0.2.1/32"})
	require.Equal(t, "192.0.2.1", c.object(at + "/aliases/gate")["cidr"])
	c.ok("POST", at+"/ipset", form{"name": "home"})
	c.ok("POST", at+"/ipset/home", form{"cidr": "192.0.2.0/24", "nomatch": "1"})
	require.Equal(t, 1.0, c.list(at + "/ipset/home")[0]["nomatch"])
	require.Equal(t, "IPSet 'home' is not empty", c.ask("DELETE", at+"/ipset/home", nil).reason)
	require.Len(t, c.list(at+"/refs"), 2)
	c.ok("POST", "/cluster/firewall/groups", form{"group": "web"})
	c.ok("POST", "/cluster/firewall/groups/web", form{"type": "in", "action": "ACCEPT", "macro": "HTTPS"})
	require.Equal(t, "Security group 'web' is not empty", c.ask("DELETE", "/cluster/firewall/groups/web", nil).reason)

	c.done("POST", vmURL("100", "/clone"), form{"newid": "101"})
	require.Len(t, c.list("/nodes/father/qemu/101/firewall/rules"), 2)
	c.done("DELETE", vmURL("101", ""), nil)
	c.done("POST", "/nodes/father/qemu", form{"vmid": "101"})
	require.Empty(t, c.list("/nodes/father/qemu/101/firewall/rules"), "they go with the guest")
}

// TestFirewallRules: verify_rule, copy_rule_data and delete_rule_properties in
// PVE/Firewall.pm, create_rule and update_rule in PVE/API2/Firewall/Rules.pm.
func TestFirewallRules(t *testing.T) {
	c := likeRecorded(t)
	rules := vmURL("100", "/firewall/rules")
	add := func(params form, want string) step {
		all := form{"type": "in", "action": "ACCEPT"}
		maps.Copy(all, params)
		return step{"POST", rules, all, want}
	}
	c.steps(
		step{"POST", "/nodes/father/qemu", form{"vmid": "100"}, "OK"},
		step{"POST", "/cluster/firewall/aliases", form{"name": "lan", "cidr": "192.0.2.0/24"}, "OK"},
		step{"POST", "/cluster/firewall/groups", form{"group": "web"}, "OK"},
		step{"POST", "/cluster/firewall/groups/web", form{"type": "group", "action": "web"}, "type: invalid rule type 'group' for rule_env 'group'"},
		step{"POST", "/cluster/firewall/groups/web", form{"type": "in", "action": "ACCEPT", "iface": "vmbr0"}, "type: parameter -i not allowed for this rule type"},
		add(form{"action": "ALLOW"}, "action: unknown action 'ALLOW'"),
		add(form{"macro": "Nosuch"}, "macro: unknown macro 'Nosuch'"),
		add(form{"dport": "22"}, "proto: missing property - 'dport' requires this property"),
		add(form{"sport": "22"}, "proto: missing property - 'sport' requires this property"),
		add(form{"proto": "gre", "dport": "22"}, "dport: protocol 'gre' does not support ports"),
		add(form{"proto": "nosuch"}, "proto: invalid format - unknown protocol 'nosuch'"),
		add(form{"icmp-type": "echo-request"}, "proto: missing property - 'icmp-type' requires this property"),
		add(form{"proto": "icmpv6", "icmp-type": "timestamp-reply"}, "icmp-type: invalid icmp-type 'timestamp-reply' for proto 'icmpv6'"),
		add(form{"source": "+nosuch"}, "source: no such ipset 'nosuch'"),
		add(form{"dest": "dc/nosuch"}, "dest: no such alias 'dc/nosuch'"),
		add(form{"source": "lan", "dest": "2001:db8::1"}, "dest: detected mixed ipv4/ipv6 addresses in rule"),
		add(form{"iface": "eth0"}, `iface: value does not match the regex pattern 'net\d+'`),
		add(form{"macro": "ssh", "iface": "net0", "pos": "7"}, "OK"),
		add(form{"source": "lan", "comment": "second, and so first"}, "OK"),
		step{"PUT", rules + "/0", form{"delete": "nosuch"}, "delete: no such property ('nosuch')"},
		step{"PUT", rules + "/0", form{"delete": "action"}, "delete: unable to delete required property 'action'"},
		step{"PUT", rules + "/0", form{"moveto": "0", "enable": "1", "delete": "comment"}, "OK"},
		step{"PUT", vmURL("100", "/firewall/options"), form{"delete": "nosuch"}, "delete: no such option 'nosuch'"},
	)
	list := c.list(rules)
	require.Equal(t, "SSH", list[1]["macro"])
	require.EqualValues(t, 4, list[0]["ipversion"])
	require.EqualValues(t, 1, list[0]["enable"])
	require.NotContains(t, list[0], "comment")
}

// TestFirewallDigests: each list has a digest of its own, that of its entries in the
// order of their keys; the ones here are recorded.
func TestFirewallDigests(t *testing.T) {
	c := likeRecorded(t)
	at := vmURL("100", "/firewall")
	c.steps(
		step{"POST", "/nodes/father/qemu", form{"vmid": "100"}, "OK"},
		step{"PUT", at + "/options", form{"enable": "1", "policy_in": "DROP"}, "OK"},
		step{"POST", at + "/rules", form{"type": "in", "action": "ACCEPT", "proto": "tcp", "dport": "22", "enable": "1", "comment": "ssh"}, "OK"},
		step{"POST", at + "/rules", form{"type": "in", "action": "ACCEPT", "macro": "HTTPS", "enable": "1"}, "OK"},
	)
	require.Equal(t, "b5b4b38b0ccd39fc3c426236926bf532647addaf", c.object(at + "/options")["digest"])
	require.Equal(t, "410b5542db236bd04a25ec014a397aec80a33f54", c.object(at + "/rules/0")["digest"])
	c.steps(
		step{"DELETE", at + "/rules/7", form{"digest": "00"}, "500 detected modified configuration - file changed by other user? Try again."},
		step{"DELETE", at + "/rules/0", form{"digest": "410b5542db236bd04a25ec014a397aec80a33f54"}, "OK"},
	)
}

// TestFirewallNames: PVE/API2/Firewall/Aliases.pm and IPSet.pm.
func TestFirewallNames(t *testing.T) {
	c := likeRecorded(t)
	at := "/cluster/firewall"
	c.steps(
		step{"POST", at + "/aliases", form{"name": "one", "cidr": "192.0.2.1"}, "OK"},
		step{"POST", at + "/aliases", form{"name": "two", "cidr": "192.0.2.2"}, "OK"},
		step{"PUT", at + "/aliases/one", form{"cidr": "192.0.2.1", "rename": "two"}, "name: alias 'two' already exists"},
		step{"PUT", at + "/aliases/one", form{"cidr": "192.0.2.1", "rename": "ONE"}, "OK"},
		step{"DELETE", at + "/aliases/nosuch", nil, "OK"},
		step{"POST", at + "/ipset", form{"name": "set1"}, "OK"},
		step{"POST", at + "/ipset/set1", form{"cidr": "0.0.0.0/0"}, "cidr: a zero prefix is not allowed in ipset entries"},
		step{"POST", at + "/ipset/set1", form{"cidr": "nosuch"}, "500 no such alias 'nosuch'"},
		step{"POST", at + "/ipset/set1", form{"cidr": "two"}, "OK"},
	)
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

// TestFirewallWithoutAGuest: the firewall of a guest is a file of its number, so there can be
// one before the guest is there; an address in a set stays as it was written, but for
// the length of a single one (load_vmfw_conf and parse_ip_or_cidr in PVE/Firewall.pm).
func TestFirewallWithoutAGuest(t *testing.T) {
	c := newClient(t, pve.Config{})
	c.image()
	at := vmURL("900", "/firewall")
	c.ok("POST", at+"/rules", form{"type": "in", "action": "ACCEPT", "enable": "1"})
	require.Len(t, c.list(at+"/rules"), 1)
	c.vm("900", nil)
	require.Len(t, c.list(at+"/rules"), 1, "the guest finds it")
	c.done("DELETE", vmURL("900", ""), nil)
	require.Empty(t, c.list(at+"/rules"), "it goes with the guest")

	c.ok("POST", "/cluster/firewall/ipset", form{"name": "mixed"})
	for _, cidr := range []string{"2001:0DB8:91AA:7C30::1", "2001:db8:0:0::/64", "192.0.2.7/32", "2001:db8::7/128"} {
		c.ok("POST", "/cluster/firewall/ipset/mixed", form{"cidr": cidr})
	}
	var kept []any
	for _, member := range c.list("/cluster/firewall/ipset/mixed") {
		kept = append(kept, member["cidr"])
	}
	require.Equal(t, []any{"192.0.2.7", "2001:0DB8:91AA:7C30::1", "2001:db8::/64", "2001:db8::7"}, kept)
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

// TestJobsAndGroups: PVE/API2/Backup.pm, verify_vzdump_parameters in PVE/VZDump.pm,
// PVE/API2/HA/Groups.pm and Resources.pm.
func TestJobsAndGroups(t *testing.T) {
	c := likeRecorded(t)
	c.steps(
		step{"POST", "/nodes/father/qemu", form{"vmid": "100"}, "OK"},
		step{"POST", "/cluster/backup", form{"vmid": "100"}, "schedule: neither 'starttime' nor 'schedule' were set"},
		step{"POST", "/cluster/backup", form{"vmid": "100", "schedule": "daily", "starttime": "01:00"}, "starttime: 'starttime' and 'schedule' cannot both be set"},
		step{"POST", "/cluster/backup", form{"vmid": "100", "pool": "x", "schedule": "daily"}, "403 Permission check failed (pool 'x' does not exist)"},
		step{"POST", "/cluster/backup", form{"vmid": "100", "all": "1", "schedule": "daily"}, "500 400 Parameter verification failed."},
		step{"POST", "/cluster/backup", form{"id": "old", "all": "1", "starttime": "01:00", "dow": "mon,fri"}, "OK"},
		step{"PUT", "/cluster/backup/old", form{"delete": "nosuch"}, "500 400 Parameter verification failed."},
		step{"PUT", "/cluster/backup/old", form{"vmid": "100"}, "OK"},
		step{"POST", "/nodes/father/vzdump", form{"vmid": "100", "prune-backups": "keep-last=1", "maxfiles": "1"}, "prune-backups: option conflicts with option 'maxfiles'"},
		step{"POST", "/cluster/ha/groups", form{"group": "g1", "nodes": "father"}, "OK"},
		step{"POST", "/cluster/ha/groups", form{"group": "g1", "nodes": "father"}, "500 create ha group failed: ha group ID 'g1' already defined"},
		step{"PUT", "/cluster/ha/groups/none", form{"comment": "x"}, "500 update ha group failed: no such ha group 'none'"},
		step{"PUT", "/cluster/ha/groups/g1", form{"delete": "nodes"}, "500 update ha group failed: unable to delete required option 'nodes'"},
		step{"PUT", "/cluster/ha/groups/g1", form{"delete": "nosuch"}, "500 update ha group failed: no such option 'nosuch'"},
		step{"POST", "/cluster/ha/resources", form{"sid": "vm:100", "group": "none"}, "OK"}, // PVE does not check that it exists.
		step{"DELETE", "/cluster/ha/resources/vm:100", nil, "OK"},
		step{"POST", "/cluster/ha/resources", form{"sid": "vm:100", "group": "g1"}, "OK"},
		step{"POST", "/cluster/ha/resources", form{"sid": "vm:100"}, "500 create resource failed: resource ID 'vm:100' already defined"},
		step{"PUT", "/cluster/ha/resources/vm:100", form{"group": "none"}, "500 HA group 'none' does not exist"},
		step{"DELETE", "/cluster/ha/groups/g1", nil, "500 delete ha group failed: ha group is used by service 'vm:100'"},
		step{"DELETE", "/cluster/ha/groups/none", nil, "OK"},
	)
	job := c.object("/cluster/backup/old")
	require.Equal(t, []any{"mon,fri 01:00", "100", nil, nil}, []any{job["schedule"], job["vmid"], job["all"], job["starttime"]})
}
