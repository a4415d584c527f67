package proxmox_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/sim/pve"
)

func srv(size int) []guest.CTDisk {
	return []guest.CTDisk{{Name: "data", Size: size, Path: "/srv"}}
}

// TestDetachedMountComesBack with its data, be the container running or not, and be it
// before or after the restart that lets go of it.
func TestDetachedMountComesBack(t *testing.T) {
	for name, c := range map[string]struct{ power, restart string }{
		"stopped": {"stopped", "never"}, "running": {"running", "never"}, "restarted": {"running", "allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, twoStorages(), func(t *testing.T, w *world) {
				ct := w.ct("cache", func(ct *guest.CT) { ct.Power, ct.Restart, ct.Disks = c.power, c.restart, srv(5) })
				w.Apply()
				volume, all := file(w.Guest(10000).Config["mp0"]), volumesOf(w, 10000)
				require.Len(t, all, 2)
				ct.Disks = nil
				w.Apply()
				w.Converged()
				require.Equal(t, all, volumesOf(w, 10000), "its data stay")
				ct.Tags = []string{"a"} // the ownership tag is written without forgetting it
				w.Apply()

				ct.Disks = srv(5)
				w.Apply()
				w.Converged()
				require.Equal(t, all, volumesOf(w, 10000))
				require.Equal(t, volume, file(w.Guest(10000).Config["mp0"]))
				require.Empty(t, w.Guest(10000).Config["unused0"])
				require.Empty(t, w.Guest(10000).Pending)

				ct.Disks = nil
				w.Apply()
				ct.Power = "stopped"
				w.Apply()
				ct.Disks = srv(8)
				ct.Disks[0].Storage = "local-zfs" // it may come back bigger, and elsewhere
				w.Apply()
				w.Converged()
				require.Len(t, volumesOf(w, 10000), 2)
				require.Contains(t, w.Guest(10000).Config["mp0"], "local-zfs:")
				require.Contains(t, w.Guest(10000).Config["mp0"], "size=8G")
			})
		})
	}
}

// TestDetachedByHandFromARunningGuest: until the restart the volume is still in use, so
// it is kept, and no empty one is ordered in its place.
func TestDetachedByHandFromARunningGuest(t *testing.T) {
	for name, c := range map[string]struct{ url, slot string }{
		"container": {"/nodes/father/lxc/10000/config", "mp0"}, "machine": {"/nodes/father/qemu/10000/config", "sata0"},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, twoStorages(), func(t *testing.T, w *world) {
				if name == "container" {
					w.ct("db", func(ct *guest.CT) { ct.Disks = srv(5) })
				} else {
					w.Node("db", func(vm *guest.VM) { vm.Disks = []guest.Disk{{Name: "data", Size: 5, Bus: "sata"}} })
				}
				w.Apply()
				volume, all := file(w.Guest(10000).Config[c.slot]), volumesOf(w, 10000)
				require.NotEmpty(t, volume)
				w.Host.Edit(func(e *pve.Edit) { e.Set(10000, "unused0", "local-zfs:vm-10000-disk-9") }) // what it is nobody knows
				_, err := w.Driver.Put(t.Context(), c.url, map[string]any{"delete": c.slot})
				require.NoError(t, err)
				require.NotEmpty(t, w.Guest(10000).Pending)
				w.Apply()
				require.Empty(t, w.Guest(10000).Pending)
				w.Converged()
				require.Equal(t, volume, file(w.Guest(10000).Config[c.slot]))
				w.Host.Edit(func(e *pve.Edit) { e.Stop(10000); e.Start(10000) })
				w.Converged()
				require.Equal(t, all, volumesOf(w, 10000))
			})
		})
	}
}

// TestRemovedMountTakesItsData where the files said so before it left them.
func TestRemovedMountTakesItsData(t *testing.T) {
	for _, power := range []string{"stopped", "running"} {
		t.Run(power, func(t *testing.T) {
			inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
				ct := w.ct("cache", func(c *guest.CT) {
					c.Power = power
					c.Disks = append(srv(5), guest.CTDisk{Name: "logs", Size: 2, Path: "/logs"})
				})
				w.Apply()
				ct.Disks[0].Remove = true
				p := w.Apply()
				require.Equal(t, []string{"disk.data.remove"}, proxmoxtest.Paths(p.Steps[0]))
				require.Equal(t, model.ClassNone, p.Steps[0].Class)
				w.Converged()
				ct.Disks = nil
				p = w.Apply()
				require.Contains(t, p.Steps[0].Reason, "the data of disk data are removed")
				require.NotContains(t, p.Steps[0].Reason, "disk logs")
				w.Converged()
				if power == "running" { // both wait for the restart; then the data of the one go
					require.Len(t, volumesOf(w, 10000), 3)
					w.Host.Edit(func(e *pve.Edit) { e.Stop(10000) })
					p = w.Apply() // PVE let go of them as it stopped
					require.Contains(t, p.Steps[0].Reason, "the data of disk data are removed")
				}
				w.Converged()
				require.Len(t, volumesOf(w, 10000), 2, "root and logs")
				_, m, _ := owner.ParseDescription(w.Guest(10000).Config["description"])
				require.NotContains(t, m.Detached, "data")
				require.Contains(t, m.Detached, "logs")
			})
		})
	}
}

// mountsLife detaches two disks of a stopped container, of which one goes with its
// data, and takes the other one back.
func mountsLife(t *testing.T, r *storyRun) {
	t.Helper()
	w := r.world(t, pve.Config{TaskTime: time.Second})
	ct := w.ct("cache", func(c *guest.CT) {
		c.Power = "stopped"
		c.Disks = append(srv(5), guest.CTDisk{Name: "logs", Size: 2, Path: "/logs", Remove: true})
	})
	settle(w)
	volume := file(w.Guest(10000).Config["mp0"])
	ct.Disks = nil
	settle(w)
	require.Len(t, volumesOf(w, 10000), 2, "root and data")
	ct.Disks = srv(6)
	settle(w)
	g := w.Guest(10000)
	require.Len(t, volumesOf(w, 10000), 2)
	require.Equal(t, volume, file(g.Config["mp0"]))
	require.Contains(t, g.Config["mp0"], "size=6G")
	require.NotContains(t, fmt.Sprint(g.Config), "unused")
	_, m, _ := owner.ParseDescription(g.Config["description"])
	require.Empty(t, m.Detached)
}

func TestEveryRequestOfMountsMayFail(t *testing.T) {
	tellWithFaults(t, "mounts", []int{596, 500, -1}, mountsLife)
}

// TestRootOfAContainerCannotLeave the files.
func TestRootOfAContainerCannotLeave(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		w.ct("cache", func(c *guest.CT) { c.Disks = []guest.CTDisk{{Name: "root", Remove: true}} })
		_, found := w.Site.Want("father")
		require.Contains(t, fmt.Sprint(found), "the root disk cannot be removed from the files")
	})
}

// TestMountGrowsWhileItsChangeWaits: what waits for a restart goes on telling the size of
// when it was ordered.
func TestMountGrowsWhileItsChangeWaits(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		ct := w.ct("cache", func(c *guest.CT) { c.Disks = srv(5) })
		w.Apply()
		ct.Disks[0].Backup = true
		w.Apply()
		ct.Disks[0].Size = 8
		w.Apply()
		require.Contains(t, w.Guest(10000).Config["mp0"], "size=8G")
		require.Contains(t, w.Guest(10000).Pending["mp0"], "size=5G")
		w.Converged()
		w.Host.Edit(func(e *pve.Edit) { e.Stop(10000) })
		w.Apply()
		require.Contains(t, w.Guest(10000).Config["mp0"], "size=8G")
		require.Contains(t, w.Guest(10000).Config["mp0"], "backup=1")
		w.Converged()
	})
}

// TestAGrowthThatDiedHalfWayIsNoSuccess: PVE has grown the volume and not said so in the
// configuration, and takes the order no second time.
func TestAGrowthThatDiedHalfWayIsNoSuccess(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.ct("cache", func(c *guest.CT) { c.Disks = []guest.CTDisk{{Name: "data", Size: 8, Path: "/srv"}} })
		w.Apply()
		mp := w.Guest(10000).Config["mp0"]
		require.Contains(t, mp, "size=8G")
		w.Host.Edit(func(e *pve.Edit) { e.Set(10000, "mp0", strings.Replace(mp, "size=8G", "size=5G", 1)) })
		err := w.Run(w.Plan())[model.Address{Kind: "ct", Name: "cache"}]
		require.ErrorContains(t, err, "its volume has that size, but its configuration says 5")
		require.ErrorContains(t, err, "`pct rescan --vmid 10000`")
		w.Host.Edit(func(e *pve.Edit) { e.Set(10000, "mp0", mp) }) // what that does
		w.Converged()
	})
}
