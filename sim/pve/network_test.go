package pve_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// vnetBridge is the virtual network among what guests can be plugged into.
func (c *client) vnetBridge() []any {
	list := c.list("/nodes/father/network?type=any_bridge")
	last := list[len(list)-1]
	return []any{last["iface"], last["type"], last["ipam"], last["comments"]}
}

// wrongVnet asks for a subnet at another network than its own.
func (c *client) wrongVnet() answer {
	c.ok("POST", "/cluster/sdn/vnets", form{"vnet": "pink", "zone": "lab", "tag": "7"})
	a := c.ask("GET", "/cluster/sdn/vnets/pink/subnets/lab-192.0.2.0-24", nil)
	c.ok("DELETE", "/cluster/sdn/vnets/pink", nil)
	return a
}

// TestNetworkReload: an interface that is made is written, and there after a reload;
// then guests can use it. What was not reloaded can be taken back.
func TestNetworkReload(t *testing.T) {
	c := newClient(t, pve.Config{})
	at := "/nodes/father/network"
	c.ok("POST", at, form{"iface": "vmbr7", "type": "bridge", "cidr": "192.0.2.200/25"})
	require.NotContains(t, c.object(at+"/vmbr7"), "active")
	require.Equal(t, map[string]string{"iface": "interface already exists"}, c.ask("POST", at, form{"iface": "vmbr7", "type": "bridge"}).errors)
	c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "net0": "virtio,bridge=vmbr7"})
	require.NotEqual(t, "OK", c.task("POST", vmURL("100", "/status/start"), nil))
	c.done("PUT", at, nil)
	require.Equal(t, []any{1.0, "192.0.2.200"}, []any{c.object(at + "/vmbr7")["active"], c.object(at + "/vmbr7")["address"]})
	c.done("POST", vmURL("100", "/status/start"), nil)

	c.ok("DELETE", at+"/vmbr7", nil)
	require.Equal(t, map[string]string{"iface": "interface does not exist"}, c.ask("GET", at+"/vmbr7", nil).errors)
	c.ok("DELETE", at, nil)
	c.ok("GET", at+"/vmbr7", nil)
	c.ok("PUT", at+"/vmbr0", form{"type": "bridge", "comments": "ours"})
	c.done("PUT", at, nil)
	require.Equal(t, "ours\n", c.object(at + "/vmbr0")["comments"])
	require.Len(t, c.list(at+"?type=bridge"), 2)
	c.ok("DELETE", at+"/vmbr7", nil)
	c.done("PUT", at, nil)
	require.Len(t, c.list(at+"?type=any_bridge"), 1)
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

// TestVLANNames: the name of an interface tells of a VLAN, or half of it, and numbers of
// interfaces are text, as in the file (__read_etc_network_interfaces in
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

// TestInterfaceChanges: a change of an interface states again how it gets its addresses.
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

// TestSoftwareNetworks: a zone, a virtual network in it and a subnet are written, shown
// as pending, applied, edited with a digest and refused where PVE refuses (PVE/API2/Network/SDN,
// the plugins of PVE/Network/SDN).
func TestSoftwareNetworks(t *testing.T) {
	for _, version := range []string{"8.4", "9.1"} {
		t.Run(version, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newClient(t, pve.Config{Version: version})
				const zones, vnets = "/cluster/sdn/zones", "/cluster/sdn/vnets"
				c.steps(
					step{"GET", zones + "/lab", nil, "500 sdn 'lab' does not exist"},
					step{"POST", zones, form{"zone": "lab", "type": "vlan"}, "500 missing value for required option 'bridge'"},
					step{"POST", zones, form{"zone": "lab", "type": "vlan", "bridge": "vmbr0", "peers": "192.0.2.1"}, "500 unexpected property 'peers'"},
					step{"POST", zones, form{"zone": "lab", "type": "vlan", "bridge": "vmbr0", "ipam": "none"}, "500 create sdn zone object failed: 400 Parameter verification failed."},
					step{"POST", zones, form{"zone": "lab", "type": "vlan", "bridge": "vmbr0", "mtu": "1450", "nodes": "father", "ipam": "pve"}, "OK"},
					step{"POST", zones, form{"zone": "lab", "type": "vlan", "bridge": "vmbr0"}, "500 create sdn zone object failed: sdn zone object ID 'lab' already defined"},
					step{"POST", zones, form{"zone": "plain", "type": "simple"}, "OK"},
					step{"POST", vnets, form{"vnet": "blue", "zone": "lab"}, "500 create sdn vnet object failed: 400 Parameter verification failed."},
					step{"POST", vnets, form{"vnet": "blue", "zone": "lab", "tag": "100", "alias": "the blue one"}, "OK"},
					step{"POST", vnets, form{"vnet": "red", "zone": "lab", "tag": "100"}, "500 create sdn vnet object failed: 400 Parameter verification failed."},
					step{"POST", vnets, form{"vnet": "green", "zone": "plain", "tag": "1"}, "500 create sdn vnet object failed: 400 Parameter verification failed."},
					step{"POST", vnets, form{"vnet": "lost", "zone": "nowhere"}, "500 create sdn vnet object failed: cannot lookup undefined type!"},
					step{"DELETE", zones + "/lab", nil, "500 delete sdn zone object failed: zone lab is used by vnet blue"},
				)
				require.Equal(t, "create sdn vnet object failed: 400 Parameter verification failed.\ntag: vlan tag is not allowed on simple zone\n",
					c.ask("POST", vnets, form{"vnet": "green", "zone": "plain", "tag": "1"}).message)
				require.Equal(t, map[string]string{"zone": "invalid format - zone ID 'a-b' contains illegal characters\n"},
					c.ask("POST", zones, form{"zone": "a-b", "type": "simple"}).errors)

				pending := c.object(zones + "/lab?pending=1")
				require.Equal(t, []any{"new", "vlan"}, []any{pending["state"], pending["type"]})
				require.Equal(t, map[string]any{"bridge": "vmbr0", "mtu": 1450.0, "nodes": "father", "ipam": "pve"}, pending["pending"])
				require.Empty(t, c.list(zones+"?running=1"))
				require.Len(t, c.list(zones), 2)
				require.Len(t, c.list(zones+"?type=vlan"), 1)
				c.done("PUT", "/cluster/sdn", nil)
				require.Len(t, c.list(zones+"?running=1"), 2)
				require.NotContains(t, c.object(zones+"/lab?pending=1"), "pending")

				zone := c.object(zones + "/lab")
				require.Equal(t, []any{"lab", "vlan", 1450.0}, []any{zone["zone"], zone["type"], zone["mtu"]})
				c.ok("PUT", zones+"/lab", form{"mtu": "1400", "delete": "nodes", "digest": fmt.Sprint(zone["digest"])})
				require.Contains(t, c.ask("PUT", zones+"/lab", form{"mtu": "1300", "digest": fmt.Sprint(zone["digest"])}).reason, "detected modified configuration")
				require.Equal(t, "update sdn zone object failed: unable to delete required option 'bridge'", c.ask("PUT", zones+"/lab", form{"delete": "bridge"}).reason)
				changed := c.object(zones + "/lab?pending=1")
				require.Equal(t, []any{"changed", 1450.0, map[string]any{"mtu": 1400.0, "nodes": "deleted"}}, []any{changed["state"], changed["mtu"], changed["pending"]})

				at := vnets + "/blue/subnets"
				c.steps(
					step{"POST", at, form{"subnet": "192.0.2.0/24", "type": "subnet", "gateway": "198.51.100.1"}, "500 create sdn subnet object failed: 400 Parameter verification failed."},
					step{"POST", at, form{"subnet": "192.0.2.0/24", "type": "subnet", "gateway": "192.0.2.1", "snat": "1"}, "OK"},
					step{"POST", at, form{"subnet": "192.0.2.0/24", "type": "subnet"}, "500 create sdn subnet object failed: sdn subnet object ID 'lab-192.0.2.0-24' already defined"},
					step{"POST", vnets + "/none/subnets", form{"subnet": "192.0.2.0/24", "type": "subnet"}, "500 sdn vnet 'none' does not exist"},
					step{"PUT", vnets + "/blue", form{"vlanaware": "1"}, "500 update sdn vnet object failed: 400 Parameter verification failed."},
					step{"DELETE", vnets + "/blue", nil, "500 delete sdn vnet object failed: 400 Parameter verification failed."},
				)
				body := url.Values{"dhcp-range": {"start-address=192.0.2.10,end-address=192.0.2.20", "start-address=192.0.2.15,end-address=192.0.2.30"}}.Encode()
				require.Contains(t, c.body("PUT", at+"/lab-192.0.2.0-24", body).message, "dhcp ranges must not overlap")
				body = strings.ReplaceAll(body, "192.0.2.15", "192.0.2.21")
				require.Equal(t, 200, c.body("PUT", at+"/lab-192.0.2.0-24", body).status)
				subnet := c.object(at + "/lab-192.0.2.0-24")
				require.Equal(t, []any{"lab", "192.0.2.0", "24", "192.0.2.0/24", "blue", 1.0, "subnet"},
					[]any{subnet["zone"], subnet["network"], subnet["mask"], subnet["cidr"], subnet["vnet"], subnet["snat"], subnet["type"]})
				require.Equal(t, []any{
					map[string]any{"start-address": "192.0.2.10", "end-address": "192.0.2.20"}, map[string]any{"start-address": "192.0.2.21", "end-address": "192.0.2.30"},
				}, subnet["dhcp-range"])
				require.Len(t, c.list(at), 1)
				require.Equal(t, map[string]string{"vnet": "wrong vnet"}, c.wrongVnet().errors)

				c.done("PUT", "/cluster/sdn", nil)
				c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "net0": "virtio,bridge=blue"})
				c.done("POST", vmURL("100", "/status/start"), nil)
				require.Equal(t, []any{map[string]any{"vnet": "blue", "status": "available"}}, c.ok("GET", "/nodes/father/sdn/zones/lab/content", nil))
				require.Equal(t, []any{"blue", "vnet", 1.0, "the blue one"}, c.vnetBridge())
				require.Len(t, c.list("/cluster/resources?type=sdn"), map[string]int{"8.4": 3}[version]) // Since pve-manager 9.1 they are of another type.
				c.steps(
					step{"DELETE", at + "/lab-192.0.2.0-24", nil, "OK"},
					step{"DELETE", vnets + "/blue", nil, "OK"},
					step{"DELETE", vnets + "/blue", nil, "500 delete sdn vnet object failed: sdn vnet 'blue' does not exist"},
					step{"DELETE", zones + "/lab", nil, "OK"},
				)
				require.Equal(t, "deleted", c.object(zones + "/lab?pending=1")["state"])
				c.done("PUT", "/cluster/sdn", nil)
				require.Equal(t, "sdn 'lab' does not exist", c.ask("GET", zones+"/lab?pending=1", nil).reason)
				require.Empty(t, c.h.Snapshot().Unimplemented)
			})
		})
	}
}

// TestFabrics: networks below others, and the nodes in them (PVE/API2/Network/SDN/Fabrics,
// FabricConfigError in the crate proxmox-ve-config); PVE 8 has none.
func TestFabrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := newClient(t, pve.Config{Version: "8.4"})
		require.Equal(t, 501, old.ask("GET", "/cluster/sdn/fabrics/all", nil).status)
		c := newClient(t, pve.Config{Nodes: []string{"mother"}})
		const fabrics, nodes = "/cluster/sdn/fabrics/fabric", "/cluster/sdn/fabrics/node/core"
		c.steps(
			step{"GET", fabrics + "/core", nil, "500 fabric 'core' does not exist in configuration"},
			step{"POST", fabrics, form{"id": "core"}, "protocol: property is missing and it is not optional"},
			step{"POST", nodes, form{"node_id": "father", "protocol": "openfabric"}, "500 adding node failed: fabric 'core' does not exist in configuration"},
			step{"POST", fabrics, form{"id": "core", "protocol": "openfabric", "area": "0"}, "500 adding fabric failed: unexpected property 'area'"},
			step{"POST", fabrics, form{"id": "core", "protocol": "openfabric", "ip_prefix": "192.0.2.0/24", "hello_interval": "3"}, "OK"},
			step{"POST", fabrics, form{"id": "core", "protocol": "openfabric"}, "500 adding fabric failed: fabric 'core' already exists in config"},
			step{"POST", nodes, form{"node_id": "father", "protocol": "ospf"}, "500 adding node failed: node has a different protocol than the referenced fabric"},
			step{
				"POST", nodes,
				form{"node_id": "father", "protocol": "openfabric", "ip": "198.51.100.1"},
				"500 adding node failed: node IP 198.51.100.1 is outside the IP prefix 192.0.2.0/24 of the fabric",
			},
			step{"POST", nodes, form{"node_id": "father", "protocol": "openfabric", "ip": "192.0.2.1", "interfaces": "name=eth0"}, "OK"},
			step{"POST", nodes, form{"node_id": "mother", "protocol": "openfabric", "ip": "192.0.2.1"}, "500 adding node failed: fabric core contains nodes with duplicated IPs"},
			step{"PUT", nodes + "/father", form{"protocol": "openfabric", "ip": "192.0.2.3"}, "OK"},
		)
		for range 8 { // The same answer, whichever address could be told of.
			c.steps(step{
				"POST", nodes,
				form{"node_id": "mother", "protocol": "openfabric", "ip": "198.51.100.1", "ip6": "2001:db8::1"},
				"500 adding node failed: node IP 198.51.100.1 is outside the IP prefix 192.0.2.0/24 of the fabric",
			})
		}
		core := c.object(fabrics + "/core")
		require.Equal(t, []any{"core", "openfabric", 3.0, "192.0.2.0/24"}, []any{core["id"], core["protocol"], core["hello_interval"], core["ip_prefix"]})
		require.Equal(t, core, c.object(fabrics+"/core?pending=1"), "of one fabric it is not asked")
		node := c.list(nodes)[0]
		require.Equal(t, []any{"core", "father", "192.0.2.3", []any{"name=eth0"}}, []any{node["fabric_id"], node["node_id"], node["ip"], node["interfaces"]})
		require.Len(t, c.object("/cluster/sdn/fabrics/all")["nodes"], 1)
		digest := fmt.Sprint(core["digest"])
		c.ok("PUT", fabrics+"/core", form{"protocol": "openfabric", "delete": "hello_interval", "digest": digest})
		require.Contains(t, c.ask("PUT", fabrics+"/core", form{"protocol": "openfabric", "csnp_interval": "5", "digest": digest}).reason, "detected modified configuration")
		c.steps(step{"DELETE", fabrics + "/core", nil, "OK"}, step{"GET", nodes + "/father", nil, "500 node 'core_father' does not exist in the fabric"})
	})
}

// TestSoftwareLock: who holds the lock of the software networks keeps others from
// changing them (lock_sdn_config in PVE/Network/SDN.pm of PVE 9); a rollback forgets
// what was not applied.
func TestSoftwareLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{})
		const zones = "/cluster/sdn/zones"
		c.ok("POST", zones, form{"zone": "one", "type": "simple"})
		require.Contains(t, c.ask("POST", "/cluster/sdn/lock", nil).reason, "configuration has pending changes")
		c.done("PUT", "/cluster/sdn", nil)
		token := fmt.Sprint(c.ok("POST", "/cluster/sdn/lock", nil))
		c.steps(
			step{"POST", zones, form{"zone": "two", "type": "simple"}, "500 create sdn zone object failed: invalid lock token provided!"},
			step{"POST", zones, form{"zone": "two", "type": "simple", "lock-token": token}, "OK"},
			step{"DELETE", zones + "/one", form{"lock-token": token}, "OK"},
			step{"POST", "/cluster/sdn/rollback", form{"lock-token": token, "release-lock": "0"}, "OK"},
			step{"DELETE", "/cluster/sdn/lock", nil, "500 could not release lock: invalid lock token provided!"},
			step{"DELETE", "/cluster/sdn/lock", form{"force": "1"}, "OK"},
			step{"GET", zones + "/two", nil, "500 sdn 'two' does not exist"},
			step{"GET", zones + "/one", nil, "OK"},
		)
		controllers := "/cluster/sdn/controllers"
		c.steps(
			step{"POST", controllers, form{"controller": "wide", "type": "evpn", "asn": "65000", "peers": "192.0.2.1"}, "OK"},
			step{
				"POST", controllers,
				form{"controller": "more", "type": "evpn", "asn": "65001", "peers": "192.0.2.1"},
				"500 create sdn controller object failed: only 1 global evpn controller can be defined",
			},
			step{"POST", zones, form{"zone": "evpn", "type": "evpn", "controller": "none", "vrf-vxlan": "10"}, "500 create sdn zone object failed: controller none don't exist"},
			step{"POST", zones, form{"zone": "evpn", "type": "evpn", "controller": "wide", "vrf-vxlan": "10"}, "OK"},
			step{"DELETE", controllers + "/wide", nil, "500 delete sdn controller object failed: controller wide is used by evpn"},
			step{"POST", "/cluster/sdn/dns", form{"dns": "names", "type": "powerdns", "url": "http://192.0.2.9", "key": "x", "ttl": "60"}, "OK"},
			step{"POST", zones, form{"zone": "named", "type": "simple", "dns": "names", "dnszone": "example.test"}, "OK"},
			step{"POST", "/cluster/sdn/ipams", form{"ipam": "box", "type": "netbox", "url": "http://192.0.2.9"}, "500 missing value for required option 'token'"},
			step{"GET", "/cluster/sdn/ipams/box/status", nil, "500 Currently only PVE IPAM is supported!"},
		)
		for kind, more := range map[string]form{
			"bgp":  {"asn": "65000", "peers": "192.0.2.1"},
			"isis": {"isis-domain": "d", "isis-ifaces": "eth0", "isis-net": "49.0001.0000.0000.0001.00"},
		} {
			end := map[string]string{"bgp": "only 1 bgp controller can be defined", "isis": "only 1 bgp or isis controller can be defined"}[kind]
			for id, want := range []string{"OK", "OK", "500 create sdn controller object failed: " + end} {
				more["controller"], more["type"], more["node"] = fmt.Sprint(kind, id), kind, "father"
				c.steps(step{"POST", controllers, more, want})
			}
		}
		require.NotEmpty(t, c.object(zones + "/evpn")["mac"], "one is drawn")
		require.Len(t, c.list("/cluster/sdn/ipams"), 1)
	})
}

// TestOverlayTags: a VXLAN is there once in the cluster, a VLAN once in its zone
// (PVE/Network/SDN/Zones of pve-network).
func TestOverlayTags(t *testing.T) {
	c := newClient(t, pve.Config{})
	for _, zone := range []string{"one", "two"} {
		c.ok("POST", "/cluster/sdn/zones", form{"zone": zone, "type": "vxlan", "peers": "192.0.2.1"})
	}
	c.ok("POST", "/cluster/sdn/vnets", form{"vnet": "blue", "zone": "one", "tag": "7"})
	require.Equal(t, "create sdn vnet object failed: 400 Parameter verification failed.\ntag: vxlan tag 7 already exist in vnet blue in zone one \n",
		c.ask("POST", "/cluster/sdn/vnets", form{"vnet": "red", "zone": "two", "tag": "7"}).message)
}

// TestNetworksOfSDNHaveTheirZone: who may plug into a network of SDN is asked in its zone,
// not where the bridges of the nodes are (check_vnet_access in PVE/GuestHelpers.pm).
func TestNetworksOfSDNHaveTheirZone(t *testing.T) {
	c := newClient(t, pve.Config{})
	c.image()
	c.vm("100", nil)
	c.ok("POST", "/cluster/sdn/zones", form{"zone": "lab", "type": "simple"})
	c.ok("POST", "/cluster/sdn/vnets", form{"vnet": "blue", "zone": "lab"})
	c.ok("POST", "/access/roles", form{"roleid": "Maker", "privs": "VM.Config.Network,SDN.Use"})
	c.ok("POST", "/access/users", form{"userid": "ops@pve"})
	token, ok := c.ok("POST", "/access/users/ops@pve/token/tk", form{"privsep": "0"}).(map[string]any)
	require.True(t, ok)
	for _, path := range []string{"/vms", "/sdn/zones/localnetwork"} {
		c.ok("PUT", "/access/acl", form{"path": path, "roles": "Maker", "users": "ops@pve"})
	}
	ops := c.as("ops@pve!tk=" + fmt.Sprint(token["value"]))
	ops.ok("PUT", vmURL("100", "/config"), form{"net1": "virtio,bridge=vmbr0"})
	a := ops.ask("PUT", vmURL("100", "/config"), form{"net2": "virtio,bridge=blue"})
	require.Equal(t, "Permission check failed (/sdn/zones/lab/blue, SDN.Use)", a.reason)
	c.ok("PUT", "/access/acl", form{"path": "/sdn/zones/lab/blue", "roles": "Maker", "users": "ops@pve"})
	ops.ok("PUT", vmURL("100", "/config"), form{"net2": "virtio,bridge=blue"})
}
