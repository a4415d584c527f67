package proxmox_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// containerLife creates two containers, changes one, replaces it, and removes the
// other; after each chapter passes run until nothing is left to do.
func containerLife(t *testing.T, r *storyRun) {
	t.Helper()
	w := r.world(t, pve.Config{TaskTime: time.Second, Guests: 2})
	others := w.Host.Snapshot().Guests
	ct := w.ct("cache", nil)
	w.ct("other", nil)
	settle(w)
	ct.Nameserver, ct.Restart, ct.Disk = []string{"9.9.9.9"}, "allowed", 12
	ct.Disks = []guest.CTDisk{{Name: "data", Size: 3, Path: "/srv"}}
	ct.NICs = []guest.CTNIC{{Name: "wan", VLAN: 7}}
	w.Drop("other")
	settle(w)
	requireLife(t, w, others, "1")
	ct.Unprivileged = false
	settle(w)
	requireLife(t, w, others, "")
	w.Drop("cache")
	settle(w)
	s := w.Host.Snapshot()
	require.Len(t, s.Guests, len(others))
	for _, v := range s.Volumes["local-lvm"] {
		require.Less(t, v.VMID, 10000, v.ID)
	}
}

func requireLife(t *testing.T, w *world, others []pve.Guest, unprivileged string) {
	t.Helper()
	s := w.Host.Snapshot()
	require.Len(t, s.Guests, len(others)+1)
	for _, f := range others {
		require.Equal(t, f.Config, w.Guest(f.VMID).Config)
	}
	g := s.Guests[len(s.Guests)-1]
	require.Equal(t, "lxc", g.Kind)
	require.True(t, g.Running)
	require.Empty(t, g.Lock)
	require.Equal(t, []string{"cache", "9.9.9.9", unprivileged}, []string{g.Config["hostname"], g.Config["nameserver"], g.Config["unprivileged"]})
	require.Contains(t, g.Config["rootfs"], "size=12G")
	require.Contains(t, g.Config["mp0"], "mp=/srv,size=3G")
	volumes := 0
	for _, v := range s.Volumes["local-lvm"] {
		if v.VMID == g.VMID {
			volumes++
		}
	}
	require.Equal(t, 2, volumes, "root and data: an order repeated would have made another")
}

// containerClone makes one container from a template.
func containerClone(t *testing.T, r *storyRun) {
	t.Helper()
	r.quiet.Store(true)
	w := r.world(t, pve.Config{TaskTime: time.Second})
	w.ctTemplate(9001)
	r.quiet.Store(false)
	w.declare("golden-ct", &guest.Template{VMID: 9001})
	w.ct("cache", func(c *guest.CT) {
		c.Template = "golden-ct"
		c.Disks = []guest.CTDisk{{Name: "data", Size: 3, Path: "/srv"}}
	})
	settle(w)
	s := w.Host.Snapshot()
	require.Len(t, s.Guests, 2)
	g := w.Guest(10000)
	require.True(t, g.Running)
	require.Empty(t, g.Lock)
	require.Contains(t, g.Config["rootfs"], "size=10G")
	require.Contains(t, g.Config["mp0"], "size=3G")
	require.Empty(t, g.Config["net1"], "of the template only")
	require.Empty(t, g.Config["startup"], "of the template only")
	_, m, _ := owner.ParseDescription(g.Config["description"])
	require.Contains(t, g.Config["net0"], "hwaddr="+m.MAC)
	require.Equal(t, map[string]string{"disk.root": "rootfs", "disk.data": "mp0", "nic.lan": "net0"}, m.Slots)
	volumes := 0
	for _, v := range s.Volumes["local-lvm"] {
		if v.VMID == g.VMID {
			volumes++
		}
	}
	require.Equal(t, 2, volumes)
}

// TestCopiesOfOneContainerTakeTurns: PVE locks a template while it copies it, however
// long that takes.
func TestCopiesOfOneContainerTakeTurns(t *testing.T) {
	inTime(t, pve.Config{TaskTime: 5 * time.Second}, func(t *testing.T, w *world) {
		w.ctTemplate(9001)
		w.declare("golden-ct", &guest.Template{VMID: 9001})
		for _, name := range []string{"a", "b", "c"} {
			w.ct(name, func(c *guest.CT) { c.Template, c.Power = "golden-ct", "stopped" })
		}
		g, ctx := errgroup.WithContext(t.Context())
		for _, s := range w.Plan().Steps {
			if s.Address.Kind == "ct" {
				g.Go(func() error { return w.Driver.Apply(ctx, s) })
			}
		}
		require.NoError(t, g.Wait())
		w.Apply() // the template of the others
		w.Converged()

		w.ct("d", func(c *guest.CT) { c.Template = "golden-ct" })
		w.ct("e", func(c *guest.CT) { c.Template = "golden-ct" })
		steps := w.Plan().Steps
		require.Len(t, steps, 2)
		short, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		errs := make(chan error, 2)
		for _, s := range steps {
			go func() { errs <- w.Driver.Apply(short, s) }()
		}
		require.Contains(t, (<-errs).Error()+(<-errs).Error(), "waiting for another copy of CT 9001")
	})
}

// ctTemplate makes a container template to clone as an administrator does.
func (w *world) ctTemplate(vmid int) {
	w.T.Helper()
	for _, call := range []struct {
		path string
		p    map[string]any
	}{
		{"/nodes/father/storage/local/download-url", map[string]any{"content": "vztmpl", "filename": "debian-12.tar.zst", "url": "https://images.test/debian-12.tar.zst"}},
		{"/nodes/father/lxc", map[string]any{
			"vmid": vmid, "hostname": "golden-ct", "ostemplate": "local:vztmpl/debian-12.tar.zst", "rootfs": "local-lvm:2", "unprivileged": true, "startup": "order=7",
			"net0": "name=eth0,bridge=vmbr0", "net1": "name=eth1,bridge=vmbr0",
		}},
		{fmt.Sprintf("/nodes/father/lxc/%d/template", vmid), map[string]any{}},
	} {
		upid, err := w.Driver.Post(w.T.Context(), call.path, call.p)
		require.NoError(w.T, err)
		if upid != "" {
			require.NoError(w.T, w.Driver.WaitTask(w.T.Context(), upid))
		}
	}
	time.Sleep(10 * time.Second) // PVE tells nobody the task that makes a template of a container
	require.Equal(w.T, "1", w.Guest(vmid).Config["template"])
}

// TestEveryRequestOfAContainerMayFail faults each request of the stories in turn,
// once without and once with effect.
func TestEveryRequestOfAContainerMayFail(t *testing.T) {
	for name, story := range map[string]tale{"life": containerLife, "clone": containerClone} {
		tellWithFaults(t, name, []int{596, 500, -1}, story)
	}
}
