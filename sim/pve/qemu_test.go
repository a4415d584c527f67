package pve_test

import (
	"fmt"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// TestInventions: what a create was not told it makes up.
func TestInventions(t *testing.T) {
	c := newClient(t, pve.Config{})
	c.image()
	c.vm("100", form{"ide2": "local-lvm:cloudinit", "ostype": "win11", "cipassword": "secret", "cpulimit": "0.5", "cores": "2"})
	config := c.object(vmURL("100", "/config"))
	uuid := `[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}`
	require.Regexp(t, "^uuid="+uuid+"$", config["smbios1"])
	require.Regexp(t, "^"+uuid+"$", config["vmgenid"])
	require.Regexp(t, `^creation-qemu=[\d.]+,ctime=\d+$`, config["meta"])
	require.Regexp(t, `^virtio=BC:24:11(:[0-9A-F]{2}){3},bridge=vmbr0$`, config["net0"])
	require.Regexp(t, `^pc-i440fx-`, config["machine"], "Windows gets its machine pinned")
	require.Equal(t, "order=scsi0;ide2;net0", config["boot"])
	require.Equal(t, "local-lvm:vm-100-cloudinit,media=cdrom", config["ide2"])
	require.Equal(t, "**********", config["cipassword"])
	require.Equal(t, "0.5", config["cpulimit"], "a number is a string")
	require.EqualValues(t, 2, config["cores"])
	require.Equal(t, "1024", config["memory"])
	g, _ := c.h.Snapshot().Guest(100)
	require.NotContains(t, g.Config["cipassword"], "secret")
}

// TestDrives: a drive as ordered is not a drive as configured. Ordering twice
// allocates twice; what is taken off stays until its unusedN is deleted.
func TestDrives(t *testing.T) {
	c := newClient(t, pve.Config{})
	c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "scsi0": "local-lvm:4,ssd=on,discard=on"})
	drives := func() map[string]string {
		g, _ := c.h.Snapshot().Guest(100)
		found := map[string]string{}
		for _, key := range []string{"scsi0", "scsi1", "unused0", "unused1"} {
			if value, ok := g.Config[key]; ok {
				found[key] = value
			}
		}
		return found
	}
	set := func(params form) { c.ok("PUT", vmURL("100", "/config"), params) }
	require.Equal(t, map[string]string{"scsi0": "local-lvm:vm-100-disk-0,discard=on,size=4G,ssd=1"}, drives())
	set(form{"scsi0": "local-lvm:4,ssd=on,discard=on"})
	require.Equal(t, map[string]string{
		"scsi0": "local-lvm:vm-100-disk-1,discard=on,size=4G,ssd=1", "unused0": "local-lvm:vm-100-disk-0",
	}, drives(), "the same order again")
	set(form{"scsi0": "local-lvm:vm-100-disk-1,cache=none"})
	require.Equal(t, "local-lvm:vm-100-disk-1,cache=none,size=4G", drives()["scsi0"], "other options of the same volume")
	set(form{"scsi1": "local-lvm:vm-100-disk-0"})
	require.NotContains(t, drives(), "unused0", "in use again")
	set(form{"delete": "scsi1"})
	set(form{"delete": "unused0"})
	require.Len(t, drives(), 1)
	require.Len(t, c.h.Snapshot().Volumes["local-lvm"], 1)

	require.Equal(t, "shrinking disks is not supported", c.task("PUT", vmURL("100", "/resize"), form{"disk": "scsi0", "size": "1G"}))
	c.done("PUT", vmURL("100", "/resize"), form{"disk": "scsi0", "size": "+1G"})
	c.done("PUT", vmURL("100", "/resize"), form{"disk": "scsi0", "size": "5G"})
	require.Equal(t, "local-lvm:vm-100-disk-1,cache=none,size=5G", drives()["scsi0"])
	require.Equal(t, int64(5<<30), c.h.Snapshot().Volumes["local-lvm"][0].Size)
}

// TestMoveDisk: to another storage; the old volume stays unless told otherwise.
func TestMoveDisk(t *testing.T) {
	fast, err := pve.ParseStorage("fast:zfspool:images:100")
	require.NoError(t, err)
	c := newClient(t, pve.Config{Storages: append(pve.DefaultStorages(), fast)})
	c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "scsi0": "local-lvm:4", "scsi1": "local-lvm:1"})
	c.done("POST", vmURL("100", "/move_disk"), form{"disk": "scsi0", "storage": "fast"})
	c.done("POST", vmURL("100", "/move_disk"), form{"disk": "scsi1", "storage": "fast", "delete": "1"})
	config := c.object(vmURL("100", "/config"))
	require.Equal(t, "fast:vm-100-disk-0,size=4G", config["scsi0"])
	require.Equal(t, "local-lvm:vm-100-disk-0", config["unused0"])
	require.Equal(t, "fast:vm-100-disk-1,size=1G", config["scsi1"])
	require.Len(t, c.h.Snapshot().Volumes["local-lvm"], 1)
	c.done("DELETE", vmURL("100", ""), nil)
	require.Empty(t, c.h.Snapshot().Volumes["local-lvm"])
	require.Empty(t, c.h.Snapshot().Volumes["fast"])
}

// TestPending: what a running VM takes at once, what by a hot plug, what waits.
func TestPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{Bridges: []string{"vmbr0", "vmbr1"}})
		c.image()
		c.vm("100", form{"cores": "1", "ide2": "none,media=cdrom", "net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0"})
		c.done("POST", vmURL("100", "/status/start"), nil)
		changes := []struct {
			key, value string
			waits      bool
		}{
			{"name", "other", false},
			{"description", "d", false},
			{"tags", "t", false},
			{"onboot", "1", false},
			{"protection", "0", false},
			{"startup", "order=1", false},
			{"ciuser", "me", false},
			{"ipconfig0", "ip=dhcp", false},
			{"cpulimit", "2", false},
			{"cpuunits", "200", false},
			{"balloon", "512", false},
			{"tablet", "0", false},
			{"cores", "2", true},
			{"sockets", "2", true},
			{"memory", "2048", true},
			{"ostype", "other", true},
			{"machine", "q35", true},
			{"agent", "0", true},
			{"bios", "ovmf", true},
			{"vga", "std", true},
			{"scsihw", "virtio-scsi-pci", true},
			{"scsi1", "local-lvm:1", false},
			{"virtio0", "local-lvm:1", false},
			{"ide0", "local-lvm:1", true},
			{"sata0", "local-lvm:1", true},
			{"net1", "virtio,bridge=vmbr0", false},
			{"net0", "virtio=BC:24:11:00:00:01,bridge=vmbr1", false},
			{"net0", "virtio=BC:24:11:00:00:02,bridge=vmbr1", false},
		}
		for _, change := range changes {
			c.ok("PUT", vmURL("100", "/config"), form{change.key: change.value})
			g, _ := c.h.Snapshot().Guest(100)
			_, waits := g.Pending[change.key]
			require.Equal(t, change.waits, waits, change.key)
		}
		c.ok("PUT", vmURL("100", "/config"), form{"hotplug": "disk"})
		c.ok("PUT", vmURL("100", "/config"), form{"net2": "virtio,bridge=vmbr0"})
		g, _ := c.h.Snapshot().Guest(100)
		require.Contains(t, g.Pending, "net2", "network is no longer plugged hot")

		require.EqualValues(t, 2, c.object(vmURL("100", "/config"))["cores"], "waiting changes are shown as made")
		require.EqualValues(t, 1, c.object(vmURL("100", "/config?current=1"))["cores"])
		c.ok("PUT", vmURL("100", "/config"), form{"revert": "cores"})
		require.EqualValues(t, 1, c.object(vmURL("100", "/config"))["cores"])
		c.ok("PUT", vmURL("100", "/config"), form{"delete": "ostype,ciuser"})
		for _, entry := range c.list(vmURL("100", "/pending")) {
			if entry["key"] == "ostype" {
				require.EqualValues(t, 1, entry["delete"])
			}
		}
		time.Sleep(5 * time.Second)
		c.done("POST", vmURL("100", "/status/reboot"), nil)
		g, _ = c.h.Snapshot().Guest(100)
		require.Empty(t, g.Pending, "a reboot by the API makes them")
		require.Equal(t, "2048", g.Config["memory"])
		require.NotContains(t, g.Config, "ostype")
	})
}

// TestClones: by link from a template, by copy from a VM, on each kind of
// storage; never with the source's identity.
func TestClones(t *testing.T) {
	for _, kind := range []struct{ storage, base, clone, frees string }{
		{"dir:dir:images", "dir:100/base-100-disk-0.raw", "dir:100/base-100-disk-0.raw/101/vm-101-disk-0.qcow2", "still in use"},
		{"lvm:lvmthin:images", "lvm:base-100-disk-0", "lvm:vm-101-disk-0", "OK"},
		{"zfs:zfspool:images", "zfs:base-100-disk-0", "zfs:base-100-disk-0/vm-101-disk-0", "still in use"},
	} {
		t.Run(kind.storage, func(t *testing.T) {
			st, err := pve.ParseStorage(kind.storage)
			require.NoError(t, err)
			c := newClient(t, pve.Config{Storages: []pve.Storage{st}})
			c.done("POST", "/nodes/father/qemu", form{
				"vmid": "100", "name": "base", "scsi0": st.Name + ":1", "net0": "virtio,bridge=vmbr0", "smbios1": "uuid=3f6ec9a4-52f7-4c1e-8d6b-0a6c5ad1b001,serial=abc",
			})
			require.Regexp(t, "Linked clone feature is not supported", c.ask("POST", vmURL("100", "/clone"), form{"newid": "101", "full": "0"}).reason)
			c.done("POST", vmURL("100", "/template"), nil)
			c.done("POST", vmURL("100", "/clone"), form{"newid": "101", "name": "linked"})
			c.done("POST", vmURL("100", "/clone"), form{"newid": "102", "full": "1"})
			base, linked, full := c.object(vmURL("100", "/config")), c.object(vmURL("101", "/config")), c.object(vmURL("102", "/config"))
			require.Equal(t, kind.base+",size=1G", base["scsi0"])
			require.Equal(t, kind.clone+",size=1G", linked["scsi0"])
			require.Contains(t, full["scsi0"], "vm-102-disk-0")
			require.Equal(t, "Copy-of-VM-base", full["name"])
			for _, key := range []string{"net0", "smbios1", "vmgenid"} {
				require.Len(t, map[any]bool{base[key]: true, linked[key]: true, full[key]: true}, 3, key)
			}
			require.Contains(t, linked["smbios1"], "serial=abc")
			require.NotContains(t, linked, "template")
			require.Contains(t, c.task("DELETE", vmURL("100", ""), nil), kind.frees)
		})
	}
}

// TestCloneToOneID: a clone claims its id only in the task, so the second of
// two fails late.
func TestCloneToOneID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{TaskTime: time.Second})
		c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "scsi0": "local-lvm:1"})
		h := newPair(c, "POST", vmURL("100", "/clone"), form{"newid": "101"})
		require.ElementsMatch(t, []string{"OK", "unable to create VM 101: config file already exists"}, h)
		require.Len(t, c.h.Snapshot().Volumes["local-lvm"], 2)
	})
}

// newPair sends the same request twice before either task can begin, and
// returns both exit statuses.
func newPair(c *client, verb, path string, params form) []string {
	upids := make(chan string, 2)
	for range 2 {
		go func() { upids <- fmt.Sprint(c.ok(verb, path, params)) }()
	}
	first, second := <-upids, <-upids
	return []string{c.wait(first), c.wait(second)}
}

// TestStartFailures: what keeps a VM from starting is told by the task.
func TestStartFailures(t *testing.T) {
	tests := map[string]struct {
		create form
		edit   func(*pve.Edit)
		status string
	}{
		"no such bridge": {form{"net0": "virtio,bridge=vmbr9"}, nil, "bridge 'vmbr9' does not exist"},
		"NUMA memory":    {form{"numa": "1", "numa0": "cpus=0,memory=100"}, nil, "total memory for NUMA nodes must be equal to vm static memory"},
		"NUMA host":      {form{"numa": "1", "numa0": "cpus=0,memory=512,hostnodes=5,policy=bind"}, nil, "host NUMA node5 doesn't exist"},
		"too many cores": {form{"cores": "65"}, nil, "MAX 64 vcpus allowed per VM on this node"},
		"volume gone":    {form{"scsi0": "local-lvm:1"}, func(e *pve.Edit) { e.RemoveVolume("local-lvm:vm-100-disk-0") }, "volume 'local-lvm:vm-100-disk-0' does not exist"},
		"locked":         {nil, func(e *pve.Edit) { e.Lock(100, "backup") }, "VM is locked (backup)"},
		"a template":     {form{"template": "1"}, nil, "you can't start a vm if it's a template"},
		"no quorum":      {nil, func(e *pve.Edit) { e.Quorum(false) }, "cluster not ready - no quorum?"},
		"gone":           {nil, func(e *pve.Edit) { e.Delete(100) }, "Configuration file 'nodes/father/qemu-server/100.conf' does not exist"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := newClient(t, pve.Config{})
			params := form{"vmid": "100"}
			maps.Copy(params, test.create)
			c.done("POST", "/nodes/father/qemu", params)
			if test.edit != nil {
				c.h.Edit(test.edit)
			}
			require.Equal(t, test.status, c.task("POST", vmURL("100", "/status/start"), nil))
		})
	}
}

// TestQuorum: without it the cluster can be read and not written.
func TestQuorum(t *testing.T) {
	c := newClient(t, pve.Config{Nodes: []string{"mother"}})
	c.done("POST", "/nodes/father/qemu", form{"vmid": "100"})
	c.h.Edit(func(e *pve.Edit) { e.Quorum(false) })
	require.EqualValues(t, 0, c.list("/cluster/status")[0]["quorate"])
	require.Equal(t, "cluster not ready - no quorum?", c.ask("POST", "/nodes/father/qemu", form{"vmid": "101"}).reason)
	require.Regexp(t, `^unable to open file '/etc/pve/nodes/father/qemu-server/100.conf.tmp.\d+' - Permission denied$`,
		c.ask("PUT", vmURL("100", "/config"), form{"name": "x"}).reason)
	require.Equal(t, "create pool failed: cfs-lock 'file-user_cfg' error: no quorum!", c.ask("POST", "/pools", form{"poolid": "p"}).reason)
	require.Contains(t, c.task("DELETE", vmURL("100", ""), nil), "Permission denied")
	require.Len(t, c.h.Snapshot().Guests, 1)
}

// TestDigest: it changes exactly when the file does, and a write that carries an
// old one is refused.
func TestDigest(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := newClient(t, pve.Config{})
		c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "cores": "1", "description": "d", "tags": "a;b"})
		seen := map[string]string{} // Digest to the content it stood for.
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			params := form{}
			switch key := rapid.SampledFrom([]string{"cores", "memory", "description", "tags", "delete", "revert", "start", "stop"}).Draw(rt, "key"); key {
			case "start", "stop":
				c.task("POST", vmURL("100", "/status/"+key), nil)
			case "delete", "revert":
				params[key] = rapid.SampledFrom([]string{"cores", "memory", "description", "tags"}).Draw(rt, "which")
			case "tags":
				params[key] = rapid.SampledFrom([]string{"a;b", "b,a", "c", ""}).Draw(rt, "tags")
			case "description":
				params[key] = rapid.SampledFrom([]string{"d", "e\nf", "100%: ü", "d \n"}).Draw(rt, "text")
			default:
				params[key] = fmt.Sprint(rapid.IntRange(16, 18).Draw(rt, "number"))
			}
			before, _ := c.h.Snapshot().Guest(100)
			if len(params) > 0 {
				params["digest"] = before.Digest
				c.ok("PUT", vmURL("100", "/config"), params)
			}
			after, _ := c.h.Snapshot().Guest(100)
			content := fmt.Sprint(after.Config, after.Pending)
			if old, known := seen[after.Digest]; known {
				require.Equal(rt, old, content)
			}
			seen[after.Digest] = content
			require.Equal(rt, fmt.Sprint(before.Config, before.Pending) == content, before.Digest == after.Digest)
			if before.Digest != after.Digest {
				params := form{"cores": "3", "digest": before.Digest}
				require.Equal(rt, "checksum mismatch (file change by other user?)", c.ask("PUT", vmURL("100", "/config"), params).reason)
			}
		}
	})
}

// TestFeatures: a VM can be snapshot and not cloned by link; of a template it is the
// other way round.
func TestFeatures(t *testing.T) {
	c := newClient(t, pve.Config{Storages: []pve.Storage{{Name: "local", Type: "dir", Content: []string{"images"}}}})
	c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "scsi0": "local:1,format=qcow2", "ide2": "local:cloudinit"})
	has := func() (all []any) {
		for _, feature := range []string{"clone", "snapshot", "copy"} {
			all = append(all, c.object(vmURL("100", "/feature?feature="+feature))["hasFeature"])
		}
		return all
	}
	require.Equal(t, []any{0.0, 1.0, 1.0}, has())
	c.done("POST", vmURL("100", "/template"), nil)
	require.Equal(t, []any{1.0, 0.0, 1.0}, has())
}
