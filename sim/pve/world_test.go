package pve_test

import (
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// TestSeeds: the same seed and the same requests make the same world.
func TestSeeds(t *testing.T) {
	world := func(seed int64) (s pve.Snapshot) {
		synctest.Test(t, func(t *testing.T) { // For the same times.
			c := newClient(t, pve.Config{Seed: seed, Guests: 20})
			c.image()
			c.vm("500", form{"net1": "virtio,bridge=vmbr0"})
			c.done("POST", vmURL("500", "/clone"), form{"newid": "501"})
			s = c.h.Snapshot()
		})
		return s
	}
	one, same, other := world(1), world(1), world(2)
	require.Equal(t, one, same)
	require.NotEqual(t, one, other)
	require.NotEqual(t, pve.New(pve.Config{Seed: 1}).Token(), pve.New(pve.Config{Seed: 2}).Token())
}

func lxcOf(c *client) string {
	for _, g := range c.h.Snapshot().Guests {
		if g.Kind == "lxc" {
			return fmt.Sprintf("/nodes/%s/lxc/%d", g.Node, g.VMID)
		}
	}
	return ""
}

// TestUnmanagedGuests: they are varied, listed, readable, and known to the status
// daemon from the start.
func TestUnmanagedGuests(t *testing.T) {
	c := newClient(t, pve.Config{Guests: 60, Nodes: []string{"mother"}})
	kinds, states, nodes, tagged := map[any]int{}, map[any]int{}, map[any]int{}, 0
	for _, entry := range c.list("/cluster/resources?type=vm") {
		kinds[entry["type"]]++
		states[entry["status"]]++
		nodes[entry["node"]]++
		require.NotEmpty(t, entry["name"])
		if entry["tags"] != nil {
			tagged++
		}
		config := c.object(fmt.Sprintf("/nodes/%s/%s/%v/config", entry["node"], entry["type"], entry["vmid"]))
		require.NotEmpty(t, config["net0"])
	}
	require.Equal(t, 60, kinds["qemu"]+kinds["lxc"])
	for _, group := range []map[any]int{kinds, states, nodes} {
		require.Len(t, group, 2)
	}
	require.NotZero(t, tagged)
	require.Less(t, tagged, 60)
	require.Equal(t, 501, c.ask("POST", lxcOf(c)+"/mtunnel", nil).status, "what is not simulated says so")
	require.Contains(t, c.h.Snapshot().Unimplemented, "POST /nodes/{node}/lxc/{vmid}/mtunnel")
}

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

// TestEdit: changes by hand show in the API.
func TestEdit(t *testing.T) {
	c := newClient(t, pve.Config{})
	c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "cores": "1", "scsi0": "local-lvm:1"})
	before, _ := c.h.Snapshot().Guest(100)
	c.h.Edit(func(e *pve.Edit) {
		e.Set(100, "cores", "4")
		e.Start(100)
		e.Lock(100, "backup")
		e.Add(pve.Guest{VMID: 200, Running: true, Config: map[string]string{"name": "stray"}})
	})
	config := c.object(vmURL("100", "/config"))
	require.EqualValues(t, 4, config["cores"])
	require.Equal(t, "backup", config["lock"])
	require.NotEqual(t, before.Digest, config["digest"])
	require.Equal(t, "running", c.object(vmURL("100", "/status/current"))["status"])
	require.Equal(t, "stray", c.object(vmURL("200", "/config"))["name"])
	c.h.Edit(func(e *pve.Edit) {
		e.Lock(100, "")
		e.Set(100, "cores", "")
		e.Stop(100)
		e.Delete(200)
	})
	require.NotContains(t, c.object(vmURL("100", "/config")), "cores")
	c.done("DELETE", vmURL("100", ""), nil)
	require.Empty(t, c.h.Snapshot().Guests)
	require.Panics(t, func() { c.h.Edit(func(e *pve.Edit) { e.Start(999) }) })
}

// TestBadConfig: a configuration that makes no sense is a mistake of the
// program.
func TestBadConfig(t *testing.T) {
	for _, c := range []pve.Config{
		{Version: "7.4"}, {Token: "nonsense"}, {Storages: []pve.Storage{{Name: "x", Type: "tape"}}},
	} {
		require.Panics(t, func() { pve.New(c) })
	}
}

// TestConcurrency: many clients at once, each with guests of its own. In the end
// there is what each made, and nothing else.
func TestConcurrency(t *testing.T) {
	c := newClient(t, pve.Config{})
	c.image()
	var clients sync.WaitGroup
	for n := range 8 {
		clients.Go(func() {
			for i := range 5 {
				id := strconv.Itoa(1000 + 10*n + i)
				if a := c.ask("POST", "/nodes/father/qemu", form{"vmid": id, "scsi0": "local-lvm:0,import-from=local:import/debian.qcow2"}); a.status != 200 {
					t.Errorf("create %s: %s", id, a.reason)
				}
				c.list("/cluster/resources")
				c.object(vmURL(id, "/config"))
				c.ok("PUT", vmURL(id, "/config"), form{"name": "vm-" + id})
				if i%2 == 1 {
					c.ok("DELETE", vmURL(id, ""), nil)
				}
			}
		})
	}
	clients.Wait()
	s := c.h.Snapshot()
	require.Len(t, s.Guests, 8*3)
	require.Len(t, s.Volumes["local-lvm"], 8*3)
	for _, g := range s.Guests {
		require.Equal(t, "vm-"+strconv.Itoa(g.VMID), g.Name())
		require.Empty(t, g.Lock)
	}
	for _, task := range s.Tasks {
		require.Equal(t, "OK", task.Status, task.UPID)
	}
}

// BenchmarkLists: what reading a host of ten thousand guests costs.
func BenchmarkLists(b *testing.B) {
	h := pve.New(pve.Config{Guests: 10000})
	var vmid int
	for _, g := range h.Snapshot().Guests {
		if g.Kind == "qemu" {
			vmid = g.VMID
		}
	}
	for name, path := range map[string]string{
		"resources": "/cluster/resources?type=vm", "config": fmt.Sprintf("/nodes/father/qemu/%d/config", vmid), "version": "/version",
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				r, err := newRequest(h, path)
				require.NoError(b, err)
				response, err := h.RoundTrip(r)
				require.NoError(b, err)
				require.Equal(b, 200, response.StatusCode)
				require.NoError(b, response.Body.Close())
			}
		})
	}
}
