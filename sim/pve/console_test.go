package pve_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// TestMonitor: the commands of QEMU's monitor that are known, and keys for a VM that runs.
func TestMonitor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{})
		c.image()
		c.vm("100", nil)
		require.Equal(t, "VM 100 not running", c.ask("PUT", vmURL("100", "/sendkey"), form{"key": "ret"}).reason)
		require.Equal(t, "VM 100 not running", c.ask("POST", vmURL("100", "/monitor"), form{"command": "info status"}).reason)
		c.done("POST", vmURL("100", "/status/start"), nil)
		for command, said := range map[string]string{"info status": "VM status: running\r\n", "info name": "vm-100\r\n", "info version": "pve-qemu-kvm"} {
			require.Contains(t, c.ok("POST", vmURL("100", "/monitor"), form{"command": command}), said)
		}
		require.Equal(t, 501, c.ask("POST", vmURL("100", "/monitor"), form{"command": "quit"}).status)
		c.ok("PUT", vmURL("100", "/sendkey"), form{"key": "ctrl-alt-delete"})
	})
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

// TestNodeSettings: files of the node are kept, one with a digest; the log tells of
// tasks.
func TestNodeSettings(t *testing.T) {
	c := newClient(t, pve.Config{})
	hosts := c.object("/nodes/father/hosts")
	require.Contains(t, hosts["data"], "father")
	c.ok("POST", "/nodes/father/hosts", form{"data": "127.0.0.1 localhost\n", "digest": fmt.Sprint(hosts["digest"])})
	require.Contains(t, c.ask("POST", "/nodes/father/hosts", form{"data": "x", "digest": fmt.Sprint(hosts["digest"])}).reason, "detected modified configuration")
	c.ok("PUT", "/nodes/father/dns", form{"search": "home.test", "dns1": "192.0.2.1"})
	require.Equal(t, map[string]any{"search": "home.test", "dns1": "192.0.2.1"}, c.object("/nodes/father/dns"))
	c.ok("PUT", "/nodes/father/time", form{"timezone": "Europe/Vienna"})
	now := c.object("/nodes/father/time")
	require.Contains(t, []any{3600.0, 7200.0}, now["localtime"].(float64)-now["time"].(float64))
	c.ok("PUT", "/nodes/father/config", form{"description": "the big one"})
	require.Equal(t, "the big one\n", c.object("/nodes/father/config")["description"])
	c.done("POST", "/nodes/father/qemu", form{"vmid": "100"})
	require.Contains(t, fmt.Sprint(c.list("/nodes/father/syslog?limit=0")), "qmcreate")
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
		nobody := c.as("")
		require.Equal(t, 401, nobody.ask("POST", "/access/ticket", form{"username": "ann@pve", "password": "first-one"}).status)
		nobody.ok("POST", "/access/ticket", form{"username": "ann@pve", "password": "second-one"})
	})
}

// TestFigures: a series has seventy points; those from before the host was there are
// times and nothing else.
func TestFigures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{})
		c.done("POST", "/nodes/father/qemu", form{"vmid": "100"})
		time.Sleep(time.Minute)
		for path, key := range map[string]string{"/nodes/father": "memtotal", vmURL("100", ""): "maxmem"} {
			points := c.list(path + "/rrddata?timeframe=hour")
			require.Len(t, points, 70, path)
			require.Len(t, points[0], 1, path)
			require.NotZero(t, points[69][key], path)
			require.Equal(t, 60.0, points[69]["time"].(float64)-points[68]["time"].(float64))
		}
	})
}
