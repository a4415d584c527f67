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

// TestADiskGoesToAnotherBus with its volume, its settings as far as they fit, and its
// turn in the boot order.
func TestADiskGoesToAnotherBus(t *testing.T) {
	for power, class := range map[string]model.Class{"running": model.ClassRestart, "stopped": model.ClassNone} {
		t.Run(power, func(t *testing.T) {
			inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
				w.Node("db", func(v *guest.VM) {
					v.Power, v.Restart, v.Disks = power, "allowed", []guest.Disk{{Name: "data", Size: 5}}
				})
				w.Apply()
				was := w.Guest(10000).Config["scsi1"]
				w.Host.Edit(func(e *pve.Edit) {
					e.Set(10000, "scsi1", was+",cache=writeback,serial=abc")
					e.Set(10000, "boot", "order=net0;scsi0;scsi1")
				})
				w.Converged()
				all, root, data := volumesOf(w, 10000), file(w.Guest(10000).Config["scsi0"]), file(w.Guest(10000).Config["scsi1"])
				w.VM("db").Disks = []guest.Disk{{Name: "root", Bus: "virtio"}, {Name: "data", Size: 7, Bus: "sata"}}
				p := w.Plan()
				require.Len(t, p.Steps, 1, foundIn(p))
				require.Equal(t, class, p.Steps[0].Class)
				require.Contains(t, p.Steps[0].Reason, "the machine sees disk root under another name")
				require.Empty(t, w.Run(p))
				w.Converged()
				c := w.Guest(10000).Config
				require.Equal(t, power == "running", w.Guest(10000).Running)
				require.Equal(t, []string{root, data, "", "", "order=net0;virtio0;sata0"}, []string{file(c["virtio0"]), file(c["sata0"]), c["scsi0"], c["scsi1"], c["boot"]})
				require.Contains(t, c["sata0"], "cache=writeback")
				require.Contains(t, c["sata0"], "serial=abc")
				require.NotContains(t, c["sata0"], "iothread")
				require.Contains(t, c["sata0"], "size=7G")
				require.NotContains(t, c["virtio0"], "ssd")
				require.Equal(t, all, volumesOf(w, 10000), "the volumes are the same")
				_, m, _ := owner.ParseDescription(c["description"])
				require.Empty(t, m.Detached)
				require.Equal(t, map[string]string{"root": root, "data": data}, m.Volumes)
			})
		})
	}
}

// TestABusThatMustNotChange is refused with the way on.
func TestABusThatMustNotChange(t *testing.T) {
	for says, edit := range map[string]func(*guest.VM){
		`disk data cannot go from bus scsi to virtio while the machine runs | set restart = "allowed"`:                                 func(*guest.VM) {},
		"it is protected, and so is its disk data":                                                                                     func(v *guest.VM) { v.Protection = true },
		"options.boot names scsi1, which disk data leaves for bus virtio; and with it: disk.data.bus scsi → virtio | take boot out of": func(v *guest.VM) { v.Restart, v.Options = "allowed", map[string]string{"boot": "order=scsi1;scsi0"} },
	} {
		t.Run(says, func(t *testing.T) {
			inTime(t, pve.Config{}, func(t *testing.T, w *world) {
				w.Node("db", func(v *guest.VM) { v.Disks = []guest.Disk{{Name: "data", Size: 5}} })
				w.Apply()
				edit(w.VM("db"))
				w.Apply()
				w.VM("db").Disks[0].Bus = "virtio"
				p := w.Plan()
				require.Empty(t, p.Steps)
				require.Contains(t, foundIn(p), says)
			})
		})
	}
}

// TestAnotherBusSurvivesEveryFault: each request fails once, with and without effect,
// and the program dies at each. There is never a second volume, and none too few.
func TestAnotherBusSurvivesEveryFault(t *testing.T) {
	tellWithFaults(t, "bus", []int{596, 500, -1}, busStory)
}

func busStory(t *testing.T, r *storyRun) {
	t.Helper()
	r.quiet.Store(true) // the making of a guest has a story of its own
	w := r.world(t, pve.Config{TaskTime: time.Second})
	w.Node("db", func(v *guest.VM) { v.Restart, v.Disks = "allowed", []guest.Disk{{Name: "data", Size: 2}} })
	settle(w)
	all := volumesOf(w, 10000)
	r.quiet.Store(false)
	slots := map[string]string{}
	for _, disks := range [][]guest.Disk{
		{{Name: "root", Bus: "virtio"}, {Name: "data", Size: 2, Bus: "sata"}},
		{{Name: "root", Bus: "scsi"}, {Name: "data", Size: 3, Bus: "virtio"}},
	} {
		w.VM("db").Disks = disks
		settle(w)
		require.Equal(t, all, volumesOf(w, 10000))
		require.True(t, w.Guest(10000).Running)
		c := w.Guest(10000).Config
		_, m, _ := owner.ParseDescription(c["description"])
		slots = m.Slots
		for _, d := range disks {
			require.NotEmpty(t, file(c[slots["disk."+d.Name]]))
			require.Contains(t, slots["disk."+d.Name], d.Bus)
		}
		require.Contains(t, c["boot"], slots["disk.root"])
	}
	w.detach(10000, slots["disk.data"], "unused0") // and by hand
	settle(w)
	require.Equal(t, all, volumesOf(w, 10000))
	require.Empty(t, w.Guest(10000).Config["unused0"])
}

// TestNoDiskIsPulledOutOfWhatRuns: neither of a machine that wakes from hibernation, and
// has its disk in the place that it knew, nor of one that somebody started meanwhile.
func TestNoDiskIsPulledOutOfWhatRuns(t *testing.T) {
	for name, c := range map[string]struct {
		before, between func(*world)
		says            string
	}{
		"hibernated": {
			before:  func(w *world) { w.Host.Edit(func(e *pve.Edit) { e.Lock(10000, "suspended") }) },
			between: func(*world) {},
			says:    "the machine is hibernated, and expects disk root where it is; and with it: power stopped → running | keep the bus, start the machine",
		},
		"started": {
			before:  func(w *world) { w.VM("db").Power = "stopped" },
			between: func(w *world) { w.Host.Edit(func(e *pve.Edit) { e.Start(10000) }) },
			says:    "it runs, and a disk goes to another bus only while it is stopped: plan again",
		},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
				w.Node("db", func(v *guest.VM) { v.Power = "stopped" })
				w.Apply()
				w.VM("db").Power, w.VM("db").Restart = "running", "allowed"
				w.VM("db").Disks = []guest.Disk{{Name: "root", Bus: "virtio"}}
				c.before(w)
				p := w.Plan()
				c.between(w)
				says := foundIn(p)
				if failed := w.Run(p); len(failed) > 0 {
					says += failed[model.Address{Kind: "vm", Name: "db"}].Error()
				}
				require.Contains(t, says, c.says)
				require.NotEmpty(t, w.Guest(10000).Config["scsi0"])
			})
		})
	}
}
