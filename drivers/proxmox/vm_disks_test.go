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
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// file is the volume of a drive.
func file(drive string) string {
	volume, _, _ := strings.Cut(drive, ",")
	return volume
}

// TestDetachedDiskComesBack with its data: under the same name the old volume is
// attached, never a new one.
func TestDetachedDiskComesBack(t *testing.T) {
	for _, power := range []string{"running", "stopped"} {
		for _, hotplug := range []string{"disk", "network"} { // without disk a running guest lets go at its restart only
			t.Run(power+" "+hotplug, func(t *testing.T) {
				inTime(t, twoStorages(), func(t *testing.T, w *world) {
					w.Node("db", func(v *guest.VM) {
						v.Power, v.Options = power, map[string]string{"hotplug": hotplug}
						v.Disks = []guest.Disk{{Name: "data", Size: 5}}
					})
					w.Apply()
					volume, all := file(w.Guest(10000).Config["scsi1"]), volumesOf(w, 10000)
					w.VM("db").Disks = nil
					w.Apply()
					w.Converged()
					require.Equal(t, all, volumesOf(w, 10000), "its data stay")
					w.VM("db").Tags = []string{"a"} // the ownership tag is written without forgetting it
					w.Apply()

					w.VM("db").Disks = []guest.Disk{{Name: "data", Size: 5}}
					w.Apply()
					w.Converged()
					require.Equal(t, all, volumesOf(w, 10000))
					require.Equal(t, volume, file(w.Guest(10000).Config["scsi1"]))
					require.Empty(t, w.Guest(10000).Config["unused0"])
					require.Empty(t, w.Guest(10000).Pending)

					w.VM("db").Disks = nil
					w.Apply()
					w.VM("db").Power = "stopped"
					w.Apply()
					w.VM("db").Disks = []guest.Disk{{Name: "data", Size: 8, Storage: "local-zfs"}} // and it may come back bigger, elsewhere
					w.Apply()
					w.Converged()
					require.Len(t, volumesOf(w, 10000), len(all))
					require.Contains(t, w.Guest(10000).Config["scsi1"], "local-zfs:")
					require.Contains(t, w.Guest(10000).Config["scsi1"], "size=8G")
				})
			})
		}
	}
}

// TestRemovedDiskTakesItsData where the files said so before it left them.
func TestRemovedDiskTakesItsData(t *testing.T) {
	for _, hotplug := range []string{"disk", "network"} {
		t.Run(hotplug, func(t *testing.T) {
			inTime(t, pve.Config{}, func(t *testing.T, w *world) {
				w.Node("db", func(v *guest.VM) {
					v.Options = map[string]string{"hotplug": hotplug}
					v.Disks = []guest.Disk{{Name: "data", Size: 5}, {Name: "logs", Size: 2}}
				})
				w.Apply()
				w.VM("db").Disks[0].Remove = true
				p := w.Apply()
				require.Equal(t, []string{"disk.data.remove"}, proxmoxtest.Paths(p.Steps[0]))
				require.Equal(t, model.ClassNone, p.Steps[0].Class)
				w.Converged()
				require.Len(t, volumesOf(w, 10000), 4)

				w.VM("db").Disks = nil
				p = w.Apply()
				require.Contains(t, p.Steps[0].Reason, "the data of disk data are removed")
				require.NotContains(t, p.Steps[0].Reason, "disk logs")
				w.Converged()
				if hotplug == "network" { // both wait for the restart; then the data of the one go
					require.Len(t, volumesOf(w, 10000), 4)
					w.Host.Edit(func(e *pve.Edit) { e.Stop(10000) })
					w.Apply() // PVE lets go of them as it starts the guest
					p = w.Apply()
					require.Equal(t, []string{"disk.data.remove"}, nonZero(p.Steps[0]))
					require.Contains(t, p.Steps[0].Reason, "the data of disk data are removed")
				}
				w.Converged()
				require.Len(t, volumesOf(w, 10000), 3, "root, cloud-init, logs")
				_, m, _ := owner.ParseDescription(w.Guest(10000).Config["description"])
				require.NotContains(t, m.Detached, "data")
				require.Contains(t, m.Detached, "logs")
				before := w.Guest(10000).Config["description"]
				w.VM("db").OnBoot = true
				w.Apply()
				require.Equal(t, before, w.Guest(10000).Config["description"])
			})
		})
	}
}

// nonZero are the paths of changes that take something away or bring it.
func nonZero(s plan.Step) []string {
	var out []string
	for _, c := range s.Changes {
		if c.Before != nil && c.Before != "" && c.Before != int64(0) && c.Before != false {
			out = append(out, c.Path)
		}
	}
	return out
}

// TestBusesOfDisks: each has its own slots, and a disk stays where it is.
func TestBusesOfDisks(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		w.Node("db", func(v *guest.VM) {
			v.Disks = []guest.Disk{{Name: "root", Bus: "virtio"}, {Name: "a", Size: 1, Bus: "sata"}, {Name: "b", Size: 2}}
		})
		w.Apply()
		w.Converged()
		c := w.Guest(10000).Config
		require.Contains(t, c["virtio0"], "size=10G")
		require.Equal(t, "order=virtio0", c["boot"])
		require.Contains(t, c["sata0"], "size=1G")
		require.Contains(t, c["scsi0"], "size=2G")
		w.VM("db").Disks[1].Bus = "virtio"
		p := w.Plan()
		require.Empty(t, p.Steps)
		require.Contains(t, fmt.Sprint(p.Findings), "disk a cannot go from bus sata to virtio while the machine runs")
		w.VM("db").Disks[1].Bus = "floppy"
		_, found := w.Site.Want("father")
		require.NotZero(t, found.Errors())
	})
}

// TestDisksSurviveEveryFault: each request of a disk's life fails once, with and
// without effect. In the end there is never a second volume, and none too few.
func TestDisksSurviveEveryFault(t *testing.T) {
	tellWithFaults(t, "disks", []int{596}, diskStory)
}

// diskStory adds, grows, moves, detaches, takes back and removes a disk; each
// chapter settles before its volumes are counted.
func diskStory(t *testing.T, r *storyRun) {
	t.Helper()
	c := twoStorages()
	c.TaskTime = time.Second
	r.quiet.Store(true) // the making of a guest has a story of its own
	w := r.world(t, c)
	w.Node("db", nil)
	settle(w)
	r.quiet.Store(false)
	for i, chapter := range []struct {
		disks   []guest.Disk
		volumes int
	}{
		{[]guest.Disk{{Name: "data", Size: 2}}, 3},
		{[]guest.Disk{{Name: "data", Size: 4}, {Name: "logs", Size: 1, Remove: true}}, 4},
		{[]guest.Disk{{Name: "data", Size: 4, Storage: "local-zfs"}, {Name: "logs", Size: 1, Remove: true}}, 4},
		{nil, 3},
		{[]guest.Disk{{Name: "data", Size: 5}}, 3},
	} {
		w.VM("db").Disks = chapter.disks
		settle(w)
		require.Len(t, volumesOf(w, 10000), chapter.volumes, "chapter %d", i)
	}
	require.Contains(t, w.Guest(10000).Config["scsi1"], "size=5G")
}

// TestDiskThatWaitsForARestartIsLeftAlone: PVE neither grows nor moves a disk that a
// running guest does not have yet. Once it has it, that is made up for.
func TestDiskThatWaitsForARestartIsLeftAlone(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Node("db", nil)
		w.Apply()
		w.VM("db").Disks = []guest.Disk{{Name: "data", Size: 5, Bus: "sata"}}
		w.Apply()
		require.NotContains(t, w.Guest(10000).Config, "sata0", "it can only be plugged in while the guest is off")
		w.VM("db").Disks = []guest.Disk{{Name: "data", Size: 9, Bus: "sata"}}
		p := w.Plan()
		require.Empty(t, p.Steps, "%s", proxmoxtest.Describe(p))
		require.NotEmpty(t, p.Pending)
		w.Host.Edit(func(e *pve.Edit) { e.Stop(10000) })
		w.Apply()
		w.Apply()
		require.Contains(t, w.Guest(10000).Config["sata0"], "size=9G")
		w.Converged()
	})
}

// TestDiskThatComesBackBiggerWaitsForARestart: the guest does not have it before, and
// until then PVE neither grows nor moves it.
func TestDiskThatComesBackBiggerWaitsForARestart(t *testing.T) {
	inTime(t, twoStorages(), func(t *testing.T, w *world) {
		w.Node("db", func(v *guest.VM) { v.Disks = []guest.Disk{{Name: "data", Size: 5, Bus: "sata"}} })
		w.Apply()
		all := volumesOf(w, 10000)
		w.VM("db").Disks = nil
		w.Apply()
		w.Host.Edit(func(e *pve.Edit) { e.Stop(10000) })
		w.Apply() // PVE lets go of it as it starts the guest
		w.VM("db").Disks = []guest.Disk{{Name: "data", Size: 8, Bus: "sata", Storage: "local-zfs"}}
		w.Apply()
		require.Contains(t, w.Guest(10000).Pending, "sata0")
		require.Equal(t, all, volumesOf(w, 10000))
		require.Empty(t, w.Plan().Steps)
		w.Host.Edit(func(e *pve.Edit) { e.Stop(10000) })
		w.Apply()
		w.Apply()
		require.Contains(t, w.Guest(10000).Config["sata0"], "local-zfs:")
		require.Contains(t, w.Guest(10000).Config["sata0"], "size=8G")
		w.Converged()
	})
}

// TestABootOrderMayNameADiskThatIsMade by the same change: PVE takes no device into the
// order that is not there.
func TestABootOrderMayNameADiskThatIsMade(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		w.Node("db", func(v *guest.VM) { v.Power = "stopped" })
		w.Apply()
		w.VM("db").Disks = []guest.Disk{{Name: "root"}, {Name: "data", Size: 3}}
		w.VM("db").Options = map[string]string{"boot": "order=scsi0;scsi1"}
		w.Apply()
		w.Converged()
		require.Equal(t, "order=scsi0;scsi1", w.Guest(10000).Config["boot"])
	})
}
