package proxmox_test

import (
	"fmt"
	"net/http"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/sim/pve"
)

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
				require.Contains(t, fmt.Sprint(p.Findings), "disk old cannot be moved to local-zfs: snapshot before holds it")
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
				require.Contains(t, fmt.Sprint(p.Findings), "disk old cannot be removed: snapshot before holds it")

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

// TestSnapshotsThatNothingIsInTheWayOfCostNoRequest: of the disk of a linked clone the files
// do not say where it lies, so it goes nowhere.
func TestSnapshotsThatNothingIsInTheWayOfCostNoRequest(t *testing.T) {
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
