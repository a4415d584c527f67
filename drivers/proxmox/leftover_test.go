package proxmox_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// TestAVolumeThatIsLeftIsNamed: a creation that died left its drive of cloud-init, and
// PVE makes none of that name a second time.
func TestAVolumeThatIsLeftIsNamed(t *testing.T) {
	for name, c := range map[string]struct {
		storage, file string
		free          string
		status        int // of the look at a guest that is not there
	}{
		"logical volume": {"local-lvm", "vm-10000-cloudinit", "pvesm free STORAGE:vm-10000-cloudinit", 0},
		"file":           {"files", "vm-10000-cloudinit.qcow2", "pvesm free STORAGE:10000/vm-10000-cloudinit.qcow2", 0},
		"image of ceph":  {"ceph", "vm-10000-cloudinit", "pvesm free STORAGE:vm-10000-cloudinit", 0},
		"data set":       {"tank", "vm-10000-cloudinit", "pvesm free STORAGE:vm-10000-cloudinit", 0},
		"pool":           {"local-lvm", "vm-10000-cloudinit", "pvesm free STORAGE:vm-10000-cloudinit", http.StatusForbidden}, // rights on a pool only
	} {
		t.Run(name, func(t *testing.T) {
			fault := func(r *http.Request) (int, bool) {
				return map[bool]int{true: c.status}[strings.HasSuffix(r.URL.Path, "/qemu/10000/pending")], false
			}
			inTime(t, pve.Config{TaskTime: time.Second, Fault: fault, Storages: append(pve.DefaultStorages(),
				pve.Storage{Name: "files", Type: "dir", Content: []string{"images"}},
				pve.Storage{Name: "ceph", Type: "rbd", Content: []string{"images"}},
				pve.Storage{Name: "tank", Type: "zfspool", Content: []string{"images"}})}, func(t *testing.T, w *world) {
				_, err := w.Driver.Post(t.Context(), "/nodes/father/storage/"+c.storage+"/content", map[string]any{"vmid": 10000, "filename": c.file, "size": "4M"})
				require.NoError(t, err)
				w.Site.Hosts["father"].Storage = &model.Storage{Disks: c.storage}
				w.Node("web-1", nil)
				failed := w.Run(w.Plan())
				err = failed[model.Address{Kind: "vm", Name: "web-1"}]
				require.ErrorContains(t, err, c.free)
				require.ErrorContains(t, err, "no guest has VMID 10000")
				var left *model.UnusableVMIDError
				require.ErrorAs(t, err, &left)
				require.Equal(t, 10000, left.VMID)
				require.Empty(t, w.Host.Snapshot().Guests)
			})
		})
	}
}
