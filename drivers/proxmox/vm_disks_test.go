package proxmox_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
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
	runWithFaults(t, "disks", []int{596}, diskStory)
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
	runWithFaults(t, "bus", []int{596, 500, -1}, busStory)
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

// TestNoDiskIsPulledOutOfWhatRuns: neither out of a machine that wakes from hibernation with its disk in the old slot, nor out
// of one that was started meanwhile.
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

// afterWrite edits the host right after the first write to a configuration.
func (w *world) afterWrite(edit func(*pve.Edit)) {
	d, err := proxmox.Open(proxmox.Config{
		Keys: keysOfTests, Host: w.Site.Hosts["father"], Site: "home", Owner: "father", Token: w.Host.Token(),
		Transport: proxmoxtest.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
			res, err := w.Host.RoundTrip(r)
			if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/config") && edit != nil {
				w.Host.Edit(edit)
				edit = nil
			}
			return res, err
		}),
	})
	require.NoError(w.T, err)
	w.Driver = d
}

// TestEditsBetweenTwoWritesOfAChange of one change: what they did stays.
func TestEditsBetweenTwoWritesOfAChange(t *testing.T) {
	const theirs = "local-lvm:vm-500-disk-0,size=1G"
	for name, c := range map[string]struct {
		disks []guest.Disk
		edit  func(*pve.Edit)
		says  string
		slot  string
		holds string
	}{
		"in the slot of a disk that is to be made": {
			[]guest.Disk{{Name: "root"}, {Name: "data", Size: 2}},
			func(e *pve.Edit) { e.Set(vmid, "scsi1", theirs) },
			"it was changed since the plan was made", "scsi1", theirs,
		},
		"on the volume that goes to another bus": {
			[]guest.Disk{{Name: "root", Bus: "virtio"}},
			func(e *pve.Edit) { e.Set(vmid, "unused0", theirs) },
			"which is disk root, was detached and no longer exists: plan again", "virtio0", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, pve.Config{}, func(t *testing.T, w *world) {
				w.Node("db", func(v *guest.VM) { v.Power = "stopped" })
				w.Apply()
				w.VM("db").Disks = c.disks
				p := w.Plan()
				w.afterWrite(c.edit)
				require.ErrorContains(t, w.Run(p)[model.Address{Kind: "vm", Name: "db"}], c.says)
				require.Equal(t, c.holds, w.Guest(vmid).Config[c.slot])
			})
		})
	}
}

// TestABootOrderIsDeclaredWithTheBus in which its disk goes: what the files say counts.
func TestABootOrderIsDeclaredWithTheBus(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		w.Node("db", func(v *guest.VM) { v.Power = "stopped" })
		w.Apply()
		w.VM("db").Disks = []guest.Disk{{Name: "root", Bus: "virtio"}}
		w.VM("db").Options = map[string]string{"boot": "order=net0;virtio0"}
		w.Apply()
		w.Converged()
		require.Equal(t, "order=net0;virtio0", w.Guest(vmid).Config["boot"])
	})
}

// TestARefusedMoveStartsTheMachine where it was, since the change was refused.
func TestARefusedMoveStartsTheMachine(t *testing.T) {
	refuse := false
	fault := func(r *http.Request) (int, bool) {
		if refuse && r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/config") {
			return http.StatusInternalServerError, false
		}
		return 0, false
	}
	inTime(t, pve.Config{Fault: fault}, func(t *testing.T, w *world) {
		w.Node("db", func(v *guest.VM) { v.Restart = "allowed" })
		w.Apply()
		w.VM("db").Disks = []guest.Disk{{Name: "root", Bus: "virtio"}}
		p := w.Plan()
		refuse = true
		require.Len(t, w.Run(p), 1)
		require.True(t, w.Guest(vmid).Running)
		require.NotEmpty(t, w.Guest(vmid).Config["scsi0"])
	})
}

// TestSnapshotsKeepTheirVolumes: what a snapshot holds is neither moved nor freed. The plan
// says so, and nothing is stopped for it. Volumes that are younger than the snapshot go.
func TestSnapshotsKeepTheirVolumes(t *testing.T) {
	disks := func(names ...string) (vm []guest.Disk, ct []guest.CTDisk) {
		for _, n := range names {
			vm = append(vm, guest.Disk{Name: n, Size: 2, Remove: true})
			ct = append(ct, guest.CTDisk{Name: n, Size: 2, Path: "/" + n, Remove: true})
		}
		return vm, ct
	}
	for _, kind := range []string{"qemu", "lxc"} {
		t.Run(kind, func(t *testing.T) {
			inTime(t, twoStorages(), func(t *testing.T, w *world) {
				var vm *guest.VM
				var ct *guest.CT
				if kind == "qemu" {
					w.Node("web", nil)
					vm = w.VM("web")
					vm.Disks, _ = disks("old")
				} else {
					ct = w.ct("cache", nil)
					ct.Restart = "allowed"
					_, ct.Disks = disks("old")
				}
				set := func(edit func(vm *guest.Disk, ct *guest.CTDisk), i int) {
					if vm != nil {
						edit(&vm.Disks[i], &guest.CTDisk{})
						return
					}
					edit(&guest.Disk{}, &ct.Disks[i])
				}
				to := func(storage string) func(*guest.Disk, *guest.CTDisk) {
					return func(vm *guest.Disk, ct *guest.CTDisk) { vm.Storage, ct.Storage = storage, storage }
				}
				w.Apply()
				w.Root(http.MethodPost, "/nodes/father/"+kind+"/10000/snapshot", url.Values{"snapname": {"before"}})
				w.Converged()
				young := func() {
					a, b := disks("new")
					if vm != nil {
						vm.Disks = append(vm.Disks, a...)
					} else {
						ct.Disks = append(ct.Disks, b...)
					}
				}
				young()
				w.Apply()

				set(to("local-zfs"), 1)
				w.Apply()
				w.Converged()

				set(to("local-zfs"), 0)
				p := w.Plan()
				require.Empty(t, p.Steps, "%s", proxmoxtest.Describe(p))
				require.Contains(t, fmt.Sprint(p.Findings), "disk old cannot be moved to local-zfs: snapshot before uses it")
				require.Contains(t, p.Findings[0].Detail, "listsnapshot 10000` on node father")
				require.True(t, w.Guest(10000).Running)

				set(to(""), 0)
				if vm != nil {
					vm.Disks = vm.Disks[1:]
				} else {
					ct.Disks = ct.Disks[1:]
				}
				p = w.Plan()
				require.Empty(t, p.Steps, "%s", proxmoxtest.Describe(p))
				require.Contains(t, fmt.Sprint(p.Findings), "disk old cannot be removed: snapshot before uses it")

				w.Root(http.MethodDelete, "/nodes/father/"+kind+"/10000/snapshot/before", nil)
				for range 3 { // let go of first, at a restart where it must be, and freed then
					w.Apply()
				}
				w.Converged()
				require.Len(t, w.Host.Snapshot().Volumes["local-zfs"], 1)
			})
		})
	}
}

// TestContainerIsNotStoppedForAMoveThatCannotBe: a snapshot that was made since the plan is
// found before the container is stopped; and it runs again when the move fails.
func TestContainerIsNotStoppedForAMoveThatCannotBe(t *testing.T) {
	for name, spoil := range map[string]func(w *world){
		"snapshot": func(w *world) {
			w.Root(http.MethodPost, "/nodes/father/lxc/10000/snapshot", url.Values{"snapname": {"late"}})
		},
		"full": func(w *world) { w.Host.Edit(func(e *pve.Edit) { e.Fill("local-zfs", true) }) },
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, twoStorages(), func(t *testing.T, w *world) {
				ct := w.ct("cache", func(c *guest.CT) { c.Restart, c.Disks = "allowed", srv(5) })
				w.Apply()
				ct.Disks[0].Storage = "local-zfs"
				p := w.Plan()
				require.Len(t, p.Steps, 1)
				spoil(w)
				require.Len(t, w.Run(p), 1)
				require.True(t, w.Guest(10000).Running)
				if name == "snapshot" {
					for _, task := range w.Host.Snapshot().Tasks {
						require.NotEqual(t, "vzshutdown", task.Type)
					}
				}
			})
		})
	}
}

// TestSnapshotsThatPreventNothingCostNoRequest: of the disk of a linked clone the files
// do not say where it lies, so it goes nowhere.
func TestSnapshotsThatPreventNothingCostNoRequest(t *testing.T) {
	inTime(t, twoStorages(), func(t *testing.T, w *world) {
		w.Template(9000, "golden")
		w.cloned("web", "linked")
		w.Apply()
		requests := func() int {
			before := total(w)
			w.Converged()
			return total(w) - before
		}
		without := requests()
		w.Root(http.MethodPost, "/nodes/father/qemu/10000/snapshot", url.Values{"snapname": {"before"}})
		require.Equal(t, without, requests())
	})
}
