package pve_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// pendingOf is what waits of one key: its value, and whether its deletion waits.
func (c *client) pendingOf(path, key string) (value, pending, gone any) {
	for _, row := range c.list(path) {
		if row["key"] == key {
			return row["value"], row["pending"], row["delete"]
		}
	}
	return nil, nil, nil
}

// TestRevertOfContainers: only a revert takes back what waits. A deletion takes back a
// deletion that waits by nothing, and of a value that waits it drops neither that value
// nor, where it is never in force, leaves anything of itself (update_pct_config in
// PVE/LXC/Config.pm, cleanup_pending in PVE/AbstractConfig.pm).
func TestRevertOfContainers(t *testing.T) {
	for _, version := range []string{"8.4", "9.2"} {
		synctest.Test(t, func(t *testing.T) {
			c := newClient(t, pve.Config{Version: version})
			c.ct("200", form{"cmode": "tty"})
			c.done("POST", ctURL("200", "/status/start"), nil)
			put := func(params form, want string) { c.steps(step{"PUT", ctURL("200", "/config"), params, want}) }
			is := func(key string, value, pending, gone any) {
				t.Helper()
				v, p, g := c.pendingOf(ctURL("200", "/pending"), key)
				require.Equal(t, []any{value, pending, gone}, []any{v, p, g}, key)
			}
			put(form{"tty": "1", "cmode": "shell", "features": "nesting=1"}, "OK")
			is("tty", nil, float64(1), nil)
			put(form{"delete": "tty"}, "OK")
			is("tty", nil, float64(1), nil)
			put(form{"delete": "cmode"}, "OK")
			is("cmode", "tty", "shell", float64(1))
			put(form{"cmode": "shell"}, "OK") // sets what waits already, and takes back the deletion
			is("cmode", "tty", "shell", nil)
			put(form{"cmode": "tty"}, "OK") // what is in force waits for nothing
			is("cmode", "tty", nil, nil)
			put(form{"delete": "cmode"}, "OK")
			put(form{"revert": "tty cmode", "tags": "x"}, "OK")
			is("cmode", "tty", nil, nil)
			is("tty", nil, nil, nil)
			put(form{"revert": "nosuch"}, "revert: unknown option 'nosuch'")
			put(form{"revert": "tty", "tty": "2"}, "revert: you can't use '-tty' and '-revert tty' at the same time")
			put(form{"revert": "tty", "delete": "tty"}, "delete: you can't use '-delete tty' and '-revert tty' at the same time")
			put(form{"revert": "features"}, "OK")
			put(form{"revert": "features"}, "OK") // nothing waits any more
			put(form{"net10": "name=eth10,bridge=vmbr0"}, "OK")
			put(form{"delete": "net10"}, "OK") // a pattern of one digit takes cards out of what runs
			_, _, gone := c.pendingOf(ctURL("200", "/pending"), "net10")
			require.EqualValues(t, 1, gone)
			c.ok("POST", "/access/users", form{"userid": "op@pve"})
			c.ok("PUT", "/access/acl", form{"path": "/", "users": "op@pve", "roles": "PVEVMAdmin"})
			op := c.as("op@pve!own=" + c.ok("POST", "/access/users/op@pve/token/own", form{"privsep": "0"}).(map[string]any)["value"].(string))
			require.Equal(t, 403, op.ask("PUT", ctURL("200", "/config"), form{"revert": "hookscript"}).status, "a revert takes what a deletion takes")
		})
	}
}

// TestUpdatingCardsOfContainers: where a change of the cable alone cannot be plugged
// nothing is kept; another address takes the old device out first; and what PVE only finds
// out when it writes the configuration of LXC is stored by then (update_net,
// update_lxc_config in PVE/LXC.pm).
func TestUpdatingCardsOfContainers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{})
		const card = "name=eth0,bridge=vmbr0,hwaddr=BC:24:11:00:00:01"
		c.ct("200", form{"net0": card})
		c.done("POST", ctURL("200", "/status/start"), nil)
		put := func(value, want string) {
			c.steps(step{"PUT", ctURL("200", "/config"), form{"net0": value, "cores": "1"}, want})
		}
		stored := func() (value, pending any) {
			value, pending, _ = c.pendingOf(ctURL("200", "/pending"), "net0")
			return value, pending
		}
		put("name=eth0,bridge=vmbr9,hwaddr=BC:24:11:00:00:01", "net0: unable to hotplug net0: bridge 'vmbr9' is neither a linux nor an OVS bridge!")
		value, pending := stored()
		require.Equal(t, card+",type=veth", value)
		require.Nil(t, pending)
		require.NotContains(t, c.object(ctURL("200", "/config")), "cores")

		put("name=eth0,bridge=vmbr9,hwaddr=BC:24:11:00:00:02", "net0: unable to hotplug net0: bridge 'vmbr9' does not exist")
		value, pending = stored()
		require.Nil(t, value, "the old device is gone")
		require.Contains(t, pending, "BC:24:11:00:00:02")
		put(card, "OK")

		put(card+",mtu=9000", "500 net0: MTU size '9000' is bigger than bridge MTU '1500'")
		value, _ = stored()
		require.NotContains(t, value, "mtu")

		put("name=eth0,bridge=vmbr9,hwaddr=BC:24:11:00:00:01,link_down=1", "500 bridge 'vmbr9' does not exist")
		value, pending = stored()
		require.Contains(t, value, "bridge=vmbr9", "stored all the same")
		require.Nil(t, pending)
		put(card, "OK")
	})
}

// TestDrivesWithoutMediumAreNotPlugged: PVE activates the volume of a drive before it plugs
// it, and none is no volume (vmconfig_update_disk in PVE/QemuServer.pm, parse_volume_id in
// PVE/Storage/Plugin.pm).
func TestDrivesWithoutMediumAreNotPlugged(t *testing.T) {
	for _, version := range []string{"8.4", "9.2"} {
		synctest.Test(t, func(t *testing.T) {
			c := newClient(t, pve.Config{Version: version})
			c.ok("POST", "/nodes/father/qemu", form{"vmid": "100", "scsi0": "local-lvm:1"})
			c.done("POST", vmURL("100", "/status/start"), nil)
			c.uploaded("iso", "a.iso", "x")
			put := func(key, value, want string) {
				c.steps(step{"PUT", vmURL("100", "/config"), form{key: value}, want})
			}
			waits := func(key string) bool {
				_, pending, _ := c.pendingOf(vmURL("100", "/pending"), key)
				return pending != nil
			}
			put("scsi7", "none,media=cdrom", "scsi7: hotplug problem - unable to parse volume ID 'none'")
			require.True(t, waits("scsi7"))
			put("scsi8", "cdrom,media=cdrom", "scsi8: hotplug problem - unable to parse volume ID 'cdrom'")
			put("scsi9", "local:iso/a.iso,media=cdrom", "OK")
			require.False(t, waits("scsi9"))
			put("scsi9", "none,media=cdrom", "OK") // another medium in a drive that is there
			require.False(t, waits("scsi9"))
			for _, key := range []string{"ide0", "sata1"} {
				put(key, "none,media=cdrom", "OK")
				require.True(t, waits(key), key)
			}
		})
	}
}

// TestPluggingContainers: a network device that cannot be plugged into a container that
// runs is refused, and nothing of the call is kept (vmconfig_hotplug_pending in
// PVE/LXC/Config.pm, update_vm in PVE/API2/LXC/Config.pm).
func TestPluggingContainers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := likeRecorded(t)
		c.done("POST", "/nodes/father/aplinfo", form{"storage": "local", "template": debianTemplate})
		c.done("POST", "/nodes/father/lxc", form{"vmid": "200", "ostemplate": "local:vztmpl/" + debianTemplate, "rootfs": "vmstore:1", "net0": "name=eth0,bridge=vmbr0"})
		c.done("POST", ctURL("200", "/status/start"), nil)
		set := func(device, want string) step {
			return step{"PUT", ctURL("200", "/config"), form{"net1": device, "cores": "1"}, want}
		}
		before := c.object(ctURL("200", "/config"))
		c.steps(
			set("name=eth1,bridge=vmbr9", "net1: unable to hotplug net1: bridge 'vmbr9' does not exist"),
			set("name=eth0,bridge=vmbr0", "net1: unable to hotplug net1: command 'lxc-device -n 200 add veth200i1p eth0' failed: exit code 1"),
		)
		for key, value := range c.object(ctURL("200", "/config")) {
			if before[key] != value && key != "net0" {
				t.Errorf("%s was %v and is %v", key, before[key], value)
			}
		}
		c.steps(set("name=eth1,bridge=vmbr0", "OK"))
	})
}

// TestPoolsOfJobs: the pool of a backup job has to be there (PVE/API2/Backup.pm).
func TestPoolsOfJobs(t *testing.T) {
	c := likeRecorded(t)
	job := form{"schedule": "daily", "pool": "p", "id": "job-p"}
	c.steps(
		step{"POST", "/cluster/backup", job, "403 Permission check failed (pool 'p' does not exist)"},
		step{"POST", "/pools", form{"poolid": "p"}, "OK"},
		step{"POST", "/cluster/backup", job, "OK"},
		step{"PUT", "/cluster/backup/job-p", form{"pool": "q"}, "403 Permission check failed (pool 'q' does not exist)"},
	)
}
