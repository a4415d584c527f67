package proxmox_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// PVE deals with the keys of one change in the order of a hash, and writes each before it
// looks at the next (qemu-server, PVE/API2/Qemu.pm, $update_vm_api). A disk that cannot
// be made leaves any of the others behind, made or not made. So these stories are told
// of many machines: of each the order is another one.

const machines = 12

// withFull is a host with a storage on which there is no room.
func withFull() pve.Config {
	full := pve.Storage{Name: "full", Type: "lvmthin", Content: []string{"images", "rootdir"}, Size: 1}
	return pve.Config{TaskTime: time.Second, Storages: append(pve.DefaultStorages(), full)}
}

// someDisks are three, the middle one of which cannot be made.
func someDisks() []guest.Disk {
	return []guest.Disk{{Name: "a", Size: 3}, {Name: "b", Size: 4, Storage: "full"}, {Name: "c", Size: 5}}
}

// corrected puts the disk that could not be made where there is room.
func corrected(v *guest.VM) {
	for i := range v.Disks {
		if v.Disks[i].Name == "b" {
			v.Disks[i].Storage = "local-lvm"
		}
	}
}

// TestDisksOfAHalfMadeChangeAreNotMadeTwice: of three disks that are added at once one
// finds no room. However often that is tried, those that were made are known by it.
func TestDisksOfAHalfMadeChangeAreNotMadeTwice(t *testing.T) {
	for _, power := range []string{"running", "stopped"} {
		t.Run(power, func(t *testing.T) {
			inTime(t, withFull(), func(t *testing.T, w *world) {
				for i := range machines {
					w.Node(fmt.Sprintf("db-%d", i), func(v *guest.VM) { v.Power = power })
				}
				w.Apply()
				w.Converged()
				before := len(w.volumesOf("local-lvm", 10000))
				for i := range machines {
					w.VM(fmt.Sprintf("db-%d", i)).Disks = someDisks()
				}
				for range 3 {
					require.Len(t, w.Run(w.Plan()), machines)
				}
				for i := range machines {
					corrected(w.VM(fmt.Sprintf("db-%d", i)))
				}
				w.Apply()
				w.Converged()
				for i := range machines {
					require.Len(t, w.volumesOf("local-lvm", 10000+i), before+3, "%v", w.Guest(10000+i).Config)
				}
			})
		})
	}
}

// TestHalfMadeClones: what a copy of a template lacks is made by one request, and some of
// it fails. It stays known as ours, nothing is made twice, and in the end it is complete.
func TestHalfMadeClones(t *testing.T) {
	for _, sort := range []string{"plain", "seeded"} {
		t.Run(sort, func(t *testing.T) {
			inTime(t, withFull(), func(t *testing.T, w *world) {
				w.Template(9000, "golden")
				for i := range machines {
					w.Node(fmt.Sprintf("db-%d", i), func(v *guest.VM) {
						v.Template, v.Disks = "golden", someDisks()
						if sort == "seeded" {
							v.UserData = "#cloud-config\n{}\n"
						}
					})
				}
				for range 3 {
					require.Len(t, w.Run(w.Plan()), machines)
				}
				require.Len(t, w.Host.Snapshot().Guests, machines+1)
				for i := range machines {
					corrected(w.VM(fmt.Sprintf("db-%d", i)))
				}
				w.Apply()
				if sort == "seeded" {
					time.Sleep(15 * time.Minute) // of made-up time: their first boots are over
					w.Apply()
				}
				w.Converged()
				for i := range machines {
					g := w.Guest(10000 + i)
					require.Len(t, w.volumesOf("local-lvm", 10000+i), map[string]int{"plain": 5, "seeded": 4}[sort], "%v", g.Config)
					require.Contains(t, g.Config["ide2"], map[string]string{"plain": "-cloudinit,media=cdrom", "seeded": "none,media=cdrom"}[sort])
					require.True(t, g.Running)
				}
			})
		})
	}
}

// TestMountPointThatFindsNoRoom: of a change of a container nothing is written where a part of
// it failed, and what was made for the others stays on the storage (pve-container,
// PVE/API2/LXC/Config.pm, update_vm). However often it is tried, nothing is left behind.
func TestMountPointThatFindsNoRoom(t *testing.T) {
	for _, power := range []string{"running", "stopped"} {
		t.Run(power, func(t *testing.T) {
			inTime(t, withFull(), func(t *testing.T, w *world) {
				ct := w.ct("cache", func(c *guest.CT) { c.Power = power })
				w.Apply()
				w.Converged()
				before := len(w.volumesOf("local-lvm", 10000))
				ct.Disks = []guest.CTDisk{{Name: "a", Size: 3, Path: "/a"}, {Name: "b", Size: 4, Path: "/b", Storage: "full"}, {Name: "c", Size: 5, Path: "/c"}}
				for range 3 {
					require.Len(t, w.Run(w.Plan()), 1, "%v %v", w.Guest(10000).Config, w.Guest(10000).Pending)
				}
				ct.Disks[1].Storage = "local-lvm"
				if p := w.Plan(); len(w.Run(p)) > 0 {
					w.Apply()
				}
				w.Converged()
				require.Len(t, w.volumesOf("local-lvm", 10000), before+3, "%v", w.Guest(10000).Config)
			})
		})
	}
}

// TestCopyOfAContainerThatFindsNoRoom: the same while a copy of a template gets its mount
// points. It stays bare until it has all of them, and none of them is made twice.
func TestCopyOfAContainerThatFindsNoRoom(t *testing.T) {
	inTime(t, withFull(), func(t *testing.T, w *world) {
		w.ctTemplate(9001)
		w.declare("golden-ct", &guest.Template{VMID: 9001})
		ct := w.ct("cache", func(c *guest.CT) {
			c.Template = "golden-ct"
			c.Disks = []guest.CTDisk{{Name: "a", Size: 3, Path: "/a"}, {Name: "b", Size: 4, Path: "/b"}, {Name: "c", Size: 5, Path: "/c", Storage: "full"}}
		})
		for range 3 {
			require.Len(t, w.Run(w.Plan()), 1)
		}
		ct.Disks[2].Storage = "local-lvm"
		w.Apply()
		w.Converged()
		require.Len(t, w.volumesOf("local-lvm", 10000), 4, "%v", w.Guest(10000).Config)
	})
}

// TestDiskThatLeavesBesideWhatIsRefused: PVE notes what is detached before it looks at the
// other keys, and does it with the next change, whatever became of this one. So the ownership tag
// tells by then which volume it was: the disk comes back with it, or its data go.
func TestDiskThatLeavesBesideWhatIsRefused(t *testing.T) {
	for _, data := range []string{"kept", "removed"} {
		for _, power := range []string{"running", "stopped"} {
			t.Run(data+" "+power, func(t *testing.T) {
				inTime(t, withFull(), func(t *testing.T, w *world) {
					for i := range machines {
						w.Node(fmt.Sprintf("db-%d", i), func(v *guest.VM) {
							v.Power, v.Disks = power, []guest.Disk{{Name: "a", Size: 3, Remove: data == "removed"}}
						})
					}
					w.Apply()
					w.Converged()
					volume := map[int]string{}
					for i := range machines {
						volume[i] = w.Guest(10000 + i).Config["scsi1"]
						v := w.VM(fmt.Sprintf("db-%d", i))
						v.Disks, v.Cores, v.OnBoot = nil, 3, true
						v.Options = map[string]string{"boot": "order=scsi0;net5"} // a card that is not there
					}
					require.Len(t, w.Run(w.Plan()), machines)
					for i := range machines {
						v := w.VM(fmt.Sprintf("db-%d", i))
						v.Options = nil
						if data == "kept" {
							v.Disks = []guest.Disk{{Name: "a", Size: 3}}
						}
					}
					w.Apply()
					w.Converged()
					for i := range machines {
						left := w.volumesOf("local-lvm", 10000+i)
						require.Len(t, left, map[string]int{"kept": 3, "removed": 2}[data], "%v", w.Guest(10000+i).Config)
						if data == "kept" {
							require.Equal(t, volume[i], w.Guest(10000 + i).Config["scsi1"])
						}
					}
				})
			})
		}
	}
}
