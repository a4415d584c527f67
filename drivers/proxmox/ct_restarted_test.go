package proxmox_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/model"
)

// TestRestartedInTheMiddleOfATaskOfAContainer: as of a VM, with the tasks that PVE has
// for containers.
func TestRestartedInTheMiddleOfATaskOfAContainer(t *testing.T) {
	made := func(edit func(*guest.CT)) func(*world) {
		return func(w *world) { w.ct("web-1", edit) }
	}
	edited := func(edit func(*guest.CT)) func(*world) {
		return func(w *world) { edit(w.Site.Manifests["web"].Nodes[0].Resource.Spec.(*guest.CT)) }
	}
	for name, c := range map[string]interrupted{
		"create": {
			change: made(nil),
			once:   []string{"vzcreate", "vzstart"},
		},
		"clone": {
			before: func(w *world) { w.ctTemplate(9001); w.declare("golden-ct", &guest.Template{VMID: 9001}) },
			change: made(func(c *guest.CT) { c.Template = "golden-ct" }),
			once:   []string{"vzclone", "vzstart"},
		},
		"resize": {
			before: made(nil),
			change: edited(func(c *guest.CT) { c.Disk = 20 }),
			once:   []string{"resize"},
			holds: func(t *testing.T, w *world) {
				require.Contains(t, w.Guest(10000).Config["rootfs"], "size=20G")
			},
		},
		"mount": {
			before: made(nil),
			change: edited(func(c *guest.CT) {
				c.Disks, c.Restart = []guest.CTDisk{{Name: "data", Size: 3, Path: "/srv"}}, "allowed"
			}),
			holds: func(t *testing.T, w *world) {
				require.Contains(t, w.Guest(10000).Config["mp0"], "mp=/srv")
				require.Len(t, w.volumesOfContainer("local-lvm"), 2, "root and data: an order repeated would have made another")
			},
		},
		"move": {
			before: made(func(c *guest.CT) { c.Power = "stopped" }),
			change: edited(func(c *guest.CT) { c.Disks = []guest.CTDisk{{Name: "root", Storage: "local-zfs"}} }),
			once:   []string{"move_volume"},
			holds: func(t *testing.T, w *world) {
				require.Contains(t, w.Guest(10000).Config["rootfs"], "local-zfs:")
				require.Empty(t, w.volumesOfContainer("local-lvm"), "the old one went, once")
				require.Len(t, w.volumesOfContainer("local-zfs"), 1)
			},
		},
		"restart": {
			before: made(func(c *guest.CT) { c.Restart = "allowed" }),
			change: edited(func(c *guest.CT) { c.Options = map[string]string{"tty": "4"} }),
			once:   []string{"vzreboot"},
			holds: func(t *testing.T, w *world) {
				require.Empty(t, w.Guest(10000).Pending)
				require.Equal(t, "4", w.Guest(10000).Config["tty"])
			},
		},
		"stop": {
			before: made(nil),
			change: edited(func(c *guest.CT) { c.Power = "stopped" }),
			once:   []string{"vzshutdown"},
		},
		"start": {
			before: made(func(c *guest.CT) { c.Power = "stopped" }),
			change: edited(func(c *guest.CT) { c.Power = "running" }),
			once:   []string{"vzstart"},
		},
		"destroy": {
			before: made(nil),
			change: func(w *world) { w.Drop("web-1") },
			once:   []string{"vzshutdown", "vzdestroy"},
			holds: func(t *testing.T, w *world) {
				require.Empty(t, w.Host.Snapshot().Guests)
				require.Empty(t, w.volumesOfContainer("local-lvm"))
			},
		},
		"replace": {
			before: func(w *world) {
				w.ctTemplate(9001)
				w.declare("golden-ct", &guest.Template{VMID: 9001})
				w.ct("web-1", nil)
			},
			change: func(w *world) {
				n := w.Site.Manifests["web"].Nodes[0]
				n.Decomm, n.Resource.Needs = &model.Decomm{}, []model.Address{{Kind: "template", Name: "golden-ct"}}
				n.Resource.Spec.(*guest.CT).Template = "golden-ct"
			},
			once: []string{"vzdestroy", "vzclone"},
			holds: func(t *testing.T, w *world) {
				_, m, _ := owner.ParseDescription(w.Guest(10000).Config["description"])
				require.Equal(t, "template.golden-ct", m.From)
				require.True(t, w.Guest(10000).Running)
				require.Len(t, w.volumesOfContainer("local-lvm"), 1)
			},
		},
	} {
		t.Run(name, c.atAnyMoment)
	}
}

// volumesOfContainer are those of the container that these stories are about.
func (w *world) volumesOfContainer(storage string) []string {
	var out []string
	for _, v := range w.Host.Snapshot().Volumes[storage] {
		if v.VMID == 10000 {
			out = append(out, v.ID)
		}
	}
	return out
}
