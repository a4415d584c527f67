package proxmox_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/lifecycle"
	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// iso puts an ISO image onto a storage, as an administrator does.
func (w *world) iso(volids ...string) {
	w.T.Helper()
	image, err := lifecycle.Seed{Instance: "i", Name: "n", UserData: "#cloud-config\n"}.Image()
	require.NoError(w.T, err)
	for _, volid := range volids {
		require.NoError(w.T, w.Driver.SendSeed(w.T.Context(), "father", volid, image))
	}
}

// windows declares a machine that is installed by hand: a blank disk, an ISO to install
// from, and a second one with drivers.
func (w *world) windows(edit func(*guest.VM)) {
	w.Node("win", func(v *guest.VM) {
		v.Image, v.Agent = "", false
		v.Disks = []guest.Disk{{Name: "root", Size: 64, Blank: true}}
		v.Options = map[string]string{
			"bios": "ovmf", "machine": "q35", "ostype": "win11", "vga": "qxl", "efidisk0": "local-lvm:1,efitype=4m,pre-enrolled-keys=1",
			"tpmstate0": "local-lvm:1,version=v2.0", "ide0": "local:iso/win11.iso,media=cdrom", "sata0": "media=cdrom,file=local:iso/virtio.iso",
		}
		if edit != nil {
			edit(v)
		}
	})
	n := w.Site.Manifests["web"].Nodes
	n[len(n)-1].Resource.Needs = nil
}

// TestMachineInstalledByHand: what a Windows machine takes from its first plan to its end.
func TestMachineInstalledByHand(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.iso("local:iso/win11.iso", "local:iso/virtio.iso")
		w.windows(nil)
		w.Apply()
		w.Converged()
		g := w.Guest(10000)
		require.True(t, g.Running)
		require.Equal(t, "order=scsi0;ide0;sata0;net0", g.Config["boot"])
		require.Contains(t, g.Config["scsi0"], "size=64G")
		require.Contains(t, g.Config["ide0"], "local:iso/win11.iso,media=cdrom,size=")
		require.Contains(t, g.Config["sata0"], "local:iso/virtio.iso,media=cdrom,size=")
		require.Contains(t, g.Config["ide2"], "cloudinit")

		v := w.VM("win")
		v.Options["ide0"], v.Options["sata0"] = "none,media=cdrom", "none,media=cdrom"
		p := w.Apply()
		require.Equal(t, []string{"options.ide0", "options.sata0"}, proxmoxtest.Paths(p.Steps[0]))
		require.Equal(t, model.ClassHot, p.Steps[0].Class, "another medium goes in while it runs")
		w.Converged()
		require.Equal(t, "none,media=cdrom", w.Guest(10000).Config["ide0"])
		require.Empty(t, w.Guest(10000).Pending)

		delete(v.Options, "ide0")
		delete(v.Options, "sata0")
		p = w.Apply()
		require.Equal(t, model.ClassPending, p.Steps[0].Class, "the drive itself goes with a restart")
		w.Converged()
		for _, verb := range []string{"stop", "start"} {
			upid, err := w.Driver.Post(t.Context(), "/nodes/father/qemu/10000/status/"+verb, nil)
			require.NoError(t, err)
			require.NoError(t, w.Driver.WaitTask(t.Context(), upid))
		}
		w.Converged()
		require.Empty(t, w.Guest(10000).Config["ide0"])
		require.Equal(t, "order=scsi0;net0", w.Guest(10000).Config["boot"])

		w.Drop("win")
		w.Apply()
		w.Converged()
		require.Empty(t, w.Host.Snapshot().Guests)
		var left []string
		for _, vol := range w.Host.Snapshot().Volumes["local"] {
			left = append(left, vol.ID)
		}
		require.Subset(t, left, []string{"local:iso/virtio.iso", "local:iso/win11.iso"}, "an image in a drive is not removed")
	})
}

// TestMediumChangesHot on each bus, and where the drive was not among those to boot from:
// then PVE puts it there for the next start, which is worth no restart.
func TestMediumChangesHot(t *testing.T) {
	for _, boot := range []string{"", "order=scsi0", "order=scsi0;ide2"} {
		for _, slot := range []string{"ide0", "ide3", "sata5", "scsi0", "scsi7"} {
			t.Run(slot+" "+boot, func(t *testing.T) {
				inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
					w.iso("local:iso/a.iso", "local:iso/b.iso")
					w.Node("web-1", func(v *guest.VM) {
						v.Restart, v.Options = "allowed", map[string]string{slot: "local:iso/a.iso,media=cdrom"}
						if boot != "" {
							v.Options["boot"] = boot
						}
						if slot == "scsi0" { // the root disk goes to the next one
							v.Options["boot"] = "order=scsi1"
						}
					})
					w.Apply()
					w.Converged()
					for _, volume := range []string{"local:iso/b.iso", "none"} {
						w.VM("web-1").Options[slot] = "file=" + volume + ",media=cdrom"
						p := w.Apply()
						require.Equal(t, []string{"options." + slot}, proxmoxtest.Paths(p.Steps[0]))
						require.Equal(t, model.ClassHot, p.Steps[0].Class)
						require.Equal(t, volume, file(w.Guest(10000).Config[slot]))
						w.Converged()
					}
					delete(w.VM("web-1").Options, slot)
					w.Apply()
					w.Converged()
					require.Empty(t, w.Guest(10000).Config[slot])
					require.True(t, w.Guest(10000).Running)
				})
			})
		}
	}
}

// TestUndeclaredCDDrivesAreLeftAlone, and one in a slot that the files give to a CD drive is
// compared with that; a disk there is never taken for one.
func TestUndeclaredCDDrivesAreLeftAlone(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.iso("local:iso/a.iso", "local:iso/b.iso")
		w.Node("web-1", func(v *guest.VM) {
			v.Power, v.Disks = "stopped", []guest.Disk{{Name: "data", Size: 1, Bus: "sata"}}
		})
		w.Apply()
		w.Host.Edit(func(e *pve.Edit) { e.Set(10000, "ide1", "local:iso/a.iso,media=cdrom,size=374K") })
		w.Converged()
		v := w.VM("web-1")
		v.Options = map[string]string{"ide1": "local:iso/a.iso,media=cdrom"}
		w.Converged()
		v.Options["ide1"] = "local:iso/b.iso,media=cdrom"
		w.Apply()
		w.Converged()

		v.Options["sata0"] = "none,media=cdrom"
		p := w.Plan()
		require.Empty(t, p.Steps)
		require.Contains(t, foundIn(p), "slot sata0 has no room for a CD drive: it is that of disk data")
		delete(v.Options, "sata0")
		w.Host.Edit(func(e *pve.Edit) { e.Set(10000, "scsi9", "local-lvm:vm-10000-disk-0,size=1G") })
		v.Options["scsi9"] = "none,media=cdrom"
		p = w.Plan()
		require.Empty(t, p.Steps)
		require.Contains(t, foundIn(p), "it is that of a drive that was attached by hand")
	})
}

// TestDiskBesideCDDrives: disks take the slots that the files give to no CD drive.
func TestDiskBesideCDDrives(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.windows(func(v *guest.VM) {
			v.Power, v.Options = "stopped", map[string]string{"scsi0": "none,media=cdrom", "sata0": "none,media=cdrom"}
		})
		w.Apply()
		require.Equal(t, "order=scsi1;sata0;scsi0;net0", w.Guest(10000).Config["boot"])
		w.Converged()
		v := w.VM("win")
		v.Options["sata1"] = "none,media=cdrom"
		v.Disks = append(v.Disks, guest.Disk{Name: "data", Size: 1, Bus: "sata"})
		w.Apply()
		w.Converged()
		require.Equal(t, "none,media=cdrom", w.Guest(10000).Config["sata1"])
		require.Contains(t, w.Guest(10000).Config["sata2"], "size=1G")
	})
}

// TestImageInADrive: an ISO that the site declares is downloaded before its machine is
// made, is inserted again when its content changes, and is removed with its block.
func TestImageInADrive(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		addr := model.Address{Kind: "image", Name: "drivers"}
		iso := &objects.Image{URL: "https://images.test/virtio-win.iso", Checksum: "sha256:" + strings.Repeat("a", 64)}
		w.Site.Objects[addr] = &model.Resource{Addr: addr, Spec: iso}
		w.windows(func(v *guest.VM) { v.Options = map[string]string{"sata0": "drivers,media=cdrom"} })
		_, found := w.Site.Want("father")
		require.Contains(t, fmt.Sprint(found), "named without a reference")
		w.Site.Manifests["web"].Nodes[0].Resource.Needs = []model.Address{addr}
		w.Apply()
		w.Converged()
		require.Equal(t, "local:iso/homestak.home.drivers.aaaaaaaaaaaa.iso", file(w.Guest(10000).Config["sata0"]))

		iso.Checksum = "sha256:" + strings.Repeat("b", 64)
		w.Apply()
		w.Converged()
		require.Equal(t, "local:iso/homestak.home.drivers.bbbbbbbbbbbb.iso", file(w.Guest(10000).Config["sata0"]))
		require.Len(t, w.Host.Snapshot().Volumes["local"], 1)
	})
}

// TestCDDriveSurvivesEveryFault: each request of a life with CD drives may fail.
func TestCDDriveSurvivesEveryFault(t *testing.T) {
	runWithFaults(t, "cds", []int{596, 500, -1}, func(t *testing.T, r *storyRun) {
		t.Helper()
		r.quiet.Store(true)
		w := r.world(t, pve.Config{TaskTime: time.Second})
		w.iso("local:iso/win11.iso", "local:iso/virtio.iso")
		r.quiet.Store(false)
		w.windows(func(v *guest.VM) { v.Power = "stopped" })
		settle(w)
		v := w.VM("win")
		v.Options["ide0"] = "none,media=cdrom"
		delete(v.Options, "sata0")
		v.Disks = append(v.Disks, guest.Disk{Name: "data", Size: 1, Bus: "sata"})
		settle(w)
		v.Power, v.Options["ide0"] = "running", "local:iso/virtio.iso,media=cdrom"
		settle(w)
		v.Options["ide0"] = "none,media=cdrom"
		settle(w)
		g := w.Guest(10000)
		require.Equal(t, "none,media=cdrom", g.Config["ide0"])
		require.False(t, slices.Contains(strings.Split(g.Config["sata0"], ","), "media=cdrom"), g.Config["sata0"])
		require.Len(t, w.Host.Snapshot().Volumes["local-lvm"], 5, "root, data, firmware, TPM, cloud-init")
		require.Len(t, w.Host.Snapshot().Volumes["local"], 2)
	})
}

// TestRandomCDDrivesConverge: whatever drives come, change and go, one apply and perhaps a
// restart is enough, and what is in force is what was declared.
func TestRandomCDDrivesConverge(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		draw := func() map[string]string {
			out := map[string]string{}
			for _, slot := range rapid.SliceOfDistinct(rapid.SampledFrom([]string{"ide0", "ide1", "ide3", "sata0", "sata3", "scsi2", "scsi9"}), rapid.ID[string]).Draw(rt, "slots") {
				out[slot] = rapid.SampledFrom([]string{"none", "local:iso/a.iso", "local:iso/b.iso"}).Draw(rt, "medium") + ",media=cdrom"
			}
			if rapid.Bool().Draw(rt, "boot") {
				order := append([]string{"scsi0"}, slices.Sorted(maps.Keys(out))...)
				if rapid.Bool().Draw(rt, "turned") {
					slices.Reverse(order)
				}
				out["boot"] = "order=" + strings.Join(order[:rapid.IntRange(1, len(order)).Draw(rt, "first")], ";")
			}
			return out
		}
		lives := []map[string]string{draw(), draw(), draw()}
		running := rapid.Bool().Draw(rt, "running")
		inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
			w.iso("local:iso/a.iso", "local:iso/b.iso")
			w.Node("win", func(v *guest.VM) {
				v.Restart = "allowed"
				if !running {
					v.Power = "stopped"
				}
			})
			for _, options := range lives {
				w.VM("win").Options = options
				w.Apply()
				w.Converged()
				g := w.Guest(10000)
				for slot, value := range options {
					if slot != "boot" {
						require.Equal(t, file(value), file(g.Config[slot]), "%s of %v", slot, g.Config)
					}
				}
			}
		})
	})
}

// TestMachineOfWindowsIsPinned: PVE adds a version to the type of machine that the files
// declare; another type or member is a difference all the same.
func TestMachineOfWindowsIsPinned(t *testing.T) {
	for declared, other := range map[string]string{"q35": "pc", "pc": "q35", "q35,viommu=virtio": "q35", "q35,enable-s3=0": "q35,enable-s3=1"} {
		inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
			w.windows(func(v *guest.VM) {
				v.Power, v.Options = "stopped", map[string]string{"machine": declared, "ostype": "win11"}
			})
			w.Apply()
			require.Regexp(t, `^pc-(q35|i440fx)-\d`, w.Guest(10000).Config["machine"])
			w.Converged()
			w.VM("win").Options["machine"] = other
			p := w.Apply()
			require.Equal(t, []string{"options.machine"}, proxmoxtest.Paths(p.Steps[0]))
			w.Converged()
		})
	}
}

// TestCDDriveOfATemplate: a copy gets the drives that the files say beside its template's;
// another drive of the template is not thrown out for one.
func TestCDDriveOfATemplate(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.iso("local:iso/a.iso")
		w.Template(9000, "golden")
		w.Node("web-1", func(v *guest.VM) {
			v.Template, v.Options = "golden", map[string]string{"ide0": "local:iso/a.iso,media=cdrom", "boot": "order=scsi0;ide0;net0"}
		})
		w.Apply()
		w.Converged()
		require.Equal(t, "local:iso/a.iso", file(w.Guest(10000).Config["ide0"]))
		w.Node("web-2", func(v *guest.VM) {
			v.Template, v.Options = "golden", map[string]string{"scsi0": "none,media=cdrom"}
		})
		failed := w.Run(w.Plan())
		require.ErrorContains(t, failed[model.Address{Kind: "vm", Name: "web-2"}], "the template has another drive at scsi0")
	})
}

// TestCDDrivesAskForLittle: the drive itself, and the right to see the image.
func TestCDDrivesAskForLittle(t *testing.T) {
	w := newWorld(t, pve.Config{})
	w.windows(func(v *guest.VM) {
		v.Options = map[string]string{"ide0": "isos:iso/x.iso,media=cdrom", "sata0": "none,media=cdrom"}
	})
	want, found := w.Site.Want("father")
	require.Zero(t, found.Errors(), "%v", found)
	var asked []string
	for _, n := range proxmox.Needs(w.Site, want, 9) {
		asked = append(asked, n.String())
		if n.Path == "/storage/isos" {
			require.Equal(t, [][]kind.Grant{{{Path: "/storage/isos", Priv: "Datastore.AllocateSpace"}}}, n.Or)
		}
	}
	require.Subset(t, asked, []string{"VM.Config.CDROM on /vms", "Datastore.Audit on /storage/isos"})
	require.NotContains(t, strings.Join(asked, "\n"), "/storage/local\n")
}

// TestBootOrderOfDrivesThatGo: CD drives that stand in the boot order in force go while
// another order is pending. PVE refuses to revert the order in the request that deletes one
// of its devices.
func TestBootOrderOfDrivesThatGo(t *testing.T) {
	const a, b, empty = "local:iso/a.iso,media=cdrom", "local:iso/b.iso,media=cdrom", "none,media=cdrom"
	for name, c := range map[string]struct {
		lives   [3]map[string]string
		restart string
		boot    string
	}{
		"an appended drive goes, too": {
			lives: [3]map[string]string{
				{"ide0": empty, "sata0": a},
				{"boot": "order=scsi0;ide0;sata0", "ide0": b, "sata0": a, "scsi2": a},
				{"boot": "order=scsi0"},
			},
			restart: "allowed", boot: "order=scsi0",
		},
		"another one comes": {
			lives: [3]map[string]string{
				{"ide0": a, "boot": "order=scsi0;ide0"},
				{"scsi2": a, "boot": "order=scsi0"},
				{"scsi2": b, "boot": "order=scsi0"},
			},
			restart: "never", boot: "order=scsi0;scsi2",
		},
		"one comes back that is not in the order": {
			lives: [3]map[string]string{
				{"ide0": a, "ide1": a, "boot": "order=scsi0;ide0"},
				{"ide0": a, "boot": "order=scsi0;ide0"},
				{"ide1": a, "boot": "order=scsi0"},
			},
			restart: "never", boot: "order=scsi0",
		},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
				w.iso("local:iso/a.iso", "local:iso/b.iso")
				w.Node("win", func(v *guest.VM) { v.Restart = c.restart })
				for _, options := range c.lives {
					w.VM("win").Options = options
					w.Apply()
					w.Converged()
				}
				for _, verb := range []string{"stop", "start"} {
					upid, err := w.Driver.Post(t.Context(), "/nodes/father/qemu/10000/status/"+verb, nil)
					require.NoError(t, err)
					require.NoError(t, w.Driver.WaitTask(t.Context(), upid))
				}
				g := w.Guest(10000)
				require.Empty(t, g.Config["ide0"])
				require.Equal(t, c.boot, g.Config["boot"])
				w.Converged()
			})
		})
	}
}

// TestThePlanReportsAMissingISO, and one that the plan itself gets is not missing.
func TestThePlanReportsAMissingISO(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.iso("local:iso/win11.iso")
		w.windows(nil)
		w.at("vm.win", 9, "options.sata0")
		p := w.Plan()
		require.Empty(t, p.Steps)
		require.Contains(t, foundIn(p), "9 error vm.win is not created: there is no ISO image local:iso/virtio.iso on node father |")
		w.VM("win").Options["sata0"] = "local-lvm:iso/virtio.iso,media=cdrom"
		require.Contains(t, foundIn(w.Plan()), `storage "local-lvm" on node father does not take ISO images (iso)`)
		w.VM("win").Options["sata0"] = "none,media=cdrom"
		w.Apply()
		w.Converged()
		w.Host.Edit(func(e *pve.Edit) { e.RemoveVolume("local:iso/win11.iso") })
		w.Converged()
		w.VM("win").Options["sata0"] = "local:iso/win11.iso,media=cdrom"
		p = w.Plan()
		require.Empty(t, p.Steps)
		require.Contains(t, foundIn(p), "9 error vm.win is not changed: there is no ISO image local:iso/win11.iso on node father")
	})
}
