package pve_test

import (
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

func ctURL(vmid, rest string) string { return "/nodes/father/lxc/" + vmid + rest }

const debianTemplate = "debian-13-standard_13.1-2_amd64.tar.zst"

// ct makes a container, with a template that is there after the first one.
func (c *client) ct(vmid string, more form) {
	c.t.Helper()
	c.done("POST", "/nodes/father/aplinfo", form{"storage": "local", "template": debianTemplate})
	params := form{
		"vmid": vmid, "hostname": "ct-" + vmid, "ostemplate": "local:vztmpl/" + debianTemplate, "rootfs": "local-lvm:2", "unprivileged": "1",
		"net0": "name=eth0,bridge=vmbr0,ip=192.0.2.50/24,gw=192.0.2.1", "password": "throwaway", "storage": "local-lvm",
	}
	maps.Copy(params, more)
	c.done("POST", "/nodes/father/lxc", params)
}

// ctTemplate makes a container a template. The call does not name the task that does it.
func (c *client) ctTemplate(vmid string) {
	c.t.Helper()
	c.ok("POST", ctURL(vmid, "/template"), nil)
	upid, _ := c.list("/nodes/father/tasks?source=all&typefilter=vztemplate&vmid=" + vmid)[0]["upid"].(string)
	require.Equal(c.t, "OK", c.wait(upid))
}

// TestContainerLocks: the id is taken with the answer, a clone is there with a lock
// before its task, and its source cannot be changed meanwhile.
func TestContainerLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{TaskTime: 4 * time.Second})
		c.ct("200", nil)
		upid := c.ok("POST", ctURL("200", "/clone"), form{"newid": "201", "hostname": "copy"})
		require.Equal(t, "create", c.object(ctURL("201", "/config"))["lock"])
		require.Equal(t, "CT is locked (disk)", c.ask("PUT", ctURL("200", "/config"), form{"memory": "1024"}).reason)
		require.Equal(t, "OK", c.wait(upid.(string)))
		copied, source := c.object(ctURL("201", "/config")), c.object(ctURL("200", "/config"))
		require.Equal(t, "copy", copied["hostname"])
		require.Equal(t, "local-lvm:vm-201-disk-0,size=2G", copied["rootfs"])
		require.NotEqual(t, source["net0"], copied["net0"], "another hardware address")
		require.NotContains(t, source, "lock")
		c.h.Edit(func(e *pve.Edit) { e.Lock(200, "backup") })
		require.Equal(t, "CT is locked (backup)", c.task("POST", ctURL("200", "/status/start"), nil))
		require.Equal(t, "CT is locked (backup)", c.ask("DELETE", ctURL("200", ""), nil).reason)
	})
}

// TestContainerRoots: a subvolume where the storage has such, an image elsewhere;
// linked clones of templates where the storage can.
func TestContainerRoots(t *testing.T) {
	for kind, test := range map[string]struct{ root, base, clone string }{
		"zfspool": {"fast:subvol-200-disk-0,size=2G", "fast:basevol-200-disk-0,size=2G", "fast:basevol-200-disk-0/subvol-201-disk-0,size=2G"},
		"lvmthin": {"fast:vm-200-disk-0,size=2G", "fast:base-200-disk-0,size=2G", "fast:vm-201-disk-0,size=2G"},
		"rbd":     {"fast:vm-200-disk-0,size=2G", "fast:base-200-disk-0,size=2G", "fast:base-200-disk-0/vm-201-disk-0,size=2G"},
	} {
		t.Run(kind, func(t *testing.T) {
			fast, err := pve.ParseStorage("fast:" + kind + ":rootdir")
			require.NoError(t, err)
			c := newClient(t, pve.Config{Storages: append(pve.DefaultStorages(), fast)})
			c.ct("200", form{"rootfs": "fast:2"})
			require.Equal(t, test.root, c.object(ctURL("200", "/config"))["rootfs"])
			require.Len(t, c.list("/nodes/father/storage/fast/content?content=rootdir"), 1)
			c.ctTemplate("200")
			require.Equal(t, test.base, c.object(ctURL("200", "/config"))["rootfs"])
			require.Equal(t, "you can't start a CT if it's a template", c.task("POST", ctURL("200", "/status/start"), nil))
			c.done("POST", ctURL("200", "/clone"), form{"newid": "201"})
			require.Equal(t, test.clone, c.object(ctURL("201", "/config"))["rootfs"])
			linked := kind != "lvmthin"
			if linked {
				require.Contains(t, c.task("DELETE", ctURL("200", ""), nil), "is still in use by linked cloned")
			}
			c.done("DELETE", ctURL("201", ""), nil)
			c.done("DELETE", ctURL("200", ""), nil)
			require.Empty(t, c.h.Snapshot().Volumes["fast"])
		})
	}
}

// TestContainerLife: addresses, waiting changes that the end of the container makes,
// a forced destruction, and secrets that nobody gets back.
func TestContainerLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{})
		c.ct("200", form{"cpulimit": "0.5", "start": "1"})
		require.NotContains(t, c.ask("GET", ctURL("200", "/config"), nil).raw, "throwaway")
		time.Sleep(11 * time.Second)
		require.InDelta(t, 0.5, c.resource(200)["maxcpu"], 0)
		require.Equal(t, "0.5", c.object(ctURL("200", "/config"))["cpulimit"])
		interfaces := c.list(ctURL("200", "/interfaces"))
		require.Equal(t, "192.0.2.50/24", interfaces[1]["inet"])
		c.ok("PUT", ctURL("200", "/config"), form{"tty": "1", "memory": "256"})
		require.Contains(t, c.list(ctURL("200", "/pending")), map[string]any{"key": "tty", "pending": 1.0})
		c.h.Edit(func(e *pve.Edit) { e.Stop(200) })
		require.NotContains(t, c.list(ctURL("200", "/pending")), map[string]any{"key": "tty", "pending": 1.0})
		c.done("POST", ctURL("200", "/status/start"), nil)
		require.Equal(t, "unable to destroy CT 200 - container is running", c.ask("DELETE", ctURL("200", ""), nil).reason)
		c.done("DELETE", ctURL("200", ""), form{"force": "1"})
		require.Empty(t, c.h.Snapshot().Guests)
	})
}

// TestContainerRights: which features and mounts a token may set.
func TestContainerRights(t *testing.T) {
	c := newClient(t, pve.Config{})
	c.ct("200", nil)
	for why, test := range map[string]struct {
		set  form
		want string
	}{
		"nesting":         {form{"features": "nesting=1"}, "OK"},
		"another feature": {form{"features": "keyctl=1"}, "Permission check failed (changing feature flags (except nesting) is only allowed for root@pam)"},
		"a folder":        {form{"mp0": "/srv,mp=/srv"}, "Permission check failed (mount point type bind is only allowed for root@pam)"},
		"a device":        {form{"dev0": "/dev/kvm"}, "Permission check failed (configuring device passthrough is only allowed for root@pam)"},
		"a hook":          {form{"hookscript": "local:snippets/x"}, "Permission check failed (changing the hookscript is only allowed for root@pam)"},
		"no such storage": {form{"mp0": "nosuch:1,mp=/srv"}, "storage 'nosuch' does not exist"},
		"no containers":   {form{"mp0": "local:1,mp=/srv"}, "storage 'local' does not allow content type 'rootdir' (Container)"},
	} {
		require.Equal(t, test.want, c.ask("PUT", ctURL("200", "/config"), test.set).reason, why)
	}
	a := c.ask("POST", "/nodes/father/lxc", form{"vmid": "201", "ostemplate": "local:vztmpl/" + debianTemplate, "storage": "local"})
	require.Equal(t, map[string]string{"storage": "storage 'local' does not support container directories"}, a.errors)
	c.ok("POST", "/storage", form{"storage": "other", "type": "lvmthin", "vgname": "two", "thinpool": "two", "content": "rootdir"})
	c.done("POST", ctURL("200", "/move_volume"), form{"volume": "rootfs", "storage": "other", "delete": "1"})
	require.Equal(t, "other:vm-200-disk-0,size=2G", c.object(ctURL("200", "/config"))["rootfs"])
}
