package proxmox_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// afterWrite has somebody at work right after the first write to a configuration.
func (w *world) afterWrite(edit func(*pve.Edit)) {
	d, err := proxmox.Open(proxmox.Config{
		Keys: keysOfTests, Host: w.Site.Hosts["father"], Site: "home", Owner: "father", Token: w.Host.Token(),
		Transport: proxmox.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
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

// TestSomebodyIsAtWorkBetweenTwoWrites of one change: what they did stays.
func TestSomebodyIsAtWorkBetweenTwoWrites(t *testing.T) {
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
			"which is disk root, was detached and is not there to be attached again: plan again", "virtio0", "",
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

// TestAMachineRunsAgainWhoseDiskStayed where it was, since the change was refused.
func TestAMachineRunsAgainWhoseDiskStayed(t *testing.T) {
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
