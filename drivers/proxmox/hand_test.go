package proxmox_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim"
	"github.com/homestak/homestak-gitops/engine/model"
)

// TestDamagedMarkMakesNoSecondGuest: a mark that cannot be read, or that a newer
// program wrote, is no reason to make the guest again.
func TestDamagedMarkMakesNoSecondGuest(t *testing.T) {
	for name, damage := range map[string]func(string) string{
		"broken":        func(s string) string { return s[:len(s)-5] },
		"newer":         func(s string) string { return strings.Replace(s, `"v":1`, `"v":2`, 1) },
		"site stripped": func(s string) string { return strings.Replace(s, `"site":"home",`, "", 1) },
		"another type":  func(s string) string { return strings.Replace(s, `"type":"vm"`, `"type":"pool"`, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, pvesim.Config{}, func(t *testing.T, w *world) {
				w.node("web-1", nil)
				w.apply()
				was := w.guest(10000).Config["description"]
				require.NotEqual(t, was, damage(was))
				w.host.Edit(func(e *pvesim.Edit) { e.Set(10000, "description", damage(was)) })
				p := w.plan()
				require.Empty(t, p.Steps, "%s", describe(p))
				require.True(t, p.Findings.HasErrors())
				require.Contains(t, p.Findings[0].Summary+p.Findings[0].Detail, "10000")
			})
		})
	}
}

// TestDiskDetachedByHandIsNotReplacedByAnEmptyOne: its data lie on an unused disk.
func TestDiskDetachedByHandIsNotReplacedByAnEmptyOne(t *testing.T) {
	inTime(t, pvesim.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.node("db", func(v *proxmox.VM) { v.Disks = []proxmox.Disk{{Name: "data", Size: 5}} })
		w.apply()
		w.host.Edit(func(e *pvesim.Edit) {
			volume := w.guest(10000).Config["scsi1"]
			e.Set(10000, "scsi1", "")
			e.Set(10000, "unused0", strings.Split(volume, ",")[0])
		})
		p := w.plan()
		require.Empty(t, p.Steps, "%s", describe(p))
		require.True(t, p.Findings.HasErrors())
		require.Contains(t, p.Findings[0].Summary+p.Findings[0].Detail, "unused0")
	})
}

// TestPowerOfWhoeverHasTheVMIDNow: between plan and step the guest went and somebody
// else's got its VMID.
func TestStepsWithoutADigestProveAnew(t *testing.T) {
	for name, edit := range map[string]func(*proxmox.VM){
		"stop": func(v *proxmox.VM) { v.Power = "stopped" },
		"move": func(v *proxmox.VM) { v.Disks = []proxmox.Disk{{Name: "root", Storage: "local-zfs"}} },
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, pvesim.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
				w.node("web-1", nil)
				w.apply()
				edit(w.vm("web-1"))
				p := w.plan()
				require.Len(t, p.Steps, 1)
				w.host.Edit(func(e *pvesim.Edit) {
					e.Delete(10000)
					e.Add(pvesim.Guest{VMID: 10000, Kind: "qemu", Running: true, Config: map[string]string{"name": "stranger", "scsi0": "local-lvm:vm-10000-disk-0,size=4G"}})
				})
				writes := w.host.Snapshot().Writes
				failed := w.run(p)
				require.ErrorContains(t, failed[model.Address{Kind: "vm", Name: "web-1"}], "not provably")
				require.True(t, w.guest(10000).Running)
				require.Equal(t, writes, w.host.Snapshot().Writes)
			})
		})
	}
}

// TestProtectionSetMeanwhileStopsNothing: a guest that cannot be removed is not shut down first.
func TestProtectionSetMeanwhileStopsNothing(t *testing.T) {
	inTime(t, pvesim.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.node("web-1", nil)
		w.apply()
		w.drop("web-1")
		p := w.plan()
		w.host.Edit(func(e *pvesim.Edit) { e.Set(10000, "protection", "1") })
		failed := w.run(p)
		require.ErrorContains(t, failed[model.Address{Kind: "vm", Name: "web-1"}], "protect")
		require.True(t, w.guest(10000).Running)
	})
}

func TestDisksOfAProtectedGuestStay(t *testing.T) {
	inTime(t, pvesim.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.node("db", func(v *proxmox.VM) { v.Protection, v.Disks = true, []proxmox.Disk{{Name: "data", Size: 5}} })
		w.apply()
		w.vm("db").Disks, w.vm("db").Protection = nil, false // PVE judges by what stands there, not by what is asked along
		p := w.plan()
		require.Empty(t, p.Steps, "%s", describe(p))
		require.True(t, p.Findings.HasErrors())
		require.Contains(t, p.Findings[0].Summary, "protected")
	})
}
