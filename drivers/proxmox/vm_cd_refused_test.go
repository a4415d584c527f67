package proxmox_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// everyWord is all that was found, with what to do.
func everyWord(found diag.List) string {
	out := ""
	for _, f := range found {
		out += f.Summary + " | " + f.Detail + "\n"
	}
	return out
}

// TestCDDrivesThatCannotBe are refused at their line, with what to write.
func TestCDDrivesThatCannotBe(t *testing.T) {
	for _, c := range []struct{ slot, value, want string }{
		{"ide2", "local:iso/x.iso,media=cdrom", "ide2 is the cloud-init drive"},
		{"cdrom", "local:iso/x.iso", "it is an old name of ide2"},
		{"ide0", "local-lvm:10", "option \"ide0\" is not a CD drive"},
		{"ide0", "local:iso/x.iso", "lacks media=cdrom"},
		{"ide0", "none", "lacks media=cdrom"},
		{"ide0", "cdrom,media=cdrom", "the CD drive of the node itself"},
		{"ide0", "local-lvm:cloudinit,media=cdrom", "is not an ISO image"},
		{"ide0", "local:iso/x.qcow2,media=cdrom", "is not an ISO image"},
		{"ide0", "/dev/sr0,media=cdrom", "is not an ISO image"},
		{"ide0", "debian-12,media=cdrom", "image \"debian-12\" is not an ISO image"},
		{"ide3", "none,media=cdrom", "a machine of type q35 does not start with a drive at ide3"},
		{"ide0", "none,media=cdrom,nonsense=1", "PVE refuses option ide0"},
		{"ide7", "none,media=cdrom", "PVE has no option"},
		{"scsi3", "local-lvm:10", "it is set by disk blocks"},
		{"virtio0", "none,media=cdrom", "it is set by disk blocks"},
		{"boot", "order=scsi0;ide0", "options.boot names ide0, where no drive is"},
	} {
		w := newWorld(t, pve.Config{})
		w.Node("web-1", func(v *guest.VM) { v.Options = map[string]string{c.slot: c.value, "machine": "q35"} })
		_, found := w.Site.Want("father")
		require.NotZero(t, found.Errors(), "%v", c)
		require.Contains(t, everyWord(found), c.want, "%v", c)
	}
}

// TestBlankIsSaid: a machine whose image was forgotten is none that is installed by hand.
func TestBlankIsSaid(t *testing.T) {
	for want, edit := range map[string]func(*guest.VM){
		"vm without image or template":         func(v *guest.VM) { v.Disks = nil },
		"blank = true":                         func(v *guest.VM) { v.Disks[0].Blank = false },
		"blank on a root disk that is made of": func(v *guest.VM) { v.Image = "debian-12" },
		"blank on disk \"data\"":               func(v *guest.VM) { v.Disks = append(v.Disks, guest.Disk{Name: "data", Size: 1, Blank: true}) },
		"a blank root disk without a size":     func(v *guest.VM) { v.Preset, v.Cores, v.Memory, v.Disks[0].Size = "", 1, 512, 0 },
		"clone without template":               func(v *guest.VM) { v.Clone = "full" },
	} {
		w := newWorld(t, pve.Config{})
		w.windows(edit)
		_, found := w.Site.Want("father")
		require.Contains(t, everyWord(found), want)
	}
}

// TestMissingISOIsToldByThePlan, and one that the plan itself gets is not missing.
func TestMissingISOIsToldByThePlan(t *testing.T) {
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
