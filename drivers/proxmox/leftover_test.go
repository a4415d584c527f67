package proxmox_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim"
	"github.com/homestak/homestak-gitops/engine/model"
)

// TestAVolumeThatIsLeftIsNamed: a creation that died left its drive of cloud-init, and
// PVE makes none of that name a second time.
func TestAVolumeThatIsLeftIsNamed(t *testing.T) {
	for name, c := range map[string]struct {
		storage, file string
		free          string
	}{
		"logical volume": {"local-lvm", "vm-10000-cloudinit", "pvesm free STORAGE:vm-10000-cloudinit"},
		"file":           {"files", "vm-10000-cloudinit.qcow2", "pvesm free STORAGE:10000/vm-10000-cloudinit.qcow2"},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, pvesim.Config{TaskTime: time.Second, Storages: append(pvesim.DefaultStorages(), pvesim.Storage{Name: "files", Type: "dir", Content: []string{"images"}})}, func(t *testing.T, w *world) {
				_, err := w.d.Post(t.Context(), "/nodes/father/storage/"+c.storage+"/content", map[string]any{"vmid": 10000, "filename": c.file, "size": "4M"})
				require.NoError(t, err)
				w.site.Hosts["father"].Storage = &model.Storage{Disks: c.storage}
				w.node("web-1", nil)
				failed := w.run(w.plan())
				err = failed[model.Address{Kind: "vm", Name: "web-1"}]
				require.ErrorContains(t, err, c.free)
				require.ErrorContains(t, err, "no guest has VMID 10000")
				var left *model.LeftoverError
				require.ErrorAs(t, err, &left)
				require.Equal(t, 10000, left.VMID)
				require.Empty(t, w.host.Snapshot().Guests)
			})
		})
	}
}
