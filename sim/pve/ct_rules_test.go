package pve_test

import (
	"fmt"
	"maps"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// versionedCTs is a host of a version as the recordings have it, with one container.
func versionedCTs(t *testing.T, version string, more form) *client {
	t.Helper()
	local, err := pve.ParseStorage("local:dir:iso,vztmpl,backup,snippets:100:/var/lib/vz")
	require.NoError(t, err)
	all, err := pve.ParseStorage("vmstore:dir:images,rootdir:100:/srv/vmstore")
	require.NoError(t, err)
	c := newClient(t, pve.Config{Version: version, Storages: []pve.Storage{local, all}})
	order := form{"rootfs": "vmstore:1", "storage": "vmstore"}
	maps.Copy(order, more)
	c.ct("200", order)
	return c
}

func ctSet(params form, want string) step { return step{"PUT", ctURL("200", "/config"), params, want} }

// TestMountPointsAreTakenAsTheyAre: a mount point may name a volume that is not there, a
// root is stored as it was sent, and a volume that goes is kept as unused even where
// something else has it (vmconfig_apply_pending and apply_pending_mountpoint in
// PVE/LXC/Config.pm).
func TestMountPointsAreTakenAsTheyAre(t *testing.T) {
	c := versionedCTs(t, "9.2", nil)
	const root, other = "vmstore:200/vm-200-disk-0.raw", "vmstore:200/vm-200-disk-1.raw"
	shown := func(key string) any { return c.object(ctURL("200", "/config"))[key] }
	c.steps(
		ctSet(form{"mp0": "vmstore:0.5,mp=/a,backup=1"}, "OK"),
		ctSet(form{"mp1": "vmstore:200/vm-200-disk-9.raw,mp=/b,size=2G"}, "OK"),
		ctSet(form{"mp2": other + ",mp=/c,size=7G"}, "OK"),
		ctSet(form{"rootfs": root + ",ro=1"}, "OK"),
	)
	require.Equal(t, other+",mp=/a,backup=1,size=512M", shown("mp0"))
	require.Equal(t, "vmstore:200/vm-200-disk-9.raw,mp=/b", shown("mp1"))
	require.Equal(t, other+",mp=/c,size=512M", shown("mp2"))
	require.Equal(t, root+",ro=1", shown("rootfs"))
	require.InDelta(t, 4<<30, c.object(ctURL("200", "/status/current"))["maxdisk"], 0)
	require.Equal(t, "volume 'vmstore:200/vm-200-disk-9.raw' does not exist", c.task("POST", ctURL("200", "/status/start"), nil))
	c.steps(ctSet(form{"delete": "mp1,mp2"}, "OK"))
	require.Equal(t, "vmstore:200/vm-200-disk-9.raw", shown("unused0"))
	require.Nil(t, shown("unused1"), "mp0 has it")
	c.steps(
		ctSet(form{"mp0": other + ",mp=/a,ro=1"}, "OK"),
		ctSet(form{"delete": "unused0"}, "OK"),
		ctSet(form{"rootfs": "vmstore:8"}, "OK"),
	)
	require.Nil(t, shown("unused0"))
	require.Equal(t, "vmstore:8", shown("rootfs"))
	require.Equal(t, "unable to parse directory volume name '8'", c.task("POST", ctURL("200", "/status/start"), nil))
	c.ct("201", form{"rootfs": "vmstore:1", "storage": "vmstore"})
	c.steps(
		ctSet(form{"rootfs": root, "unused3": "vmstore:201/vm-201-disk-0.raw"}, "OK"),
		ctSet(form{"delete": "unused3"}, "OK"), // delete_mountpoint_volume frees only what is its own.
		step{"POST", ctURL("201", "/status/start"), nil, "OK"},
	)
}

// TestValuesOfContainers: what a value needs (update_pct_config in PVE/LXC/Config.pm, and
// after it update_lxc_config in PVE/LXC.pm, when all is stored).
func TestValuesOfContainers(t *testing.T) {
	c := versionedCTs(t, "9.2", nil)
	root := c.ticketed()
	c.steps(
		ctSet(form{"timezone": "Nowhere/City"}, "timezone: invalid format - invalid time zone 'Nowhere/City'"),
		ctSet(form{"timezone": "Europe/Vienna"}, "OK"),
		ctSet(form{"mp0": "vmstore:1,mp=/a,idmap=u:0:5:2;g:0:5:9;u:1:9:1"}, "500 invalid map entry 'u 1 9 1': container uid 1 is also mapped by entry 'u 0 5 2'"),
		ctSet(form{"mp0": "vmstore:iso/a.iso,mp=/a"}, "500 unable to use volume vmstore:iso/a.iso - content type needs to be 'rootdir'"),
		ctSet(form{"net1": "name=eth1,bridge=vmbr0,host-managed=1,ip6=auto"}, "500 net1: SLAAC is not supported for host-managed network configuration."),
		ctSet(form{"net7": "name=eth7,bridge=nosuch"}, "500 bridge 'nosuch' does not exist"),
	)
	require.Contains(t, c.object(ctURL("200", "/config"))["net7"], "bridge=nosuch")
	c.steps(
		ctSet(form{"memory": "640"}, "500 bridge 'nosuch' does not exist"),
		step{"POST", ctURL("200", "/status/start"), nil, "bridge 'nosuch' does not exist"},
		ctSet(form{"delete": "net7"}, "OK"),
	)
	require.InDelta(t, 640, c.object(ctURL("200", "/config"))["memory"], 0)
	root.steps(
		ctSet(form{"hookscript": "local:snippets/no.sh"}, "500 script 'local:snippets/no.sh' does not exist"),
		ctSet(form{"hookscript": "vmstore:200/vm-200-disk-0.raw"}, "500 'vmstore:200/vm-200-disk-0.raw' is not in the snippets directory"),
	)
}

// TestQuotasAtStart: only a start asks (vm_start in PVE/API2/LXC/Status.pm), and before it
// brings waiting changes into force.
func TestQuotasAtStart(t *testing.T) {
	const refused = "Quotas are not supported by unprivileged containers."
	c := versionedCTs(t, "9.2", form{"start": "1"})
	root := "vmstore:200/vm-200-disk-0.raw,size=1G"
	c.steps(
		ctSet(form{"rootfs": root + ",quota=1"}, "OK"),
		step{"POST", ctURL("200", "/status/reboot"), nil, "OK"},
		step{"POST", ctURL("200", "/status/stop"), nil, "OK"},
		step{"POST", ctURL("200", "/status/start"), nil, refused},
		ctSet(form{"rootfs": root}, "OK"),
		step{"POST", ctURL("200", "/status/start"), nil, "OK"},
	)
}

// TestContainersOfVersions: what pve-container 5.3.5 of PVE 8.4, 6.0 of 9.1 and 6.1.10 of
// 9.2 say (PVE/API2/LXC.pm, PVE/LXC.pm, PVE/Storage/Plugin.pm).
func TestContainersOfVersions(t *testing.T) {
	const (
		copies   = "500 Cannot do full clones on a running container without snapshots"
		snapshot = "500 Full clone of a running container is only possible from a snapshot"
	)
	for _, test := range []struct {
		version, clone, first, resize string
		pressure                      any
	}{
		{"8.4", copies, "create full clone of mountpoint rootfs (vmstore:200/vm-200-disk-0.raw)", "", nil},
		{"9.1", copies, "create full clone of mountpoint rootfs (vmstore:200/vm-200-disk-0.raw)", " '--preallocation=off'", "0.00"},
		{"9.2", snapshot, "creating a clone of container 200 with ID 201", " '--preallocation=off'", "0.00"},
	} {
		t.Run(test.version, func(t *testing.T) {
			c := versionedCTs(t, test.version, form{"hostname": "x", "cpulimit": "1", "start": "1"})
			status := c.object(ctURL("200", "/status/current"))
			require.Equal(t, []any{"1", test.pressure, test.pressure}, []any{status["cpus"], status["pressurecpusome"], status["pressurememoryfull"]})
			c.steps(
				step{"POST", ctURL("200", "/clone"), form{"newid": "201"}, test.clone},
				step{"POST", ctURL("200", "/status/stop"), nil, "OK"},
				step{"POST", ctURL("200", "/clone"), form{"newid": "201"}, "OK"},
			)
			require.Equal(t, test.first, c.log()[0])
			require.NotContains(t, c.object(ctURL("200", "/status/current")), "pressurecpusome")
			require.Equal(t, "1", c.list("/nodes/father/lxc")[0]["cpus"])
			c.ctTemplate("200")
			file := "/srv/vmstore/images/200/base-200-disk-0.raw"
			refused := "command '/usr/bin/qemu-img resize" + test.resize + " -f raw " + file + " 1074790400' failed: exit code 1"
			c.steps(
				step{"PUT", ctURL("200", "/resize"), form{"disk": "rootfs", "size": "+1M"}, refused},
				step{"POST", ctURL("200", "/template"), nil, "500 you can't convert a template to a template"},
				ctSet(form{"cpulimit": "0", "tags": "b,a B"}, "OK"),
			)
			require.Equal(t, "qemu-img: Could not open '"+file+"': Could not open '"+file+"': Operation not permitted", c.logOf("resize")[0])
			require.InDelta(t, 64, c.object(ctURL("200", "/status/current"))["cpus"], 0)
			require.Equal(t, "a;b", c.object(ctURL("200", "/config"))["tags"])
		})
	}
}

// logOf is the log of the last task of a kind.
func (c *client) logOf(kind string) (log []string) {
	for _, task := range c.h.Snapshot().Tasks {
		if task.Type == kind {
			log = task.Log
		}
	}
	return log
}

// TestNamesOfContainers: in which order a change is checked: the rights to delete and to
// revert, the names, the rights to set (update_vm in PVE/API2/LXC/Config.pm); and that
// those without a name have one from their creation (create_vm in PVE/API2/LXC.pm).
func TestNamesOfContainers(t *testing.T) {
	c := versionedCTs(t, "9.2", nil)
	c.steps(
		ctSet(form{"delete": "nosuch,dev0"}, "403 Permission check failed (configuring device passthrough is only allowed for root@pam)"),
		ctSet(form{"delete": "nosuch", "dev0": "/dev/kvm"}, "delete: unknown option 'nosuch'"),
		ctSet(form{"delete": "tty", "revert": "tty"}, "delete: you can't use '-delete tty' and '-revert tty' at the same time"),
		ctSet(form{"delete": "tty", "digest": "0"}, "500 detected modified configuration - file changed by other user? Try again."),
		step{"GET", "/nodes/father/lxc/999", nil, "500 Configuration file 'nodes/father/lxc/999.conf' does not exist"},
		step{"GET", "/nodes/father/lxc/999/status", nil, "500 Configuration file 'nodes/father/lxc/999.conf' does not exist"},
		step{"POST", "/nodes/father/lxc", form{"vmid": "201", "ostemplate": "local:vztmpl/" + debianTemplate, "storage": "vmstore"}, "OK"},
		step{"POST", "/nodes/father/lxc", form{"vmid": "202", "ostemplate": "local:vztmpl/" + debianTemplate, "rootfs": "vmstore:202/vm-202-disk-0.raw"}, "unable to create CT 202 - volume 'vmstore:202/vm-202-disk-0.raw' does not exist"},
		step{"POST", "/nodes/father/lxc", form{"vmid": "202", "ostemplate": "local:vztmpl/" + debianTemplate, "rootfs": "vmstore:1", "mp0": "8"}, "mp0: invalid format - format error\nmp0.mp: property is missing and it is not optional"},
	)
	conf := c.object(ctURL("201", "/config"))
	require.Equal(t, []any{"CT201", 512.0, 512.0, 1.0}, []any{conf["hostname"], conf["memory"], conf["swap"], conf["unprivileged"]})
}

// TestMovingContainers: what speaks against it (migrate_vm_precondition in
// PVE/API2/LXC.pm, prepare in PVE/LXC/Migrate.pm), and features (has_feature in
// PVE/LXC/Config.pm).
func TestMovingContainers(t *testing.T) {
	c := newClient(t, pve.Config{Nodes: []string{"mother"}, Offline: []string{"mother"}})
	c.ct("200", form{"start": "1"})
	require.Equal(t, map[string]any{"running": 1.0, "allowed-nodes": []any{"mother"}, "not-allowed-nodes": map[string]any{}}, c.object(ctURL("200", "/migrate")))
	require.Equal(t, map[string]any{"hasFeature": 1.0}, c.object(ctURL("200", "/feature?feature=snapshot")))
	c.h.Edit(func(e *pve.Edit) { e.Lock(200, "backup") })
	c.steps(step{"GET", ctURL("200", "/migrate"), nil, "500 CT is locked (backup)"})

	c = newClient(t, pve.Config{Nodes: []string{"mother"}})
	c.ct("200", form{"start": "1"})
	c.steps(
		step{"POST", ctURL("200", "/migrate"), form{"target": "mother"}, "500 can't migrate running container without --online or --restart"},
		step{"POST", ctURL("200", "/migrate"), form{"target": "mother", "online": "1"}, "migration aborted"},
		step{"POST", ctURL("200", "/migrate"), form{"target": "mother", "restart": "1"}, "OK"},
	)
}

// TestEnvironmentIsHidden: it may hold secrets, and whoever may only look at a container
// does not see it (delete_read_restricted_options in PVE/LXC.pm).
func TestEnvironmentIsHidden(t *testing.T) {
	c := versionedCTs(t, "9.2", nil)
	c.steps(
		ctSet(form{"env": "A=secret"}, "OK"),
		step{"POST", "/access/users", form{"userid": "ops@pve"}, "OK"},
		step{"PUT", "/access/acl", form{"path": "/vms", "roles": "PVEAuditor", "users": "ops@pve"}, "OK"},
	)
	token, ok := c.ok("POST", "/access/users/ops@pve/token/tk", form{"privsep": "0"}).(map[string]any)
	require.True(t, ok)
	ops := c.as("ops@pve!tk=" + fmt.Sprint(token["value"]))
	require.Equal(t, "A=secret", c.object(ctURL("200", "/config"))["env"])
	require.NotContains(t, ops.object(ctURL("200", "/config")), "env")
	require.NotContains(t, ops.ask("GET", ctURL("200", "/pending"), nil).raw, "secret")
}
