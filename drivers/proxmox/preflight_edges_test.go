package proxmox_test

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// TestADiskThatLiesThereGrows whatever its storage takes by now: PVE asks for that where
// one is made or moved.
func TestADiskThatLiesThereGrows(t *testing.T) {
	inTime(t, twoStorages(), func(t *testing.T, w *world) {
		w.Node("db", func(v *guest.VM) { v.Disks = []guest.Disk{{Name: "data", Size: 2, Storage: "local-zfs"}} })
		w.Apply()
		w.Root(http.MethodPut, "/storage/local-zfs", url.Values{"content": {"rootdir"}})
		w.VM("db").Disks[0].Size = 4
		w.VM("db").NICs = []guest.NIC{{Name: "lan"}, {Name: "dmz", Bridge: "vmbr0"}} // so that the host is looked at
		w.Apply()
		w.Converged()
		w.VM("db").Disks = append(w.VM("db").Disks, guest.Disk{Name: "more", Size: 1, Storage: "local-zfs"})
		require.Contains(t, foundIn(w.Plan()), `vm.db is not changed: storage "local-zfs" on node father does not take disks of VMs`)
	})
}

// TestAStorageThatAnotherNodeLacksIsNoSightOfThisOne: that a listing did not come is still
// said, and no image is taken for gone.
func TestAStorageThatAnotherNodeLacksIsNoSightOfThisOne(t *testing.T) {
	nas := pve.Storage{Name: "nas", Type: "dir", Content: []string{"images", "import", "iso"}}
	broken := false
	c := pve.Config{
		Nodes: []string{"mother"}, Storages: append(pve.DefaultStorages(), nas),
		Fault: func(r *http.Request) (int, bool) {
			if broken && strings.HasSuffix(r.URL.Path, "/storage/nas/content") {
				return http.StatusInternalServerError, false
			}
			return 0, false
		},
	}
	inTime(t, c, func(t *testing.T, w *world) {
		w.Site.Hosts["father"].Nodes = []string{"father", "mother"}
		w.Root(http.MethodPut, "/storage/nas", url.Values{"nodes": {"father"}})
		w.Site.Objects[model.Address{Kind: "image", Name: "debian-12"}].Spec.(*objects.Image).Storage = "nas"
		w.Node("db", func(v *guest.VM) { v.Power = "stopped" })
		w.Apply()
		w.Root(http.MethodPost, "/nodes/father/qemu/10000/migrate", url.Values{"target": {"mother"}})
		w.VM("db").Disks = []guest.Disk{{Name: "data", Size: 2, Storage: "nas"}}
		broken = true
		p := w.Plan()
		require.Contains(t, foundIn(p), `there is no storage "nas" on node mother`)
		require.Empty(t, p.Steps, proxmoxtest.Describe(p))
		require.True(t, slices.ContainsFunc(p.Unknown, func(u model.Unknown) bool { return u.Scope == "images on storage nas" }))
	})
}
