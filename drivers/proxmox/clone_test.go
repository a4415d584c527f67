package proxmox_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// cloneStory makes one guest from a template while one request is faulted, until
// nothing is left to do. counted gets every request but those that make the template.
func cloneStory(t *testing.T, r *storyRun) {
	t.Helper()
	r.quiet.Store(true)
	w := r.world(t, pve.Config{TaskTime: time.Second})
	w.Template(9000, "golden")
	r.quiet.Store(false)
	w.Node("web-1", func(v *guest.VM) {
		v.Template = "golden"
		v.Disks = []guest.Disk{{Name: "data", Size: 3}}
	})
	settle(w)
	s := w.Host.Snapshot()
	require.Len(t, s.Guests, 2)
	g := w.Guest(10000)
	require.True(t, g.Running)
	require.Empty(t, g.Lock)
	require.Contains(t, g.Config["scsi0"], "size=10G")
	require.Contains(t, g.Config["scsi1"], "size=3G")
	require.Contains(t, g.Config["ide2"], "cloudinit", "without it the guest has neither user nor address")
	require.Contains(t, g.Config["net0"], "bridge=vmbr0")
	require.Empty(t, g.Config["net1"])
	_, m, _ := owner.ParseDescription(g.Config["description"])
	require.Equal(t, "uuid="+m.UUID, g.Config["smbios1"])
	require.Equal(t, map[string]string{"disk.root": "scsi0", "disk.data": "scsi1", "nic.lan": "net0"}, m.Slots)
	volumes := 0
	for _, v := range s.Volumes["local-lvm"] {
		if v.VMID == g.VMID {
			volumes++
		}
	}
	require.Equal(t, 3, volumes)
}

func TestEveryRequestOfACloneMayFail(t *testing.T) {
	tellWithFaults(t, "clone", []int{596, 500, -1}, cloneStory)
}

func TestTemplateOnAnotherNode(t *testing.T) {
	shared := pve.Storage{Name: "nas", Type: "nfs", Content: []string{"images"}, Shared: true}
	c := pve.Config{Nodes: []string{"mother"}, Storages: append(pve.DefaultStorages(), shared)}
	inTime(t, c, func(t *testing.T, w *world) {
		h := w.Site.Hosts["father"]
		h.Nodes, h.Storage = []string{"father", "mother"}, &model.Storage{Disks: "nas"}
		w.Reopen()
		w.TemplateOn("mother", "nas", 9000, "golden")
		w.Node("web-1", func(v *guest.VM) { v.Template = "golden" })
		w.Apply()
		require.Equal(t, "father", w.Guest(10000).Node)
		w.Converged()
	})
}

// TestCloneTwice: the same step, given once more after it was done, changes nothing;
// a clone that another guest took the place of is left alone.
func TestCloneTwice(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Template(9000, "golden")
		w.Node("web-1", func(v *guest.VM) { v.Template = "golden" })
		p := w.Apply()
		step := p.Steps[len(p.Steps)-1]
		before := w.Guest(10000).Config
		require.NoError(t, w.Driver.Apply(t.Context(), step))
		require.Equal(t, before, w.Guest(10000).Config)
		w.Converged()

		notes, m, _ := owner.ParseDescription(before["description"])
		m.UUID, m.VMID, m.Slots = "", 10000, nil // as it was before it got its identity
		begun := w.signed(10000, owner.Identity{}.Begin(m))
		w.Host.Edit(func(e *pve.Edit) { e.Set(10000, "description", notes+begun) })
		p = w.Plan()
		require.Len(t, p.Steps, 1)
		w.Host.Edit(func(e *pve.Edit) {
			e.Set(10000, "description", "somebody else's")
			e.Set(10000, "name", "theirs")
		})
		theirs := w.Guest(10000).Config
		require.ErrorContains(t, w.Run(p)[step.Address], "not changed")
		require.Equal(t, theirs, w.Guest(10000).Config)
	})
}
